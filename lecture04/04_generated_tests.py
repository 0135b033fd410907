"""
================================================================================
第 4 讲 · 04：代码 —— 采样、测试、过滤、聚类，和自己写的测试
================================================================================
对应讲义：lectures/lecture04_feedback_tools_code.md 第 5 节
（Li et al. 2022, AlphaCode；Chen et al. 2022, CodeT；Ridnik et al. 2024, AlphaCodium）

【问题】采了几百个程序，只许提交 10 个，交哪 10 个？没有测试，让模型自己写，测试越多越好吗？

【这里的设定】一道题是几条收费规则，每条都带一个特殊情形："运费 12 元，满 20 件免运费"。
模型逐条写成一行真的 Python，每行三种写法：correct 写对；bug 忘了特殊情形（小的输入上看不出来，
每次忘得一样）；careless 多算一点（各错各的）。程序由 code_lab.run_programs 在子进程里真的运行。
两类题：错得分散，写对比忘记更常见；错得一致，忘记比写对更常见：这个模型在这里有通病。
公开测试是最小的几个输入，像题面上的样例。"对"是在全部 INPUTS 上都与参考程序一致。
演示 2 的题只有一条规则；"别的模型"写对的机会相同，但没有这种通病。
简化：真的代码模型一次写几十行；AlphaCode 采样上百万次，过滤掉约 99%，聚类的输入由模型编。

【公式】m 个候选里有 c 个对的，随机交 s 个：P(至少一个对) = 1 - C(m-c, s) / C(m, s)。
CodeT 的双向一致：通过同一组测试 T 的程序归成一组 S，score = |S|·|T|。

运行时间：约 3 秒，只用标准库。
"""
import math
import random
import sys
from collections import Counter, defaultdict
from pathlib import Path

LECTURE = Path(__file__).resolve().parent
sys.path[:0] = [str(LECTURE), str(LECTURE.parent / "lecture02")]
from code_lab import run_programs
from tts_tools import (
    PROCEDURES, check_ascending, check_choice, check_int, check_number, mean, observe, pad, pass_at_k, print_table,
    run_script, sample_index, softmax, title,
)

GROUPS = {"错得分散": 0.6, "错得一致": -0.3}  # 两类题里 "correct" 的 logit
LOGIT_BUG = 0.0  # "bug" 的 logit
LOGIT_CARELESS = -0.3  # "careless" 的 logit
SLIPS = (1, 2)  # 手滑时这一行多算几元，任选一个
SLIPS_OTHERS = (1, 2, 3, 4, 5, 6)  # 别的模型多算几元
INPUTS = tuple(range(1, 61))  # 全部输入：在它们上面都对才算对
N_TASKS = 15  # 演示 1：每类多少道题
N_RULES = 5  # 演示 1：一道题几条规则
KS = (10, 30, 100, 300)  # 演示 1：采样多少个程序
SUBMIT = 10  # 演示 1：许交几个
N_PUBLIC = 2  # 演示 1：公开测试的个数
N_GENERATED = 12  # 演示 1：聚类用的输入个数（模型编的，没有答案）
N_TASKS_2 = 100  # 演示 2：每类多少道题
N_CANDIDATES = 40  # 演示 2：候选程序的个数，只许交一个
TEST_COUNTS = (0, 1, 10, 30, 100, 300)  # 演示 2：自己写多少个测试
TASK_SEED = 440  # 出题、选输入的随机种子
SAMPLE_SEED = 441  # 写程序的随机种子
TEST_SEED = 442  # 写测试的随机种子

# 规则、对的一行、通病的一行、k 的范围、c 的范围
KINDS = (
    ("每件 {k} 元，超过 {c} 件的部分不收", "r = r + {k} * min(x, {c})", "r = r + {k} * x", (3, 9), (10, 40)),
    ("运费 {k} 元，满 {c} 件免运费", "r = r + ({k} if x < {c} else 0)", "r = r + {k}", (5, 20), (10, 40)),
    ("每件减 {k} 元，最多减 {c} 元", "r = r - min({k} * x, {c})", "r = r - {k} * x", (2, 4), (30, 60)),
    ("每件包装 {k} 元，{c} 的倍数件免", "r = r + (0 if x % {c} == 0 else {k} * x)", "r = r + {k} * x", (1, 4), (3, 4)),
    ("每满 {c} 件减 {k} 元", "r = r - {k} * (x // {c})", "r = r - {k} * x // {c}", (2, 6), (15, 30)),
    ("超过 {c} 件的部分，每件加 {k} 元", "r = r + {k} * max(x - {c}, 0)", "r = r + 0", (1, 5), (10, 40)),
)


def make_task(rng, n_rules):
    """一道题：n_rules 条不同的规则，每条是 (KINDS 的一项, k, c)。"""
    return [(kind, rng.randint(*kind[3]), rng.randint(*kind[4])) for kind in rng.sample(KINDS, n_rules)]


def program(lines):
    """把几行拼成一个函数。"""
    return "\n    ".join(["def solve(x):", "r = 0", *lines, "return r"])


def reference(task):
    """参考程序：每一行都写对。"""
    return program([kind[1].format(k=k, c=c) for kind, k, c in task])


def write_program(task, logit, rng, other=False):
    """模型写一个程序。other=True 是别的模型：该犯通病的地方，它也只是手滑。"""
    probs, lines = softmax((logit, LOGIT_BUG, LOGIT_CARELESS)), []
    for kind, k, c in task:
        proc = PROCEDURES[sample_index(probs, rng)]
        line = kind[2 if proc == "bug" and not other else 1].format(k=k, c=c)
        if proc == "careless" or (proc == "bug" and other):
            line += f" + {rng.choice(SLIPS_OTHERS if other else SLIPS)}"
        lines.append(line)
    return program(lines)


def behaviours(sources):
    """真的运行一批程序。【返回】{程序文字: 它在 INPUTS 上的全部结果}。同样的文字只跑一次。"""
    distinct = list(dict.fromkeys(sources))
    return {source: run.values for source, run in zip(distinct, run_programs(distinct, INPUTS))}


def submit_from(groups):
    """每组轮流交一个，大组在前，共交 SUBMIT 个。groups：[(程序数, 其中对的个数)]。【返回】至少一个对的概率，精确值。"""
    groups = sorted(groups, key=lambda group: -group[0])
    order = sorted((turn, j) for j, (size, _) in enumerate(groups) for turn in range(size))
    turns = Counter(j for _, j in order[:SUBMIT])
    return 1 - math.prod(1 - pass_at_k(size, right, turns[j]) for j, (size, right) in enumerate(groups))


def four_ways(outputs, truth, public, generated):
    """一批程序的四个分数：随机交、过滤、过滤加聚类、pass@k。public、generated 是输入的下标。"""
    survivors = [out for out in outputs if all(out[j] == truth[j] for j in public)]
    clusters = defaultdict(list)
    for out in survivors:
        clusters[tuple(out[j] for j in generated)].append(out == truth)
    right = outputs.count(truth)
    ways = ([(len(outputs), right)], [(len(survivors), right)], [(len(c), sum(c)) for c in clusters.values()])
    return (*map(submit_from, ways), float(right > 0))


def choose_by_tests(outputs, truth, tests, dual):
    """
    按测试挑一个程序，并列时随机挑。tests 是 [(输入的下标, 测试认为的答案)]。【返回】挑中对的程序的概率。
    dual=False：通过最多的；dual=True：CodeT，|S|·|T| 最大的一组。
    """
    programs, group = Counter(outputs), Counter()
    passed = {out: tuple(out[j] == want for j, want in tests) for out in programs}
    for out, n in programs.items():
        group[passed[out]] += n
    scores = {out: sum(passed[out]) * (group[passed[out]] if dual else 1) for out in programs}
    best = [out for out in programs if scores[out] == max(scores.values())]
    return sum(programs[out] for out in best if out == truth) / sum(programs[out] for out in best)


def main():
    check_choice("GROUPS 的两类", "、".join(map(str, GROUPS)), ["错得分散、错得一致"])  # 下面按名字、按次序取
    for name, logit in (*GROUPS.items(), ("LOGIT_BUG", LOGIT_BUG), ("LOGIT_CARELESS", LOGIT_CARELESS)):
        check_number(name, logit)
    limits = dict.fromkeys(["N_TASKS", "SUBMIT", "N_TASKS_2", "N_CANDIDATES", "KS", "SLIPS", "SLIPS_OTHERS"], (1, None))
    limits |= {"N_RULES": (1, len(KINDS)), "N_PUBLIC": (0, len(INPUTS)), "N_GENERATED": (0, len(INPUTS))}
    limits |= {"INPUTS": (None, None), "TEST_COUNTS": (0, None)}
    for name, (low, high) in limits.items():
        value = globals()[name]
        for item in check_ascending(name, value, 1) if isinstance(value, tuple) else [value]:
            check_int(name, item, low, high)

    title(f"演示 1：采样 k 个程序，交 {SUBMIT} 个 —— 随机、过滤、过滤加聚类")
    task_rng, rng = random.Random(TASK_SEED), random.Random(SAMPLE_SEED)
    tasks = {name: [make_task(task_rng, N_RULES) for _ in range(N_TASKS)] for name in GROUPS}
    generated = {g: [task_rng.sample(range(len(INPUTS)), N_GENERATED) for _ in tasks[g]] for g in GROUPS}
    pools = {g: [[write_program(t, GROUPS[g], rng) for _ in range(max(KS))] for t in tasks[g]] for g in GROUPS}
    print("  第一题的参考程序，每条规则一行；下面是两类题的成绩：")
    for line, (kind, k, c) in zip(reference(tasks["错得分散"][0]).split("\n")[2:], tasks["错得分散"][0]):
        print(f"{pad(line, 44)}# {kind[0].format(k=k, c=c)}")
    ran = behaviours([s for g in GROUPS for t, pool in zip(tasks[g], pools[g]) for s in (reference(t), *pool)])
    scores, rows = {}, []  # 分数：{(类, k): 四种交法}。k 小的时候把样本切成几段，每段算一次
    for g in GROUPS:
        for k in KS:
            cells = [
                four_ways([ran[s] for s in pool[i : i + k]], ran[reference(task)], range(N_PUBLIC), inputs)
                for task, pool, inputs in zip(tasks[g], pools[g], generated[g])
                for i in range(0, len(pool) - k + 1, k)
            ]
            scores[g, k] = [mean(column) for column in zip(*cells)]
            rows.append([f"{g}，k = {k}", *(f"{x:.3f}" for x in scores[g, k])])
    print_table(["题目", f"随机 {SUBMIT} 个", "过滤", "过滤 + 聚类", "pass@k"], rows)
    flat, (random_, filtered, clustered, ceiling) = scores["错得分散", KS[0]][0], scores["错得分散", KS[-1]]
    _, trap_filtered, trap_clustered, trap_ceiling = scores["错得一致", KS[-1]]
    print("观察：")
    observe(
        f"真的运行了 {len(ran)} 个不同的程序。随机交 {SUBMIT} 个是平的：k 从 {KS[0]} 到 {KS[-1]}，{flat:.3f} → "
        f"{random_:.3f}，而 pass@k 到了 {ceiling:.3f}：对的程序就在里面，挑不出来。",
        abs(random_ - flat) < 0.06 and ceiling > random_ + 0.3,
    )
    observe(
        f"{N_PUBLIC} 个公开测试滤掉手滑，{random_:.3f} → {filtered:.3f}；剩下的通病，公开测试看不出来。"
        f"按行为聚类，一组只交一个：{clustered:.3f}，接近 pass@k。",
        filtered > random_ + 0.1 and clustered > filtered + 0.1 and clustered > ceiling - 0.15,
    )
    observe(
        f"聚类有条件：错的要分散。换成“错得一致”的题，聚类 {trap_clustered:.3f}，离 pass@k（{trap_ceiling:.3f}）很远，"
        f"也不比过滤（{trap_filtered:.3f}）强：大组都是犯了通病的组合，对的那一组最小，排不进前 {SUBMIT}。",
        trap_clustered < 0.6 * trap_ceiling and trap_clustered < trap_filtered + 0.06,
    )
    observe("AlphaCode（Li et al. 2022）：随机交 10 个不随 k 上升，过滤和聚类才上升。它的解释是“错的方式很多，"
            "对的程序行为相近”：这是条件，不是定律。")

    title("演示 2：自己写测试，挑一个程序 —— 测试越多越好吗")
    tasks = {name: [make_task(task_rng, 1) for _ in range(N_TASKS_2)] for name in GROUPS}
    rng, most, writers = random.Random(TEST_SEED), TEST_COUNTS[-1], {"自己": False, "别的模型": True}
    pools = {g: [[write_program(t, GROUPS[g], rng) for _ in range(N_CANDIDATES)] for t in tasks[g]] for g in GROUPS}
    books = {
        (g, who): [[write_program(t, GROUPS[g], rng, other) for _ in range(most)] for t in tasks[g]]
        for g in GROUPS for who, other in writers.items()
    }
    written = [s for pages in (*books.values(), *pools.values()) for page in pages for s in page]
    ran = behaviours([*written, *(reference(t) for g in GROUPS for t in tasks[g])])
    rows, curve, sound = [], {}, {}
    for (g, who), book in books.items():
        # 一个测试 = 一个输入，加上写测试的模型心里那个程序在它上面的结果
        suites = [[(j, ran[s][j]) for s in pages for j in [rng.randrange(len(INPUTS))]] for pages in book]
        truths = [ran[reference(t)] for t in tasks[g]]
        for m in TEST_COUNTS:
            picks = [
                [choose_by_tests([ran[s] for s in pool], truth, suite[:m], dual) for dual in (False, True)]
                for pool, truth, suite in zip(pools[g], truths, suites)
            ]
            curve[g, who, m] = [mean(column) for column in zip(*picks)]
        sound[g, who] = mean([truth[j] == want for truth, suite in zip(truths, suites) for j, want in suite] or [1])
        line = [curve[g, who, m] for m in TEST_COUNTS]
        for i, how in enumerate(("通过最多", "CodeT")):
            rows.append([f"{g}，{who}，{how}", *(f"{x:.2f}" for x in (sound[g, who], *(c[i] for c in line)))])
    print_table(["题目，测试的作者，怎样挑", "测试对", *(f"{m} 个" for m in TEST_COUNTS)], rows)
    few = min(TEST_COUNTS, key=lambda m: abs(m - 10))
    at = TEST_COUNTS.index(few)
    spread, path = ([curve[g, "自己", m][0] for m in TEST_COUNTS] for g in GROUPS)  # 挑通过最多的
    cured, dual = curve["错得一致", "别的模型", most]
    consensus = [curve[g, "自己", few][1] for g in GROUPS]
    print("观察：")
    observe(
        f"错得分散：自己写的测试越多越好，{' → '.join(f'{x:.2f}' for x in spread[1:])}（不写是 {spread[0]:.2f}），"
        f"虽然只有 {sound['错得分散', '自己']:.0%} 的测试是对的。",
        spread[-1] > spread[0] + 0.3 and all(a <= b for a, b in zip(spread[1:], spread[2:])),
    )
    observe(
        f"错得一致：自己写的测试帮不上忙。不写 {path[0]:.2f}；少的时候有涨有落，最高 {max(path):.2f}；多了就越来越糟，"
        f"{' → '.join(f'{x:.2f}' for x in path[-3:])}：测试和程序忘的是同一件事，错的给错的作证。换别的模型写，"
        f"挑通过最多的，到 {cured:.2f}。",
        path[-1] < 0.5 * path[0] and max(path) < path[0] + 0.15 and cured > path[0] + 0.3
        and all(a > b for a, b in zip(path[-3:], path[-2:])),
    )
    observe(
        f"先看参考程序过不过：别的模型写的测试更不准（{sound['错得一致', '别的模型']:.0%} 对 "
        f"{sound['错得一致', '自己']:.0%}），却更有用。要紧的不是错多少，是错得一不一样。",
        sound["错得一致", "别的模型"] < sound["错得一致", "自己"] and cured > path[-1] + 0.3,
    )
    observe(
        f"CodeT 的共识来得更快，两个方向都是：{few} 个测试时，错得分散 {consensus[0]:.2f}"
        f"（只数通过的 {spread[at]:.2f}），错得一致 {consensus[1]:.2f}（{path[at]:.2f}）。",
        consensus[0] > spread[at] and consensus[1] < path[at],
    )
    observe(
        f"错得一致、别的模型写测试：挑通过最多的到 {cured:.2f}，CodeT 停在 {dual:.2f}。|S|·|T| 偏爱人多的一组："
        "通病的那一组大，测试再老实也不够。",
        dual < cured - 0.05,
    )
    observe("CodeT（Chen et al. 2022）让 HumanEval pass@1 升了 18.8 个百分点，到 65.8%；AlphaCodium（Ridnik et al. "
            "2024）让 GPT-4 的 pass@5 从 19% 到 44%。")


if __name__ == "__main__":
    run_script(main)

"""
================================================================================
第 4 讲 · 04：代码 —— 采样、测试、过滤、聚类，和自己写的测试
================================================================================
对应讲义：lectures/lecture04_feedback_tools_code.md 第 5 节
（Li et al. 2022, AlphaCode；Chen et al. 2022, CodeT；Ridnik et al. 2024, AlphaCodium）

【问题】采了几百个程序，只许交几个，交哪几个？没有测试，让模型自己写，测试越多越好吗？

【这里的设定】一道题是几条收费规则，每条都带一个特殊情形："运费 12 元，满 20 件免运费"。模型逐条写成
一行真的 Python，有三种写法：correct 写对，概率 p = CORRECT；bug 写错特殊情形，概率 b = BUG，小的
输入上看不出来；careless 多算一点，哪个输入都看得出来。程序由 run_programs 在子进程里真的运行。
两类题只差在 bug 的样子。错得分散：把门槛记大了，大多少各不相同；错得一致：干脆忘了特殊情形，
每次忘得一样，这就是通病。写对、写错的机会完全相同，连随机数也用同一串。
公开测试是最小的几个输入，像题面上的样例。"对"是在全部 INPUTS 上都与参考程序一致。
演示 2 的题只有一条规则；"别的模型"写对的机会相同，但没有 bug：不对就是手滑，多算的数也更散。
简化：真的代码模型一次写几十行；AlphaCode 采样上百万次，过滤掉约 99%，聚类的输入由模型编。

【公式】N 个候选里有 c 个对的，随机交 s 个：P(至少一个对) = 1 - C(N-c, s) / C(N, s)。
过滤以后，一个候选全对的机会是 (p / (p + b))^n，n 是规则的条数。
CodeT 的双向一致：通过同一组测试 T 的程序归成一组 S，score = |S|·|T|。

运行时间：约 3 秒，只用标准库。
"""
import math
import random
import sys
from collections import Counter, defaultdict
from itertools import product
from pathlib import Path

LECTURE = Path(__file__).resolve().parent
sys.path[:0] = [str(LECTURE), str(LECTURE.parent / "lecture02")]
from code_lab import run_programs
from tts_tools import (
    check_choice, check_counts, check_each, check_int, check_number, check_seeds, mean, observe, pass_at_k, print_table,
    run_script, title,
)

CORRECT = 0.36  # 一行写对的概率 p
BUG = 0.44  # 一行犯 bug 的概率 b；剩下的是手滑
GROUPS = {"错得分散": 0.0, "错得一致": 1.0}  # 两类题：bug 里有多大一份是通病
SHIFTS = (3, 6, 9, 12, 15, 18)  # 不是通病的 bug：门槛记大了多少，任选一个
SLIPS = (1, 2)  # 手滑时这一行多算几元，任选一个
SLIPS_OTHERS = (1, 2, 3, 4, 5, 6)  # 别的模型多算几元
INPUTS = tuple(range(1, 61))  # 全部输入：在它们上面都对才算对
N_TASKS = 20  # 演示 1：多少道题
N_RULES = 4  # 演示 1：一道题几条规则
KS = (10, 30, 100, 300)  # 演示 1：采样多少个程序
SUBMIT = 5  # 演示 1：许交几个
N_PUBLIC = 2  # 演示 1：公开测试的个数
N_GENERATED = 20  # 演示 1：聚类用的输入个数（模型编的，没有答案）
N_TASKS_2 = 300  # 演示 2：多少道题
N_CANDIDATES = 40  # 演示 2：候选程序的个数，只许交一个
TEST_COUNTS = (0, 1, 3, 10, 30, 100)  # 演示 2：自己写多少个测试
TASK_SEED, SAMPLE_SEED = 440, 441  # 出题与选输入、写程序的随机种子
POOL_SEED, TEST_SEED = 442, 443  # 演示 2：写候选程序、写测试的随机种子

# 规则、对的一行、通病的一行、k 的范围、c（门槛）的范围
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


def write_program(task, common, rng, other=False):
    """写一个程序。common：bug 里有多大一份是通病；other：是别的模型。每行总抽四个数，common 变了也不错位。"""
    lines = []
    for kind, k, c in task:
        u, same = rng.random(), rng.random() < common
        shift, slip = rng.choice(SHIFTS), rng.choice(SLIPS_OTHERS if other else SLIPS)
        line = kind[1].format(k=k, c=c)
        if CORRECT <= u < CORRECT + BUG and not other:
            line = kind[2].format(k=k, c=c) if same else kind[1].format(k=k, c=c + shift)
        elif u >= CORRECT:
            line += f" + {slip}"
        lines.append(line)
    return program(lines)


def write_pools(tasks, n, seed):
    """两类题各写一批程序，用同一串随机数。【返回】{类: 每道题 n 个程序}。"""
    pools = {}
    for g, common in GROUPS.items():
        rng = random.Random(seed)
        pools[g] = [[write_program(task, common, rng) for _ in range(n)] for task in tasks]
    return pools


def behaviours(sources):
    """真的运行一批程序。【返回】{程序文字: 它在 INPUTS 上的全部结果}。同样的文字只跑一次。"""
    distinct = list(dict.fromkeys(sources))
    return {source: run.values for source, run in zip(distinct, run_programs(distinct, INPUTS))}


def submit_from(groups):
    """每组轮流交一个，大组在前，共交 SUBMIT 个。groups：[(程序数, 其中对的个数)]。【返回】至少一个对的概率，精确值。"""
    groups = sorted(groups, key=lambda group: -group[0])
    turns, left = [0] * len(groups), min(SUBMIT, sum(size for size, _ in groups))
    while left:
        for j, (size, _) in enumerate(groups):
            if left and turns[j] < size:
                turns[j], left = turns[j] + 1, left - 1
    return 1 - math.prod(1 - pass_at_k(size, right, turn) for (size, right), turn in zip(groups, turns) if right)


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
    groups = "、".join(map(str, GROUPS)) if isinstance(GROUPS, dict) else GROUPS
    check_choice("GROUPS 的两类", groups, ["错得分散、错得一致"])  # 下面按名字取
    check_each("GROUPS", [*GROUPS.values()], check_number, 0, 1)
    check_number("CORRECT + BUG", check_number("CORRECT", CORRECT, 0, 1) + check_number("BUG", BUG, 0, 1), 0, 1)
    for name, low in {"INPUTS": None, "KS": 1, "SHIFTS": 1, "SLIPS": 1, "SLIPS_OTHERS": 1, "TEST_COUNTS": 0}.items():
        check_counts(name, globals()[name], low, None, at_least=1)
    check_int("N_RULES", N_RULES, 1, len(KINDS))
    for name in ("N_PUBLIC", "N_GENERATED"):
        check_int(name, globals()[name], 0, len(INPUTS))
    for name in ("N_TASKS", "SUBMIT", "N_TASKS_2", "N_CANDIDATES"):
        check_int(name, globals()[name], 1)
    check_seeds(TASK_SEED=TASK_SEED, SAMPLE_SEED=SAMPLE_SEED, POOL_SEED=POOL_SEED, TEST_SEED=TEST_SEED)

    title(f"演示 1：采样 k 个程序，交 {SUBMIT} 个 —— 随机、过滤、过滤加聚类")
    task_rng, scores = random.Random(TASK_SEED), {}
    tasks = [make_task(task_rng, N_RULES) for _ in range(N_TASKS)]
    probes = [task_rng.sample(range(len(INPUTS)), N_GENERATED) for _ in tasks]  # 每道题聚类用的输入
    print("  第一题的参考程序，每条规则一行：")
    for line, (kind, k, c) in zip(reference(tasks[0]).split("\n")[2:], tasks[0]):
        print(f"{line:<44}# {kind[0].format(k=k, c=c)}")
    pools = write_pools(tasks, max(KS), SAMPLE_SEED)
    ran = behaviours([s for g in GROUPS for task, pool in zip(tasks, pools[g]) for s in (reference(task), *pool)])
    for g, k in product(GROUPS, KS):  # k 小的时候把样本切成几段，每段算一次
        cells = [
            four_ways([ran[s] for s in pool[i : i + k]], ran[reference(task)], range(N_PUBLIC), inputs)
            for task, pool, inputs in zip(tasks, pools[g], probes)
            for i in range(0, len(pool) - k + 1, k)
        ]
        scores[g, k] = [mean(column) for column in zip(*cells)]
    rows = []
    for k in KS:
        (random_, kept, apart, top), together = scores["错得分散", k], scores["错得一致", k][2]
        rows.append([f"k = {k}", *(f"{x:.2f}" for x in (random_, kept, apart, together, top))])
    print_table(["采样", f"随机 {SUBMIT} 个", "过滤", "聚类：错得分散", "聚类：错得一致", "pass@k"], rows)
    print("观察：")
    observe(
        f"真的运行了 {len(ran)} 个不同的程序。随机交 {SUBMIT} 个是平的：k 从 {KS[0]} 到 {KS[-1]}，{rows[0][1]} → "
        f"{random_:.2f}，而 pass@k 到了 {top:.2f}：对的程序就在里面，挑不出来。",
        abs(random_ - scores["错得分散", KS[0]][0]) < 0.03 and top > random_ + 0.3,
    )
    observe(
        f"{N_PUBLIC} 个公开测试滤掉手滑，{random_:.2f} → {kept:.2f}；剩下的 bug，公开测试看不出来。"
        f"错得分散时再按行为聚类，一组只交一个：{apart:.2f}，接近 pass@k。",
        kept > random_ + 0.04 and apart > kept + 0.3 and apart > top - 0.2,
    )
    observe(
        f"聚类有条件：错的要分散。同样的作答，只把 bug 换成同一个通病：随机、过滤、pass@k 几乎不变，聚类从 {apart:.2f} "
        f"掉到 {together:.2f}，还不如过滤（{kept:.2f}）：大组都是犯了通病的组合，全对的那一组最小，排不进前 {SUBMIT}。",
        together < kept and together < 0.5 * apart
        and all(abs(scores["错得分散", k][j] - scores["错得一致", k][j]) < 0.02 for k in KS for j in (0, 1, 3)),
    )
    observe("AlphaCode（Li et al. 2022）：随机交 10 个不随 k 上升，过滤和聚类才上升。“对的程序行为相近”，错的要分散。")

    title("演示 2：自己写测试，挑一个程序 —— 测试越多越好吗")
    tasks, rng, books = [make_task(task_rng, 1) for _ in range(N_TASKS_2)], random.Random(TEST_SEED), {}
    pools = write_pools(tasks, N_CANDIDATES, POOL_SEED)
    for g, who in (("错得分散", "自己"), ("错得一致", "自己"), ("错得一致", "别的模型")):
        pages = range(TEST_COUNTS[-1])
        books[g, who] = [[write_program(task, GROUPS[g], rng, who != "自己") for _ in pages] for task in tasks]
    written = [s for group in (*books.values(), *pools.values()) for page in group for s in page]
    ran = behaviours([*map(reference, tasks), *written])
    truths, curves, sound, rows = [ran[reference(task)] for task in tasks], [], [], []
    for (g, who), book in books.items():
        # 一个测试 = 一个输入，加上写测试的模型心里那个程序在它上面的结果
        suites = [[(j, ran[s][j]) for s in page for j in [rng.randrange(len(INPUTS))]] for page in book]
        sound.append(mean([truth[j] == want for truth, suite in zip(truths, suites) for j, want in suite] or [1]))
        outputs = [[ran[s] for s in pool] for pool in pools[g]]
        for dual, how in enumerate(("通过最多", "CodeT")):
            each = list(zip(outputs, truths, suites))
            curves.append([mean(choose_by_tests(o, t, suite[:n], dual) for o, t, suite in each) for n in TEST_COUNTS])
            rows.append([f"{g}，{who}，{how}", *(f"{x:.2f}" for x in (sound[-1], *curves[-1]))])
    print_table(["题目，测试的作者，怎样挑", "测试对", *(f"{n} 个" for n in TEST_COUNTS)], rows)
    spread, spread_codet, path, path_codet, cured, cured_codet = curves
    at = min(range(len(TEST_COUNTS)), key=lambda i: abs(TEST_COUNTS[i] - 10))
    print("观察：")
    observe(
        f"错得分散：自己写的测试越多越好，{' → '.join(rows[0][2:])}，虽然只有 {sound[0]:.0%} 的测试是对的。",
        spread[-1] > spread[0] + 0.15 and all(a <= b for a, b in zip(spread[1:], spread[2:])),
    )
    observe(
        f"错得一致：自己写的测试先帮忙，后帮倒忙，{' → '.join(rows[2][2:])}。少的时候先滤掉手滑，多了就是错的给错的"
        "作证：测试和程序忘的是同一件事。",
        path[0] + 0.01 < max(path) and path[-1] < path[0] - 0.05,
    )
    observe(
        f"CodeT 的共识来得更快，两个方向都是：{TEST_COUNTS[at]} 个测试时，错得分散 {spread_codet[at]:.2f}"
        f"（只数通过的 {spread[at]:.2f}），错得一致 {path_codet[at]:.2f}（{path[at]:.2f}）。",
        spread_codet[at] > spread[at] + 0.05 and path_codet[at] < path[at] - 0.05,
    )
    observe(
        f"换别的模型写：测试更不准（{sound[2]:.0%} 对 {sound[1]:.0%}），却更有用，{cured[-1]:.2f} 对 {path[-1]:.2f}。"
        f"要紧的不是错多少，是错得一不一样。CodeT 停在 {cured_codet[-1]:.2f}：|S|·|T| 偏爱人多的一组，通病的那一组大。",
        sound[2] < sound[1] and cured[-1] > path[-1] + 0.3 and cured_codet[-1] < cured[-1] - 0.05,
    )
    observe("CodeT（Chen et al. 2022）：HumanEval pass@1 升了 18.8 个百分点，到 65.8%，测试是模型自己写的。")


if __name__ == "__main__":
    run_script(main)

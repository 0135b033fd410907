"""
================================================================================
第 4 讲 · 04：代码 —— 采样、测试、过滤、聚类，和自己写的测试
================================================================================
对应讲义：lectures/lecture04_feedback_tools_code.md 第 5 节
（Li et al. 2022, AlphaCode；Chen et al. 2022, CodeT；Ridnik et al. 2024, AlphaCodium）

【问题】采了几百个程序，只许提交 10 个，交哪 10 个？没有测试，让模型自己写，测试越多越好吗？

【这里的设定】一道题是几条要求，每条都带一个特殊情形："加 7，但 3 的倍数要减 7"。
模型逐条写成一行真的 Python，每行三种写法：correct 写对；bug 忘了特殊情形（多数输入上看不出来，
大家忘得一样）；careless 常数差 1（各错各的）。程序由 code_lab.run_programs 在子进程里真的运行。
两类题，同一个模型：
    错得分散  写对比忘记更常见，每种错都比对的少；
    错得一致  忘记比写对更常见：这种题上，这个模型有通病。
"对"是在全部 INPUTS 上都与参考程序一致。
简化：真的代码模型一次写几十行；AlphaCode 采样上百万次，先过滤掉约 99%。

【公式】从 m 个候选里随机交 s 个，其中 c 个是对的：P(至少一个对) = 1 - C(m-c, s) / C(m, s)。
CodeT 的双向一致：把通过同一组测试的程序归成一组 S，它们通过的测试是 T，
    score = |S| · |T|：既要有许多程序，又要过许多测试。

运行时间：约 4 秒，只用标准库。
"""
import random
import sys
from collections import Counter, defaultdict
from pathlib import Path

LECTURE = Path(__file__).resolve().parent
sys.path[:0] = [str(LECTURE), str(LECTURE.parent / "lecture02")]
from code_lab import run_programs
from tts_tools import (
    PROCEDURES, check_int, check_number, mean, observe, pass_at_k, print_table, run_script, sample_index, softmax,
    title,
)

GROUPS = {"错得分散": 0.5, "错得一致": -0.4}  # 两类题里 "correct" 的 logit
LOGIT_BUG = 0.0  # "bug" 的 logit
LOGIT_CARELESS = -0.3  # "careless" 的 logit
N_TASKS = 20  # 每类多少道题
N_LINES = 5  # 演示 1：一道题几条要求
KS = (10, 30, 90, 180)  # 演示 1：采样多少个程序；最大的那个要是其余的倍数
SUBMIT = 10  # 演示 1：许交几个
N_PUBLIC = 2  # 演示 1：公开测试的个数
N_GENERATED = 12  # 演示 1：聚类用的输入个数（模型编的，没有答案）
N_LINES_2 = 2  # 演示 2：一道题几条要求
N_CANDIDATES = 40  # 演示 2：候选程序的个数
TEST_COUNTS = (0, 1, 3, 10, 30, 100)  # 演示 2：自己写几个测试
TEST_DRAWS = 5  # 演示 2：每道题重写几遍测试，取平均
INPUTS = tuple(range(50))  # 全部输入：在它们上面都对才算对
TASK_SEED = 440  # 出题、选输入的随机种子
SAMPLE_SEED = 441  # 写程序的随机种子
TEST_SEED = 442  # 写测试的随机种子

# 要求、对的一行、忘了特殊情形的一行、k 的范围、c 的范围
KINDS = (
    ("加 {k}，但 {c} 的倍数要减 {k}", "x = x - {k} if x % {c} == 0 else x + {k}", "x = x + {k}", (3, 20), (2, 4)),
    ("乘 {k}，但大于 {c} 的不变", "x = x if x > {c} else x * {k}", "x = x * {k}", (2, 3), (20, 40)),
    ("减 {k}，但最少是 {c}", "x = max(x - {k}, {c})", "x = x - {k}", (10, 20), (5, 15)),
    ("取到 {k} 的距离", "x = abs(x - {k})", "x = x - {k}", (10, 25), (0, 0)),
)


def make_task(rng, n_lines):
    """一道题：n_lines 条要求，每条是 (KINDS 的一项, k, c)。"""
    kinds = [KINDS[rng.randrange(len(KINDS))] for _ in range(n_lines)]
    return [(kind, rng.randint(*kind[3]), rng.randint(*kind[4])) for kind in kinds]


def program(lines):
    """把几行拼成一个函数。"""
    return "\n    ".join(["def solve(x):", *lines, "return x"])


def reference(task):
    """参考程序：每一行都写对。"""
    return program([kind[1].format(k=k, c=c) for kind, k, c in task])


def write_program(task, logit, rng, independent=False):
    """
    模型写一个程序。

    independent=True 是另一个模型：写对的机会相同，却没有这种通病，错的时候都是各错各的。
    """
    probs = softmax((logit, LOGIT_BUG, LOGIT_CARELESS))
    lines = []
    for kind, k, c in task:
        proc = PROCEDURES[sample_index(probs, rng)]
        slip = proc == "careless" or (proc == "bug" and independent)
        k += rng.choice((-3, -2, -1, 1, 2, 3) if independent else (-1, 1)) if slip else 0
        lines.append(kind[2 if proc == "bug" and not independent else 1].format(k=k, c=c))
    return program(lines)


def behaviours(sources):
    """真的运行一批程序。【返回】{程序文字: 它在 INPUTS 上的全部结果}。同样的文字只跑一次。"""
    distinct = list(dict.fromkeys(sources))
    return {source: run.values for source, run in zip(distinct, run_programs(distinct, INPUTS))}


def submit_from(groups):
    """
    每组轮流交一个，大组在前，一共交 SUBMIT 个。

    【参数】groups：[(组里的程序数, 其中对的个数)]，从大到小。
    【返回】至少交了一个对的的概率（组内随机挑，精确值）。
    """
    turns = [0] * len(groups)
    left = min(SUBMIT, sum(size for size, _ in groups))
    while left:
        for j, (size, _) in enumerate(groups):
            if left and turns[j] < size:
                turns[j] += 1
                left -= 1
    miss = 1.0
    for (size, right), turn in zip(groups, turns):
        miss *= 1 - pass_at_k(size, right, turn)
    return 1 - miss


def four_ways(outputs, truth, public, generated):
    """
    一批程序的四个分数：随机交、过滤、过滤加聚类、pass@k（有一个对就算）。

    【参数】outputs：每个程序在 INPUTS 上的结果；public、generated：输入的下标。
    """
    survivors = [out for out in outputs if all(out[j] == truth[j] for j in public)]
    clusters = defaultdict(list)
    for out in survivors:
        clusters[tuple(out[j] for j in generated)].append(out == truth)
    sizes = sorted(((len(c), sum(c)) for c in clusters.values()), key=lambda c: -c[0])
    right = outputs.count(truth)
    return (
        submit_from([(len(outputs), right)]),
        submit_from([(len(survivors), right)]),
        submit_from(sizes),
        float(right > 0),
    )


def choose_by_tests(outputs, truth, tests, dual):
    """
    按测试挑一个程序。tests 是 [(输入的下标, 测试认为的答案)]。

    dual=False：通过最多的；dual=True：CodeT，score = |S|·|T| 最大的一组。并列时随机挑。
    【返回】挑中的程序是对的，这件事的概率。
    """
    passed = [tuple(out[j] == want for j, want in tests) for out in outputs]
    sizes = Counter(passed)
    scores = [sum(p) * (sizes[p] if dual else 1) for p in passed]
    top = max(scores)
    return mean(out == truth for out, score in zip(outputs, scores) if score == top)


def main():
    title("x")
    task_rng, rng = random.Random(TASK_SEED), random.Random(SAMPLE_SEED)
    tasks = {g: [make_task(task_rng, N_LINES) for _ in range(N_TASKS)] for g in GROUPS}
    pools = {g: [[write_program(t, GROUPS[g], rng) for _ in range(max(KS))] for t in tasks[g]] for g in GROUPS}
    ran = behaviours([s for g in GROUPS for t, pool in zip(tasks[g], pools[g]) for s in (reference(t), *pool)])
    print(len(ran))
    for g in GROUPS:
        for k in KS:
            sc = []
            for task, pool in zip(tasks[g], pools[g]):
                truth = ran[reference(task)]
                r2 = random.Random(f"{TASK_SEED}{task}")
                idx = r2.sample(range(len(INPUTS)), N_PUBLIC + N_GENERATED)
                for i in range(0, len(pool), k):
                    sc.append(four_ways([ran[s] for s in pool[i:i+k]], truth, idx[:N_PUBLIC], idx[N_PUBLIC:]))
            print(g, k, [f"{mean(c):.3f}" for c in zip(*sc)])
    tasks = {g: [make_task(task_rng, N_LINES_2) for _ in range(N_TASKS)] for g in GROUPS}
    pools = {g: [[write_program(t, GROUPS[g], rng) for _ in range(N_CANDIDATES)] for t in tasks[g]] for g in GROUPS}
    rng = random.Random(TEST_SEED)
    writers = {(g, ind): [[write_program(t, GROUPS[g], rng, ind) for _ in range(max(TEST_COUNTS))] for t in tasks[g]] for g in GROUPS for ind in (False, True)}
    ran = behaviours([s for g in GROUPS for t, pool in zip(tasks[g], pools[g]) for s in (reference(t), *pool)]+[s for w in writers.values() for l in w for s in l])
    print(len(ran))
    for g in GROUPS:
        for ind in (False, True):
            for m in TEST_COUNTS:
                sc = []; ref=[]
                for task, pool, ws in zip(tasks[g], pools[g], writers[g, ind]):
                    truth = ran[reference(task)]
                    for d in range(TEST_DRAWS):
                        tests = [(j, ran[w][j]) for w in rng.sample(ws, m) for j in [rng.randrange(len(INPUTS))]]
                        outs = [ran[s] for s in pool]
                        sc.append((choose_by_tests(outs, truth, tests, False), choose_by_tests(outs, truth, tests, True)))
                        ref += [truth[j] == want for j, want in tests]
                print(g, ind, m, [f"{mean(c):.3f}" for c in zip(*sc)], mean(ref) if ref else "")


if __name__ == "__main__":
    run_script(main)

"""
================================================================================
第 2 讲 · 01：重复采样 —— 多答几次，总有一次对？
================================================================================
对应讲义：lectures/lecture02_test_time_scaling.md 第 2 节
（Brown et al. 2024, "Large Language Monkeys"；
Schaeffer et al. 2025, "How Do Large Language Monkeys Get Their Power (Laws)?"）

【问题】同一道题让模型答 k 次，至少对一次的概率怎样随 k 涨？为什么论文里画出来是幂律？

【这里的设定】覆盖率（coverage）：一组题里，k 次作答至少有一次过程全对（Sample.sound）的比例。
单次正确率 p 由 path_probs 精确算出，所以覆盖率也有精确值；旁边再用采样量一遍。
简化：假设有一个完美的验证器，一组作答里只要有对的，它就认得出来。没有它会怎样，见演示 4 和 02。

【公式】一道题：           1 - (1 - p)^k                          失败按指数下降
        一组题（取平均）：  c(k) = E[1 - (1 - p)^k]
        幂律（power law）： -log c(k) ≈ a · k^(-b)                 论文量到的形状
        局部斜率：          s(k) = Δlog(-log c) / Δlog k           幂律时是常数 -b
a、b 是拟合出来的正数，E 是对题目取平均，log 是自然对数。

运行时间：约 1.5 秒，只用标准库。
"""
import math
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from tts_tools import (
    ToyLLM, check_ascending, check_counts, check_int, check_number, check_seeds, coverage, flops, fmt_size,
    make_problem_set, mean, observe, pass_at_k, path_probs, print_table, run_script, sample_traces, title,
)

SIZES = (1e8, 1e9, 1e10)  # 演示 1：三个模型的参数量，从小到大
KS = (1, 10, 100, 1000, 10000)  # 演示 1：每题答几次，从少到多
N_PROBLEMS = 200  # 题数
MIN_STEPS, MAX_STEPS = 3, 8  # 每题的步数在这个范围里
SET_SEED = 20  # 出题的随机种子
N_SAMPLES = 150  # 演示 1：每题真的采样多少次，用来估计 k ≤ N_SAMPLES 的覆盖率
SAMPLE_SEED = 21  # 采样的随机种子
FINE_KS = (1, 3, 10, 30, 100, 300, 1000, 3000)  # 演示 2：看斜率用的 k
EASY_FLOOR = 0.02  # 演示 2：单次正确率不低于它的题，才算"没有难题"
ALPHAS = (0.3, 1.0)  # 演示 3：难度服从 Beta(α, BETA_B)，α 越小，难题的尾巴越厚
BETA_B = 1.5  # 演示 3：Beta 分布的第二个参数
CUTOFF = 0.05  # 演示 3：没有尾巴的一组，p 在 [CUTOFF, 1] 里均匀分布
LARGE_SIZES = (1e10, 1e11)  # 演示 4：只答一次的大模型
SHRINKS = (10, 100, 1000)  # 演示 4：小模型是大模型的几分之一，就答几次


def success_probs(size, problems):
    """size 这么大的模型在每道题上答一次、过程全对的概率（精确值）。"""
    model = ToyLLM(size)
    return [math.prod(path_probs(model, problem)) for problem in problems]


def mean_coverage(probs, k):
    """一组题的覆盖率：每题 1 - (1 - p)^k，再取平均（精确值）。"""
    return mean(coverage(p, k) for p in probs)


def sampled_coverage(size, problems, n, ks, rng):
    """每题采样 n 次，数出几次全对，用 pass@k 的无偏估计；返回与 ks 等长的列表，k > n 的是 None。"""
    model = ToyLLM(size)
    counts = [sum(s.sound for s in sample_traces(model, problem, n, rng)) for problem in problems]
    return [mean(pass_at_k(n, c, k) for c in counts) if k <= n else None for k in ks]


def neg_log_coverage(probs, k):
    """-log c(k)。c 接近 1 时从失败的概率算起，才不会丢精度；c 很小时直接取对数。"""
    covered = mean_coverage(probs, k)
    return -math.log(covered) if covered < 0.5 else neg_log1m(mean((1 - p) ** k for p in probs))


def neg_log1m(fail):
    """-log(1 - fail)：fail 是失败的概率，小于 1。"""
    return -math.log1p(-fail)


def slopes(ks, values):
    """相邻两点在双对数图上的斜率；值小到 0（浮点数装不下）时是 None。"""
    return [
        (math.log(after) - math.log(before)) / math.log(k2 / k1) if after > 0 else None
        for k1, k2, before, after in zip(ks, ks[1:], values, values[1:])
    ]


def beta_failure(alpha, beta, k):
    """p ~ Beta(α, β) 时 E[(1 - p)^k] = Γ(β+k) Γ(α+β) / (Γ(β) Γ(α+β+k))，用 lgamma 算。"""
    return math.exp(
        math.lgamma(beta + k) + math.lgamma(alpha + beta) - math.lgamma(beta) - math.lgamma(alpha + beta + k)
    )


def cut_failure(low, k):
    """p 在 [low, 1] 里均匀时 E[(1 - p)^k] = (1 - low)^k / (k + 1)。"""
    return (1 - low) ** k / (k + 1)


def cell(x, form=".3f"):
    """表格里的一格；没有值时是 —。"""
    return "—" if x is None else format(x, form)


def main():
    for name, sizes in (("SIZES", SIZES), ("LARGE_SIZES", LARGE_SIZES)):
        for size in check_ascending(name, sizes, 1):
            check_number(f"{name} 里的规模", size, 1e6, 1e15)
    for name, ks in (("KS", KS), ("FINE_KS", FINE_KS)):
        check_counts(name, ks)
    check_counts("SHRINKS", SHRINKS, 2, 10000)
    check_int("N_PROBLEMS", N_PROBLEMS, 1, 5000)
    check_int("MIN_STEPS", MIN_STEPS, 1, 30)
    check_int("MAX_STEPS", MAX_STEPS, MIN_STEPS, 30)
    check_int("N_SAMPLES", N_SAMPLES, 1, 5000)
    check_number("EASY_FLOOR", EASY_FLOOR, 0, 0.9)
    for alpha in check_ascending("ALPHAS", ALPHAS, 1):
        check_number("ALPHAS 里的 α", alpha, 0.01, 10)
    check_number("BETA_B", BETA_B, 0.01, 10)
    check_number("CUTOFF", CUTOFF, 0, 0.9)
    check_seeds(SET_SEED=SET_SEED, SAMPLE_SEED=SAMPLE_SEED)

    title(f"演示 1：覆盖率随 k 上升 —— {MIN_STEPS}～{MAX_STEPS} 步的题，精确值与采样值")
    problems = make_problem_set(random.Random(SET_SEED), N_PROBLEMS, MIN_STEPS, MAX_STEPS)
    rng = random.Random(SAMPLE_SEED)
    exact, sampled, rows = {}, {}, []
    for size in SIZES:
        probs = success_probs(size, problems)
        exact[size] = [mean_coverage(probs, k) for k in KS]
        sampled[size] = sampled_coverage(size, problems, N_SAMPLES, KS, rng)
        rows.append([f"{fmt_size(size)} 精确", *map(cell, exact[size])])
        rows.append([f"{fmt_size(size)} 采样", *map(cell, sampled[size])])
    print_table(["模型", *(f"k = {k}" for k in KS)], rows)
    gap = max(abs(a - b) for size in SIZES for a, b in zip(exact[size], sampled[size]) if b is not None)
    print("观察：")
    small, name = exact[SIZES[0]], fmt_size(SIZES[0])
    observe(
        f"{name} 的模型答一次只有 {small[0]:.3f}，答 {KS[-1]} 次有 {small[-1]:.3f}：能力藏在分布的尾巴里。",
        small[0] < 0.05 and small[-1] > 0.8,
    )
    observe(f"采样值与精确值最多差 {gap:.3f}。k > {N_SAMPLES} 的采样值是 —：样本不够，无偏估计不存在。", gap < 0.06)
    observe(
        "Brown et al.（2024）：SWE-bench Lite 上，DeepSeek-Coder-V2-Instruct 采样 1 次解决 15.9%，250 次解决 56%；"
        "Pythia-160M 在 MATH 上从 0.27%（1 次）到 57%（10000 次）。"
    )

    probs = success_probs(SIZES[0], problems)
    easy = [p for p in probs if p >= EASY_FLOOR]
    if not easy:
        raise ValueError(f"EASY_FLOOR 太高，没有一道题的单次正确率达到它，收到的是 {EASY_FLOOR!r}")
    one = min(easy)
    title(f"演示 2：幂律从哪里来 —— {name} 模型，全部 {len(probs)} 题与没有难题的 {len(easy)} 题")
    losses = {
        "全部": [neg_log_coverage(probs, k) for k in FINE_KS],
        "没有难题": [neg_log_coverage(easy, k) for k in FINE_KS],
        "一道题": [neg_log_coverage([one], k) for k in FINE_KS],
    }
    slope = {key: slopes(FINE_KS, values) for key, values in losses.items()}
    rows = []
    for i, k in enumerate(FINE_KS):
        pairs = [(losses[key][i], slope[key][i - 1] if i else None) for key in losses]
        rows.append([k, *(text for loss, s in pairs for text in (cell(loss, ".2g"), cell(s, ".2f")))])
    print_table(["k", "全部 -log c", "斜率", "没有难题 -log c", "斜率", f"一道题（p = {one:.3f}）", "斜率"], rows)
    flat, steep, lone = slope["全部"], slope["没有难题"], slope["一道题"]
    steepest, lone_end = (-math.inf if line[-1] is None else line[-1] for line in (steep, lone))
    print("观察：")
    observe(
        f"全部题目：k 涨了 {FINE_KS[-1] // FINE_KS[0]} 倍，斜率只从 {flat[0]:.2f} 走到 {flat[-1]:.2f}；"
        f"一道题从 {lone[0]:.2f} 掉到 {cell(lone[-1], '.2f')}。弯得这么慢，一段一段看就像直线，像“幂律”。",
        0 > flat[-1] > 4 * flat[0] and lone_end < 30 * lone[0],
    )
    observe(
        f"拿掉单次正确率低于 {EASY_FLOOR} 的题，斜率一路跌到 {cell(steep[-1], '.1f')}：没有幂律，只有指数。"
        "单独一道题也是这样。",
        steepest < -10 and steepest < 5 * flat[-1],
    )
    observe(
        "每道题自己都是指数，平均起来却像幂律：k 每涨一截，轮到更难的一批题被解出来，总有更难的在后面排队。"
        "这里斜率还是慢慢变陡：难题的尾巴比幂律薄。演示 3 直接写下尾巴的形状。"
    )

    title("演示 3：尾巴决定指数 —— 难度服从已知的分布，局部斜率（精确值）")
    laws = {f"Beta({a:g}, {BETA_B:g})": [neg_log1m(beta_failure(a, BETA_B, k)) for k in KS] for a in ALPHAS}
    laws[f"均匀 [{CUTOFF:g}, 1]"] = [neg_log1m(cut_failure(CUTOFF, k)) for k in KS]
    table = {law: slopes(KS, values) for law, values in laws.items()}
    rows = [[law, *(cell(s, ".2f") for s in line)] for law, line in table.items()]
    print_table(["p 的分布", *(f"{k1} → {k2}" for k1, k2 in zip(KS, KS[1:]))], rows)
    ends = [line[-1] for line in table.values()]
    print("观察：")
    observe(
        "p 的密度在 0 附近像 p^(α-1)，斜率就走到 -α："
        + "，".join(f"α = {a:g} 时 {cell(end, '.2f')}" for a, end in zip(ALPHAS, ends)) + "（Schaeffer et al. 2025）。",
        all(end is not None and abs(end + a) < 0.02 for a, end in zip(ALPHAS, ends)),
    )
    observe(
        f"p 有下限 {CUTOFF:g} 时斜率没有极限，一直往下掉：没有尾巴就没有幂律。",
        ends[-1] is None or ends[-1] < -50,
    )

    title("演示 4：同样的算力 —— 大模型答一次，还是小模型答很多次")
    rows, outcomes = [], []
    steps = mean(problem.n_steps for problem in problems)
    for large in LARGE_SIZES:
        for tries in (1, *SHRINKS):
            probs = success_probs(large / tries, problems)
            once, many = mean(probs), mean_coverage(probs, tries)
            cost = flops(large / tries, tries * steps)
            rows.append([fmt_size(large / tries), tries, f"{cost:.1e}", f"{many:.3f}", f"{once:.3f}"])
            outcomes.append((large, tries, many, once))
    goal = {large: many for large, tries, many, _ in outcomes if tries == 1}
    wins = [(many > goal[large], once < goal[large]) for large, tries, many, once in outcomes if tries > 1]
    print_table(["模型", "每题答几次", "每题 FLOPs", "有完美的验证器", "没有，随便交一个"], rows)
    print("观察：")
    won = sum(win for win, _ in wins)
    observe(f"算力相同，小模型 {len(wins)} 次里有 {won} 次超过大模型：多答几次比换大模型划算。", won > len(wins) / 2)
    first = {tries: many for large, tries, many, _ in outcomes if large == LARGE_SIZES[0]}
    best = max(first, key=first.get)
    observe(
        f"也不是越小越好：与 {fmt_size(LARGE_SIZES[0])} 同样的算力，缩小 {best} 倍最好（{first[best]:.3f}），"
        f"缩小 {SHRINKS[-1]} 倍只有 {first[SHRINKS[-1]]:.3f}。",
        1 < best < SHRINKS[-1],
    )
    observe("这要靠验证器。没有它，答多少次都只能随便交一个，每一次都输给大模型。", all(lose for _, lose in wins))
    observe(
        "Brown et al.（2024）在同样的 FLOPs 下比较 Llama-3 的 8B 与 70B：MiniF2F、GSM8K、MATH 上 8B 的覆盖率总是更高，"
        "CodeContests 上 70B 几乎总是更好。"
    )


if __name__ == "__main__":
    run_script(main)

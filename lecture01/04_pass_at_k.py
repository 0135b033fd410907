"""
================================================================================
第 1 讲 · 04：pass@k —— 从 n 个样本估计"试 k 次至少对一次"
================================================================================
对应讲义：lectures/lecture01_scaling_and_cot.md 第 5 节（Chen et al. 2021）

【问题】每题采样 n 次、对了 c 次，怎样估计 pass@k 才不偏？

【这里的设定】单次做对的概率 p 是已知的，所以真值 1 - (1-p)^k 也是已知的，可以拿来对照。
两个估计量：
    代入法（plug-in）  1 - (1 - c/n)^k：把 c/n 当作 p 代进公式；
    无偏估计           1 - C(n-c, k) / C(n, k)：从 n 个样本里不放回地取 k 个，至少有一个对。
演示 1、2 不采样：c 服从二项分布 Binomial(n, p)，把 c = 0 … n 全部列出来，期望与标准差都是精确的。
演示 3 才让模型真的作答。"对"指每一步都对（Sample.sound），这时 p 就是 path_probs 的乘积。
均方根误差（RMSE，root mean square error）= √(偏差的平方 + 方差)；无偏估计的 RMSE 就是它的标准差。
简化：真实评测里 p 未知，而且不同题的 p 相差很大；前两个演示只看一道题。

【公式】E[估计量] = Σ_c C(n,c) p^c (1-p)^(n-c) · 估计量(n, c, k)；偏差 = E[估计量] - 真值。

运行时间：约 0.5 秒，只用标准库。
"""
import math
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from toy_llm import (
    ToyLLM, check_counts, check_int, check_number, check_seeds, make_problem_set, mean, observe, pass_at_k, path_probs,
    print_table, run_script, title,
)

P_TRUE = 0.1  # 演示 1、2：这道题单次做对的概率
K = 5  # 演示 1：估计 pass@K
NS = (5, 10, 20, 50, 100)  # 演示 1：每题采样多少次
N = 20  # 演示 2、3：每题采样多少次
KS = (1, 2, 5, 10, 20)  # 演示 2、3：估计哪些 k（不能超过 N）
N_LIMIT = 1000  # n 的上限：再大，二项分布的权重就超出浮点数的范围
GOLDEN = (10, 3, 5)  # 演示 2 末尾手算的一行 (n, c, k)
SIZE = 3e9  # 演示 3：模型的参数量
N_PROBLEMS = 800  # 演示 3：题目数
MIN_STEPS, MAX_STEPS = 3, 8  # 演示 3：题目步数的范围
SEED = 40  # 演示 3：出题与采样的随机种子


def plug_in(n, c, k):
    """代入法：把样本里的正确率 c/n 当作真的 p。k 可以大于 n，它不会报错：这正是它危险的地方。"""
    return 1 - (1 - c / n) ** k


def truth(p, k):
    """真值：独立试 k 次，至少对一次的概率。"""
    return 1 - (1 - p) ** k


def exact_moments(estimator, n, k, p):
    """
    估计量的期望与标准差：c = 0 … n 逐个列出，按二项分布加权，没有采样误差。

    【返回】(期望, 标准差)
    """
    weights = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    values = [estimator(n, c, k) for c in range(n + 1)]
    expectation = math.fsum(w * v for w, v in zip(weights, values))
    variance = math.fsum(w * (v - expectation) ** 2 for w, v in zip(weights, values))
    return expectation, math.sqrt(variance)


def compare(n, k, p):
    """【返回】(代入法的偏差, 代入法的标准差, 无偏估计的偏差, 无偏估计的标准差)"""
    plug_mean, plug_sd = exact_moments(plug_in, n, k, p)
    fair_mean, fair_sd = exact_moments(pass_at_k, n, k, p)
    return plug_mean - truth(p, k), plug_sd, fair_mean - truth(p, k), fair_sd


def refusal_of(n, c, k):
    """无偏估计拒绝 (n, c, k) 时说的话；没有拒绝时是它的返回值。"""
    try:
        return str(pass_at_k(n, c, k))
    except ValueError as error:
        return f"ValueError: {error}"


def signed(x):
    """带符号的三位小数；舍入误差造成的 -0.000 写成 +0.000。"""
    return f"{round(x, 3) + 0.0:+.3f}"


def rmse(bias, sd, m=1):
    """对 m 道同样的题取平均以后的均方根误差：标准差按 √m 缩小，偏差不变。"""
    return math.hypot(bias, sd / math.sqrt(m))


def moment_cells(moments):
    """表格里的四格：偏差带符号，标准差不带。"""
    plug_bias, plug_sd, fair_bias, fair_sd = moments
    return [signed(plug_bias), f"{plug_sd:.3f}", signed(fair_bias), f"{fair_sd:.3f}"]


def main():
    check_number("P_TRUE", P_TRUE, 0, 1, open_low=True)
    check_int("K", K, 1)
    check_int("N_LIMIT", N_LIMIT, 1)
    check_int("N", N, 1, N_LIMIT)
    check_counts("NS", NS, K, N_LIMIT)
    check_counts("KS", KS, 1, N)
    if not isinstance(GOLDEN, (tuple, list)) or len(GOLDEN) != 3:
        raise ValueError(f"GOLDEN 应当是 (n, c, k) 三项，收到的是 {GOLDEN!r}")
    golden_n = check_int("GOLDEN 的 n", GOLDEN[0], 1, N_LIMIT)
    check_int("GOLDEN 的 c", GOLDEN[1], 0, golden_n)
    check_int("GOLDEN 的 k", GOLDEN[2], 0, golden_n)
    check_number("SIZE", SIZE, 0, open_low=True)
    check_int("N_PROBLEMS", N_PROBLEMS, 1)
    check_int("MIN_STEPS", MIN_STEPS, 1)
    check_int("MAX_STEPS", MAX_STEPS, MIN_STEPS)
    check_seeds(SEED=SEED)

    title(f"演示 1：n 越大越准 —— p = {P_TRUE:g}，估计 pass@{K}，真值 {truth(P_TRUE, K):.3f}")
    headers = ["代入法偏差", "代入法标准差", "无偏估计偏差", "无偏估计标准差"]
    by_n = {n: compare(n, K, P_TRUE) for n in NS}
    rows = [[n, *moment_cells(by_n[n]), f"{rmse(*by_n[n][:2]):.3f}"] for n in NS]
    print_table(["n", *headers, "代入法 RMSE"], rows)
    few, many = NS[0], NS[-1]
    print("观察：")
    observe(
        f"平均起来，代入法总是少报：n = {few} 时少报 {-by_n[few][0]:.3f}，n = {many} 时还少报 "
        f"{-by_n[many][0]:.3f}。(1-x)^k 在 [0, 1] 上是凸函数，x = c/n 的波动使它的平均变大（Jensen 不等式）。",
        all(row[0] < -0.001 for row in by_n.values()),
    )
    observe(
        "无偏估计的偏差每一行都是 0（只有舍入误差）。",
        all(abs(row[2]) < 1e-9 for row in by_n.values()),
    )
    observe(
        f"无偏不等于准：n = {few}、k = {K} 时标准差有 {by_n[few][3]:.3f}（n = k 时它只能取 0 或 1），n = {many} 时降到 "
        f"{by_n[many][3]:.3f}。所以 n 要比 k 大。",
        by_n[few][3] > 2.5 * by_n[many][3],
    )

    one_plug, one_fair = rmse(*by_n[few][:2]), rmse(*by_n[few][2:])
    many_plug, many_fair = rmse(*by_n[few][:2], N_PROBLEMS), rmse(*by_n[few][2:], N_PROBLEMS)
    observe(
        f"有偏也不等于不准：只看一道题、n = {few} 时，代入法的 RMSE 反而小（{one_plug:.3f} 比 {one_fair:.3f}）。但对 "
        f"{N_PROBLEMS} 道这样的题取平均，波动互相抵消，偏差不会：{many_plug:.3f} 比 {many_fair:.3f}。",
        one_plug < one_fair and many_plug > 2 * many_fair,
    )

    title(f"演示 2：k 靠近 n 时 —— p = {P_TRUE:g}，n = {N}")
    by_k = {k: compare(N, k, P_TRUE) for k in KS}
    rows = [
        [f"pass@{k}", f"{truth(P_TRUE, k):.3f}", *moment_cells(by_k[k])] for k in KS
    ]
    print_table(["估计什么", "真值", *headers], rows)
    n, c, k = GOLDEN
    print(f"\n  手算一行：n = {n}，c = {c}，k = {k}：无偏估计 {pass_at_k(n, c, k):.4f}，代入法 {plug_in(n, c, k):.4f}")
    refusal = refusal_of(N, 2, N + 1)
    print(f"  k > n 时：{refusal}")
    shortfall = -by_k[KS[-1]][0]
    print("观察：")
    observe(
        f"k = {KS[0]} 时两者相同；这道题（p = {P_TRUE:g}）上 k 越大，代入法少报得越多：k = {KS[-1]} 时少报 "
        f"{shortfall:.3f}，是真值的 {shortfall / truth(P_TRUE, KS[-1]):.0%}。",
        abs(by_k[KS[0]][0]) < 1e-9 and all(by_k[a][0] > by_k[b][0] for a, b in zip(KS, KS[1:])),
    )
    observe(
        f"n = {N} 个样本答不了 pass@{N + 1}：无偏估计直接拒绝；若 c = 2，代入法照样给出 {plug_in(N, 2, N + 1):.3f}，"
        "看不出任何问题。",
        refusal.startswith("ValueError"),
    )

    title(f"演示 3：让模型真的作答 —— {N_PROBLEMS} 道题，每题 {N} 次")
    rng = random.Random(SEED)
    model = ToyLLM(SIZE)
    problems = make_problem_set(rng, N_PROBLEMS, MIN_STEPS, MAX_STEPS)
    samples = [[model.generate(problem, rng) for _ in range(N)] for problem in problems]
    counts = [sum(s.sound for s in group) for group in samples]
    lucky = mean(not s.sound for group in samples for s in group if s.correct)
    p_exact = [math.prod(path_probs(model, problem)) for problem in problems]
    rows, errors = [], {}
    for k in KS:
        exact = mean(truth(p, k) for p in p_exact)
        fair = mean(pass_at_k(N, c, k) for c in counts)
        plug = mean(plug_in(N, c, k) for c in counts)
        errors[k] = (abs(fair - exact), abs(plug - exact))
        rows.append([f"pass@{k}", f"{exact:.3f}", f"{fair:.3f}", f"{plug:.3f}", signed(plug - exact)])
    print_table(["估计什么", "真值", "无偏估计", "代入法", "代入法差多少"], rows)
    print("观察：")
    observe(
        f"对 {N_PROBLEMS} 道题取平均以后，无偏估计的噪声互相抵消（k = {KS[-1]} 时只差 {errors[KS[-1]][0]:.3f}），"
        f"代入法的偏差却抵消不掉（差 {errors[KS[-1]][1]:.3f}）：它每道题都偏向同一边。",
        errors[KS[-1]][1] > 0.03 and errors[KS[-1]][0] < 0.03,
    )
    observe(
        f"答案对的作答里，有 {lucky:.1%} 过程有错（几个错误互相抵消），这里没有算它们对。"
        "Brown et al.（2024）人工检查了 GSM8K 上 105 条答案对的思维链，九成以上过程也对。",
        0.01 < lucky < 0.3,
    )


if __name__ == "__main__":
    run_script(main)

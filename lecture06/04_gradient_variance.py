"""
================================================================================
第 6 讲 · 04：基线到底省了什么 —— 同一个梯度，四种基线，四种噪声
================================================================================
对应讲义：lectures/lecture06_scaling_rl.md 第 6 节（Williams 1992；Ahmadian et al. 2024, RLOO）

【问题】减去基线（baseline）不改变策略梯度的期望，只改变它的噪声。噪声一定变小吗？

【这里的设定】一种语境、一步、一个参数：正确做法的 logit。得分 s（score）是 log π 对它的导数。
策略做对的概率是 p，所以做对时 s = 1 - p，做错时 s = -p；真正的梯度是
    E[r · s] = (r对 - r错) · p(1-p)。
一组抽 G 个样本，用 g = (1/G) Σ A_i · s_i 去估计它。优势（advantage）A_i 有四种：
    无基线    A_i = r_i
    组平均    A_i = r_i - 全组的平均（包括 r_i 自己）
    RLOO      A_i = r_i - 其余 G-1 个的平均（leave-one-out，留一法）
    最优 b*   A_i = r_i - b*，b* = E[r · |s|^2] / E[|s|^2]
g 只依赖于各种结果各出现几次，所以把所有分法列出来（枚举），就得到精确的均值和标准差；
旁边的采样只用来核对。
简化：真的大模型有几十亿个参数、上千步。这里一步一个参数，演示 4 才换成三种做法、三个 logit。

【公式】常数基线 b 之下，g 的标准差 = |b - b*| · √(p(1-p)) / √G：离 b* 多远，噪声就多大。
0/1 奖励下 RLOO 的 g 正是奖励的样本方差（除以 G-1），由它的方差公式得：与无基线打平在 p = (2G-4) / (3G-5)。

运行时间：约 0.6 秒，只用标准库。
"""
import math
import random
import sys
from itertools import combinations_with_replacement
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from trainable_llm import (
    HARD_CONTEXTS, TrainableLLM, check_choice, check_each, check_int, check_number, check_seeds, mean, observe,
    print_table, run_script, sample_index, title,
)

METHODS = ("无基线", "组平均", "RLOO", "最优 b*")  # 四种基线；代码按名字认，不要改
GROUP = 8  # 一组的样本数 G
GROUPS = (2, 4, 8, 16)  # 演示 1：看"组平均"缩小了多少时用的几种 G
P_GRID = (0.05, 0.2, 0.5, 0.6, 0.65, 0.9, 0.95)  # 策略做对的概率 p
EVEN_P, HIGH_P = 0.5, 0.9  # 演示 2、3 拿来比较的 p：一半对一半；已经学得不错
CODINGS = ((1, 0), (1, -1), (11, 10))  # 演示 3：对、错各得多少分
SIZES = (1e9, 1e11)  # 演示 4：两个没有训练过的模型的规模
REPEATS = 4000  # 采样核对时抽多少组
SEED = 160  # 采样核对的随机种子


def bernoulli(p, right=1, wrong=0):
    """只有对、错两种结果的策略：[(概率, 奖励, 得分)]，得分 s 是元组，这里只有一个参数。"""
    check_number("p", p, 0.001, 0.999)
    if right == wrong:
        raise ValueError(f"CODINGS 里“对”与“错”的分数应当不同，收到的是 {right} 和 {wrong}")
    return [(p, right, (1 - p,)), (1 - p, wrong, (-p,))]


def three_procedures(probs):
    """toy world 的一步：三种做法、三个 logit，得分 s = onehot - probs，只有第 0 种得 1 分。"""
    return [(probs[i], int(i == 0), tuple((i == j) - probs[j] for j in range(3))) for i in range(3)]


def exact_gradient(outcomes):
    """E[r · s]：真正的策略梯度，每个参数一个数。"""
    n_params = len(outcomes[0][2])
    return [math.fsum(p * r * score[d] for p, r, score in outcomes) for d in range(n_params)]


def best_baseline(outcomes):
    """b* = E[r · |s|^2] / E[|s|^2]：让 g 的方差最小的那个常数。"""
    weights = [p * math.fsum(s * s for s in score) for p, _, score in outcomes]
    return math.fsum(w * r for w, (_, r, _) in zip(weights, outcomes)) / math.fsum(weights)


def break_even(n_group):
    """0/1 奖励下 RLOO 与无基线的噪声相等的 p；G 越大越接近 2/3（常数基线 b = p 打平的地方）。"""
    return (2 * n_group - 4) / (3 * n_group - 5)


def advantages(method, rewards, best):
    """一组奖励的优势（与 rewards 等长）；best 是 b*，只有"最优 b*"用到。RLOO 要 G ≥ 2，否则 ValueError。"""
    check_choice("method", method, METHODS)
    n, total = len(rewards), math.fsum(rewards)
    if method == "无基线":
        return list(rewards)
    if method == "组平均":
        return [r - total / n for r in rewards]
    if method == "RLOO":
        check_int("G", n, 2)
        return [r - (total - r) / (n - 1) for r in rewards]
    return [r - best for r in rewards]


def estimate(method, group, best):
    """g = (1/G) Σ A_i · s_i，每个参数一个数；group 是抽到的 G 个结果。"""
    adv = advantages(method, [r for _, r, _ in group], best)
    n_params = len(group[0][2])
    return [mean(a * score[d] for a, (_, _, score) in zip(adv, group)) for d in range(n_params)]


def exact_stats(method, outcomes, n_group):
    """
    g 的均值（每个参数一个数）与标准差（各参数的方差之和开方），都是精确值。

    【思路】样本的先后不影响 g，所以不必列出全部序列，只列"每种结果各出现几次"；
    每种分法的概率是多项分布（multinomial）。
    【边界】分法有 C(G+结果数-1, G) 种，所以 G 限制在 2～64。
    """
    check_int("G", n_group, 2, 64)
    best, cases = best_baseline(outcomes), []
    for picks in combinations_with_replacement(range(len(outcomes)), n_group):
        weight = float(math.factorial(n_group))
        for i, (p, _, _) in enumerate(outcomes):
            weight *= p ** picks.count(i) / math.factorial(picks.count(i))
        cases.append((weight, estimate(method, [outcomes[i] for i in picks], best)))
    centre = [math.fsum(w * g[d] for w, g in cases) for d in range(len(cases[0][1]))]
    variance = math.fsum(w * (x - m) ** 2 for w, g in cases for x, m in zip(g, centre))
    return centre, math.sqrt(variance)


def sampled_stats(method, outcomes, n_group, repeats, rng):
    """真的抽 repeats 组，返回第一个参数上 g 的 (均值, 标准差)。"""
    probs, best, estimates = [p for p, _, _ in outcomes], best_baseline(outcomes), []
    for _ in range(repeats):
        group = [outcomes[sample_index(probs, rng)] for _ in range(n_group)]
        estimates.append(estimate(method, group, best)[0])
    centre = mean(estimates)
    return centre, math.sqrt(mean((g - centre) ** 2 for g in estimates))


def main():
    check_int("GROUP", GROUP, 2, 64)
    check_int("REPEATS", REPEATS, 100)
    check_each("GROUPS", GROUPS, check_int, 2, 64)
    check_each("P_GRID", P_GRID, check_number, 0.001, 0.999)
    check_each("EVEN_P、HIGH_P", (EVEN_P, HIGH_P), check_number, 0.001, 0.999)
    check_each("CODINGS", CODINGS, check_each, check_number, -1000, 1000, at_least=3)
    if len(CODINGS) != 3 or any(len(coding) != 2 or coding[0] == coding[1] for coding in CODINGS):
        raise ValueError(f"CODINGS 应当是三对不同的分数（对, 错），收到的是 {CODINGS!r}")
    check_each("SIZES", SIZES, check_number, 0, None, True)
    check_seeds(SEED=SEED)

    title(f"演示 1：梯度的均值 —— 谁是无偏的？（0/1 奖励，G = {GROUP}）")
    rng = random.Random(SEED)
    truth = {p: exact_gradient(bernoulli(p))[0] for p in P_GRID}
    stats = {(p, m): exact_stats(m, bernoulli(p), GROUP) for p in (*P_GRID, EVEN_P, HIGH_P) for m in METHODS}
    sampled = {p: sampled_stats("RLOO", bernoulli(p), GROUP, REPEATS, rng) for p in P_GRID}
    means = {p: [f"{stats[p, m][0][0]:.4f}" for m in METHODS] for p in P_GRID}
    rows = [[f"{p:g}", f"{truth[p]:.4f}", *means[p], f"{sampled[p][0]:.4f}"] for p in P_GRID]
    print_table(["p", "真梯度", *METHODS, "RLOO，采样"], rows)
    even = bernoulli(EVEN_P)
    shrink = {n: exact_stats("组平均", even, n)[0][0] / exact_gradient(even)[0] for n in GROUPS}
    print()
    rows = [[n, f"{shrink[n]:.4f}", f"{(n - 1) / n:.4f}"] for n in GROUPS]
    print_table(["G", "组平均的均值 / 真梯度", "(G-1)/G"], rows)
    print("观察：")
    gaps = [abs(stats[p, m][0][0] - truth[p]) for p in P_GRID for m in METHODS if m != "组平均"]
    observe("无基线、RLOO、最优 b* 三列都等于真梯度：基线不看这个样本自己的结果，期望就一点不变。", max(gaps) < 1e-12)
    observe(
        f"组平均这一列小了一截，每个 p 都小同样的倍数：G = {GROUPS[0]} 时只剩 {shrink[GROUPS[0]]:.2f}，"
        f"G = {GROUPS[-1]} 时剩 {shrink[GROUPS[-1]]:.2f}，正是 (G-1)/G。平均里含着自己，就从自己身上减掉了 1/G。",
        all(abs(shrink[n] - (n - 1) / n) < 1e-9 for n in GROUPS),
    )
    z = max(abs(sampled[p][0] - truth[p]) / (stats[p, "RLOO"][1] / math.sqrt(REPEATS)) for p in P_GRID)
    observe(f"真的去抽 {REPEATS} 组，均值离枚举的结果最多 {z:.1f} 个标准误：枚举没有算错。", z < 4)

    title(f"演示 2：梯度的标准差 —— 基线省了多少？（0/1 奖励，G = {GROUP}）")
    best = {p: best_baseline(bernoulli(p)) for p in P_GRID}
    sds = {p: [f"{stats[p, m][1]:.4f}" for m in METHODS] for p in P_GRID}
    rows = [[f"{p:g}", f"{best[p]:.2f}", *sds[p], f"{sampled[p][1]:.4f}"] for p in P_GRID]
    print_table(["p，也是 E[r]", "b*", *METHODS, "RLOO，采样"], rows)
    none, rloo = ({p: stats[p, m][1] for p in (*P_GRID, EVEN_P, HIGH_P)} for m in ("无基线", "RLOO"))
    print("观察：")
    observe(
        "b* 不是平均奖励 p，而是 1 - p：越常做对，最好的基线越低。用它，标准差是 0："
        "对、错两种结果给出同样的推力，一个样本就够了。",
        all(abs(best[p] - (1 - p)) < 1e-12 and stats[p, "最优 b*"][1] < 1e-9 for p in P_GRID),
    )
    observe(
        f"p = {HIGH_P:g} 时，无基线的标准差是 {none[HIGH_P]:.4f}，RLOO 是 {rloo[HIGH_P]:.4f}，"
        f"是它的 {rloo[HIGH_P] / none[HIGH_P]:.1f} 倍：0 离 b* 很近，平均奖励反而很远。"
        f"p = {EVEN_P:g} 时反过来，RLOO 只有无基线的 {rloo[EVEN_P] / none[EVEN_P]:.0%}。",
        rloo[HIGH_P] > 4 * none[HIGH_P] and rloo[EVEN_P] < 0.6 * none[EVEN_P],
    )
    tie = break_even(GROUP)
    observe(
        f"G = {GROUP} 时两者打平在 p = {tie:.3f}：比它低的每个 p，RLOO 较稳；比它高的每个 p，无基线较稳。"
        "常数基线 b = p 打平在 2/3；G 越大，RLOO 越接近它。",
        all((rloo[p] < none[p]) == (p < tie) for p in P_GRID),
    )
    shrunk = (GROUP - 1) / GROUP
    observe(
        f"组平均处处是 RLOO 的 {shrunk:g} 倍，不是它更稳：均值也缩成了 {shrunk:g} 倍，噪声除以均值，两者一样。",
        all(abs(stats[p, "组平均"][1] / rloo[p] - shrunk) < 1e-9 for p in P_GRID),
    )

    title(f"演示 3：换一种给分的办法 —— 梯度与噪声（G = {GROUP}）")
    rows, sd, gradient = [], {}, {}
    for p in (EVEN_P, HIGH_P):
        for coding in CODINGS:
            outcomes = bernoulli(p, *coding)
            gradient[p, coding] = exact_gradient(outcomes)[0]
            for m in METHODS:
                sd[p, coding, m] = exact_stats(m, outcomes, GROUP)[1]
            sds = [f"{sd[p, coding, m]:.4f}" for m in METHODS]
            rows.append([f"p = {p:g}，{coding[0]}/{coding[1]}", f"{gradient[p, coding]:.4f}", *sds])
    print_table(["奖励（对/错）", "真梯度", *METHODS], rows)
    plain, signed, shifted = CODINGS
    blow_up = {p: sd[p, shifted, "无基线"] / max(1e-6, sd[p, plain, "无基线"]) for p in (EVEN_P, HIGH_P)}
    drift = max(abs(sd[p, shifted, "RLOO"] - sd[p, plain, "RLOO"]) for p in blow_up)
    ratios = [gradient[p, signed] / gradient[p, plain] for p in blow_up]
    ratios += [sd[p, signed, "RLOO"] / sd[p, plain, "RLOO"] for p in blow_up]
    print("观察：")
    observe(
        f"给所有奖励都加上 {shifted[1]}，该学的东西没有变，无基线的标准差却大了 {blow_up[EVEN_P]:.0f} 倍"
        f"（p = {EVEN_P:g}）和 {blow_up[HIGH_P]:.0f} 倍（p = {HIGH_P:g}）；RLOO 一点不变。",
        min(blow_up.values()) > 10 and drift < 1e-9,
    )
    observe(
        f"换成 {signed[0]}/{signed[1]}：真梯度和 RLOO 的噪声都是原来的 {ratios[0]:.0f} 倍，信噪比不变。"
        "RLOO 只看奖励的差：不怕平移，也不怕换单位。这才是它值得用的理由。",
        all(abs(ratio - 2) < 1e-9 for ratio in ratios),
    )

    title(f"演示 4：三种做法、三个 logit —— 结论还成立吗？（0/1 奖励，G = {GROUP}）")
    rows, cases = [], []
    for model in map(TrainableLLM, SIZES):
        for name, key in HARD_CONTEXTS.items():
            outcomes = three_procedures(model.context_probs(key))
            p, b = model.p_correct(key), best_baseline(outcomes)
            sds = {m: exact_stats(m, outcomes, GROUP)[1] for m in METHODS}
            cases.append((p, b, sds))
            rows.append([f"{model.name}，{name}", f"{p:.3f}", f"{b:.3f}", *(f"{x:.4f}" for x in sds.values())])
    print_table(["模型与语境", "p", "b*", *METHODS], rows)
    high_p, high_b, high = max(cases, key=lambda case: case[0])
    left = [sds["最优 b*"] for _, _, sds in cases]
    print("观察：")
    observe(
        f"b* 不再正好是 1 - p，但每一行都比 1 - p 还低；p = {high_p:.2f} 的那一行只有 {high_b:.2f}。"
        f"那里无基线的噪声（{high['无基线']:.4f}）仍然比 RLOO（{high['RLOO']:.4f}）小得多。",
        all(b < 1 - p for p, b, _ in cases) and high["RLOO"] > 4 * high["无基线"],
    )
    observe(
        f"噪声为 0 的好事没有了：用上 b*，标准差也还有 {min(left):.4f}～{max(left):.4f}。"
        "三种结果推向三个方向，一个常数抵不掉。",
        min(left) > 1e-3,
    )


if __name__ == "__main__":
    run_script(main)

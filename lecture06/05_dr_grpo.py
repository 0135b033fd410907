"""
================================================================================
第 6 讲 · 05：Dr. GRPO —— GRPO 的两个除法，各带来一种偏差
================================================================================
对应讲义：lectures/lecture06_scaling_rl.md 第 7 节（Liu et al. 2025, Dr. GRPO；Yu et al. 2025, DAPO）

【问题】GRPO 除了两次：优势除以组内的标准差，每个样本的损失除以自己的长度。去掉它们会怎样？

【这里的设定】两个偏差分开看，一次只改一处。
演示 1（难度偏差）：一道题的正确率是 p，一组 G 个样本；比较优势除以标准差（GRPO）与不除（Dr. GRPO）
    时，这道题推动"正确" logit 的平均力度；表里的倍数是两个平均力度之比。枚举答对 0～G 个的所有情形，用采样核对。
演示 2、3（长度偏差）：优势都是 r - 组平均，不除以标准差，只换"把 token 的损失合成一个数"的办法：
    每样本平均（GRPO）      (1/G) Σ_i (1/|y_i|) Σ_t
    按 token 平均（DAPO）   (1/Σ|y_i|) Σ_i Σ_t
    除以常数（Dr. GRPO）    (1/(G·L)) Σ_i Σ_t，L 是常数
G 是组里的样本数，|y_i| 是第 i 个样本的长度，Σ_t 加的是它每个 token 的损失；最后再对各组取平均。
演示 3 的世界小到只剩长度：答对的概率固定是 P_RIGHT，学不动；能学的只有两个停止概率 q
（答对的样本一个，答错的一个）。每个 token 之后以概率 q 停下，所以平均长度是 1/q。
简化：真的 GRPO 两个除法同时在。L 取开始时的平均长度，三种办法的第一步才差不多大。
真的模型停笔之前不知道自己会不会答对，这里直接告诉了它。

【公式】u 是 q 的 logit，一个样本写了 n 个 token 后停下：log π 对 u 的导数 = 1 - n·q。
除以常数：E[1 - n·q] = 0，长度没有推力。每样本平均：E[(1 - n·q)/n] = E[1/n] - q > 0，
乘上优势：答对的（A > 0）越停越早，答错的（A < 0）越停越晚。

运行时间：约 1.3 秒，只用标准库。
"""
import math
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from trainable_llm import (
    check_ascending, check_choice, check_counts, check_each, check_int, check_number, check_seeds, mean, observe,
    print_table, run_script, sigmoid, title,
)

GROUP = 16  # 演示 1：一组的样本数，公式里的 G
BIG_GROUPS = (16, 64, 256)  # 演示 1：看封闭公式何时准确时用的几种 G
P_GRID = (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)  # 演示 1：题目的正确率 p
REPEATS = 6000  # 演示 1：采样核对时抽多少组
SEED = 165  # 演示 1 的随机种子
LOSSES = ((1, 1, 1, 1, 10), (1, 1, 1, 1, 1, 1, 1, 1, 1, 10))  # 演示 2：两个样本每个 token 的损失
METHODS = ("每样本平均", "按 token 平均", "除以常数")  # GRPO、DAPO、Dr. GRPO 的合成办法；代码按名字认，不要改
P_RIGHT = 0.4  # 演示 3：答对的概率，固定不变
START_LENGTH = 10  # 演示 3：开始时的平均长度，也是“除以常数”里的 L
MAX_LENGTH = 2000  # 演示 3：写到这么长就被截断（没有"停"这个动作）
LENGTH_GROUP = 8  # 演示 3：一组的样本数
BATCH = 32  # 演示 3：一步几组
STEPS = 500  # 演示 3：训练多少步
EVERY = 100  # 演示 3：每隔多少步记一行
LR = 1.0  # 演示 3：学习率
TRAIN_SEED = 166  # 演示 3 的随机种子，三种办法各从它开始


def group_push(c, n, p, divide_by_std):
    """
    一组 n 个样本、c 个答对时，(1/n) Σ A_i · s_i 的值（得分 s：答对 1-p，答错 -p）。
    【推导】m = c/n 是这一组答对的比例：Dr. GRPO 得 m(1-m)，GRPO 得 m(1-m)/std = √(m(1-m))，与 p 无关。
    """
    m = c / n
    if c in (0, n):  # 全对或全错：优势全是 0
        return 0.0
    std = math.sqrt(m * (1 - m)) if divide_by_std else 1.0  # 总体标准差（ddof 0），与 02 的 GRPO 一致
    return (m * (1 - m) * (1 - p) + (1 - m) * -m * -p) / std


def expected_push(p, n, divide_by_std):
    """group_push 的期望：枚举 c = 0 … n，c 服从二项分布。精确值。"""
    return math.fsum(
        math.comb(n, c) * p**c * (1 - p) ** (n - c) * group_push(c, n, p, divide_by_std) for c in range(n + 1)
    )


def measured_push(p, n, repeats, rng):
    """真的抽 repeats 组，返回 (GRPO, Dr. GRPO) 的平均推力。"""
    counts = [sum(rng.random() < p for _ in range(n)) for _ in range(repeats)]
    return tuple(mean(group_push(c, n, p, divide) for c in counts) for divide in (True, False))


def token_weights(method, lengths, constant):
    """
    每个样本的一个 token 在总损失里的权重，与 lengths 等长。
    【例子】长度 5 和 10，L = 10：每样本平均 0.1、0.05；按 token 平均都是 1/15；除以常数都是 0.05。
    """
    check_choice("method", method, METHODS)
    if method == "每样本平均":
        return [1 / (len(lengths) * n) for n in lengths]
    if method == "按 token 平均":
        return [1 / sum(lengths)] * len(lengths)
    return [1 / (len(lengths) * constant)] * len(lengths)


def aggregate(method, losses, constant):
    """把每个样本、每个 token 的损失合成一个数。"""
    weights = token_weights(method, [len(row) for row in losses], constant)
    return math.fsum(w * x for w, row in zip(weights, losses) for x in row)


def stop_prob(u):
    """q = σ(u)：每个 token 之后停下的概率。u 限制在 ±30，免得 q 变成 0 或 1。"""
    return sigmoid(max(-30.0, min(30.0, u)))


def draw_length(q, rng):
    """抽一个长度：几何分布，到 MAX_LENGTH 截断。返回 (长度, 是不是自己停下的)。"""
    n = 1 + int(math.log(1 - rng.random()) / math.log1p(-q))
    return (n, True) if n < MAX_LENGTH else (MAX_LENGTH, False)


def length_score(n, stopped, q):
    """log π(这个长度) 对 u 的导数：停下的那个 token 给 1 - q，没停的每个给 -q，相加是 1 - n·q 或 -n·q。"""
    return (1.0 if stopped else 0.0) - n * q


def mean_length(q):
    """停止概率 q 的平均长度（含截断），精确值：(1 - (1-q)^MAX_LENGTH) / q。"""
    return -math.expm1(MAX_LENGTH * math.log1p(-q)) / q


def length_gradient(method, groups, qs):
    """
    一批样本的策略梯度，对两个 u 各一个数：[答对的, 答错的]；先在每组里合成，再对各组取平均。
    【参数】groups：每组是 [(right, n, stopped)]；qs：(答对时的 q, 答错时的 q)。
    【思路】奖励 = 1（答对）或 0，优势 = 奖励 - 组平均。奖励里没有长度。
    """
    pushes = ([], [])
    for group in groups:
        average = mean(right for right, _, _ in group)
        weights = token_weights(method, [n for _, n, _ in group], START_LENGTH)
        for w, (right, n, stopped) in zip(weights, group):
            side = 0 if right else 1
            pushes[side].append(w * (right - average) * length_score(n, stopped, qs[side]))
    return [math.fsum(side) / len(groups) for side in pushes]


def train_lengths(method, rng):
    """训练两个停止概率，返回 {步: (答对的平均长度, 答错的平均长度)}，精确值。"""
    u = [math.log(1 / (START_LENGTH - 1))] * 2  # q = 1 / START_LENGTH
    curve = {}
    for step in range(STEPS + 1):
        qs = [stop_prob(x) for x in u]
        if step % EVERY == 0:
            curve[step] = tuple(mean_length(q) for q in qs)
        groups = []
        for _ in range(BATCH):
            rights = [rng.random() < P_RIGHT for _ in range(LENGTH_GROUP)]
            groups.append([(right, *draw_length(qs[0 if right else 1], rng)) for right in rights])
        gradient = length_gradient(method, groups, qs)
        u = [x + LR * g for x, g in zip(u, gradient)]
    return curve


def check_constants():
    for name, low, high in (("REPEATS", 100, None), ("MAX_LENGTH", 2, None), ("STEPS", 1, None), ("EVERY", 1, None),
                            ("GROUP", 2, 512), ("LENGTH_GROUP", 2, 64), ("BATCH", 1, 512)):
        check_int(name, globals()[name], low, high)
    for p in check_ascending("P_GRID", P_GRID, 3):
        check_number("P_GRID 里的数", p, 0.001, 0.999)
    check_counts("BIG_GROUPS", BIG_GROUPS, 2, 512)
    check_each("LOSSES", LOSSES, check_each, check_number, at_least=2)
    check_number("P_RIGHT", P_RIGHT, 0.01, 0.99)
    check_number("START_LENGTH", START_LENGTH, 1, 1000, open_low=True)
    check_number("LR", LR, 0, 100)
    check_seeds(SEED=SEED, TRAIN_SEED=TRAIN_SEED)


def main():
    check_constants()
    title(f"演示 1：难度偏差 —— 一道题推得多用力（一组 {GROUP} 个样本）")
    rng, rows, ratio, sampled = random.Random(SEED), [], {}, {}
    for p in P_GRID:
        grpo, dr = (expected_push(p, GROUP, divide) for divide in (True, False))
        measured = measured_push(p, GROUP, REPEATS, rng)
        if measured[1] == 0:
            raise ValueError(f"REPEATS = {REPEATS} 太小：p = {p:g} 的题一个活组也没有抽到")
        ratio[p], sampled[p] = grpo / dr, measured[0] / measured[1]
        rows.append([f"{p:g}", f"{1 - p**GROUP - (1 - p) ** GROUP:.3f}", f"{dr:.4f}", f"{grpo:.4f}", f"{ratio[p]:.2f}",
                     f"{sampled[p]:.2f}", f"{1 / math.sqrt(p * (1 - p)):.2f}"])
    print_table(["正确率 p", "活组", "Dr. GRPO", "GRPO", "倍数", "倍数，采样", "1/√(p(1-p))"], rows)
    rarest, easiest, even = P_GRID[0], P_GRID[-1], min(P_GRID, key=lambda p: abs(p - 0.5))
    print("观察：")
    observe(
        f"GRPO 相对 Dr. GRPO 的倍数是 U 形：p = {even:g} 的题 {ratio[even]:.1f} 倍，太难的（p = {rarest:g}）"
        f"{ratio[rarest]:.1f} 倍，太易的（p = {easiest:g}）{ratio[easiest]:.1f} 倍。",
        min(ratio[rarest], ratio[easiest]) > 1.5 * ratio[even] and all(ratio[p] >= ratio[even] for p in P_GRID),
    )
    worst = max(abs(sampled[p] / ratio[p] - 1) for p in P_GRID)
    observe(f"采样得到的倍数与枚举最多差 {worst:.1%}。", worst < 0.04)
    limit = GROUP / math.sqrt(GROUP - 1)
    big = [expected_push(rarest, n, True) / expected_push(rarest, n, False) for n in BIG_GROUPS]
    observe(
        f"1/√(p(1-p)) 只在 G 很大时才准：p = {rarest:g} 的题，G = {'、'.join(map(str, BIG_GROUPS))} 时是 "
        f"{'、'.join(f'{x:.1f}' for x in big)} 倍。活组至少对一个，所以 G = {GROUP} 时一组最多 {limit:.1f} 倍。",
        all(before < after for before, after in zip(big, big[1:])) and ratio[rarest] < limit
        and abs(big[-1] * math.sqrt(rarest * (1 - rarest)) - 1) < 0.2,
    )

    title("演示 2：同样的 token 损失，三种合成办法")
    lengths = [len(row) for row in LOSSES]
    weights = {m: token_weights(m, lengths, START_LENGTH) for m in METHODS}
    total = {m: aggregate(m, LOSSES, START_LENGTH) for m in METHODS}
    rows = [[m, *(f"{w:.3f}" for w in weights[m]), f"{total[m]:.2f}"] for m in METHODS]
    print_table(["办法", *(f"样本 {i + 1} 的每个 token（长 {n}）" for i, n in enumerate(lengths)), "损失"], rows)
    each, token, constant = METHODS
    short, long = lengths.index(min(lengths)), lengths.index(max(lengths))
    gap = weights[each][short] / weights[each][long]
    print("观察：")
    observe(
        f"损失一模一样，合成出三个数：{total[each]:.2f}、{total[token]:.2f}、{total[constant]:.2f}。每样本平均时，"
        f"短样本的一个 token 顶长样本的 {gap:.1f} 个；另外两种办法里每个 token 一样重。",
        gap > 1.5 and all(max(weights[m]) - min(weights[m]) < 1e-12 for m in (token, constant)),
    )

    title(f"演示 3：长度偏差 —— 正确率固定在 {P_RIGHT:g}，只有长度能学：平均长度")
    curves = {m: train_lengths(m, random.Random(TRAIN_SEED)) for m in METHODS}
    rows = [[step, *(f"{n:.1f}" for m in METHODS for n in curves[m][step])] for step in curves[each]]
    print_table(["步", "每样本 对", "每样本 错", "token 对", "token 错", "常数 对", "常数 错"], rows)
    last = max(curves[each])
    (each_right, each_wrong), (token_right, token_wrong), (dr_right, dr_wrong) = (curves[m][last] for m in METHODS)
    q = 1 / START_LENGTH
    inverse = -q * math.log(q) / (1 - q)  # 几何分布的 E[1/n]
    print("观察：")
    observe(
        f"奖励从不提长度，每样本平均（GRPO）之下，答错的却从 {START_LENGTH:g} 个 token 涨到 {each_wrong:.0f} 个，"
        f"答对的缩到 {each_right:.1f} 个：错的写得长，每个 token 挨的罚就轻；对的写得短，每个 token 领的赏就多。",
        each_wrong > 10 * START_LENGTH and each_right < 0.3 * START_LENGTH,
    )
    observe(
        f"除以常数（Dr. GRPO），两种长度都留在原地（{dr_right:.1f} 和 {dr_wrong:.1f}）：没有推力，只有采样的抖动。",
        all(abs(n / START_LENGTH - 1) < 0.2 for n in (dr_right, dr_wrong)),
    )
    observe(
        f"按 token 平均（DAPO）在两者之间（{token_right:.1f} 和 {token_wrong:.1f}）：分母是全组的总长，"
        f"自己的长度只是 {LENGTH_GROUP} 份里的一份，偏差小了，没有消失。",
        each_right < token_right < dr_right and dr_wrong < token_wrong < each_wrong and token_wrong > 1.2 * dr_wrong,
    )
    observe(
        f"推力从哪里来：开始时 E[1/n] = {inverse:.3f}，比 q = {q:.3f} 大，所以 E[(1 - n·q)/n] 是正的；"
        "不除以 n，E[1 - n·q] 正好是 0。",
        inverse > 1.5 * q,
    )


if __name__ == "__main__":
    run_script(main)

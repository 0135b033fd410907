"""
================================================================================
第 6 讲 · 08：规模曲线 —— 只看前 30%，能不能预测终点？
================================================================================
对应讲义：lectures/lecture06_scaling_rl.md 第 10 节（Khatri et al. 2025, ScaleRL）

【问题】RL 跑到一半，怎么知道再花几倍算力值不值？早期领先的配方，最后也会领先吗？

【这里的设定】同一个基座，三种配方（recipe），都用 02 的 GRPO：
    低精度      采样器算得粗糙，每一步有 ε = LOW_NOISE 的机会乱选一种做法；一批样本花 1 份算力；
    高精度      ε = HIGH_NOISE；一批样本花 2 份；
    高精度小步  同上，学习率减半。
采样器的 π = (1-ε) · softmax(logits) + ε/3，训练器却按 softmax(logits) 求梯度。
乱选压住了天花板：全学会之后，一道 n 步的题也只有 (1-2ε/3)^n 的机会每一步都对，所以天花板 A
的真值已知，可以对答案。横轴 C 是花掉的算力；R 是测试题上"每一步都对"的概率，精确算出，没有评测噪声。
简化：天花板和"便宜一半"都是造进去的；ScaleRL 把 logits 换成 FP32 也抬高了 A，机制要复杂得多。

【公式】
    S 形（sigmoid）  R(C) = R0 + (A - R0) / (1 + (C_mid/C)^B)      R0 是起点，已知
    幂律             R(C) = a · C^b
    饱和幂律         R(C) = A - D · C^(-b)
A 是天花板；C_mid 是走完一半的算力，B 是陡的程度，合起来是效率。标准库只会拟合直线：
这里对 (C_mid, B) 撒网格、逐层加密，每个格点上的 A 有封闭解。

运行时间：约 2.5 秒，只用标准库。
"""
import math
import random
import sys
from itertools import product
from pathlib import Path
from statistics import linear_regression

sys.path.insert(0, str(Path(__file__).resolve().parent))
from trainable_llm import (
    TEMPERATURE, TrainableLLM, add_grpo_group, apply_grads, check_ascending, check_each, check_int, check_number,
    check_seeds, check_setting, make_problem_set, mean, observe, path_probs, print_table, run_script, title,
)

BASE_SIZE = 3e8  # 基座模型的参数量
N_TRAIN, N_TEST = 300, 60  # 训练题与测试题的数量
MIN_STEPS, MAX_STEPS = 3, 5  # 每道题的步数范围
TRAIN_SET_SEED, TEST_SET_SEED = 180, 181  # 两个题集的随机种子
GROUP, BATCH = 8, 5  # GRPO 每道题的样本数；每批几道题
LOW_NOISE, HIGH_NOISE = 0.06, 0.02  # 低精度、高精度的采样器每一步乱选的机会 ε
LR = 4.0  # 学习率；"小步"是它的一半
BUDGET = 1000  # 每种配方一共花多少份算力
N_POINTS = 100  # 一条曲线上等距地量多少次
RUN_SEED = 182  # 训练的随机种子，三种配方各从它开始
DROP = 0.01  # 拟合时丢掉最开头的这一段（占总算力的比例）
FRACTIONS = (0.06, 0.15, 0.3, 0.5)  # 用开头多少来拟合
MAIN_FRACTION = 0.3  # 演示 2 用的那一个
SHOW = (0.0, 0.01, 0.02, 0.04, 0.06, 0.08, 0.12, 0.3, 0.5, 1.0)  # 演示 1 的表里列出总算力的哪些比例

MODELS = ("S 形", "饱和幂律", "幂律")  # 拟合用的三种曲线；代码按名字认，不要改
RECIPES = {  # 名字: (采样器的 ε, 一批样本花几份算力, 学习率是 LR 的几倍)
    "低精度": (LOW_NOISE, 1, 1),
    "高精度": (HIGH_NOISE, 2, 1),
    "高精度小步": (HIGH_NOISE, 2, 0.5),
}


class Sampler(TrainableLLM):
    """算得粗糙的采样器：与训练器共用参数，每一步有 noise 的机会乱选一种做法。"""

    def __init__(self, model, noise):
        super().__init__(model.size)
        self.delta, self.noise = model.delta, noise  # 同一张表，不是副本：训练器更新，采样器跟着变

    def step_probs(self, op, a, b, step_index, temperature=TEMPERATURE):
        p, q, r = super().step_probs(op, a, b, step_index, temperature)
        keep, share = 1 - self.noise, self.noise / 3
        return keep * p + share, keep * q + share, keep * r + share


def train(noise, cost, lr_factor, train_set, test_set, rng):
    """按一种配方训练，返回规模曲线 [(C, R)]，从 C = 0 开始。"""
    model = TrainableLLM(BASE_SIZE)
    sampler, curve = Sampler(model, noise), []
    n_batches, every = BUDGET // cost, max(1, BUDGET // cost // N_POINTS)
    for step in range(n_batches + 1):
        if step % every == 0:
            curve.append((step * cost, mean(math.prod(path_probs(sampler, problem)) for problem in test_set)))
        grads = {}
        for problem in rng.sample(train_set, BATCH):
            samples = [sampler.generate(problem, rng, TEMPERATURE) for _ in range(GROUP)]
            rewards = [int(sample.correct) for sample in samples]
            add_grpo_group(grads, model, problem, samples, rewards, BATCH * GROUP)
        apply_grads(model, grads, lr_factor * LR)
    return curve


def true_ceiling(noise, problems):
    """每种语境都学会之后，R 还能到多少：(1 - 2ε/3)^n 的平均。"""
    return mean((1 - 2 * noise / 3) ** problem.n_steps for problem in problems)


def sigmoid(c, r0, a, c_mid, b):
    """R0 + (A - R0) / (1 + (C_mid/C)^B)，c > 0。"""
    return r0 + (a - r0) / (1 + (c_mid / c) ** b)


def fit_sigmoid(points, r0, grid=9, rounds=16):
    """
    最小二乘拟合 S 形，返回 (A, C_mid, B)。points：[(C, R)]，C > 0；r0：起点，固定。
    【思路】给定 C_mid 和 B，R - R0 与 A - R0 成正比，A 是一元最小二乘的封闭解，只剩两个参数：
    在 (log C_mid, log B) 上撒 grid × grid 的网格，以最好的一点为中心把网格缩到 0.6 倍，重复。
    【边界】数据没有走过 C_mid 的好几倍时，A 几乎不受约束，可以大过 1：这正是演示 3 要看的。
    """
    if len(points) < 3:
        advice = "请加大 N_POINTS、FRACTIONS 或 MAIN_FRACTION，或者减小 DROP"
        raise ValueError(f"points 应当至少有 3 个点，收到的是 {len(points)} 个：{advice}")
    logs, ys = [math.log(c) for c, _ in points], [r - r0 for _, r in points]
    box = [(logs[0], logs[-1] + 3), (math.log(0.3), math.log(8.0))]  # 只在这个范围里找
    window, best = box, None
    for _ in range(rounds):
        for at in product(*([low + (high - low) * i / (grid - 1) for i in range(grid)] for low, high in window)):
            shape = [1 / (1 + math.exp(math.exp(at[1]) * (at[0] - x))) for x in logs]
            scale = math.fsum(s * y for s, y in zip(shape, ys)) / math.fsum(s * s for s in shape)
            error = math.fsum((scale * s - y) ** 2 for s, y in zip(shape, ys))
            if best is None or error < best[0]:
                best = (error, scale, at)
        half = [0.3 * (high - low) for low, high in window]
        window = [(max(low, x - h), min(high, x + h)) for (low, high), x, h in zip(box, best[2], half)]
    return r0 + best[1], math.exp(best[2][0]), math.exp(best[2][1])


def fit_power(points):
    """拟合 R = a · C^b，返回这个函数：取对数后是一条直线。"""
    b, intercept = linear_regression([math.log(c) for c, _ in points], [math.log(r) for _, r in points])
    return lambda c: math.exp(intercept) * c**b


def fit_saturating(points):
    """拟合 R = A - D · C^(-b)，返回这个函数：给定 b 是一条直线，所以从 0.05 到 3 逐个试 b。"""
    tried = []
    for b in (0.05 * 1.05**i for i in range(85)):
        slope, a = linear_regression([c**-b for c, _ in points], [r for _, r in points])
        tried.append((math.fsum((a + slope * c**-b - r) ** 2 for c, r in points), a, slope, b))
    _, a, slope, b = min(tried)
    return lambda c: a + slope * c**-b


def forecast(curve, fraction):
    """只看开头 fraction 的算力，返回 ({模型: 预测的 BUDGET 处的 R}, (A, C_mid, B))。"""
    r0 = curve[0][1]
    points = [(c, r) for c, r in curve if DROP * BUDGET <= c <= fraction * BUDGET and c > 0]
    fitted = fit_sigmoid(points, r0)
    predicted = sigmoid(BUDGET, r0, *fitted), fit_saturating(points)(BUDGET), fit_power(points)(BUDGET)
    return dict(zip(MODELS, predicted)), fitted


def check_constants():
    check_setting(BASE_SIZE, N_TRAIN, N_TEST, MIN_STEPS, MAX_STEPS, GROUP, BATCH)
    check_int("N_POINTS", N_POINTS, 1)
    check_int("BUDGET", BUDGET, 10)
    check_ascending("FRACTIONS", FRACTIONS, 2, 0)
    for name, high in (("LOW_NOISE", 0.9), ("HIGH_NOISE", 0.9), ("DROP", 1), ("MAIN_FRACTION", 1)):
        check_number(name, globals()[name], 0, high)
    check_number("LR", LR, 0, 100, open_low=True)
    check_each("SHOW", SHOW, check_number, 0, 1)
    for _, cost, _ in RECIPES.values():
        check_int("RECIPES 里的花费", cost, 1, BUDGET)
    check_seeds(TRAIN_SET_SEED=TRAIN_SET_SEED, TEST_SET_SEED=TEST_SET_SEED, RUN_SEED=RUN_SEED)


def main():
    check_constants()
    title("演示 1：三种配方的规模曲线 —— 早期领先的，最后也领先吗？")
    train_set = make_problem_set(random.Random(TRAIN_SET_SEED), N_TRAIN, MIN_STEPS, MAX_STEPS)
    test_set = make_problem_set(random.Random(TEST_SET_SEED), N_TEST, MIN_STEPS, MAX_STEPS)
    curves = {name: train(*recipe, train_set, test_set, random.Random(RUN_SEED)) for name, recipe in RECIPES.items()}
    ceilings = {name: true_ceiling(noise, test_set) for name, (noise, _, _) in RECIPES.items()}
    cheap, fine, slow = RECIPES

    def value_at(name, fraction):
        return min(curves[name], key=lambda point: abs(point[0] - fraction * BUDGET))[1]

    rows = [[f"{f * BUDGET:g}", *(f"{value_at(name, f):.3f}" for name in RECIPES)] for f in SHOW]
    print_table(["C", *RECIPES], [*rows, ["天花板", *(f"{ceilings[name]:.3f}" for name in RECIPES)]])
    lead = max(SHOW, key=lambda f: value_at(cheap, f) - value_at(fine, f))
    print("观察：")
    observe(
        f"曲线交叉：只差精度的两种，C = {lead * BUDGET:g} 时{cheap} {value_at(cheap, lead):.3f}，{fine} "
        f"{value_at(fine, lead):.3f}；最后是 {value_at(cheap, 1):.3f} 和 {value_at(fine, 1):.3f}，各自停在天花板上。"
        "只看早期选配方，会选错。",
        value_at(cheap, lead) > value_at(fine, lead) + 0.1
        and all(abs(value_at(name, 1) - ceilings[name]) < 0.01 for name in RECIPES)
        and ceilings[cheap] < ceilings[fine] - 0.05,
    )

    title(f"演示 2：只用前 {MAIN_FRACTION:.0%} 拟合，预测 C = {BUDGET} 处的 R")
    told = {(f, name): forecast(curves[name], f) for f in (*FRACTIONS, MAIN_FRACTION) for name in RECIPES}
    miss = {(f, name, m): abs(r - value_at(name, 1)) for (f, name), (rs, _) in told.items() for m, r in rs.items()}
    fitted = {name: told[MAIN_FRACTION, name][1] for name in RECIPES}
    rows, highest = [], max(told[MAIN_FRACTION, name][0]["幂律"] for name in RECIPES)
    for name in RECIPES:
        predicted, (a, c_mid, b) = told[MAIN_FRACTION, name]
        rows.append([name, f"{ceilings[name]:.3f}", f"{a:.3f}", f"{c_mid:.0f}", f"{b:.2f}", f"{value_at(name, 1):.3f}",
                     *(f"{r:.3f}" for r in predicted.values())])
    print_table(["配方", "A 真值", "A", "C_mid", "B", "终点 R", *MODELS], rows)
    off = {m: [miss[MAIN_FRACTION, name, m] for name in RECIPES] for m in MODELS}
    worse = min(p / max(q, 1e-9) for p, q in zip(off["幂律"], off["S 形"]))
    print("观察：")
    observe(
        f"S 形外推得住：最多差 {max(off['S 形']):.3f}。幂律没有天花板，把正确率说成了 {highest:.0%}，每种配方的误差"
        f"至少是 S 形的 {worse:.0f} 倍。",
        max(off["S 形"]) < 0.05 and highest > 1 and worse > 4,
    )
    observe(
        f"给幂律加上天花板也不够（平均差 {mean(off['饱和幂律']):.3f}，S 形 {mean(off['S 形']):.3f}）："
        "它从头到尾都在减速，装不下前半段的加速，只好把天花板抬高。",
        mean(off["饱和幂律"]) > 2 * mean(off["S 形"]),
    )
    observe(
        f"换学习率几乎只动 C_mid（{fitted[fine][1]:.0f} 对 {fitted[slow][1]:.0f}），A 是 {fitted[fine][0]:.3f} 对 "
        f"{fitted[slow][0]:.3f}。换精度动 A（{fitted[cheap][0]:.3f} 对 {fitted[fine][0]:.3f}），也动 C_mid"
        f"（{fitted[cheap][1]:.0f} 对 {fitted[fine][1]:.0f}）：一批贵一倍。",
        fitted[fine][0] - fitted[cheap][0] > 0.05 and fitted[fine][1] > 1.4 * fitted[cheap][1]
        and fitted[slow][1] > 1.4 * fitted[fine][1] and abs(fitted[slow][0] - fitted[fine][0]) < 0.03,
    )

    title("演示 3：多早就能预测？—— 三种配方的平均误差")
    errors = {f: {m: mean(miss[f, name, m] for name in RECIPES) for m in MODELS} for f in FRACTIONS}
    seen = {f: [f"{told[f, slow][1][0]:.3f}", f"{f * BUDGET / fitted[slow][1]:.1f}"] for f in FRACTIONS}
    rows = [[f"{f:.0%}", *(f"{e:.3f}" for e in errors[f].values()), *seen[f]] for f in FRACTIONS]
    print_table(["用前", *(f"{m}误差" for m in MODELS), f"{slow}：A", f"C / C_mid（{MAIN_FRACTION:.0%} 的拟合）"], rows)
    early, late = min(FRACTIONS), max(FRACTIONS)
    print("观察：")
    observe(
        f"只看前 {early:.0%}，谁都不准：平均差 " + "，".join(f"{m} {errors[early][m]:.2f}" for m in MODELS)
        + "。曲线还没有弯下来，天花板无从谈起。",
        all(errors[early][m] > max(0.03, 3 * errors[late][m]) for m in MODELS),
    )
    observe(
        f"看到前 {late:.0%}，S 形只差 {errors[late]['S 形']:.3f}，幂律仍差 {errors[late]['幂律']:.2f}：形状错了。",
        errors[late]["S 形"] < 0.02 and errors[late]["幂律"] > 5 * errors[late]["S 形"],
    )
    observe(
        "ScaleRL（Khatri et al. 2025）丢掉最早的一段，用前一半外推后一半。要看到 C_mid 的好几倍才够，"
        "而真实的训练里，C_mid 有多大事先并不知道。"
    )


if __name__ == "__main__":
    run_script(main)

"""
================================================================================
第 1 讲 · 01：平滑还是突变？ —— 同一批模型，换一把尺子就"涌现"了
================================================================================
对应讲义：lectures/lecture01_scaling_and_cot.md 第 2 节
（Wei et al. 2022b, "Emergent Abilities"；Schaeffer et al. 2023, "Mirage"；Kaplan et al. 2020）

【问题】模型大到某个规模，能力会突然出现吗？

【这里的设定】六个模型，从 10M 到 1T，每次 ×10。量两样东西：
    每一步：第 i 步做对的概率 p_i，以及损失（loss）-log p_i；
    整道题：n 步全对才算对（exact match，完全匹配），概率 p = p_1 · p_2 · … · p_n。
整题的概率用 path_probs 精确算出，不靠采样；只有演示 3 才真的去采样。
简化：真实论文里的概率要在测试集上测量，这里由 toy world 的公式给出；
"整题做对"指过程每一步都对，两个错误互相抵消、碰巧答对的不算。

【公式】EM = p_1 · p_2 · … · p_n，所以 -log EM = Σ -log p_i（log 是自然对数）：
乘积这把尺子有拐点，对数这把尺子没有。EM 是 exact match，就是讲义 1.4 节的 P(sound)。

运行时间：约 0.3 秒，只用标准库。
"""
import math
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from toy_llm import (
    ToyLLM, bar, check_ascending, check_int, check_number, check_seeds, fmt_size, make_problem_set, mean, observe,
    pad, path_probs, print_table, run_script, title,
)

SIZES = (1e7, 1e8, 1e9, 1e10, 1e11, 1e12)  # 模型的参数量，相邻两个差 10 倍
STEPS = (1, 2, 4, 8)  # 题目的步数，从短到长
N_PROBLEMS = 200  # 每种步数出多少道题
SET_SEED = 10  # 出题的随机种子
THRESHOLD = 0.1  # 整题正确率过了这条线，就说这种能力"出现"了
SMALL_TEST = 25  # 演示 3：小测试集的题数，每题只答一次
BIG_TEST = 4000  # 演示 3：大测试集的题数，每题只答一次
RARE = 0.02  # 演示 3：举例用的一个很小的正确率
SAMPLE_SEED = 11  # 演示 3：出测试题和作答的随机种子


def step_stats(model, problems):
    """
    【返回】(loss, accuracy)：所有题的所有步骤上，-log p_i 的平均（nat）与 p_i 的平均。
    """
    probs = [p for problem in problems for p in path_probs(model, problem)]
    return mean(-math.log(p) for p in probs), mean(probs)


def exact_match(model, problems):
    """整题每一步都对的概率，在 problems 上取平均（精确值，不采样）。"""
    return mean(math.prod(path_probs(model, problem)) for problem in problems)


def appears_at(curve, threshold):
    """
    整题正确率首次达到 threshold 的模型规模；一直没达到时返回无穷大。

    【参数】curve：[(size, EM)]，按 size 从小到大。
    """
    return next((size for size, em in curve if em >= threshold), math.inf)


def spread_of_measured(model, problems):
    """这些题各答一次，全对的比例的标准差：第 j 题的方差是 p_j(1 - p_j)，各题独立，方差相加。"""
    probs = [math.prod(path_probs(model, problem)) for problem in problems]
    return math.sqrt(math.fsum(p * (1 - p) for p in probs)) / len(probs)


def measured_exact_match(model, problems, rng):
    """真的让模型每题答一次，全对的比例：论文里画曲线用的就是这种测量值。"""
    return mean(model.generate(problem, rng).sound for problem in problems)


def bar_cell(x, width=15):
    """表格里的一格：横条，后面跟数字。"""
    return f"{pad(bar(x, width), width)} {x:.3f}"


def main():
    for size in check_ascending("SIZES", SIZES, 4):
        check_number("SIZES 里的规模", size, 0, open_low=True)
    for n in check_ascending("STEPS", STEPS):
        check_int("STEPS 里的步数", n, 1)
    check_int("N_PROBLEMS", N_PROBLEMS, 1)
    check_number("THRESHOLD", THRESHOLD, 0, 1, open_low=True)
    check_number("RARE", RARE, 0, 1)
    check_int("SMALL_TEST", SMALL_TEST, 1)
    check_int("BIG_TEST", BIG_TEST, 1)
    check_seeds(SET_SEED=SET_SEED, SAMPLE_SEED=SAMPLE_SEED)
    longest = STEPS[-1]

    title("演示 1：同一批模型，量一步和量整题")
    models = [ToyLLM(size) for size in SIZES]
    rng = random.Random(SET_SEED)
    problem_sets = {n: make_problem_set(rng, N_PROBLEMS, n, n) for n in STEPS}
    stats = [step_stats(model, problem_sets[longest]) for model in models]
    losses, accuracies = [loss for loss, _ in stats], [accuracy for _, accuracy in stats]
    em = {n: [exact_match(model, problem_sets[n]) for model in models] for n in STEPS}
    rows = [
        [model.name, f"{losses[i]:.3f}", f"{accuracies[i]:.3f}", *(f"{em[n][i]:.4f}" for n in STEPS)]
        for i, model in enumerate(models)
    ]
    print_table(["规模", "每步 -log p_i", "每步 p_i", *(f"{n} 步全对" for n in STEPS)], rows)

    loss_ratios = [after / before for before, after in zip(losses, losses[1:])]
    em_gains = [after - before for before, after in zip(em[longest], em[longest][1:])]
    early, late = em_gains[:2], em_gains[2:]
    print("观察：")
    observe(
        f"每步的损失走得很匀：规模每 ×10，-log p_i 变成原来的 {min(loss_ratios):.2f}～{max(loss_ratios):.2f} 倍，"
        "没有哪一段特别陡。",
        max(loss_ratios) < 1.7 * min(loss_ratios) and max(loss_ratios) < 0.7,
    )
    observe(
        f"{longest} 步全对的概率却像突变：前两次 ×10 只涨 {'、'.join(f'{g:.3f}' for g in early)}，"
        f"后面每次涨 {'、'.join(f'{g:.2f}' for g in late)}。",
        min(late) > 4 * max(early) and em[longest][-1] > 0.5,
    )

    title(f"演示 2：同样的数字，三把尺子（{longest} 步题）")
    neg_logs = [-math.log(e) for e in em[longest]]
    rows = []
    for i, model in enumerate(models):
        score, credit = em[longest][i], accuracies[i]
        logs = [f"{neg_logs[i]:.2f}", f"{longest * losses[i]:.2f}"]
        rows.append([model.name, bar_cell(score), *logs, bar_cell(credit)])
    print_table(["规模", "全对才给分", "-log 全对", f"{longest} × 每步损失", "做对一步给一步的分"], rows)

    appears = {n: appears_at(list(zip(SIZES, em[n])), THRESHOLD) for n in STEPS}
    credit_gains = [after - before for before, after in zip(accuracies, accuracies[1:])]
    drops = [before - after for before, after in zip(neg_logs, neg_logs[1:])]
    print("观察：")
    observe(
        f"“全对才给分”前三格几乎是空的，“做对一步给一步的分”从第一格起就在长：每 ×10 涨 {min(credit_gains):.2f}～"
        f"{max(credit_gains):.2f}。模型没有变，变的是尺子。",
        em[longest][2] < 0.1 * em[longest][-1] and accuracies[2] > 0.5 * accuracies[-1] and min(credit_gains) > 0,
    )
    observe(
        f"取了对数，突变也不见了：-log 全对每一格都在降，而且降得越来越慢（{drops[0]:.1f} → {drops[-1]:.1f}）。"
        f"它总比 {longest} × 每步损失小一点，因为先对题目平均、再取对数。",
        all(after < before for before, after in zip(drops, drops[1:])) and drops[-1] > 0
        and all(whole < longest * loss for whole, loss in zip(neg_logs, losses)),
    )
    places = "，".join(f"{n} 步 {fmt_size(appears[n]) if appears[n] < math.inf else '还没有'}" for n in STEPS)
    observe(
        f"能力在哪个规模“出现”（表里第一个全对的概率达到 {THRESHOLD} 的模型）随题目的长短移动：{places}。"
        "同样的模型，题目越长，“涌现”得越晚。",
        all(appears[a] < appears[b] for a, b in zip(STEPS, STEPS[1:])),
    )

    title(f"演示 3：测试集的分辨率 —— {longest} 步题，每题答一次，全对的比例")
    rng = random.Random(SAMPLE_SEED)
    small_set = make_problem_set(rng, SMALL_TEST, longest, longest)
    big_set = make_problem_set(rng, BIG_TEST, longest, longest)
    small = [measured_exact_match(model, small_set, rng) for model in models]
    big = [measured_exact_match(model, big_set, rng) for model in models]
    rows = [
        [model.name, f"{em[longest][i]:.4f}", f"{exact_match(model, small_set):.4f}", f"{small[i]:.4f}",
         f"{spread_of_measured(model, small_set):.4f}", f"{big[i]:.4f}"]
        for i, model in enumerate(models)
    ]
    exact, tested = f"{N_PROBLEMS} 题精确值", [f"{SMALL_TEST} 题精确值", f"{SMALL_TEST} 题采样", "（标准差）"]
    print_table(["规模", exact, *tested, f"{BIG_TEST} 题采样"], rows)
    print("观察：")
    zeros_small, zeros_big = small.count(0), big.count(0)
    observe(
        f"{SMALL_TEST} 题的测试集上，有 {zeros_small} 个模型得 0 分；换成 {BIG_TEST} 题，得 0 分的只剩 {zeros_big} 个。"
        f"0 分不等于不会：正确率是 p 时，{SMALL_TEST} 题全错的概率是 (1-p)^{SMALL_TEST}，p = {RARE:g} 时有 "
        f"{(1 - RARE) ** SMALL_TEST:.0%}。",
        zeros_small > zeros_big,
    )
    observe(
        "Schaeffer et al.（2023）检查了真实模型的“涌现”曲线：跳跃来自全对才给分的指标，换成连续的指标就变平。"
        "Kaplan et al.（2020）的规模定律（scaling law）说的也是损失，不是任务正确率。"
    )


if __name__ == "__main__":
    run_script(main)

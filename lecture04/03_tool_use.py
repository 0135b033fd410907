"""
================================================================================
第 4 讲 · 03：工具 —— 计算器救得了什么，救不了什么？
================================================================================
对应讲义：lectures/lecture04_feedback_tools_code.md 第 4 节
（Gao et al. 2022, PAL；Schick et al. 2023, Toolformer；Yao et al. 2022, ReAct）

【问题】给模型一个计算器，正确率能升到多少？每一步都该调用吗？

【这里的设定】每一步，模型先抽一种做法，再写出这一步的算式，交给真的计算器（code_lab.calculate）：
    correct、careless 写对的算式：手滑错在"算"，算的事归计算器了；
    bug 写的是错误规则的算式，例如 47 × 12 写成 47 × 2 + 47 × 1：计算器照算不误。
写算式也会失手：有 m 的概率写坏，计算器回一条错误信息。看到错误信息，模型有 RECOVER 的机会
回过神来自己心算，否则愣住，把上一步的值原样抄下来。模型越小 m 越大。
简化：真的模型连"怎样写调用"也要从数据里学，这里 m 直接规定；工具返回什么就抄什么。
本脚本的"对"是每一步都对（Sample.sound 的意思）。

【公式】p、c、b 是一步里 correct、careless、bug 的概率，r 是 RECOVER：
    不调用：P(对) = p        调用：P(对) = (1 - m)·(p + c) + m·r·p
    上限：p + c = 1 - b（从不写坏）；调用有赚，当且仅当 (1 - m)·c > m·(1 - r)·p
Toolformer 的过滤：留下一次调用，当且仅当 L- - L+ ≥ TAU。L- 是不调用时正确续写的 -log 概率，
L+ 是看到这次调用的结果以后正确续写的 -log 概率。

运行时间：约 3 秒，只用标准库。
"""
import math
import random
import sys
from collections import defaultdict
from pathlib import Path

LECTURE = Path(__file__).resolve().parent
sys.path[:0] = [str(LECTURE), str(LECTURE.parent / "lecture02")]
from code_lab import CalculatorError, calculate, expression_of
from tts_tools import (
    CARELESS_OFFSETS, OP_SIGNS, PROCEDURES, ToyLLM, apply_bug, apply_op, check_ascending, check_int, check_number,
    make_problem_set, mean, observe, print_table, run_script, sample_index, step_hardness, title,
)

SIZES = (1e8, 1e9, 1e10, 1e11)  # 模型的参数量
LEARNER = 1e10  # 演示 3 展示哪个规模学到的习惯
MALFORMED = 0.15  # 1B 模型写坏算式的概率 m；规模每 ×100，m 变成十分之一
MALFORMED_MAX = 0.5  # m 的上限
RECOVER = 0.25  # 看到错误信息以后回过神来的概率 r
UNSURE = 0.6  # "拿不准才调用"：最可能的做法的概率低于它
TAU = 0.3  # Toolformer 过滤的门槛，单位 nat
KEPT_SHARE = 0.3  # 一种步骤里，调用留下来的比例超过它，微调后的模型就会调用
FLOOR = 1e-3  # 看到错的结果以后，正确续写还剩多少概率（log 里不能是 0）
N_PROBLEMS = 200  # 测试题、训练题各多少道
MIN_STEPS = 2  # 题目最少几步
MAX_STEPS = 5  # 题目最多几步
REPEATS = 25  # 每道测试题做几遍
TEST_SET_SEED = 430  # 出测试题的随机种子
TRAIN_SET_SEED = 431  # 出训练题的随机种子
RUN_SEED = 432  # 作答的随机种子
FILTER_SEED = 433  # 学习调用的随机种子
BROKEN = ("{} =", "calc({})", "({}", "{} 元")  # 写坏的算式长什么样
EXAMPLES = (("add", 47, 85), ("sub", 132, 85), ("mul", 47, 6), ("mul", 47, 12))  # 演示 1 的步骤


def malformed_rate(size):
    """规模为 size 的模型写坏一个算式的概率 m。"""
    return min(MALFORMED_MAX, MALFORMED * (1e9 / size) ** 0.5)


def draw_step(model, op, x, b, i, rng):
    """抽一种做法。【返回】(做法, 心算写下的值)。"""
    proc = PROCEDURES[sample_index(model.step_probs(op, x, b, i), rng)]
    slip = CARELESS_OFFSETS[rng.randrange(len(CARELESS_OFFSETS))] if proc == "careless" else 0
    return proc, (apply_bug if proc == "bug" else apply_op)(op, x, b) + slip


def call_calculator(model, op, x, b, proc, rng):
    """写一个算式，交给计算器。【返回】结果；算式写坏时 CalculatorError。"""
    text = expression_of(op, x, b, proc == "bug")
    if rng.random() < malformed_rate(model.size):
        text = BROKEN[rng.randrange(len(BROKEN))].format(text)
    return calculate(text)


def solve(model, problem, wants_call, rng):
    """做一道题。wants_call(op, x, b, i)：这一步调用计算器吗？【返回】(每一步都对吗, 调用次数)。"""
    x, sound, calls = problem.start, True, 0
    for i, (step, truth) in enumerate(zip(problem.steps, problem.true_values)):
        op, b = step.op, step.operand
        proc, value = draw_step(model, op, x, b, i, rng)
        if wants_call(op, x, b, i):
            calls += 1
            try:
                value = call_calculator(model, op, x, b, proc, rng)
            except CalculatorError:
                value = value if rng.random() < RECOVER else x  # 愣住：上一步的值原样抄下来
        x, sound = value, sound and value == truth
    return sound, calls


def evaluate(model, problems, wants_call, rng):
    """【返回】(每一步都对的比例, 每题的平均调用次数)。"""
    results = [solve(model, problem, wants_call, rng) for problem in problems for _ in range(REPEATS)]
    return mean(ok for ok, _ in results), mean(calls for _, calls in results)


def right_path(model, problem):
    """沿着正确的路，逐步给出 (op, x, b, i, 三种做法的概率)：精确值都从这里来。"""
    for i, (step, x) in enumerate(zip(problem.steps, (problem.start, *problem.true_values))):
        yield step.op, x, step.operand, i, model.step_probs(step.op, x, step.operand, i)


def exact(model, problems, wants_call, m=None):
    """公式：每一步对的概率沿着正确的路相乘，再对题目取平均；不采样，很小的差别也看得出。m = 0 就是上限。"""
    m = malformed_rate(model.size) if m is None else m

    def right(*step, probs):
        p, _, c = probs
        return (1 - m) * (p + c) + m * RECOVER * p if wants_call(*step) else p

    return mean(math.prod(right(*step, probs=probs) for *step, probs in right_path(model, q)) for q in problems)


def context_of(op, x, b):
    """步骤的种类：运算和难度，例如 ("mul", 1.5)。"""
    return op, round(step_hardness(op, x, b), 1)


def toolformer_filter(model, problems, rng):
    """每一步写一次调用，真的执行，只留下帮上忙的。【返回】{步骤的种类: (调用留下的比例, 不调用时的平均 p)}。"""
    kept, bare = defaultdict(list), defaultdict(list)
    for problem in problems:
        for op, x, b, i, (p, _, _) in right_path(model, problem):
            proc, _ = draw_step(model, op, x, b, i, rng)
            try:
                after = 1.0 if call_calculator(model, op, x, b, proc, rng) == apply_op(op, x, b) else FLOOR
            except CalculatorError:
                after = max(FLOOR, RECOVER * p)
            gain = -math.log(max(FLOOR, p)) + math.log(after)  # L- - L+
            kept[context_of(op, x, b)].append(gain >= TAU)
            bare[context_of(op, x, b)].append(p)
    return {key: (mean(kept[key]), mean(bare[key])) for key in sorted(kept)}


def policies_for(model, habits):
    """四种调用的习惯：{名字: wants_call}。"""
    return {
        "从不": lambda op, x, b, i: False,
        "总是": lambda op, x, b, i: True,
        "拿不准才用": lambda op, x, b, i: max(model.step_probs(op, x, b, i)) < UNSURE,
        "过滤学来": lambda op, x, b, i: habits.get(context_of(op, x, b), (0, 0))[0] >= KEPT_SHARE,
    }


def main():
    for name in ("MALFORMED", "MALFORMED_MAX", "RECOVER", "UNSURE", "KEPT_SHARE", "FLOOR"):
        check_number(name, globals()[name], 0, 1, open_low=name == "FLOOR")
    check_number("TAU", TAU)
    check_number("LEARNER", LEARNER, 0, open_low=True)
    check_int("REPEATS", REPEATS, 1)
    check_ascending("SIZES", SIZES, low=1)

    title("演示 1：同一步，对的算式和错误规则的算式，计算器都照算")
    pairs = [[expression_of(*step, bug) for bug in (False, True)] for step in EXAMPLES]
    rows = [[right, calculate(right), wrong, calculate(wrong)] for right, wrong in pairs]
    print_table(["对的算式", "结果", "bug 写的算式", "照算的结果"], rows)
    print("观察：")
    observe(
        "错误规则的算式没有一处“算错”，计算器挑不出毛病。工具改正的是算，不是想。",
        all(row[1] == apply_op(*step) and row[3] == apply_bug(*step) for row, step in zip(rows, EXAMPLES)),
    )
    problems = make_problem_set(random.Random(TEST_SET_SEED), N_PROBLEMS, MIN_STEPS, MAX_STEPS)
    train_set = make_problem_set(random.Random(TRAIN_SET_SEED), N_PROBLEMS, MIN_STEPS, MAX_STEPS)
    models, rng = [ToyLLM(size) for size in SIZES], random.Random(RUN_SEED)
    habits = [toolformer_filter(model, train_set, random.Random(FILTER_SEED)) for model in models]

    title("演示 2：规模与上限 —— 每一步都调用")
    scores = []  # 每个模型：{习惯的名字: (测得的正确率, 调用次数, 公式的正确率)}
    for model, habit in zip(models, habits):
        ways = policies_for(model, habit).items()
        scores.append({name: (*evaluate(model, problems, f, rng), exact(model, problems, f)) for name, f in ways})
    bare, formula = ([score[name][2] for score in scores] for name in ("从不", "总是"))
    ceiling, rows = [exact(model, problems, lambda *step: True, m=0) for model in models], []
    for j, model in enumerate(models):
        _, bugs, slips = map(mean, zip(*(probs for q in problems for *_, probs in right_path(model, q))))
        cells = (slips, bugs, malformed_rate(model.size), bare[j], scores[j]["总是"][0], formula[j], ceiling[j])
        rows.append([model.name, *(f"{x:.3f}" for x in cells)])
    print_table(["规模", "手滑/步", "bug/步", "写坏 m", "不调用", "调用：测得", "调用：公式", "上限"], rows)
    print("观察：")
    observe(
        f"算式全写对，也只到上限：{models[-1].name} 是 {ceiling[-1]:.3f}，{models[1].name} 是 {ceiling[1]:.3f}。"
        "手滑全没了，剩下的是 bug：工具救得了手滑，救不了错误的做法。",
        all(abs(score["总是"][0] - f) < 0.03 and f <= top + 1e-9 for score, f, top in zip(scores, formula, ceiling))
        and ceiling[-1] < 0.95 and ceiling[1] > bare[1] + 0.1,
    )
    observe(
        f"写坏的调用有害：{models[0].name} 有 {malformed_rate(SIZES[0]):.0%} 写坏，按公式反而从 {bare[0]:.3f} 到 "
        f"{formula[0]:.3f}；{models[-1].name} 很少写坏，升到 {formula[-1]:.3f}，离上限只差 "
        f"{ceiling[-1] - formula[-1]:.3f}。",
        formula[0] < bare[0] and formula[-1] > bare[-1] + 0.05 and ceiling[-1] - formula[-1] < 0.06,
    )
    observe(
        "PAL（Gao et al. 2022）让 Codex 写程序、Python 来算，GSM8K 72.0。Toolformer（Schick et al. 2023，6.7B）"
        "在 MAWPS 上，关掉计算器 15.0，打开 44.0。"
    )

    which = min(range(len(SIZES)), key=lambda j: abs(math.log(SIZES[j] / LEARNER)))
    title(f"演示 3：Toolformer 的过滤 —— {models[which].name} 在哪些步骤上留下了调用")
    table = sorted(habits[which].items(), key=lambda item: -item[1][1])
    rows = [
        [f"{OP_SIGNS[op]}，难度 {hardness}", f"{p:.3f}", f"{share:.2f}", "调用" if share >= KEPT_SHARE else "不调用"]
        for (op, hardness), (share, p) in table
    ]
    print_table(["步骤", "不调用时的 p", "调用留下的比例", "学到的习惯"], rows)
    called, skipped = ([p for _, (share, p) in table if (share >= KEPT_SHARE) == used] for used in (True, False))
    print("观察：")
    observe(
        f"只在难的步骤上调用：学会调用的 {len(called)} 种，p 最高 {max(called, default=0):.3f}；"
        f"不调用的 {len(skipped)} 种，p 最低 {min(skipped, default=1):.3f}。容易的步骤，再好的结果也省不出 {TAU} nat。",
        bool(called) and bool(skipped) and max(called) < min(skipped),
    )

    title("演示 4：什么时候调用 —— 四种习惯")
    rows, worth = [], [{} for _ in models]  # worth：每次调用换来多少（用公式的正确率）
    for model, score, each in zip(models, scores, worth):
        for name, (accuracy, calls, right) in score.items():
            each[name] = (right - score["从不"][2]) / calls if calls else 0.0
            gain = f"{each[name]:+.3f}" if calls else "—"
            rows.append([model.name, name, f"{accuracy:.3f}", f"{right:.3f}", f"{calls:.2f}", gain])
    print_table(["规模", "习惯", "正确率：测得", "正确率：公式", "调用/题", "每次调用换来"], rows)
    (_, _, base), (_, every, most), (_, few, gain) = (scores[which][name] for name in ("从不", "总是", "过滤学来"))
    careful, sure = scores[which]["拿不准才用"][2], worth[which]["拿不准才用"]
    learned, always = worth[which]["过滤学来"], worth[which]["总是"]
    print("观察：")
    observe(
        f"{models[which].name}：过滤学来的习惯每题只调用 {few:.2f} 次（“总是”要 {every:.2f} 次），"
        f"却拿到了 {gain - base:+.3f}（“总是”{most - base:+.3f}）：一小部分调用，大半的提升。",
        gain - base > 0.5 * (most - base) > 0 and few < 0.4 * every,
    )
    observe(
        f"从 {models[1].name} 起，每次调用最值的都是“拿不准才用”：{models[which].name} 每次 {sure:+.3f}，“过滤学来”"
        f"{learned:+.3f}，“总是”{always:+.3f}。可是它调用得少，总的提升是 {careful - base:+.3f}，三种里最小。",
        all(each["拿不准才用"] > max(0, each["过滤学来"], each["总是"]) for each in worth[1:])
        and sure > learned > always and careful < min(gain, most),
    )
    observe(
        f"{models[0].name}：怎么调用都亏。按公式，不调用 {bare[0]:.3f}，“总是”{formula[0]:.3f}，“过滤学来”"
        f"{scores[0]['过滤学来'][2]:.3f}。先学会把调用写对，工具才有用。",
        all(right < bare[0] for name, (_, _, right) in scores[0].items() if name != "从不"),
    )


if __name__ == "__main__":
    run_script(main)

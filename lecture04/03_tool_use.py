"""
================================================================================
第 4 讲 · 03：工具 —— 计算器救得了什么，救不了什么？
================================================================================
对应讲义：lectures/lecture04_feedback_tools_code.md 第 4 节（Gao et al. 2022, PAL；Schick et al. 2023, Toolformer）

【问题】给模型一个计算器，正确率能升到多少？每一步都该调用吗？

【这里的设定】每一步，模型先抽一种做法，再写出这一步的算式，交给真的计算器（code_lab.calculate）：
    correct、careless  写对的算式：手滑错在"算"，算的事归计算器了；
    bug                写错误规则的算式，例如 47 × 12 写成 47 × 2 + 47 × 1：计算器照算不误。
算式有 m 的概率写坏，模型越小 m 越大。写坏了，计算器回一条错误信息；模型有 r = RECOVER 的机会回过神来
自己心算，否则愣住，把上一步的值原样抄下来（一定错）。
简化：真的模型连"怎样写调用"也要从数据里学，这里 m 直接规定；工具返回什么就抄什么。
"对"是每一步都对（Sample.sound 的意思）：下面的概率是一步的，一道题 MIN_STEPS～MAX_STEPS 步连乘。

【公式】p、c、b 是一步里 correct、careless、bug 的概率：
    不调用：P(对) = p        调用：P(对) = (1 - m)·(p + c) + m·r·p
    上限：p + c = 1 - b（从不写坏）；调用有赚，当且仅当 (1 - m)·c > m·(1 - r)·p
Toolformer 的过滤：留下一次调用，当且仅当 L- - L+ ≥ TAU。L- 是不调用时正确续写的 -log 概率，L+ 是看到
结果以后的。-log p ≥ TAU 的步骤，留下的比例是 (1 - m)·(1 - b)；别的步骤一次也留不下。

运行时间：约 3 秒，只用标准库。
"""
import math
import random
import sys
from pathlib import Path

LECTURE = Path(__file__).resolve().parent
sys.path[:0] = [str(LECTURE), str(LECTURE.parent / "lecture02")]
from code_lab import CalculatorError, calculate, expression_of
from tts_tools import (
    CARELESS_OFFSETS, OP_SIGNS, PROCEDURES, ToyLLM, apply_bug, apply_op, check_ascending, check_each, check_int,
    check_number, check_seeds, check_step, make_problem_set, mean, observe, print_table, run_script, sample_index,
    step_hardness, title,
)

SIZES = (1e8, 1e9, 1e10, 1e11)  # 模型的参数量
LEARNER = 1e10  # 演示 3 展示哪个规模学到的习惯
MALFORMED, MALFORMED_MAX = 0.15, 0.5  # 1B 模型写坏算式的概率 m，和 m 的上限；规模每 ×100，m 变成十分之一
RECOVER = 0.25  # 看到错误信息以后回过神来的概率 r
UNSURE = 0.6  # "拿不准才调用"：最可能的做法的概率低于它
TAU = 0.3  # Toolformer 过滤的门槛，单位 nat
KEPT_SHARE = 0.3  # 一种步骤里，调用留下来的比例不低于它，微调后的模型就会调用
FLOOR = 1e-3  # 看到错的结果以后，正确续写还剩多少概率（log 里不能是 0）
CALLS = 8  # 过滤时每一步写几次调用
MIN_STEPS, MAX_STEPS = 2, 5  # 题目最少、最多几步
N_PROBLEMS, REPEATS = 200, 15  # 测试题、训练题各多少道；每道测试题做几次
TEST_SET_SEED, TRAIN_SET_SEED = 430, 431  # 出测试题、出训练题的随机种子
RUN_SEED, FILTER_SEED = 432, 433  # 作答、学习调用的随机种子
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


def with_call(probs, m):
    """公式：调用计算器，这一步对的概率。probs 是三种做法的概率。"""
    return (1 - m) * (probs[0] + probs[2]) + m * RECOVER * probs[0]


def exact(model, problems, wants_call, m=None):
    """公式：每一步对的概率沿着正确的路相乘，再对题目取平均；不采样，很小的差别也看得出。m = 0 就是上限。"""
    m = malformed_rate(model.size) if m is None else m
    paths = (right_path(model, problem) for problem in problems)
    return mean(math.prod(with_call(ps, m) if wants_call(*step) else ps[0] for *step, ps in path) for path in paths)


def context_of(op, x, b):
    """步骤的种类：运算和难度，例如 ("mul", 1.5)。"""
    return op, round(step_hardness(op, x, b), 1)


def toolformer_filter(model, problems, rng):
    """每一步写 CALLS 次调用，真的执行，只留下帮上忙的。【返回】{步骤的种类: (留下的比例, 公式, 不调用时的 p)}。"""
    seen, m = {}, malformed_rate(model.size)
    for problem in problems:
        for op, x, b, i, (p, bug, _) in right_path(model, problem):
            before = -math.log(max(FLOOR, p))  # L-
            law = (1 - m) * (1 - bug) * (before >= TAU)  # 算对了，而且省得出 TAU
            for _ in range(CALLS):
                proc, _ = draw_step(model, op, x, b, i, rng)
                try:
                    after = 1.0 if call_calculator(model, op, x, b, proc, rng) == apply_op(op, x, b) else FLOOR
                except CalculatorError:
                    after = max(FLOOR, RECOVER * p)
                seen.setdefault(context_of(op, x, b), []).append((before + math.log(after) >= TAU, law, p))
    return {key: tuple(mean(column) for column in zip(*seen[key])) for key in sorted(seen)}


def policies_for(model, habits):
    """五种调用的习惯：{名字: wants_call}。"""
    m = malformed_rate(model.size)
    return {
        "从不": lambda *step: False,
        "总是": lambda *step: True,
        "拿不准才用": lambda *step: max(model.step_probs(*step)) < UNSURE,
        "过滤学来": lambda op, x, b, i: habits.get(context_of(op, x, b), (0,))[0] >= KEPT_SHARE,
        "按不等式": lambda *step: with_call(model.step_probs(*step), m) > model.step_probs(*step)[0],
    }


def main():
    for name in ("MALFORMED", "MALFORMED_MAX", "RECOVER", "UNSURE", "KEPT_SHARE", "FLOOR"):
        check_number(name, globals()[name], 0, 1, open_low=name == "FLOOR")
    check_number("TAU", TAU)
    check_number("LEARNER", LEARNER, 0, open_low=True)
    for name in ("REPEATS", "CALLS", "N_PROBLEMS", "MIN_STEPS"):
        check_int(name, globals()[name], 1)
    check_int("MAX_STEPS", MAX_STEPS, MIN_STEPS)
    check_int("BROKEN 的个数", len(BROKEN), 1)
    check_ascending("SIZES", SIZES, low=1)
    check_each("EXAMPLES", EXAMPLES, check_step)
    check_seeds(TEST_SET_SEED=TEST_SET_SEED, TRAIN_SET_SEED=TRAIN_SET_SEED, RUN_SEED=RUN_SEED, FILTER_SEED=FILTER_SEED)

    title("演示 1：同一步，对的算式和错误规则的算式，计算器都照算")
    pairs = [[expression_of(*step, bug) for bug in (False, True)] for step in EXAMPLES]
    rows = [[right, calculate(right), wrong, calculate(wrong)] for right, wrong in pairs]
    print_table(["对的算式", "结果", "bug 写的算式", "照算的结果"], rows)
    print("观察：")
    as_told = all(row[1] == apply_op(*step) and row[3] == apply_bug(*step) for row, step in zip(rows, EXAMPLES))
    observe("错误规则的算式没有一处“算错”，计算器挑不出毛病。工具改正的是算，不是想。", as_told)
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
        f"算式全写对，{models[-1].name} 也只到 {ceiling[-1]:.3f}。手滑没了，bug 还在：工具救不了错误规则。",
        all(abs(score["总是"][0] - f) < 0.03 and f <= top + 1e-9 for score, f, top in zip(scores, formula, ceiling))
        and ceiling[-1] < 0.95 and ceiling[1] > bare[1] + 0.1,
    )
    observe(
        f"写坏的调用有害：{models[0].name} 有 {malformed_rate(SIZES[0]):.0%} 写坏，按公式从 {bare[0]:.3f} 降到 "
        f"{formula[0]:.3f}；{models[-1].name} 升到 {formula[-1]:.3f}，离上限只差 {ceiling[-1] - formula[-1]:.3f}。",
        formula[0] < bare[0] and formula[-1] > bare[-1] + 0.05 and ceiling[-1] - formula[-1] < 0.06,
    )

    which = min(range(len(SIZES)), key=lambda j: abs(math.log(SIZES[j] / LEARNER)))
    title(f"演示 3：Toolformer 的过滤 —— {models[which].name} 在哪些步骤上留下了调用")
    table = sorted(habits[which].items(), key=lambda item: -item[1][-1])
    rows = [
        [f"{OP_SIGNS[op]}，难度 {hard}", f"{p:.3f}", f"{kept:.2f}", f"{law:.2f}", "是" if kept >= KEPT_SHARE else "否"]
        for (op, hard), (kept, law, p) in table
    ]
    print_table(["步骤", "不调用时的 p", "留下：测得", "留下：公式", "学会调用"], rows)
    called, skipped = ([cell for _, cell in table if (cell[0] >= KEPT_SHARE) == used] for used in (True, False))
    low, high = min((p for *_, p in skipped), default=1), max((p for *_, p in called), default=0)
    print("观察：")
    observe(
        f"只在难的步骤上调用：学会调用的 {len(called)} 种，p 最高 {high:.3f}；"
        f"不调用的 {len(skipped)} 种，p 最低 {low:.3f}。容易的步骤，再好的结果也省不出 {TAU} nat。",
        bool(called) and bool(skipped) and high < low,
    )
    observe(
        f"越难留下得越少，公式给 {' → '.join(f'{law:.2f}' for _, law, _ in called)}：bug 写的算式，结果错，会被滤掉。",
        len(called) > 1 and called[0][1] > called[-1][1] + 0.1 and abs(mean(c[0] - c[1] for c in called)) < 0.08,
    )

    title("演示 4：什么时候调用 —— 五种习惯")
    rows, worth = [], [{} for _ in models]  # worth：每次调用换来多少（用公式的正确率）
    for model, score, each in zip(models, scores, worth):
        for name, (accuracy, calls, right) in score.items():
            each[name] = (right - score["从不"][2]) / calls if calls else 0.0
            gain = f"{each[name]:+.3f}" if calls else "—"
            rows.append([model.name, name, f"{accuracy:.3f}", f"{right:.3f}", f"{calls:.2f}", gain])
    print_table(["规模", "习惯", "正确率：测得", "正确率：公式", "调用/题", "每次调用换来"], rows)
    (_, _, base), (_, every, most), (_, some, careful), (_, few, gain), _ = scores[which].values()
    each, more, small = worth[which], few - some, {name: right for name, (_, _, right) in scores[0].items()}
    print("观察：")
    observe(
        f"{models[which].name}：过滤学来的习惯每题只调用 {few:.2f} 次（“总是”要 {every:.2f} 次），"
        f"却拿到了 {gain - base:+.3f}（“总是”{most - base:+.3f}）：一小部分调用，大半的提升。",
        gain - base > 0.5 * (most - base) > 0 and few < 0.4 * every,
    )
    observe(
        f"从 {models[1].name} 起，平均每次最值的都是“拿不准才用”：{models[which].name} {each['拿不准才用']:+.3f}，"
        f"过滤学来 {each['过滤学来']:+.3f}。但过滤学来多调用 {more:.2f} 次，又换来 {gain - careful:+.3f}。",
        all(each["拿不准才用"] > max(0, each["过滤学来"], each["总是"]) for each in worth[1:])
        and 0 < gain - careful < each["拿不准才用"] * more,
    )
    observe(
        f"{models[0].name}：不调用 {bare[0]:.3f}，“总是”{small['总是']:.3f}，“过滤学来”{small['过滤学来']:.3f}，都亏；"
        f"逐步按不等式挑，{small['按不等式']:.3f}，有赚。过滤只看留下的好不好，不看写坏的毁了多少。",
        max(small[name] for name in ("总是", "拿不准才用", "过滤学来")) < bare[0] < small["按不等式"] - 0.005,
    )


if __name__ == "__main__":
    run_script(main)

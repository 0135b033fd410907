"""
================================================================================
第 4 讲 · 02：RLEF —— 用强化学习教模型利用执行反馈
================================================================================
对应讲义：lectures/lecture04_feedback_tools_code.md 第 3 节（Gehring et al. 2024, RLEF）

【问题】测试说了错在哪一步，模型却多半不理它、从头重写。怎样让它学会用反馈？

【这里的设定】一道题最多 MAX_TURNS 轮。第 1 轮采样一次；答案对了就结束，奖励（reward）是 1。
错了，测试就说"第 i 步写的 v 不对"。下一轮模型在两种选择里抽一种：
    修（repair），概率 σ(θ)：保留 i 之前的步骤，第 i 步重写，但不再写 v，然后接着往下做；
    重来（resample），概率 1 - σ(θ)：从头再采样，反馈白给。
只训练 θ 这一个数，算法是 REINFORCE。"轮"是一道题里的对话，"遍"（epoch）是把训练集做完一次。
对照：反馈换成随机的一步（feedback="random"），看 θ 往哪边走。
简化：真实的 RLEF 用 PPO（第 6 讲）训练整个模型，公开测试给反馈、私有测试给奖励；这里都来自标准答案，
碰巧答对也算对（Sample.correct）。真的模型不理反馈时多半照抄旧代码，这里是重来。怎样修是写死的。

【公式】R 是这道题的奖励（0 或 1），B 是基线（baseline）：上一遍训练的平均奖励。
    θ ← θ + LR · mean( (R - B) · g )，   g = Σ d log π / dθ（对第 2、3 轮求和）
    修：d log σ(θ) / dθ = 1 - σ(θ)；   重来：d log(1 - σ(θ)) / dθ = -σ(θ)
学习率 LR 取 20，因为梯度小：每题选择几次 × σ(1-σ) × 修比重来多对的比例，开头只有 0.01 多一点。

运行时间：约 1 秒，只用标准库。
"""
import math
import random
import sys
from pathlib import Path

LECTURE = Path(__file__).resolve().parent
sys.path[:0] = [str(LECTURE), str(LECTURE.parent / "lecture02")]
from tts_tools import (
    CARELESS_OFFSETS, PROCEDURES, ToyLLM, apply_bug, apply_op, bar, check_choice, check_counts, check_int,
    check_number, check_seeds, extend_trace, make_problem_set, mean, observe, pad, print_table, run_script,
    sample_index, sigmoid, softmax, title,
)

TEMPERATURE = 0.7  # 采样温度；修的那一步也用它
MAX_TURNS = 3  # 一道题最多几轮
THETA0 = math.log(0.1 / 0.9)  # θ 的初值：σ(θ) = 0.1，十次里修一次
ALWAYS = 20.0  # σ(20) 等于 1："总是修"的对照
MODEL_SIZE = 1e10  # 模型的参数量
N_PROBLEMS = 200  # 训练集和测试集各多少道题
MIN_STEPS = 3  # 题目最少几步
MAX_STEPS = 8  # 题目最多几步
EPOCHS = 40  # 训练多少遍（epoch）
LR = 20.0  # 学习率
LOG_EVERY = 5  # 每隔几遍记一行
REPEATS = 3  # 测试时每道题做几次
MORE_REPEATS = 20  # 演示 1：再做这么多次，标准误小得多，结论用这一列
TRIES = (1, 3, 5, 10, 20)  # 对照：独立采样的次数
TRAIN_SET_SEED = 100  # 出训练题的随机种子
TEST_SET_SEED = 101  # 出测试题的随机种子
TRAIN_SEED = 102  # 演示 1：训练的随机种子
TEST_SEED = 103  # 演示 1：测试的随机种子
MORE_SEED = 106  # 演示 1：再做多次的随机种子
RANDOM_TRAIN_SEED = 104  # 演示 2：随机反馈下训练的随机种子
RANDOM_TEST_SEED = 105  # 演示 2：随机反馈下测试的随机种子
FEEDBACKS = ("true", "random")  # 真的反馈、随机的反馈；代码按名字认，不要改


def first_wrong_step(sample):
    """第一个做错的步骤的下标（local_ok 为假）；没有错（答案对的时候才可能）就返回最后一步。"""
    return next((i for i, ok in enumerate(sample.local_ok) if not ok), len(sample.local_ok) - 1)


def repair(model, problem, sample, i, rng, avoid_value):
    """
    修：保留第 i 步之前的，重写第 i 步（不写 avoid_value），再往下做完。返回 Sample。

    【思路】会写出 avoid_value 的做法概率归零，其余的重新归一；手滑（careless）只去掉那一个偏移。
    【边界】avoid_value 可以正好是对的值（随机反馈会这样冤枉一步）：那时这一步必然写错。
    """
    step, values, procs = problem.steps[i], sample.values[:i], sample.procs[:i]
    x = values[-1] if values else problem.start
    right, wrong = apply_op(step.op, x, step.operand), apply_bug(step.op, x, step.operand)
    slips = [right + offset for offset in CARELESS_OFFSETS if right + offset != avoid_value]
    allowed = (right != avoid_value, wrong != avoid_value, bool(slips))
    logits = model.step_logits(step.op, x, step.operand, i)
    masked = [z if ok else -math.inf for z, ok in zip(logits, allowed)]  # 概率归零，低温下也不会 0 除以 0
    proc = PROCEDURES[sample_index(softmax(masked, TEMPERATURE), rng)]
    if proc == "careless":
        value = slips[rng.randrange(len(slips))]
    else:
        value = right if proc == "correct" else wrong
    return extend_trace(model, problem, [*values, value], [*procs, proc], rng, TEMPERATURE)


def episode(model, problem, theta, rng, feedback="true"):
    """
    做一道题，最多 MAX_TURNS 轮。

    【返回】(reward, g)：1.0 或 0.0，和这道题的 Σ d log π / dθ。
    【边界】feedback 只能是 "true"（第一个错的步骤）或 "random"（随便一步）。
    """
    check_choice("feedback", feedback, FEEDBACKS)
    p_repair = sigmoid(theta)
    sample = model.generate(problem, rng, TEMPERATURE)
    grad = 0.0
    for _ in range(MAX_TURNS - 1):
        if sample.correct:
            break
        i = rng.randrange(problem.n_steps) if feedback == "random" else first_wrong_step(sample)
        if rng.random() < p_repair:
            grad += 1 - p_repair
            sample = repair(model, problem, sample, i, rng, sample.values[i])
        else:
            grad -= p_repair
            sample = model.generate(problem, rng, TEMPERATURE)
    return float(sample.correct), grad


def evaluate(model, problems, theta, rng, feedback="true", repeats=REPEATS):
    """平均奖励：每道题做 repeats 次，也就是 MAX_TURNS 轮以内做对的比例。"""
    check_int("repeats", repeats, 1)
    return mean(episode(model, problem, theta, rng, feedback)[0] for problem in problems for _ in range(repeats))


def train(model, problems, rng, feedback="true", epochs=EPOCHS, lr=LR):
    """
    REINFORCE：每遍把 problems 做完，更新一次 θ。

    【返回】(θ, log)，log 是 [(第几遍, 这一遍更新之后的 σ(θ), 这一遍的平均奖励)]。
    """
    check_int("epochs", epochs, 1)
    check_number("lr", lr, 0)
    theta, baseline, log = THETA0, None, []
    for epoch in range(1, epochs + 1):
        results = [episode(model, problem, theta, rng, feedback) for problem in problems]
        reward = mean(r for r, _ in results)
        if baseline is None:  # 第一遍还没有"上一遍"，用自己的，略有偏差
            baseline = reward
        theta += lr * mean((r - baseline) * g for r, g in results)
        baseline = reward
        if epoch == 1 or epoch % LOG_EVERY == 0:
            log.append((epoch, sigmoid(theta), reward))
    return theta, log


def independent(model, problems, k, rng, repeats=REPEATS):
    """对照：独立采样，最多 k 次，有一次对就算对（对了就停）。"""
    return mean(
        any(model.generate(problem, rng, TEMPERATURE).correct for _ in range(k))
        for problem in problems for _ in range(repeats)
    )


def show_log(log):
    rows = [[epoch, f"{pad(bar(p), 20)} {p:.3f}", f"{reward:.3f}"] for epoch, p, reward in log]
    print_table(["训练了几遍", "σ(θ)：修的概率", "平均奖励"], rows)


def main():
    check_number("TEMPERATURE", TEMPERATURE, 0)
    for name in ("THETA0", "ALWAYS"):
        check_number(name, globals()[name], -50, 50)  # 再远，σ 就是 0 或 1，求不回 θ
    for name in ("MAX_TURNS", "EPOCHS", "LOG_EVERY", "REPEATS", "MORE_REPEATS", "N_PROBLEMS", "MIN_STEPS"):
        check_int(name, globals()[name], 1)
    check_int("MAX_STEPS", MAX_STEPS, MIN_STEPS)
    for name in ("LR", "MODEL_SIZE"):
        check_number(name, globals()[name], 0, open_low=True)
    check_counts("TRIES", TRIES, at_least=1)
    check_seeds(
        TRAIN_SET_SEED=TRAIN_SET_SEED, TEST_SET_SEED=TEST_SET_SEED, TRAIN_SEED=TRAIN_SEED, TEST_SEED=TEST_SEED,
        MORE_SEED=MORE_SEED, RANDOM_TRAIN_SEED=RANDOM_TRAIN_SEED, RANDOM_TEST_SEED=RANDOM_TEST_SEED,
    )

    title("演示 1：真的反馈 —— σ(θ) 怎样学上去，学会之后值多少次采样")
    model = ToyLLM(MODEL_SIZE)
    train_set = make_problem_set(random.Random(TRAIN_SET_SEED), N_PROBLEMS, MIN_STEPS, MAX_STEPS)
    test_set = make_problem_set(random.Random(TEST_SET_SEED), N_PROBLEMS, MIN_STEPS, MAX_STEPS)
    theta, log = train(model, train_set, random.Random(TRAIN_SEED))
    show_log(log)
    thetas = {"训练前": THETA0, "训练后": theta, "总是修": ALWAYS}
    columns = []
    for seed, repeats in ((TEST_SEED, REPEATS), (MORE_SEED, MORE_REPEATS)):
        rng = random.Random(seed)
        column = [evaluate(model, test_set, z, rng, repeats=repeats) for z in thetas.values()]
        columns.append([*column, *(independent(model, test_set, k, rng, repeats) for k in TRIES)])
    budgets = [(f"{name}（σ = {sigmoid(z):.2f}）", f"{MAX_TURNS} 轮") for name, z in thetas.items()]
    budgets += [("独立采样", f"{k} 次") for k in TRIES]
    print()
    rows = [[*budget, *(f"{x:.3f}" for x in cells)] for budget, *cells in zip(budgets, *columns)]
    print_table(["测试集", "预算", *(f"答对（每题 {n} 次）" for n in (REPEATS, MORE_REPEATS))], rows)
    left, right = (math.sqrt(0.25 / (N_PROBLEMS * n)) for n in (REPEATS, MORE_REPEATS))
    print(f"  （标准误：左边一列最多 {left:.3f}，右边一列最多 {right:.3f}）")

    early, later = (next((p for e, p, _ in log if e >= n * LOG_EVERY), log[-1][1]) for n in (1, 2))
    climbed = math.log(early / max(1 - early, 1e-16)) - THETA0  # θ 走了多远：σ 的反函数
    before, after, _ = columns[1][:3]
    tries = dict(zip(TRIES, columns[1][3:]))
    same = min(TRIES, key=lambda k: abs(k - MAX_TURNS))  # 与对话同样多的调用次数
    worth = min(TRIES, key=lambda k: abs(tries[k] - after))  # 训练后相当于独立采样几次
    print("观察：")
    observe(
        f"先慢后快：前 {LOG_EVERY} 遍 σ(θ) 只升了 {early - sigmoid(THETA0):.2f}，接下来的 {LOG_EVERY} 遍升了 "
        f"{later - early:.2f}。前 {LOG_EVERY} 遍的平均梯度只有 {climbed / (LR * LOG_EVERY):.3f}：很少试的选择学得晚。",
        later - early > early - sigmoid(THETA0) and log[-1][1] > 0.9,
    )
    observe(
        f"训练前，{MAX_TURNS} 轮对话（{before:.3f}）和 {same} 次独立采样（{tries[same]:.3f}）差不多：有反馈，没有用。",
        abs(before - tries[same]) < 0.03,
    )
    observe(
        f"训练后，同样 {MAX_TURNS} 轮（{after:.3f}）最接近独立采样 {worth} 次（{tries[worth]:.3f}）：省在反馈里。",
        worth > same and after > before + 0.03,
    )
    observe(
        f"多采样仍然有用：独立采样 {max(TRIES)} 次有 {tries[max(TRIES)]:.3f}。反馈省的是次数，不是上限。",
        tries[max(TRIES)] > after + 0.05,
    )
    observe(
        "Gehring et al.（2024）：CodeContests 测试集 1@3（最多写 3 份，交 1 份），70B 从 27.5 到 40.1，8B 从 10.5 到 "
        "16.0；训练前，8B 多轮对话（10.5）还不如独立试三次（11.8）。"
    )

    title("演示 2：反馈没有信息时，学到什么 —— 反馈是随机的一步")
    misled, log = train(model, train_set, random.Random(RANDOM_TRAIN_SEED), "random")
    show_log(log)
    rng = random.Random(RANDOM_TEST_SEED)
    ignored, unread, obeyed = (evaluate(model, test_set, z, rng, "random") for z in (THETA0, misled, ALWAYS))
    swapped, informed = evaluate(model, test_set, theta, rng, "random"), evaluate(model, test_set, misled, rng)
    print()
    start, learned, always = columns[0][:3]
    cells = {"真的反馈": (start, learned, informed, always), "随机反馈": (ignored, swapped, unread, obeyed)}
    rows = [[name, *(f"{x:.3f}" for x in row)] for name, row in cells.items()]
    print_table(["测试时", "训练前", "用真反馈训练", "用随机反馈训练", "总是修"], rows)
    print("观察：")
    observe(
        f"反馈是假的，“总是修”就有害：{obeyed:.3f}，不理它反而有 {unread:.3f}。对的步骤被冤枉，错的步骤留着。",
        obeyed < unread - 0.08,
    )
    observe(
        f"同一个算法，这回把 σ(θ) 从 {sigmoid(THETA0):.2f} 压到 {log[-1][1]:.3f}：反馈有信息时学到“修”，没有信息时"
        "学到“不理”。决定方向的是反馈里的信息。",
        log[-1][1] < 0.5 * sigmoid(THETA0),
    )
    observe(
        f"用真反馈训练好，测试时再换成随机的：{learned:.3f} 掉到 {swapped:.3f}，比没训练的（{ignored:.3f}）还低。它"
        "学到的是“总是修”，不会看反馈可不可信：θ 是一个常数。",
        swapped < ignored - 0.08 and abs(swapped - obeyed) < 0.06,
    )
    observe("Gehring et al.（2024）做的是最后这一种：别的题的反馈塞给训练好的模型，修复率明显下降：修得好靠的是反馈。")


if __name__ == "__main__":
    run_script(main)

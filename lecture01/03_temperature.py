"""
================================================================================
第 1 讲 · 03：温度 —— 没有一个对所有 k 都最好的温度
================================================================================
对应讲义：lectures/lecture01_scaling_and_cot.md 第 4 节（Chen et al. 2021）

【问题】采样的温度（temperature）T 取多少最好？

【这里的设定】一个 3B 的模型，8 步的题。T = 0 是贪心（greedy）：每一步都选概率最大的做法。
按贪心能不能做对，题目分成两组：
    平地题  每一步概率最大的做法都是 correct；
    陷阱题  至少有一步，概率最大的做法是 bug。
pass@k 是"采样 k 次，至少一次每步都对"的概率。单题的 p 由 path_probs 精确算出，不采样；
演示 2 才真的去采样。简化：真实模型的温度作用在每个 token 上，还常与 top-p 截断一起用。

【公式】P(做法) = softmax(logit / T)。
    T → 0：全部概率给最大的 logit；  T → 无穷：三种做法各 1/3，n 步全对只有 (1/3)^n。
单题 pass@k = 1 - (1 - p)^k，再对题目取平均。这里的 p 是整题做对的概率，不是一步的。

运行时间：约 0.8 秒，只用标准库。
"""
import math
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from toy_llm import (
    OP_SIGNS, ToyLLM, check_ascending, check_int, check_number, check_seeds, check_step, make_problem_set, mean,
    observe, path_probs, print_table, run_script, title,
)

SIZE = 3e9  # 模型的参数量
N_STEPS = 8  # 题目的步数
N_PROBLEMS = 300  # 题目数
SET_SEED = 30  # 出题的随机种子
TEMPERATURES = (0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.3, 2.0, 3.0)  # 演示 1、3 的温度，从低到高
MILD_T = 0.6  # 拿来对照的"适中的温度"
KS = (1, 10, 100)  # 采样次数 k，从少到多
GRID_STEP = 0.05  # 找"最好的 T"时，从 0 到最高温度每隔多少试一个
N_TRIES = 100  # 演示 2：每道陷阱题试多少次
SAMPLE_SEED = 31  # 演示 2：采样的随机种子
TRAP_STEP = ("mul", 472, 12)  # 演示 3 的那一步 (op, a, b)：bug 的概率最大


def solve_probs(model, problems, temperature):
    """每道题每一步都做对的概率 p，与 problems 等长的列表。"""
    return [math.prod(path_probs(model, problem, temperature)) for problem in problems]


def pass_at(probs, k):
    """已知每题的 p 时，pass@k 的精确值 mean(1 - (1 - p)^k)。"""
    return mean(1 - (1 - p) ** k for p in probs)


def best_temperature(curves, k):
    """让 pass@k 最大的温度；并列时取较低的。curves：{温度: 每题的 p}。"""
    return max(curves, key=lambda t: (pass_at(curves[t], k), -t))


def solved_in_tries(model, problem, temperature, n_tries, rng):
    """真的作答 n_tries 次，有没有一次每步都对。"""
    return any(model.generate(problem, rng, temperature).sound for _ in range(n_tries))


def main():
    for k in check_ascending("KS", KS):
        check_int("KS 里的每个 k", k, 1)
    hot = check_ascending("TEMPERATURES", TEMPERATURES, 3, low=0)[-1]
    check_number("MILD_T", MILD_T, 0)
    check_number("GRID_STEP", GRID_STEP, 0.001)
    n_grid = check_int("最高温度 / GRID_STEP", round(hot / GRID_STEP), 1, 1000)
    check_number("SIZE", SIZE, 0, open_low=True)
    check_int("N_STEPS", N_STEPS, 1)
    check_int("N_PROBLEMS", N_PROBLEMS, 1)
    check_int("N_TRIES", N_TRIES, 1)
    op, a, b = check_step("TRAP_STEP", TRAP_STEP)
    check_seeds(SET_SEED=SET_SEED, SAMPLE_SEED=SAMPLE_SEED)
    model = ToyLLM(SIZE)

    title(f"演示 1：pass@k 随温度怎么变 —— {model.name} 的模型，{N_STEPS} 步的题")
    problems = make_problem_set(random.Random(SET_SEED), N_PROBLEMS, N_STEPS, N_STEPS)
    greedy = solve_probs(model, problems, 0)
    plain = [problem for problem, p in zip(problems, greedy) if p == 1]
    trap = [problem for problem, p in zip(problems, greedy) if p == 0]
    if not plain or not trap:
        raise ValueError(f"SIZE = {SIZE!r} 时题目全是平地题或全是陷阱题，分不成两组：换一个中等的规模")
    print(f"  平地题 {len(plain)} 道，陷阱题 {len(trap)} 道\n")
    last_k = KS[-1]
    rows, plain_once, plain_often = [], [], []
    for t in TEMPERATURES:
        plain_probs, trap_probs = solve_probs(model, plain, t), solve_probs(model, trap, t)
        plain_once.append(pass_at(plain_probs, 1))
        plain_often.append(pass_at(plain_probs, last_k))
        scores = [pass_at(plain_probs + trap_probs, k) for k in KS]
        scores += [plain_once[-1], plain_often[-1], pass_at(trap_probs, 1), pass_at(trap_probs, last_k)]
        rows.append([f"{t:g}", *(f"{score:.3f}" for score in scores)])
    headers = ["T", *(f"pass@{k}" for k in KS)]
    print_table([*headers, "平地 @1", f"平地 @{last_k}", "陷阱 @1", f"陷阱 @{last_k}"], rows)

    curves = {t: solve_probs(model, problems, t) for t in (i * GRID_STEP for i in range(n_grid + 1))}
    best = [best_temperature(curves, k) for k in KS]
    print(f"\n  最好的 T（间隔 {GRID_STEP:g}）：" + "，".join(f"pass@{k} {t:.2f}" for k, t in zip(KS, best)))
    plain_sampled = pass_at(solve_probs(model, plain, 1), 1)
    mild_score = pass_at(solve_probs(model, problems, MILD_T), last_k)
    mild_trap = pass_at(solve_probs(model, trap, MILD_T), last_k)
    hot_score = pass_at(solve_probs(model, problems, hot), last_k)
    hot_step = mean(p for problem in problems for p in path_probs(model, problem, hot))
    print("观察：")
    observe(
        f"没有一个温度对所有 k 都最好：k 越大，最好的 T 越高（{' < '.join(f'{t:.2f}' for t in best)}）。"
        "只试一次时求稳，试得多时求变。",
        all(a < b for a, b in zip(best, best[1:])),
    )
    observe(
        f"平地题不需要温度：按定义 T = 0 时一次就全对，T 越高越差，T = 1 时 pass@1 只剩 {plain_sampled:.2f}。温度的收益"
        f"全在陷阱题上：按定义 T = 0 时一道也不对，T = {MILD_T:g} 时 pass@{last_k} 有 {mild_trap:.2f}。",
        plain_sampled < 0.5 and mild_trap > 0.5
        and all(a >= b for scores in (plain_once, plain_often) for a, b in zip(scores, scores[1:])),
    )
    observe(
        f"温度太高谁都不好：T = {hot:g} 时 pass@{last_k} 只有 {hot_score:.2f}，T = {MILD_T:g} 时是 {mild_score:.2f}。"
        f"这时每一步平均只有 {hot_step:.2f} 的机会做对，{N_STEPS} 步要连续做对。",
        hot_score < mild_score - 0.2,
    )
    observe(
        "Chen et al.（2021）在 Codex 上看到同样的事：679M 的模型 pass@1 最好的 T 是 0.2，pass@100 最好的是 0.8。"
    )

    title(f"演示 2：贪心的死角 —— 每道陷阱题真的试 {N_TRIES} 次")
    rng = random.Random(SAMPLE_SEED)
    rows, solved = [], {}
    for t in (0, MILD_T, 1):
        solved[t] = mean(solved_in_tries(model, problem, t, N_TRIES, rng) for problem in trap)
        exact = pass_at(solve_probs(model, trap, t), N_TRIES)
        rows.append([f"{t:g}", f"{solved[t]:.3f}", f"{exact:.3f}"])
    print_table(["T", f"采样：试 {N_TRIES} 次做对过", "精确值"], rows)
    print("观察：")
    observe(
        f"贪心试多少次都一样：{len(trap)} 道陷阱题做对 {solved[0]:.0%}。T = {MILD_T:g} 时，试 {N_TRIES} 次能做对 "
        f"{solved[MILD_T]:.0%}：“会做”和“第一反应就做对”是两回事。",
        solved[0] == 0 and solved[MILD_T] > 0.7,
    )

    title(f"演示 3：温度只压平，不换位 —— 陷阱步 {a} {OP_SIGNS[op]} {b}")
    temperatures = [t for t in TEMPERATURES if t > 0]
    step = {t: model.step_probs(op, a, b, 0, t) for t in temperatures}
    rows = [[f"{t:g}", *(f"{p:.3f}" for p in step[t])] for t in temperatures]
    print_table(["T", "correct", "bug", "careless"], rows)
    print("观察：")
    observe(
        f"从 T = {temperatures[0]:g} 到 T = {hot:g}，correct 从 {step[temperatures[0]][0]:.3f} 变到 "
        f"{step[hot][0]:.3f}，bug 始终排在它前面：温度把三种做法压平，却不会让它们换位。"
        "要让 correct 排到第一，得改模型（更大的模型，或第 6 讲的训练），不是改温度。",
        all(step[t][1] > step[t][0] for t in temperatures)
        and all(step[s][0] < step[t][0] for s, t in zip(temperatures, temperatures[1:])),
    )


if __name__ == "__main__":
    run_script(main)

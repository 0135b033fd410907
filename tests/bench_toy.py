"""
toy world 的速度（不是测试，只打印）：python3 tests/bench_toy.py

generate 是五讲的热循环，目标约 2 微秒一步。取多轮里最快的一轮：别的进程占着 CPU 时它最接近真实值。
"""
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "lecture01"))
from toy_llm import ToyLLM, apply_bug, make_problem_set, pass_at_k, print_table, run_script, step_hardness

ROUNDS = 7  # 每项测几轮
REPEATS = 20  # generate：每道题作答几次
CALLS = 100_000  # 单个函数：每轮调用几次
N_PROBLEMS = 300  # 题目数，与第 6 讲的训练集相同


def microseconds(work, count):
    """work() 做 count 次基本操作；返回最快一轮里每次的微秒数。"""
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best / count * 1e6


def repeat(call):
    return lambda: [call() for _ in range(CALLS)]


def main():
    rng = random.Random(1)
    problems = make_problem_set(random.Random(0), N_PROBLEMS, 3, 8)
    n_steps = REPEATS * sum(problem.n_steps for problem in problems)
    rows = []
    for name, temperature in (("generate，T = 1", 1.0), ("generate，T = 0", 0)):
        model = ToyLLM(1e9)
        work = lambda: [model.generate(p, rng, temperature) for p in problems for _ in range(REPEATS)]  # noqa: B023, E731
        rows.append([f"{name}（每步）", f"{microseconds(work, n_steps):.2f}"])
    calls = {
        "step_probs": lambda: model.step_probs("mul", 47, 12, 0),
        "step_hardness": lambda: step_hardness("add", 1234, 432),
        "apply_bug": lambda: apply_bug("sub", 132, 85),
        "pass_at_k(16, 3, 8)": lambda: pass_at_k(16, 3, 8),
    }
    rows += [[name, f"{microseconds(repeat(call), CALLS):.2f}"] for name, call in calls.items()]
    print_table(["做什么", "微秒"], rows)


if __name__ == "__main__":
    run_script(main)

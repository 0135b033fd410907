"""
数一数每条结论在换了种子之后有几次成立：python3 tests/reseed.py lecture01/01_scaling.py [--shifts 10]

逐条打印成立的次数；10 次里不到 9 次的前面标 ×。测试 test_reseed.py 用的是同一组函数。
"""
import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLAIM = re.compile(r"^  (√ |× 这一次没有出现：)(.*)$", re.M)


def claims_of(output):
    """一次输出里的全部结论，按出现的顺序：[(成立吗, 文字的第一行)]。"""
    return [(mark.startswith("√"), text) for mark, text in CLAIM.findall(output)]


def run_shifted(script, shift):
    """在子进程里换种子运行脚本，返回它的结论；脚本失败时 RuntimeError，带上它的错误信息。"""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "reseed_child.py"), str(ROOT / script), str(shift)],
        capture_output=True, text=True, encoding="utf-8", cwd="/", env=child_env(),
    )
    if done.returncode:
        raise RuntimeError(f"{script}（偏移 {shift}）失败：\n{done.stderr}")
    return claims_of(done.stdout)


def child_env():
    import os

    return {**os.environ, "PYTHONIOENCODING": "utf-8", "PYTHONDONTWRITEBYTECODE": "1"}


def count_holds(script, n_shifts):
    """[(成立的次数, 文字)]，每条结论一项。结论的条数变了就是 RuntimeError：它们应当与种子无关。"""
    runs = [run_shifted(script, shift) for shift in range(1, n_shifts + 1)]
    if len({len(run) for run in runs}) != 1:
        raise RuntimeError(f"{script}：结论的条数随种子变化：{[len(run) for run in runs]}")
    return [(sum(ok for ok, _ in column), column[0][1]) for column in zip(*runs)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("scripts", nargs="+")
    parser.add_argument("--shifts", type=int, default=10)
    args = parser.parse_args()
    for script in args.scripts:
        print(script)
        for holds, text in count_holds(script, args.shifts):
            print(f"  {' ' if holds >= 0.9 * args.shifts else '×'} {holds}/{args.shifts}  {text}")


if __name__ == "__main__":
    main()

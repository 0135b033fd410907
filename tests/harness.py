"""测试共用的小工具：课程的根目录、按路径装载脚本、在子进程里运行脚本。"""
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TORCH_LECTURES = ("lecture11", "lecture12")


def numbered_scripts():
    """所有编号脚本，相对路径，按讲次与编号排序：["lecture01/01_scaling.py", …]。"""
    return sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("lecture[0-9][0-9]/[0-9][0-9]_*.py"))


def load(path):
    """
    把一个脚本或工具箱装成模块（不当作 __main__ 运行），返回模块。

    每次都是新的模块，脚本之间同名也不会互相遮住；工具箱请直接 import（conftest.py 已经加好了路径）。
    """
    path = ROOT / path
    spec = importlib.util.spec_from_file_location(f"script_{path.parent.name}_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(path, *, cwd="/", timeout=120, **env):
    """在子进程里运行一个脚本（像用户那样），返回 CompletedProcess，stdout 与 stderr 是 bytes。"""
    return subprocess.run(
        [sys.executable, str(ROOT / path)],
        capture_output=True, cwd=cwd, timeout=timeout, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **env},
    )

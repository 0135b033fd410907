"""
测试共用的小工具：课程的根目录、按路径装载脚本、在子进程里运行脚本、改一个常数再运行、读输出里的表。
"""
import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from filelock import FileLock

ROOT = Path(__file__).resolve().parent.parent
TORCH_LECTURES = ("lecture11", "lecture12")
OUTPUTS = "COURSE_TEST_OUTPUTS"  # 环境变量：这次测试里各个脚本的输出放在哪个文件夹
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "tests")


# ---- 脚本 ----
def numbered_scripts(torch=None):
    """所有编号脚本的相对路径，按讲次与编号排序；torch=True / False 时只要用 / 不用 torch 的。"""
    paths = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("lecture[0-9][0-9]/[0-9][0-9]_*.py"))
    return [path for path in paths if torch is None or path.startswith(TORCH_LECTURES) == torch]


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


def run(path, *, root=ROOT, cwd="/", timeout=300, **env):
    """在子进程里运行一个脚本（像用户那样），返回 CompletedProcess，stdout 与 stderr 是 bytes。"""
    return subprocess.run(
        [sys.executable, str(root / path)],
        capture_output=True, cwd=cwd, timeout=timeout, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **env},
    )


def usual_output(path):
    """
    脚本照常运行的输出（str）。一次测试里每个脚本只照常运行一次：xdist 的各个进程共用一份记录。
    """
    record = Path(os.environ[OUTPUTS]) / (path.replace("/", "-") + ".txt")
    with FileLock(f"{record}.lock"):
        if not record.exists():
            done = run(path)
            assert done.returncode == 0, done.stderr.decode()
            record.write_bytes(done.stdout)
        return record.read_bytes().decode("utf-8")


# ---- 改一个常数再运行 ----
def constants(path):
    """{名字: ast 的值节点}：模块顶层用字面量赋值的大写常数；A, B = 3, 8 算两个。"""
    found = {}
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.Assign):
            continue
        target, value = node.targets[0], node.value
        pairs = zip(target.elts, value.elts) if isinstance(target, ast.Tuple) else [(target, value)]
        found.update({t.id: v for t, v in pairs if isinstance(t, ast.Name) and t.id.isupper()})
    return found


def run_edited(path, name, new_value, folder, timeout=300):
    """
    在课程的临时副本里，把 path 的常数 name 改成 new_value（源码文字），运行它，返回 CompletedProcess。

    与学生的做法相同：改一个常数，其余一字不动。
    """
    copy = Path(folder) / "course"
    if not copy.exists():
        shutil.copytree(ROOT, copy, ignore=NOT_COPIED)
    original = (ROOT / path).read_bytes()
    value = constants(path)[name]
    lines = original.splitlines(keepends=True)
    start = sum(map(len, lines[: value.lineno - 1])) + value.col_offset  # ast 的列号按字节数
    end = sum(map(len, lines[: value.end_lineno - 1])) + value.end_col_offset
    (copy / path).write_bytes(original[:start] + new_value.encode() + original[end:])
    try:
        return run(path, root=copy, timeout=timeout)
    finally:
        (copy / path).write_bytes(original)


def clear_error(done):
    """运行失败时的最后一行是不是"…Error: 中文说明"；不是就返回 None。"""
    last = (done.stderr.decode("utf-8").strip().splitlines() or [""])[-1]
    return last if re.match(r"(ValueError|\w*Error): .*[\u4e00-\u9fff]", last) and "Traceback" not in last else None


# ---- 读输出 ----
def demo_section(output, demo):
    """输出里"演示 demo"那一节。"""
    from course import demo_text

    return demo_text(output, demo)


def bullets(section):
    """一节里的观察，按顺序，每条是它的记号：√、× 或 ·。"""
    return re.findall(r"^  ([√×·]) ", section, re.M)


def cell(section, row, column):
    """一节的表格里，第一列是 row 的那一行、列名是 column 的那一格里的第一个数。"""
    lines = section.splitlines()
    for i, line in enumerate(lines):
        if not re.fullmatch(r"\s+-{3,}", line):
            continue
        headers = re.split(r"\s{2,}", lines[i - 1].strip())
        for body in lines[i + 1:]:
            cells = re.split(r"\s{2,}", body.strip())
            if len(cells) != len(headers):
                break
            if cells[0] == row and column in headers:
                return float(re.search(r"-?\d+(?:\.\d+)?", cells[headers.index(column)])[0])
    raise LookupError(f"表里没有行「{row}」列「{column}」")

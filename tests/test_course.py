"""课程的前门 course.py：列出、找脚本、全部运行、出错时说的话、没有网络、Ctrl-C。"""
import ast
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import course
import pytest
from harness import NOT_COPIED, ROOT, numbered_scripts

TINY = '''"""
{rule}
第 1 讲 · {number:02d}：小脚本 —— 一句话
{rule}
对应讲义：lectures/x.md 第 1 节

【问题】{question}

运行时间：约 0.1 秒，只用标准库。
"""
import sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).resolve().parent))
from toy_llm import observe, run_script, title
def main():
    title("演示 1：小")
    {body}
if __name__ == "__main__":
    run_script(main)
'''


def front_door(*args, root=ROOT, python=(sys.executable,), **env):
    return subprocess.run(
        [*python, str(root / "course.py"), *args], capture_output=True, encoding="utf-8", cwd="/", timeout=300,
        stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONIOENCODING": "utf-8", **env},
    )


@pytest.fixture
def small_course(tmp_path):
    """一个只有两个小脚本的课程副本：写测试要的脚本，用真的 course.py 运行。"""
    root = tmp_path / "course"
    (root / "lecture01").mkdir(parents=True)
    (root / "lectures").mkdir()
    shutil.copy(ROOT / "course.py", root)
    shutil.copy(ROOT / "requirements.txt", root)
    shutil.copy(ROOT / "lecture01" / "toy_llm.py", root / "lecture01")

    def write(number, body, question="小问题？"):
        text = TINY.format(rule="=" * 80, number=number, body=body, question=question)
        (root / "lecture01" / f"{number:02d}_tiny.py").write_text(text, encoding="utf-8")

    write(1, 'observe("成立", True)')
    return root, write


def test_list_names_every_script_with_question_and_time():
    listing = front_door().stdout
    assert listing == front_door("list").stdout
    for script in course.find_scripts():
        assert f"  {script.code:5} {script.path.split('/')[1]}" in listing
        assert script.question in listing and script.seconds in listing
    assert len(course.find_scripts()) == len(numbered_scripts())


@pytest.mark.parametrize(
    "query",
    ["1.1", "01/01", "1/1", "lecture01/01", "lecture01/01_scaling.py", "scaling", "01_scaling", " 1.1 ", "SCALING",
     "1。1", "1．1", "./lecture01/01_scaling.py", str(ROOT / "lecture01" / "01_scaling.py"), "平滑还是突变"],
)
def test_run_finds_a_script_by_number_path_or_name(query):
    assert course.find_one(query) == "lecture01/01_scaling.py"


def test_run_takes_a_toolbox_by_its_full_name():
    assert course.find_one("toy_llm") == course.find_one("toy_llm.py") == "lecture01/toy_llm.py"


@pytest.mark.parametrize("query", ["9.9", "没有这个", "1.77", "²", "1²", "9" * 5000 + ".1", ".", "", "..", "[x]*"])
def test_unknown_script_says_what_there_is(query):
    done = front_door("run", query)
    assert done.returncode == 2 and query in done.stderr and "lecture01/01_scaling.py" in done.stderr
    assert "Traceback" not in done.stderr


BROKEN_FILES = {
    "中文括号": TINY.format(rule="=" * 80, number=2, body='observe("x"， True）', question="小问题？").encode(),
    "BOM": b"\xef\xbb\xbf" + TINY.format(rule="=" * 80, number=2, body="", question="小问题？").encode(),
    "GBK": TINY.format(rule="=" * 80, number=2, body="", question="小问题？").encode("gbk"),
    "没有说明": b"print(1)\n",
}


@pytest.mark.parametrize("kind", BROKEN_FILES)
def test_one_broken_script_does_not_stop_the_others(small_course, kind):
    """学生改坏了一个脚本，或者放进来一个自己的：列得出来，别的照常运行，all 说得出是哪一个坏了。"""
    root, _ = small_course
    (root / "lecture01" / "02_mine.py").write_bytes(BROKEN_FILES[kind])
    listing = front_door(root=root)
    assert listing.returncode == 0 and "01_tiny.py" in listing.stdout and "02_mine.py" in listing.stdout
    assert listing.stderr == ""
    assert front_door("run", "1.1", root=root).returncode == 0
    done = front_door("all", root=root)
    runs = kind in ("BOM", "没有说明")  # 这两种 Python 认得
    assert done.returncode == (0 if runs else 1) and ("02_mine.py 失败" in done.stdout) == (not runs), done.stdout


def test_a_typo_gets_a_suggestion():
    done = front_door("run", "scalling")
    assert done.returncode == 2 and "是不是" in done.stderr and "01_scaling.py" in done.stderr
    done = front_door("lst")
    assert done.returncode == 2 and "list" in done.stderr
    done = front_door("1.1")
    assert done.returncode == 2 and "run 1.1" in done.stderr
    assert front_door("run", "--help").stdout == front_door("--help").stdout != ""


def test_a_number_too_high_lists_the_scripts_of_that_lecture_only():
    done = front_door("run", "6.9")
    assert done.returncode == 2 and done.stderr.count("lecture06/") == 8 and "lecture01/" not in done.stderr


def test_ambiguous_name_lists_the_candidates():
    done = front_door("run", "1")
    assert done.returncode == 2 and "不止一个" in done.stderr and done.stderr.count("lecture01/") >= 4


@pytest.mark.parametrize(
    "args", [("run",), ("run", "1.1", "1.2"), ("all", "3"), ("all", "x"), ("notes", "--chek"), ("list", "1")]
)
def test_wrong_usage_is_exit_2_without_traceback(args):
    done = front_door(*args)
    assert done.returncode == 2 and re.search("[\u4e00-\u9fff]", done.stderr) and "Traceback" not in done.stderr


@pytest.mark.parametrize("flag", ["--help", "-h", "help"])
def test_help_explains_every_command_in_chinese(flag):
    done = front_door(flag)
    assert done.returncode == 0
    for word in ("run", "all", "test", "--reseed", "--slow", "notes", "--check", "clean", "退出码", "torch"):
        assert word in done.stdout


def test_all_counts_claims_and_ends_0(small_course):
    root, write = small_course
    write(2, 'observe("一", True); observe("二", 1 < 2); observe("论文说")')
    done = front_door("all", root=root)
    assert done.returncode == 0, done.stderr
    assert re.search(r"02_tiny\.py\s+[\d.]+\s+2\s+0", done.stdout)
    assert re.search(r"合计 2 个脚本\s+[\d.]+\s+3\s+0", done.stdout)
    assert "[2/2] 1.2" in done.stderr


def test_all_ends_1_when_a_claim_fails_or_a_script_crashes(small_course):
    root, write = small_course
    write(2, 'observe("太阳从西边出来", False)')
    done = front_door("all", "1", root=root)
    assert done.returncode == 1 and "太阳从西边出来" in done.stdout
    write(2, 'observe("很长的一句话，" * 12 + "句末", False)')
    assert "句末" in front_door("all", root=root).stdout
    write(2, 'raise ValueError("坏了")')
    done = front_door("all", root=root)
    assert done.returncode == 1 and "坏了" in done.stdout and "01_tiny.py" in done.stdout


def test_run_passes_the_exit_code_on(small_course):
    root, write = small_course
    write(2, "sys.exit(7)")
    assert front_door("run", "1.2", root=root).returncode == 7


def test_a_script_with_a_bad_docstring_is_named(small_course):
    root, write = small_course
    (root / "lecture01" / "03_odd.py").write_text('"""没有格式"""\n', encoding="utf-8")
    done = front_door(root=root)
    assert done.returncode == 0 and re.search("03_odd.py.*缺少.*运行时间", done.stdout)


@pytest.mark.parametrize("no_bytecode, precompiled", [("", False), ("1", True)])
def test_packages_are_not_precompiled_unless_python_never_keeps_bytecode(
    monkeypatch, tmp_path, no_bytecode, precompiled
):
    """预编译 torch 要二十秒；可是环境变量说不留字节码时，不预编译就每次导入都要重来。"""
    commands = []
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", no_bytecode)
    monkeypatch.setattr(course, "VENV", tmp_path)
    monkeypatch.setattr(course, "find_spec", lambda module: None)
    monkeypatch.setattr(course, "can_import", lambda python, requirements: True)
    monkeypatch.setattr(course.subprocess, "run", lambda command, **options: commands.append(command))
    course.python_with(course.RUN_TIME)
    assert [("--no-compile" in command) for command in commands] == [not precompiled]


def test_without_torch_and_network_the_message_is_clear(small_course):
    """没有 torch、没有网络：说清缺什么，第 1 讲照常。-S 让解释器看不见已安装的包。"""
    root, _ = small_course
    (root / "lecture11").mkdir()
    text = TINY.format(rule="=" * 80, number=1, body="pass", question="要 torch 吗？").replace("第 1 讲", "第 11 讲")
    (root / "lecture11" / "01_torch.py").write_text(text, encoding="utf-8")
    no_network = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(root), "PIP_CONFIG_FILE": os.devnull}
    blind = (sys.executable, "-S")
    done = front_door("all", root=root, python=blind, **no_network)
    assert done.returncode == 1 and re.search(r"01_tiny\.py\s+[\d.]+\s+1\s+0", done.stdout)
    assert "缺少 torch" in done.stdout and "没有网络" in done.stdout and "Traceback" not in done.stderr + done.stdout
    done = front_door("run", "11.1", root=root, python=blind, **no_network)
    assert done.returncode == 1 and "缺少 torch" in done.stderr


def test_clean_removes_caches_and_says_so(small_course):
    root, _ = small_course
    for name in (".cache/lecture11", "lecture01/__pycache__", ".venv/lib/__pycache__"):
        (root / name).mkdir(parents=True)
    done = front_door("clean", root=root)
    assert done.returncode == 0 and ".cache/" in done.stdout and "lecture01/__pycache__/" in done.stdout
    assert not (root / ".cache").exists() and (root / ".venv/lib/__pycache__").exists()
    assert "没有缓存" in front_door("clean", root=root, PYTHONDONTWRITEBYTECODE="1").stdout


@pytest.mark.parametrize("encoding", ["gbk", "ascii", "latin-1"])
def test_front_door_survives_odd_consoles(encoding):
    for args in ((), ("run", "nothing"), ("--help",)):
        done = subprocess.run(
            [sys.executable, str(ROOT / "course.py"), *args], capture_output=True, cwd="/",
            env={**os.environ, "PYTHONIOENCODING": encoding},
        )
        assert done.returncode in (0, 2) and b"Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX 的信号")
@pytest.mark.parametrize("args", [("all",), ("run", "1.2")])
def test_ctrl_c_is_quiet_and_leaves_no_child(small_course, args):
    root, write = small_course
    write(2, 'print("go", flush=True); import time; time.sleep(60)')
    with subprocess.Popen(
        [sys.executable, root / "course.py", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        time.sleep(2)
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130 and b"Traceback" not in stderr
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX 的信号")
def test_killing_the_front_door_takes_its_child_along(small_course):
    root, write = small_course
    write(2, 'print("go", flush=True); import time; time.sleep(60)')
    with subprocess.Popen(
        [sys.executable, root / "course.py", "run", "1.2"], stdout=subprocess.PIPE, start_new_session=True,
    ) as process:
        while b"go" not in process.stdout.readline():
            pass
        process.terminate()
        process.wait(20)
    assert process.returncode == 143
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_old_pythons_get_one_sentence():
    """版本检查在任何新语法、新模块之前：文件的开头到检查为止，能用 Python 3.6 的语法解析。"""
    text = (ROOT / "course.py").read_text(encoding="utf-8")
    tree = ast.parse(text, feature_version=(3, 6))
    kinds = [type(node).__name__ for node in tree.body[:3]]
    assert kinds == ["Expr", "Import", "If"] and tree.body[1].names[0].name == "sys"


def test_requirements_pin_torch_only():
    lines = [line for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines() if line[0] != "#"]
    assert lines == ["torch==2.13.0"]


def test_the_copy_made_for_exercises_is_the_whole_course(tmp_path):
    copy = shutil.copytree(ROOT, tmp_path / "c", ignore=NOT_COPIED)
    assert (copy / "course.py").exists() and (copy / "lecture01" / "toy_llm.py").exists()

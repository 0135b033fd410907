"""course.md 里对每个脚本的承诺：同样的字节、任何终端、导入无副作用、文档字符串与文件的样子。"""
import ast
import contextlib
import io
import re
import runpy
import shutil
import subprocess
import sys

import pytest
from course import needs_torch, read_script
from harness import ROOT, TORCH_LECTURES, load, numbered_scripts, run, usual_output

STDLIB = numbered_scripts(torch=False)
ALL = numbered_scripts()
TRAINING_FIRST = sorted(ALL, key=lambda path: path != "lecture11/01_pretrain.py")  # 后面的脚本都用它训练的模型
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("lecture[0-9][0-9]/*.py"))
EVERY_OTHER_TORCH = [  # 再跑一遍要几十秒：平时隔一个脚本做一个，--slow 时全做
    pytest.param(script, marks=[pytest.mark.slow] if i % 2 else [])
    for i, script in enumerate(numbered_scripts(torch=True))
]
HASH_SEEDS = {"gbk": "1", "ascii": "2", "latin-1": "3"}
STRINGIO = "StringIO"


def in_turn(scripts, ways):
    """每个脚本轮流用 ways 里的一种；其余的留给 --slow。"""
    for i, script in enumerate(scripts):
        for j, way in enumerate(ways):
            yield pytest.param(script, way, marks=[] if i % len(ways) == j else [pytest.mark.slow])


def check_same_bytes(script, encoding, folder):
    done = run(script, cwd=folder, PYTHONIOENCODING=encoding, PYTHONHASHSEED=HASH_SEEDS[encoding])
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
    assert done.stdout == usual_output(script).encode(encoding, "replace")


@pytest.mark.parametrize("script, way", list(in_turn(STDLIB, [*HASH_SEEDS, STRINGIO])))
def test_same_output_on_any_console_folder_and_hash_seed(script, way, tmp_path):
    """
    换终端编码、换工作目录、换 PYTHONHASHSEED：字节与照常运行的输出相同，编码里没有的字变成"?"。

    StringIO：Jupyter、pytest 把 stdout 换成没有 reconfigure 的对象，输出不变。
    """
    if way != STRINGIO:
        return check_same_bytes(script, way, tmp_path)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        runpy.run_path(str(ROOT / script), run_name="__main__")
    assert out.getvalue() == usual_output(script)


@pytest.mark.parametrize("script", EVERY_OTHER_TORCH)
def test_torch_script_prints_the_same_bytes_twice(script, tmp_path):
    check_same_bytes(script, "ascii", tmp_path)


@pytest.mark.usual_run
@pytest.mark.parametrize("script", TRAINING_FIRST)
def test_claims_hold_and_output_is_tidy(script):
    """照常运行时每条结论都成立；每个演示都有表和观察；GBK 终端不丢字；没有 nan、inf、行尾空格，不超过 80 列。"""
    from toy_llm import WIDTH, display_width

    output = usual_output(script)
    assert "× 这一次没有出现" not in output
    demos = re.findall(r"^演示 (\d+)：", output, re.M)
    assert demos == [str(i + 1) for i in range(len(demos))] and demos
    assert output.count("\n观察：\n") >= 1
    output.encode("gbk")
    assert not re.search(r"\b(nan|inf)\b", output)
    for line in output.splitlines():
        assert line == line.rstrip() and display_width(line) <= WIDTH, line


class _StopError(Exception):
    """演示用的中断。"""


@pytest.mark.parametrize("script", STDLIB)
def test_the_title_comes_before_any_computing(script, monkeypatch):
    """第一行要立刻出现：还没有创建第一个随机数生成器，标题就已经打印了。（秒数另用 /usr/bin/time 量。）"""
    def stop(*_):
        raise _StopError

    out = io.StringIO()
    monkeypatch.setattr("random.Random", stop)
    with contextlib.redirect_stdout(out), contextlib.suppress(_StopError):
        runpy.run_path(str(ROOT / script), run_name="__main__")
    assert "演示 1：" in out.getvalue()


@pytest.mark.parametrize("module", MODULES)
def test_import_has_no_side_effects(module, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    load(module)
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("script", ALL)
def test_script_has_the_shape_of_a_lecture(script):
    """文件名、文档字符串里的编号与讲义一致；80～250 行；打开文件都写明编码。"""
    info = read_script(ROOT / script)
    text = (ROOT / script).read_text(encoding="utf-8")
    doc = ast.get_docstring(ast.parse(text))
    assert script.startswith(f"lecture{info.lecture:02d}/{info.number:02d}_")
    assert "【这里的设定】" in doc and re.search(r"对应讲义：lectures/lecture\d\d_\w+\.md 第 .*节", doc)
    assert (ROOT / re.search(r"lectures/\w+\.md", doc)[0]).exists()
    assert ("需要 torch" if needs_torch(script) else "只用标准库") in doc
    assert 80 <= len(text.splitlines()) <= 250
    assert "run_script(main)" in text


@pytest.mark.parametrize("script", ALL)
def test_every_constant_has_its_sentence(script):
    """每个大写常数那一行（或上一行）有中文注释。"""
    lines = (ROOT / script).read_text(encoding="utf-8").splitlines()
    for node in ast.parse("\n".join(lines)).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).replace(", ", "").strip("()").isupper():
            if "__file__" in ast.unparse(node.value):
                continue  # 文件夹的路径，不是拿来改的常数
            nearby = lines[node.lineno - 2 : node.end_lineno]
            assert any(re.search(r"#.*[\u4e00-\u9fff]", line) for line in nearby), f"{script}:{node.lineno}"


@pytest.mark.parametrize("module", MODULES)
def test_stdlib_lectures_import_only_the_standard_library(module):
    """第 1、2、4、6 讲只导入标准库和课程自己的工具箱；第 11、12 讲再加 torch。"""
    own = {path.stem for path in ROOT.glob("lecture*/*.py")}
    allowed = set(sys.stdlib_module_names) | own | ({"torch"} if module.startswith(TORCH_LECTURES) else set())
    for node in ast.walk(ast.parse((ROOT / module).read_text(encoding="utf-8"))):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        assert {name.split(".")[0] for name in names} <= allowed, ast.unparse(node)


def test_ruff_is_clean():
    ruff = [sys.executable, "-m", "ruff", "check", "--no-cache", "."]
    done = subprocess.run(ruff, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_python_310_is_enough():
    vermin = [sys.executable, "-c", "import vermin; vermin.main()", "--no-tips", "--target=3.10-", "--violations"]
    files = sorted(str(path) for path in [ROOT / "course.py", *ROOT.glob("lecture*/*.py")])
    done = subprocess.run([*vermin, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_scripts_work_from_a_folder_with_odd_names(tmp_path):
    """课程放在带空格和中文的文件夹里也能运行。"""
    odd = tmp_path / "我的 课程 (1)"
    shutil.copytree(ROOT / "lecture01", odd / "lecture01")
    done = run("lecture01/01_scaling.py", root=odd)
    assert done.stdout.decode("utf-8") == usual_output("lecture01/01_scaling.py")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX 的信号")
def test_ctrl_c_in_a_script_is_quiet(tmp_path):
    import signal

    script = tmp_path / "endless.py"
    script.write_text(
        f"import sys, time\nsys.path.insert(0, {str(ROOT / 'lecture01')!r})\n"
        "from toy_llm import run_script\nrun_script(lambda: (print('go'), time.sleep(60)))\n", encoding="utf-8",
    )
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=20)
    assert (process.returncode, stderr) == (130, b"")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX 的管道")
def test_closed_pipe_is_quiet():
    script = ROOT / "lecture01" / "01_scaling.py"
    done = subprocess.run(f'"{sys.executable}" "{script}" | head -n 3', shell=True, capture_output=True, timeout=60)
    assert done.stderr == b""

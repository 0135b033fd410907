"""
课程的前门：列出、运行、测试、更新讲义。只用标准库，Python 3.10 起。

用法：
    python3 course.py                  列出所有脚本：编号、问题、大约要多久（同 list）
    python3 course.py run 6.2          运行一个脚本；也可以写 06/02、脚本名的一部分（star）或路径
    python3 course.py all              按顺序运行全部脚本，最后给出一张表：用时、结论 √/×
    python3 course.py all 1 2 4 6      只运行这几讲
    python3 course.py test             运行测试；后面的参数原样交给 pytest（如 test -k vote）
    python3 course.py test --reseed 10 只数结论：每个脚本换 10 次种子，每条结论要成立 9 次以上
    python3 course.py test --slow      平时的测试，再加上很慢的那些
    python3 course.py notes            重新运行脚本，更新讲义与 README 里记录的输出，重画讲义里的图
    python3 course.py notes --check    只检查：记录的输出、图与脚本现在的是否一致
    python3 course.py clean            删除缓存（训练好的小模型、__pycache__ 等），并说删了什么
    python3 course.py --help           显示这一页

第 1、2、4、6 讲只用标准库，立刻就能运行。第 11、12 讲要用 torch，test 与 notes 要用测试工具：
这个 Python 里有就直接用；没有，就在旁边建一个 .venv 装一次（要联网）。

退出码：0 一切正常；1 有脚本失败、有结论不成立或装不上需要的包；2 命令写错了；130 按了 Ctrl-C。
test 的退出码就是 pytest 的。
"""
import sys

if sys.version_info < (3, 10):  # noqa: UP036  放在最前面：旧的 Python 也要能看到这句话
    sys.exit(f"这门课需要 Python 3.10 或更新的版本，现在是 {sys.version.split()[0]}。")

import difflib
import hashlib
import os
import re
import shutil
import signal
import subprocess
import time
import venv
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

sys.dont_write_bytecode = True  # 前门自己不留 __pycache__，clean 之后才真的干净
ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "lecture01"))
from toy_llm import pad, print_table, run_script

TORCH_LECTURES = (11, 12)  # 只有这两讲要用 torch
VENV = ROOT / ".venv"
RUN_TIME = ("requirements.txt", ("torch",))  # (requirements 文件, 要能导入的模块)
DEV_TOOLS = (
    "requirements-dev.txt", ("pytest", "xdist", "pytest_timeout", "hypothesis", "filelock", "cogapp", "matplotlib")
)
CACHE_NAMES = (".cache", "__pycache__", ".pytest_cache", ".ruff_cache", ".hypothesis")
CLAIM = re.compile(r"^  (√ |× 这一次没有出现：)", re.M)  # observe 打印的结论
FAILED = re.compile(r"^  × 这一次没有出现：.*(?:\n    .*)*", re.M)  # 不成立的一条，连同折下来的行


class UsageError(Exception):
    """命令写错了：说明原因，退出码 2。"""


class SetupError(Exception):
    """需要的包装不上：说明缺什么，退出码 1。"""


# ==============================================================================
# 脚本：从文件名和文档字符串里读出来，没有第二份清单
# ==============================================================================
class Script(NamedTuple):
    path: str  # 相对路径，如 lecture06/02_policy_gradient.py
    lecture: int
    number: int
    title: str
    question: str
    seconds: str  # 文档字符串里写的运行时间

    @property
    def code(self):
        return f"{self.lecture}.{self.number}"


def read_script(path):
    """
    读一个编号脚本的文档字符串；格式不对时 ValueError，说出是哪个文件、缺什么。

    只看开头的文档字符串，不编译整个文件：学生改坏了一个脚本，别的还能列出、能运行。
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # Windows 的编辑器会在开头加一个看不见的 BOM
    except UnicodeDecodeError:
        raise ValueError(f"{path} 不是 UTF-8 编码，请在编辑器里另存为 UTF-8") from None
    doc = (re.match(r'\s*"""(.*?)"""', text, re.S) or ["", ""])[1]
    found = {
        "第 N 讲 · NN：题目 —— 一句话": re.search(r"第 (\d+) 讲 · (\d+)：(.+?) —— ", doc),
        "【问题】": re.search(r"【问题】(.+?)(?:\n\n|\n【|\Z)", doc, re.S),
        "运行时间：": re.search(r"运行时间：(.+?)[，。（]", doc),
    }
    missing = [name for name, match in found.items() if not match]
    if missing:
        raise ValueError(f"{path} 的文档字符串里缺少：{'、'.join(missing)}")
    heading, question, seconds = found.values()
    text = re.sub(r"(?<=[!-~])\n\s*(?=[!-~])", " ", question[1].strip())  # 英文单词之间的换行换成空格
    return Script(
        path.relative_to(ROOT).as_posix(), int(heading[1]), int(heading[2]), heading[3].strip(),
        re.sub(r"\s*\n\s*", "", text), seconds[1].strip(),
    )


def script_at(path):
    """同 read_script；读不出来的也占一行，编号从文件名来，问题那一栏写读不出来的原因。"""
    try:
        return read_script(path)
    except ValueError as error:
        name = path.relative_to(ROOT).as_posix()
        return Script(name, int(name[7:9]), int(name[10:12]), path.stem, f"（{error}）", "？")


def find_scripts(lectures=()):
    """全部编号脚本，按讲次与编号排序；给了 lectures 时只要这几讲。"""
    scripts = [script_at(path) for path in sorted(ROOT.glob("lecture[0-9][0-9]/[0-9][0-9]_*.py"))]
    known = sorted({script.lecture for script in scripts})
    for lecture in lectures:
        if lecture.lstrip("0") not in map(str, known):
            raise UsageError(f"没有第“{lecture}”讲。有的是：{'、'.join(map(str, known))}；几讲之间空一格，如 all 1 2")
    wanted = {lecture.lstrip("0") for lecture in lectures}
    return [script for script in scripts if not wanted or str(script.lecture) in wanted]


def find_one(query):
    """
    编号（6.2、06/02）、路径或名字的一部分 → 那一个脚本的相对路径；找不到或不止一个时 UsageError。
    工具箱（toy_llm 等）写全名也能运行。
    """
    scripts = find_scripts()
    query = query.strip().translate(str.maketrans("。．", ".."))  # 中文输入法打出来的点
    code = re.fullmatch(r"(?:lecture)?0*(\d{1,3})(?:[./]0*(\d{1,3}))?", query, re.ASCII)
    stem = Path(query).stem
    if code:
        hits = [s for s in scripts if s.lecture == int(code[1]) and code[2] in (None, str(s.number))]
    elif Path(query).resolve() in (ROOT / s.path for s in scripts):
        return Path(query).resolve().relative_to(ROOT).as_posix()
    elif re.search(r"\w", query):
        name = query.replace("\\", "/").removeprefix("./").removesuffix(".py").lower()
        hits = [s for s in scripts if name in s.path.removesuffix(".py") or query in s.title]
        exact = [s for s in hits if Path(s.path).stem[3:] == name]
        hits = exact if len(exact) == 1 else hits
        toolboxes = sorted(ROOT.glob(f"lecture[0-9][0-9]/{re.sub(r'[^A-Za-z_]', '', stem)}.py"))
        if not hits and toolboxes:
            return toolboxes[0].relative_to(ROOT).as_posix()
    else:
        hits = []
    if len(hits) == 1:
        return hits[0].path
    if hits:
        lines = [f"“{query}”不止一个，写得再具体些："] + [f"  {s.code:5} {s.path}" for s in hits]
    else:
        names = {re.sub(r".*/\d\d_|\.py$", "", s.path): s for s in scripts}
        close = [s for s in scripts if code and s.lecture == int(code[1])]  # 讲次有，编号没有
        close += [names[n] for n in difflib.get_close_matches(query, names, n=3, cutoff=0.5)]
        lines = [f"没有找到“{query}”。" + ("是不是：" if close else "有这些脚本：")]
        lines += [f"  {s.code:5} {s.path}" for s in close or scripts]
    raise UsageError("\n".join(lines))


def note_of(lecture):
    """一讲的讲义；还没有时是 None。"""
    return next(iter(sorted((ROOT / "lectures").glob(f"lecture{lecture:02d}_*.md"))), None)


def lecture_heading(lecture):
    """讲义第一行的标题；还没有讲义时只写讲次。"""
    note = note_of(lecture)
    return note.read_text(encoding="utf-8").splitlines()[0].lstrip("# ") if note else f"第 {lecture} 讲"


# ==============================================================================
# 环境：需要的包在哪个 Python 里
# ==============================================================================
def python_with(*requirements):
    """
    返回一个装好了 requirements（RUN_TIME、DEV_TOOLS 之类）的 Python 解释器的路径。

    现在的解释器能导入就用它；否则用 .venv，缺的在里面装一次。装不上时 SetupError。
    """
    missing = [req for req in requirements if not all(find_spec(module) for module in req[1])]
    if not missing:
        return sys.executable
    python = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamps = {req: VENV / f"installed-{file_hash(ROOT / req[0])}" for req in requirements}
    if all(stamp.exists() for stamp in stamps.values()) and can_import(python, requirements):
        return str(python)
    for stamp in stamps.values():
        stamp.unlink(missing_ok=True)  # 章在、包不在：有人动过 .venv，重新安装
    names = "、".join(req[0] for req in requirements)
    print(f"第一次用到 {names} 里的包：在 {VENV} 里安装，只需一次。", file=sys.stderr, flush=True)
    try:
        if not can_import(python, [("", ("pip",))]):
            venv.create(VENV, clear=True, with_pip=True)
        for req, stamp in stamps.items():
            if not stamp.exists():
                pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "-r", ROOT / req[0]]
                # 预先编译全部文件要多花一倍的时间，而用到的那些第一次导入时自会编译并记下
                options = [] if os.environ.get("PYTHONDONTWRITEBYTECODE") else ["--no-compile"]
                subprocess.run(pip + options, check=True, stdout=sys.stderr)
                stamp.touch()  # 装完才盖章：中途断掉的安装下次会继续
    except (OSError, subprocess.CalledProcessError) as error:
        modules = "、".join(module for req in missing for module in req[1])
        raise SetupError(
            f"缺少 {modules}，安装没有成功（{type(error).__name__}，原因见上面的输出）。\n"
            "多半是没有网络，或文件夹不能写；Debian、Ubuntu 上也可能是缺少 python3-venv 这个系统包。\n"
            "第 1、2、4、6 讲不需要安装任何东西：python3 course.py all 1 2 4 6"
        ) from None
    return str(python)


def can_import(python, requirements):
    """解释器 python 在不在，能不能找到 requirements 里的全部模块。"""
    modules = [module for req in requirements for module in req[1]]
    code = f"import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, {modules!r})))"
    return python.exists() and subprocess.run([python, "-c", code], capture_output=True).returncode == 0


def call(command, **options):
    """
    运行子进程，等它结束，返回退出码。Ctrl-C 时终端已经把信号也给了它：等它自己收拾完，等不到再结束它。
    """
    with subprocess.Popen(command, **options) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            try:
                process.wait(3)
            except subprocess.TimeoutExpired:
                pass  # 只有前门收到了信号（编辑器的停止按钮）：由下面的 finally 结束它
            raise
        finally:
            process.kill()  # SIGTERM 之类：不留下没人管的子进程；已经结束时什么也不做


def file_hash(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def rerun_with(*requirements):
    """换到装好了 requirements 的解释器里，用同样的参数重新运行 course.py；已经在里面时返回 None。"""
    python = python_with(*requirements)
    return None if python == sys.executable else call([python, str(ROOT / "course.py"), *sys.argv[1:]])


def needs_torch(path):
    """lecture11、lecture12 里的文件要用 torch。"""
    return int(path[7:9]) in TORCH_LECTURES


def python_for(path):
    """运行 path 该用哪个解释器。"""
    return python_with(RUN_TIME) if needs_torch(path) else sys.executable


# ==============================================================================
# 命令
# ==============================================================================
def cmd_list():
    lecture = None
    for script in find_scripts():
        if script.lecture != lecture:
            lecture = script.lecture
            needs = "（需要 torch）" if needs_torch(script.path) else ""
            print(f"\n{lecture_heading(lecture)}{needs}")
        print(f"  {script.code:5} {pad(script.path.split('/')[1], 30)} {script.seconds}")
        print(f"        {script.question}")
    print("\n运行其中一个：python3 course.py run 1.1　　全部命令：python3 course.py --help")
    return 0


def cmd_run(*queries):
    if len(queries) != 1:
        raise UsageError("run 后面写一个脚本，例如：python3 course.py run 6.2")
    path = find_one(queries[0])
    return call([python_for(path), str(ROOT / path)])


def cmd_all(*lectures):
    scripts = find_scripts(lectures)
    rows, problems = [], []
    started = time.perf_counter()
    for i, script in enumerate(scripts, 1):
        label = f"[{i}/{len(scripts)}] {script.code} {script.path}"
        print(f"{label} ……", end="", file=sys.stderr, flush=True)
        try:
            row, trouble = run_and_count(script)
        except KeyboardInterrupt:
            print(" 停下了", file=sys.stderr)
            raise
        rows.append(row)
        problems += trouble
        print(f" {row[1]} 秒，√ {row[2]}，× {row[3]}", file=sys.stderr, flush=True)
    seconds = time.perf_counter() - started
    held, failed = (sum(row[j] for row in rows if row[j] != "-") for j in (2, 3))
    print_table(["脚本", "秒", "√", "×"], [*rows, [f"合计 {len(scripts)} 个脚本", f"{seconds:.1f}", held, failed]])
    print("\n" + "\n".join(problems) if problems else "\n全部脚本正常结束，全部结论成立。")
    return 1 if problems else 0


def run_and_count(script):
    """运行一个脚本，返回 (表格的一行, 出了什么问题的说明)。"""
    started = time.perf_counter()
    try:
        done = subprocess.run(
            [python_for(script.path), str(ROOT / script.path)], capture_output=True, encoding="utf-8",
            errors="replace", env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        )
    except SetupError as error:
        return [script.path, "-", "-", "-"], [f"{script.path} 没有运行：{error}"]
    marks = [mark.strip()[0] for mark in CLAIM.findall(done.stdout)]
    row = [script.path, f"{time.perf_counter() - started:.1f}", marks.count("√"), marks.count("×")]
    failed = [text.replace("\n    ", "").strip() for text in FAILED.findall(done.stdout)]
    trouble = [f"{script.path}：{text}" for text in failed]
    if done.returncode:
        trouble.append(f"{script.path} 失败（退出码 {done.returncode}）：\n{done.stderr.strip()}")
    return row, trouble


def cmd_test(*options):
    python = python_with(RUN_TIME, DEV_TOOLS)
    # 做完一个才再发一个：测试快慢差几百倍，发多了会有一个进程早早闲下来
    return call([python, "-m", "pytest", "-n", "auto", "--maxschedchunk", "1", *options], cwd=ROOT)


def cmd_notes(*options):
    if options not in ((), ("--check",)):
        raise UsageError("notes 后面只能写 --check")
    moved = rerun_with(RUN_TIME, DEV_TOOLS)
    if moved is not None:
        return moved
    stale = []
    for path, old, new, same in derived_files():
        name = path.relative_to(ROOT).as_posix()
        if options:
            if not same(path, old, new):
                stale.append(name)
        elif new != old:
            path.write_text(new, encoding="utf-8", newline="\n")
            print(f"更新了 {name}")
    for name in stale:
        print(f"{name} 与脚本现在的输出不同：运行 python3 course.py notes 更新它")
    print("有过期的。" if stale else "讲义、README 与图都与脚本一致。")
    return 1 if stale else 0


def cmd_clean():
    found = [path for name in CACHE_NAMES for path in sorted(ROOT.rglob(name)) if VENV not in path.parents]
    failed = []
    for path in found:
        name = path.relative_to(ROOT).as_posix()
        try:
            path.unlink() if path.is_symlink() or path.is_file() else shutil.rmtree(path)
            print(f"删除了 {name}/")
        except OSError as error:
            failed.append(name)
            print(f"删不掉 {name}/：{error}", file=sys.stderr)
    print("没有缓存。" if not found else "有的缓存没有删掉。" if failed else "缓存已清空。")
    return 1 if failed else 0


def cmd_help():
    print((__doc__ or "python3 -OO 会去掉说明，请不要用 -OO。").strip())
    return 0


# ==============================================================================
# 讲义里记录的输出：cogapp 的块 <!-- [[[cog recorded("lecture01/01_scaling.py", 1) ]]] -->
# ==============================================================================
def note_files():
    return [ROOT / "README.md", *sorted((ROOT / "lectures").glob("*.md"))]


def derived_files():
    """从脚本得出的文件，一个一个地算：(路径, 现有的内容, 应有的内容, 判断两者是否一致的函数)。"""
    for path in note_files():
        old = path.read_text(encoding="utf-8")
        yield path, old, refresh(old), same_record
    sys.path.insert(0, str(ROOT / "lectures"))
    import draw_figures

    for name in draw_figures.FIGURES:
        path = draw_figures.path_of(name)
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        yield path, old, draw_figures.draw(name), draw_figures.same_figure


def refresh(text):
    """运行文中每个 cog 块，返回更新后的全文。"""
    from cogapp import Cog

    for path in re.findall(r'\[\[\[cog recorded\("([^"]+)"', text):
        script_output(path)  # 先把脚本跑完：Ctrl-C 和脚本的错误不会被 cogapp 裹上一层
    cog = Cog()
    cog.options.prologue = "from course import recorded, script_map"
    cog.options.include_path = [str(ROOT)]
    cog.options.add_to_include_path(str(ROOT))
    return cog.process_string(text)


@cache
def script_output(path):
    """运行一个脚本，返回它的全部输出；失败时 RuntimeError。"""
    done = subprocess.run(
        [python_for(path), str(ROOT / path)], capture_output=True, encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )
    if done.returncode:
        raise RuntimeError(f"{path} 失败：\n{done.stderr}")
    return done.stdout


def demo_text(output, demo):
    """输出里"演示 demo"那一节：从标题到下一个演示之前，去掉两条横线。"""
    match = re.search(rf"^=+\n(演示 {demo}：.*?)(?=\n=+\n演示 \d|\Z)", output, re.M | re.S)
    if not match:
        raise ValueError(f"输出里没有“演示 {demo}”")
    return re.sub(r"^=+\n", "", match[1], flags=re.M).strip()


def recorded(path, demo, observations=True):
    """给 cog 块用：输出脚本 path 的"演示 demo"，放在一个 text 代码块里。"""
    import cog

    text = demo_text(script_output(path), demo)
    if not observations:
        text = text.split("\n观察：")[0].rstrip()
    cog.out(f"```text\n{text}\n```\n")


def script_map():
    """给 README 的 cog 块用：每一讲一张表。"""
    import cog

    lecture = None
    for script in find_scripts():
        if script.lecture != lecture:
            lecture = script.lecture
            note = note_of(lecture)
            link = f"[{lecture_heading(lecture)}]({note.relative_to(ROOT).as_posix()})" if note else f"第 {lecture} 讲"
            cog.out(f"\n{link}{'，需要 torch' if needs_torch(script.path) else ''}\n\n")
            cog.out("| 编号 | 脚本 | 问题 | 用时 |\n|---|---|---|---|\n")
        name = script.path.split("/")[1]
        question = script.question.replace("|", "\\|")  # 竖线会把表格的一格切成两格
        cog.out(f"| {script.code} | [{name}]({script.path}) | {question} | {script.seconds} |\n")
    cog.out("\n")


NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def same_record(path, old, new):
    """
    记录是否仍然有效。第 1～6 讲要求逐字节相同；用 torch 的讲在别的机器上末位会变，
    所以数字之外的字要相同，数字允许差 0.05 或 15%。
    """
    torch_note = any(f"lecture{lecture:02d}" in path.name for lecture in TORCH_LECTURES)
    if old == new or not torch_note:
        return old == new
    if re.sub(r"\s+|█+|-+", "", NUMBER.sub("", old)) != re.sub(r"\s+|█+|-+", "", NUMBER.sub("", new)):
        return False
    pairs = zip(map(float, NUMBER.findall(old)), map(float, NUMBER.findall(new)))
    return all(abs(a - b) <= max(0.05, 0.15 * abs(a)) for a, b in pairs)


COMMANDS = {
    "list": cmd_list, "run": cmd_run, "all": cmd_all, "test": cmd_test, "notes": cmd_notes, "clean": cmd_clean,
    "help": cmd_help, "--help": cmd_help, "-h": cmd_help,
}


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # 被 kill 时也照常收拾子进程
    name, *options = sys.argv[1:] or ["list"]
    if name != "test" and {"--help", "-h"} & {*options}:  # run --help 之类；test 的参数归 pytest
        name, options = "help", []
    try:
        if name not in COMMANDS:
            close = ["run " + name] if name[0].isdigit() else difflib.get_close_matches(name, COMMANDS, n=1)
            hint = f"是不是 {close[0]}？" if close else "有的是：list、run、all、test、notes、clean。"
            raise UsageError(f"没有“{name}”这个命令。{hint}说明见 python3 course.py --help")
        if options and COMMANDS[name] in (cmd_list, cmd_clean, cmd_help):
            raise UsageError(f"{name} 后面不写别的，收到的是：{' '.join(options)}")
        sys.exit(COMMANDS[name](*options))
    except UsageError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except SetupError as error:
        print(error, file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    run_script(main)

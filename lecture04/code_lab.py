"""
================================================================================
第 4 讲 · 工具箱：安全的计算器，和运行模型所写程序的沙箱
================================================================================
对应讲义：lectures/lecture04_feedback_tools_code.md 第 4、5 节

一、calculate(expression)：模型写来一段文字，这里算出整数。只认整数、+ - × 和括号。
    expression_of(…) 反过来：toy world 的一步写成算式是什么样。
二、parse_action(text)：智能体写来一条消息，这里认出它要用哪个工具。
三、run_program(source, inputs)：模型写来一段 Python，在子进程里真的运行，收回每个输入的结果。

模型写的文字和程序都不可信。运行程序有五道防线，一道破了还有下一道：
    1. 运行之前看语法树：不在白名单里的语法（导入、属性、字符串、乘方……）一律不运行；
    2. 子进程里没有内置函数，只给 abs、max、min、range；
    3. 审计钩子（audit hook）拒绝打开文件、导入、联网、开新进程；
    4. 操作系统的限额：CPU 时间、内存、文件大小、进程数（没有 resource 模块的系统略过）；
    5. 墙上时间和输出长度由父进程管，超了就结束整个进程组。
子进程用 python -I -S 启动：环境变量是空的，没有输入，工作目录是用完就删的临时文件夹。

【防得住】死循环、吃内存、刷屏、往文件里写内容、开进程、偷看环境变量、中途退出、输出乱码。
【防不住】白名单若有漏洞，Python 里的审计钩子不算安全边界：子进程与父进程是同一个用户，
能绕过钩子的程序就能读这个用户的文件、建空的特殊文件、看文件名和大小。同一批程序在一个
子进程里先后运行，彼此不隔离，也能伪造别人的结果。Windows 没有 CPU 和内存的限额，只有父进程
看着的墙上时间；macOS 的内存限额也不可靠。以 root 运行时进程数限额不起作用。
父进程被强行结束（SIGTERM、SIGKILL）时来不及收拾：子进程一发现管道断了就自己退出，正卡在
一次大数运算里的要等到 CPU 限额（Windows 要等它算完）；空的临时文件夹会留下。
要运行真正有敌意的代码，请用容器或虚拟机。

直接运行本文件，会看到第 1、5 道防线挡住了什么；2、3、4 道在 tests/test_lecture04.py 里试。
运行时间：约 1 秒，只用标准库。
"""
import ast
import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "lecture02"))
from tts_tools import OP_SIGNS, apply_bug, apply_op, check_int, check_number, print_table, run_script, title

# ---- 计算器的限制 ----
MAX_CHARS = 200  # 算式最多多少个字符
MAX_DEPTH = 20  # 算式最多套几层
MAX_RESULT = 10**30  # 每个数（中间结果也算）的绝对值上限

# ---- 程序的限制 ----
MAX_SOURCE = 4000  # 程序最多多少个字符
SECONDS = 2.0  # 每个程序（跑完它的全部输入）的时间限额，秒
MEMORY_MB = 512  # 子进程的内存限额，MB
OUTPUT_LIMIT = 65536  # 每个程序的输出限额，字节
START_SECONDS = 30.0  # 子进程启动的时间限额，秒（不算在程序头上）


# ==============================================================================
# 一、计算器
# ==============================================================================
class CalculatorError(ValueError):
    """算式不合规矩。文字是中文的，可以原样交还给模型看。"""


_CALC_CHARS = frozenset("0123456789+-*×−() ")
_CALC_SIGNS = str.maketrans("×−", "*-")  # 数学里的乘号、减号换成 Python 的
_CALC_OPS = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
}


def calculate(expression):
    """
    算出整数算式的值。

    【思路】先看字符，再看长度和括号，最后看语法树：树上只许有整数、+ - ×、负号。从不用 eval。
    【例子】calculate("47 × (12 - 5)") = 329
    【边界】别的写法（名字、调用、乘方、小数……）、太长、太深、太大：CalculatorError。
    """
    if not isinstance(expression, str):
        raise CalculatorError(f"算式应当是文字，收到的是 {type(expression).__name__}")
    if len(expression) > MAX_CHARS:
        raise CalculatorError(f"算式太长：{len(expression)} 个字符，最多 {MAX_CHARS} 个")
    bad = next((ch for ch in expression if ch not in _CALC_CHARS), None)
    if bad is not None:
        raise CalculatorError(f"不认识 {ascii(bad)}：算式里只有整数、+ - × 和括号")
    depth = 0
    for ch in expression:
        depth += (ch == "(") - (ch == ")")
        if depth > MAX_DEPTH:
            raise CalculatorError(f"括号套得太深：最多 {MAX_DEPTH} 层")
    text = expression.translate(_CALC_SIGNS).strip()
    if not text:
        raise CalculatorError("算式是空的")
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise CalculatorError("算式不完整：看看括号和运算符") from None
    return _calc_node(tree.body, 0)


def _calc_node(node, depth):
    """递归求值。depth 是套了几层；1 + 2 + 3 + … 这样的长链向左生长，不算加深。"""
    if depth > MAX_DEPTH:
        raise CalculatorError(f"算式套得太深：最多 {MAX_DEPTH} 层")
    if isinstance(node, ast.Constant) and type(node.value) is int:
        value = node.value
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = -_calc_node(node.operand, depth + 1)
    elif isinstance(node, ast.BinOp) and type(node.op) in _CALC_OPS:
        left, right = _calc_node(node.left, depth), _calc_node(node.right, depth + 1)
        value = _CALC_OPS[type(node.op)](left, right)
    else:
        raise CalculatorError("算式里不能有乘方、调用、正号和空括号")
    if abs(value) > MAX_RESULT:
        raise CalculatorError(f"数太大：绝对值最多 1 后面 {len(str(MAX_RESULT)) - 1} 个 0")
    return value


def expression_of(op, a, b, bug=False):
    """
    这一步的算式，一段文字。bug=True 时写错误规则的算式，它的值恰好是 apply_bug(op, a, b)。

    【例子】expression_of("mul", 47, 12) = "47 × 12"，bug=True 时是 "47 × 2 + 47 × 1"
    """
    plain = f"{a} {OP_SIGNS[op]} {b}"
    if not bug:
        return plain
    off = apply_bug(op, a, b) - apply_op(op, a, b)
    rule = f"{plain} {'+' if off > 0 else '-'} {abs(off)}"
    if op == "sub":
        terms = [(abs(a) // 10**j % 10, abs(b) // 10**j % 10, 10**j) for j in range(len(str(max(abs(a), abs(b)))))]
        rule = " + ".join(f"({max(x, y)} - {min(x, y)}) × {place}" for x, y, place in reversed(terms))
    elif op == "mul" and b >= 10:
        rule = f"{a} × {b % 10} + {a} × {b // 10}"
    elif op == "mul":
        digits = [(int(d), 10**j) for j, d in enumerate(reversed(str(abs(a))))]
        rule = " + ".join(f"({d} × {b} - {d * b // 10 * 10}) × {place}" for d, place in reversed(digits))
        rule = f"-({rule})" if a < 0 else rule
    # 规则碰巧得出正确值时，toy world 另加或另减 10
    return rule if calculate(rule) == apply_bug(op, a, b) else f"{plain} {'+' if off > 0 else '-'} {abs(off)}"


# ==============================================================================
# 二、智能体的文字协议
# ==============================================================================
class ProtocolError(ValueError):
    """智能体写的不合格式。文字原样交还给它看。"""


def parse_action(text):
    """
    解析智能体的一条消息：若干行"想：……"，最后一行"做：工具 内容"。

    【返回】(工具, 内容)。【边界】别的任何文字：ProtocolError。
    """
    *thoughts, last = text.split("\n")
    match = re.fullmatch("做：(查|算|交) (\\S.*)", last)
    if match is None or not all(line.startswith("想：") for line in thoughts):
        raise ProtocolError("最后一行应当是“做：工具 内容”，工具是查、算、交；前面只能是“想：”")
    return match[1], match[2]


# ==============================================================================
# 三、程序的白名单：运行之前先看语法树
# ==============================================================================
class ProgramError(ValueError):
    """程序里有白名单以外的语法，不运行。"""


ALLOWED_CALLS = ("abs", "max", "min", "range")
_ALLOWED_NODES = {
    ast.Module, ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.Assign, ast.AugAssign, ast.If, ast.IfExp,
    ast.While, ast.For, ast.Break, ast.Continue, ast.Pass, ast.Name, ast.Load, ast.Store, ast.Constant, ast.Call,
    ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.UnaryOp, ast.USub, ast.Not, ast.BoolOp,
    ast.And, ast.Or, ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE,
}


def check_program(source):
    """
    检查程序只用了白名单里的语法：一个函数 solve(x)，里面是整数、赋值、分支、循环和 ALLOWED_CALLS。

    【边界】不合规矩就 ProgramError，说出是什么；从不运行程序。
    """
    if not isinstance(source, str):
        raise ProgramError(f"程序应当是文字，收到的是 {type(source).__name__}")
    if len(source) > MAX_SOURCE:
        raise ProgramError(f"程序太长：{len(source)} 个字符，最多 {MAX_SOURCE} 个")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ProgramError("程序不合语法") from None
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef) or tree.body[0].name != "solve":
        raise ProgramError("程序应当只有一个函数 solve(x)")
    function = tree.body[0]
    if ast.dump(function.args) != _ONE_ARGUMENT or function.decorator_list or function.returns:
        raise ProgramError("函数应当写成 def solve(x):")
    nodes = defaultdict(list)
    for node in ast.walk(tree):
        nodes[type(node)].append(node)
    alien = next((kind for kind in nodes if kind not in _ALLOWED_NODES), None)
    if alien or len(nodes[ast.FunctionDef]) > 1:
        raise ProgramError(f"不允许的语法：{(alien or ast.FunctionDef).__name__}")
    if any(type(node.value) is not int or abs(node.value) > MAX_RESULT for node in nodes[ast.Constant]):
        raise ProgramError("常数只能是整数，而且不能太大")
    targets = [t for node in nodes[ast.Assign] for t in node.targets]
    targets += [node.target for kind in (ast.AugAssign, ast.For) for node in nodes[kind]]
    if not all(isinstance(t, ast.Name) for t in targets):
        raise ProgramError("只能给普通的变量赋值")
    called = [node.func for node in nodes[ast.Call]]
    if not all(isinstance(f, ast.Name) and f.id in ALLOWED_CALLS for f in called):
        raise ProgramError(f"只能调用 {'、'.join(ALLOWED_CALLS)}")
    if any(node.keywords for node in nodes[ast.Call]) or len(called) != sum(
        node.id in ALLOWED_CALLS for node in nodes[ast.Name]
    ):
        raise ProgramError(f"{'、'.join(ALLOWED_CALLS)} 只能用来调用，不能改名，也不能当作变量")
    strange = next((node.id for node in nodes[ast.Name] if node.id[0] == "_" or not node.id.isascii()), None)
    if strange is not None:
        raise ProgramError(f"不允许的名字：{ascii(strange)}")


_ONE_ARGUMENT = ast.dump(ast.parse("def solve(x): pass").body[0].args)


# ==============================================================================
# 四、子进程
# ==============================================================================
class Run(NamedTuple):
    """
    一个程序的运行结果。

    values  每个输入的结果（整数），元组；没有结果的是 None；
    error   空字符串表示全部正常；否则是中文的原因（只记第一个）。
    """

    values: tuple
    error: str


# 子进程里的代码。它一次收下许多程序，逐个运行，每个写回一行 JSON：[编号, 结果, 原因]。
_CHILD = r'''
import _thread, builtins, json, math, os, sys, warnings
try:
    import resource
except ImportError:
    resource = None
warnings.simplefilter("ignore")
channel = os.dup(1)                       # 结果走这里；程序自己的输出一律丢掉
sink = os.open(os.devnull, os.O_WRONLY)
os.dup2(sink, 1)
os.dup2(sink, 2)
with open("jobs.json", encoding="utf-8") as f:
    job = json.load(f)
os.remove("jobs.json")

def leave_with_parent():
    os.read(0, 1)                         # 父进程从不写：读得到，就是它没了，管道断了
    os._exit(1)

_thread.start_new_thread(leave_with_parent, ())

def limit(kind, soft, hard):
    try:
        resource.setrlimit(getattr(resource, kind), (soft, hard))
    except (AttributeError, ValueError, OSError):
        pass                              # 这个系统没有这种限额

def cpu_budget():
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit("RLIMIT_CPU", math.ceil(used.ru_utime + used.ru_stime + job["seconds"]) + 1, resource.RLIM_INFINITY)

if resource:
    memory = job["memory_mb"] * 2**20
    limit("RLIMIT_AS", memory, memory)
    limit("RLIMIT_FSIZE", 0, 0)
    limit("RLIMIT_NPROC", 0, 0)
    limit("RLIMIT_CORE", 0, 0)

def say(record):
    data = (json.dumps(record) + "\n").encode()
    while data:
        data = data[os.write(channel, data):]

names = {name: getattr(builtins, name) for name in job["calls"]}
no_names = {"__builtins__": {}}

def run(source):
    try:
        space = {"__builtins__": dict(names)}
        exec(compile(source, "solve", "exec"), space)
        solve = space["solve"]
    except BaseException as error:
        return [None] * len(job["inputs"]), type(error).__name__
    values, first = [], ""
    for x in job["inputs"]:
        try:
            value = solve(x)
            if type(value) is not int:
                raise TypeError
            if abs(value) > job["max_result"]:
                raise OverflowError
        except BaseException as error:
            value, first = None, first or type(error).__name__
        values.append(value)
    return values, first

def guard(event, args):
    if event not in ("compile", "exec", "resource.setrlimit"):
        raise PermissionError(event)

say("ready")
sys.addaudithook(guard)
for i, source in enumerate(job["sources"]):
    if resource:
        cpu_budget()
    values, error = run(source)
    say([i, values, error])
os._exit(0)
'''

_ERROR_TEXTS = {
    "TypeError": "结果不是整数，或类型用错",
    "OverflowError": "结果太大",
    "ZeroDivisionError": "除以零",
    "MemoryError": "内存超限",
    "PermissionError": "想做不允许的事",
    "SystemExit": "想中途退出",
    "KeyError": "没有定义 solve",
    "NameError": "用了没有的名字",
    "UnboundLocalError": "变量还没有值就用了",
}
TIMEOUT, CRASHED, FLOODED, GARBLED = "时间超限", "子进程中途没了", "输出太多", "输出不合规矩"


def run_program(source, inputs, seconds=SECONDS):
    """运行一个程序，返回 Run。程序多的时候用 run_programs：一个子进程跑一批，省掉启动的时间。"""
    return run_programs([source], inputs, seconds)[0]


def run_programs(sources, inputs, seconds=SECONDS):
    """
    检查并运行一批程序，每个都在全部 inputs 上调用 solve(x)。

    【参数】sources：若干程序文字；inputs：若干整数；seconds：每个程序的时间限额。
    【返回】与 sources 等长的 Run 列表。坏程序不会抛出异常：原因写在 Run.error 里。
    【边界】sources 是一段文字、inputs 里有不是整数的或太大的：ValueError。子进程起不来：RuntimeError。
    整批没有总的时间限额：100 个死循环，最多要等 100 × seconds，再加每次换子进程的时间。
    """
    sources, inputs = _as_list("sources", sources), _as_list("inputs", inputs)
    for x in inputs:
        if type(x) is int and abs(x) > MAX_RESULT:  # 太长的整数 Python 不肯写成文字，所以不印出来
            raise ValueError(f"inputs 里的数太大：绝对值最多 1 后面 {len(str(MAX_RESULT)) - 1} 个 0")
        check_int("inputs", x)
    check_number("seconds", seconds, 0, 3600, open_low=True)
    runs, accepted = [None] * len(sources), []
    for i, source in enumerate(sources):
        try:
            check_program(source)
            accepted.append(i)
        except ProgramError as error:
            runs[i] = Run((None,) * len(inputs), f"没有运行：{error}")
    for i, run in zip(accepted, run_unchecked([sources[i] for i in accepted], inputs, seconds)):
        runs[i] = run
    return runs


def _as_list(name, values):
    """任何可以逐个取的东西 → 列表。一段文字也能逐个取，但那一定是写错了。"""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise ValueError(f"{name} 应当是一个列表，收到的是 {type(values).__name__}")
    return list(values)


def run_unchecked(sources, inputs, seconds=SECONDS):
    """
    不看白名单，直接交给子进程：run_programs 的后半截。

    单独列出来，是为了让测试能一道一道地检查后面四道防线。别的地方请用 run_programs。
    【思路】子进程每跑完一个程序写回一行；哪个程序让它超时、退出或刷屏，就算那个程序失败，
    结束这个子进程，换一个新的从下一个程序接着跑。
    """
    runs = []
    while len(runs) < len(sources):
        runs += _one_child(sources[len(runs):], inputs, seconds)
    return runs


def _one_child(sources, inputs, seconds):
    """启动一个子进程，从 sources[0] 跑起，返回得到的 Run；最后一个可能是失败的，后面的还没有跑。"""
    job = {
        "sources": sources, "inputs": inputs, "seconds": seconds, "memory_mb": MEMORY_MB,
        "max_result": MAX_RESULT, "calls": ALLOWED_CALLS,
    }
    runs, child = [], _Child()
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            Path(folder, "jobs.json").write_text(json.dumps(job), encoding="utf-8")
            try:
                child.start(folder)
                while len(runs) < len(sources):
                    try:
                        runs.append(_read_run(child.read_line(seconds), len(runs), len(inputs)))
                    except _Failure as failure:
                        return [*runs, Run((None,) * len(inputs), str(failure))]
            finally:
                child.stop()  # 先收尸，再删它的工作目录
    except OSError as error:
        raise RuntimeError(f"运行程序的子进程没能启动：{error}") from error
    return runs


class _Failure(Exception):
    """子进程没有按规矩写回一行。"""


def _read_run(line, index, n_inputs):
    """把一行 JSON 变成 Run；任何不合规矩的地方都是 _Failure。"""
    try:
        i, values, error = json.loads(line)
        ok = type(i) is int and i == index and type(values) is list and len(values) == n_inputs
        ok = ok and all(value is None or (type(value) is int and abs(value) <= MAX_RESULT) for value in values)
        ok = ok and (error == "" or (error.isascii() and error.isidentifier()))  # 异常的名字：可以放心打印
        ok = ok and (bool(error) == (None in values) or n_inputs == 0)  # 没有输入，也可能编译不了
    except (ValueError, TypeError, AttributeError, RecursionError):
        ok = False
    if not ok:
        raise _Failure(GARBLED)
    return Run(tuple(values), _ERROR_TEXTS.get(error, error and f"运行出错（{error[:40]}）"))


class _Child:
    """一个子进程，和读它输出的线程（Windows 上的管道不能用 select 等，所以用线程）。"""

    def __init__(self):
        self.process = None
        self.chunks = queue.Queue(maxsize=4)  # 满了线程就等，管道就堵住：刷屏占不了父进程的内存
        self.buffer = b""
        self.stopped = False
        self.thread = threading.Thread(target=self._pump, daemon=True)

    def start(self, folder):
        """启动，等它说"ready"。中途被打断也不要紧：调用它的人在 finally 里 stop()。"""
        # Windows 没有 SYSTEMROOT 就启动不了 Python，只留这一个
        env = {name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ}
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-c", _CHILD], cwd=folder, env=env,
            stdin=subprocess.PIPE,  # 从不写：父进程没了，这一头断开，子进程就知道
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, close_fds=True,
            start_new_session=hasattr(os, "killpg"),  # 自成一个进程组，才好一起结束
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        try:
            self.thread.start()
        except RuntimeError as error:
            raise OSError("不能再开线程") from error
        try:
            ready = self.read_line(START_SECONDS) == '"ready"'
        except _Failure:
            ready = False
        if not ready:
            raise OSError(f"{sys.executable!r} -I -S 没有回答")

    def _pump(self):
        chunk = b"-"
        while chunk and not self.stopped:
            try:
                chunk = os.read(self.process.stdout.fileno(), 65536)
            except (OSError, ValueError):
                chunk = b""
            while not self.stopped:
                with contextlib.suppress(queue.Full):
                    self.chunks.put(chunk, timeout=0.1)
                    break

    def read_line(self, seconds):
        """读一行；超时、刷屏、提前结束、不是 UTF-8 都是 _Failure。"""
        deadline = time.monotonic() + seconds
        while b"\n" not in self.buffer:
            if len(self.buffer) > OUTPUT_LIMIT:
                raise _Failure(FLOODED)
            try:
                chunk = self.chunks.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise _Failure(TIMEOUT) from None
            if not chunk:
                raise _Failure(CRASHED)
            self.buffer += chunk
        line, _, self.buffer = self.buffer.partition(b"\n")
        try:
            return line.decode("utf-8")
        except UnicodeDecodeError:
            raise _Failure(GARBLED) from None

    def stop(self):
        """结束整个进程组并收尸。正常结束、超时、Ctrl-C、没能启动，都走到这里。"""
        self.stopped = True
        if self.process is None:
            return
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        if self.thread.ident is not None:  # 没有开始的线程不能 join
            self.thread.join(timeout=1)
        if not self.thread.is_alive():  # 若有漏网的后代还占着管道，线程会一直读，留给退出时收拾
            self.process.stdout.close()


# ==============================================================================
# 直接运行：看第 1、5 道防线
# ==============================================================================
TOUR_EXPRESSIONS = ("47 × (12 - 5)", "-3 * -4", "2 ** 10", "47 x 12", "(1 + 2", "９ + 1", "9" * 31)
TOUR_PROGRAMS = (
    ("x × 12 - 85", "def solve(x):\n    x = x * 12\n    return x - 85"),
    ("死循环", "def solve(x):\n    while 1 > 0:\n        pass"),
    ("除以零", "def solve(x):\n    return x // (x - x)"),
    ("导入模块", "import os\ndef solve(x):\n    return 0"),
    ("打开文件", "def solve(x):\n    return open(0)"),
    ("偷看属性", "def solve(x):\n    return x.__class__"),
    ("乘方", "def solve(x):\n    return x ** x ** x"),
)
TOUR_INPUTS = (1, 47)
TOUR_SECONDS = 0.5


def main():
    title("演示 1：计算器 —— 只认整数、+ - × 和括号")
    rows = []
    for text in TOUR_EXPRESSIONS:
        try:
            outcome = f"= {calculate(text)}"
        except CalculatorError as error:
            outcome = str(error)
        rows.append([text, outcome])
    print_table(["算式", "结果"], rows)

    title(f"演示 2：程序 —— 一批里有一个死循环，别的照样跑完（每个限 {TOUR_SECONDS} 秒）")
    runs = run_programs([source for _, source in TOUR_PROGRAMS], TOUR_INPUTS, TOUR_SECONDS)
    rows = [[name, run.error or "，".join(map(str, run.values))] for (name, _), run in zip(TOUR_PROGRAMS, runs)]
    print_table(["程序", f"solve({TOUR_INPUTS[0]}) 和 solve({TOUR_INPUTS[1]})"], rows)


if __name__ == "__main__":
    run_script(main)

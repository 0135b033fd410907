"""第 4 讲：计算器与沙箱的敌意清单；修、提交、协议与独立的算法对照；RLEF 的参考数字。"""
import contextlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from fractions import Fraction
from itertools import combinations, product

import code_lab
import pytest
from code_lab import (
    CalculatorError, ProgramError, ProtocolError, calculate, check_program, expression_of, parse_action, run_program,
    run_programs, run_unchecked,
)
from harness import ROOT, load
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tts_tools import (
    CARELESS_OFFSETS, PROCEDURES, Problem, Sample, Step, ToyLLM, apply_bug, apply_op, extend_trace, make_problem_set,
    pass_at_k,
)

correcting = load("lecture04/01_self_correction.py")
rlef = load("lecture04/02_rlef.py")
tools = load("lecture04/03_tool_use.py")
coding = load("lecture04/04_generated_tests.py")
agents = load("lecture04/05_react_agent.py")


# ==============================================================================
# 计算器
# ==============================================================================
HOSTILE_EXPRESSIONS = [
    "x", "os", "__import__('os')", "().__class__", "1 .real", "[1][0]", "[1, 2]", "{1: 2}", "{1}", "(1, 2)", "()",
    "'a' * 9", '"1"', "b'1'", "f'{1}'", "2 ** 3", "2**9**9**9", "9 ** 9 ** 9", "1 << 9", "1 << 10**9", "7 // 2",
    "7 / 2", "7 % 2", "1 @ 2", "~1", "1 | 2", "1 & 2", "1 ^ 2", "not 1", "1 and 2", "1 < 2", "1 == 1",
    "1 if 1 else 2", "[i for i in (1,)]", "(i for i in (1,))", "lambda: 1", "(lambda: 1)()", "(x := 1)", "print(1)",
    "(1)(2)", "1 2", "1 +", "* 1", "+1", "1 + + 1", "(1", "1)", "(" * 100_000, "(" * 90 + "1" + ")" * 90,
    "-" * 199 + "1", "1\x00", "\x00", "１ + 1", "١", "1\n+ 1", "1;2", "1 # 注释", "1 + 1 \\", "1_000", "0x10", "1e3",
    "1.5", ".5", "1j", "True", "None", "...", "await 1", "yield", "*1", "**1", "1,", "007", "", " ", "\t", "9" * 201,
    "9" * 40, "10" * 15 + " * 10", "10 * " * 31 + "10", "\ud800", "∞", "1 × × 2", "2××3", "2×*3", "1 − − ", "exec",
    "\u2028", "½",
]


@pytest.mark.parametrize("text", HOSTILE_EXPRESSIONS, ids=lambda text: ascii(text[:24]))
def test_hostile_expression_is_a_calculator_error(text):
    with pytest.raises(CalculatorError) as caught:
        calculate(text)
    assert any("\u4e00" <= ch <= "\u9fff" for ch in str(caught.value)) and len(str(caught.value)) < 80


@pytest.mark.parametrize("value", [None, True, 1, 1.5, 1j, b"1", ["1"], ("1",), object()])
def test_not_a_text_is_a_calculator_error(value):
    with pytest.raises(CalculatorError):
        calculate(value)


ARITHMETIC_ALPHABET = st.text(alphabet="0123456789+-*×−() x_.'\"[]{}:=,\x00\n", max_size=60)


@settings(max_examples=400)
@given(st.one_of(st.text(max_size=250), ARITHMETIC_ALPHABET))
def test_any_text_gives_an_int_or_a_calculator_error(text):
    try:
        value = calculate(text)
    except CalculatorError:
        return
    assert type(value) is int and abs(value) <= code_lab.MAX_RESULT


def expressions():
    """随机的合法算式：整数、+ - × *、括号、负号。"""
    numbers = st.integers(0, 999).map(str)
    return st.recursive(
        numbers,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from([" + ", "-", " × ", "*", " − "]), inner).map("".join),
            inner.map(lambda e: f"({e})"),
            inner.map(lambda e: f"-({e})"),
        ),
        max_leaves=8,
    ).filter(lambda e: len(e) <= 200)


@settings(max_examples=300)
@given(expressions())
def test_calculator_agrees_with_python(text):
    expected = eval(text.replace("×", "*").replace("−", "-"), {"__builtins__": {}})  # 只含数字与运算符
    assert calculate(text) == expected


def test_limits_are_exactly_where_they_are_said_to_be():
    assert calculate("1" + "+1" * 99) == 100  # 199 个字符的长链不算深
    assert calculate("(" * 20 + "1" + ")" * 20) == 1
    assert calculate("-" * 20 + "1") == 1
    for text in ("(" * 21 + "1" + ")" * 21, "-" * 21 + "1", "1" + "+1" * 100):
        with pytest.raises(CalculatorError):
            calculate(text)
    top = "1" + "0" * 30
    assert calculate(top) == calculate(f"{top} * 1") == -calculate(f"-{top}") == 10**30
    for text in (f"{top} + 1", f"-{top} - 1", f"{top} * 10 - {top} * 9"):  # 中间结果也算
        with pytest.raises(CalculatorError):
            calculate(text)


@settings(max_examples=300)
@given(st.sampled_from(["add", "sub", "mul"]), st.integers(-99999, 99999), st.integers(1, 499))
def test_written_expressions_have_the_value_of_the_procedure(op, a, b):
    """对的算式算出正确值，错误规则的算式算出 apply_bug 的值。"""
    b = b % 49 + 1 if op == "mul" else b
    assert calculate(expression_of(op, a, b)) == apply_op(op, a, b)
    assert calculate(expression_of(op, a, b, bug=True)) == apply_bug(op, a, b)


# ==============================================================================
# 程序的白名单
# ==============================================================================
def solve(*lines):
    return "\n    ".join(["def solve(x):", *lines])


HOSTILE_PROGRAMS = [
    "", "x", "import os\n" + solve("return 1"), solve("import os", "return 1"), solve("from os import *"),
    solve("return x.real"), solve("return x[0]"), solve("return 'a'"), solve("return f'{x}'"), solve("return 1.5"),
    solve("return x ** x"), solve("return x << x"), solve("return x / 2"), solve("return [x]"), solve("return (x,)"),
    solve("return {x}"), solve("return [i for i in range(3)]"), solve("return (lambda: 1)()"),
    solve("return (y := x)"), solve("return __import__('os')"), solve("return open(0)"), solve("return eval(x)"),
    solve("return solve(x)"), solve("return print(x)"), solve("return abs"), solve("abs = x", "return abs(x)"),
    solve("f = abs", "return f(x)"), solve("return max(x, key=abs)"), solve("return max(*x)"),
    solve("__builtins__ = x", "return x"), solve("return _x"), solve("global y", "y = 1"),
    solve("try:", "    return 1", "except:", "    return 2"), solve("raise x"), solve("del x"),
    solve("with x:", "    return 1"), solve("assert x"), solve("yield x"),
    solve("def f():", "    return 1", "return f()"), solve("class A: pass"), solve("x: int = 1", "return x"),
    solve("a, b = x, x", "return a"), solve("for abs in range(2): pass"), solve("x.a = 1"), solve("x[0] = 1"),
    solve("return True"), solve("return None"), solve("'文字'", "return x"), solve("return 9" + "9" * 40),
    "def f(x): return x", "def solve(x, y): return x", "def solve(): return 1", "def solve(*x): return 1",
    "def solve(x=1): return x", "def solve(x: int): return x", "def solve(x) -> int: return x",
    "async def solve(x): return x", "@abs\ndef solve(x): return x", solve("return x") + "\n" + solve("return x"),
    solve("return x") + "\nsolve(1)", "def solve(x): return x\x00", solve("return " + "(" * 300 + "x" + ")" * 300),
    solve("return " + "-" * 3900 + "x"), solve("return x" + " + x" * 2000), "\ud800",
    solve("match x:", "    case 1: return 1"),
]


@pytest.mark.parametrize("source", HOSTILE_PROGRAMS, ids=lambda source: ascii(source[:40]))
def test_hostile_program_is_not_run(source):
    """白名单拒绝它；run_program 也不抛出异常，只在 error 里说没有运行。"""
    if source != solve("return " + "-" * 3900 + "x"):  # 这一个合语法，深得编译不了：由子进程挡住
        with pytest.raises(ProgramError):
            check_program(source)
        assert run_program(source, [1]).error.startswith("没有运行")
    assert run_program(source, [1]).values == (None,)


@pytest.mark.parametrize("value", [None, 3, b"def solve(x): return x"])
def test_program_that_is_no_text_is_refused(value):
    assert run_program(value, [1]).error.startswith("没有运行")


@settings(max_examples=150)
@given(st.text(max_size=80), st.text(alphabet="x =+-*/%()<>:\n\t0123abs,ifelwhormax", max_size=40))
def test_check_program_raises_nothing_else(text, body):
    for source in (text, solve(body)):
        with contextlib.suppress(ProgramError):
            check_program(source)


def test_allowed_programs_run_and_agree_with_python():
    sources = [
    solve("return x * 12 - 85"),
    solve("r = 0", "for i in range(x):", "    if i % 3 == 0: continue", "    r += i", "return r"),
    solve("r = 1", "while r < x and not r == 64:", "    r = r * 2", "return r if r > 3 else -r"),
    solve("return max(min(x, 7), abs(x - 20), x // 3)"),
]
    inputs = [-3, 0, 1, 7, 48, 10**6]
    expected = []
    for source in sources:
        space = {}
        exec(source, space)  # 测试自己写的程序
        expected.append(tuple(space["solve"](x) for x in inputs))
    assert [run.values for run in run_programs(sources, inputs)] == expected


# ==============================================================================
# 沙箱：后面几道防线，一条性质一个测试（run_unchecked 绕过白名单）
# ==============================================================================
SECONDS = 0.5
GET_OS = (  # 没有内置函数也能摸到 os：白名单挡住它，这里看后面的防线
    "os = [k for k in ().__class__.__base__.__subclasses__() if k.__name__ == '_wrap_close'][0].__init__.__globals__"
)
FINE = solve("return x + 1")


def unchecked(*lines, inputs=(1, 2), seconds=SECONDS):
    return run_unchecked([solve(*lines)], list(inputs), seconds)[0]


def outcome_beside_others(*lines):
    """坏程序夹在两个好程序中间：好的照样有结果。返回坏程序的原因。"""
    before, bad, after = run_unchecked([FINE, solve(*lines), FINE], [1, 2], SECONDS)
    assert before == after == code_lab.Run((2, 3), "")
    assert bad.values == (None, None)
    return bad.error


def test_endless_loop_is_stopped_and_the_rest_of_the_batch_runs():
    start = time.monotonic()
    assert outcome_beside_others("while True: pass") == code_lab.TIMEOUT
    assert time.monotonic() - start < SECONDS + 5


def test_endless_loop_that_passes_the_allow_list_is_stopped():
    runs = run_programs([FINE, solve("while 1 > 0: pass"), FINE], [1], SECONDS)
    assert [run.error for run in runs] == ["", code_lab.TIMEOUT, ""]


def test_number_bomb_in_one_c_call_is_stopped():
    assert outcome_beside_others("return 10 ** 10 ** 9") in (code_lab.TIMEOUT, "内存超限", code_lab.CRASHED)


@pytest.mark.skipif(sys.platform != "linux", reason="只有 Linux 的内存限额可靠")
def test_memory_bomb_gets_a_memory_error():
    assert outcome_beside_others("return [0] * 10 ** 11") == "内存超限"


@pytest.mark.parametrize("data", ["b'x' * 65536", "b'x\\n' * 65536", "b'[0, [1, 2], 0]' * 9999"])
def test_output_flood_on_any_descriptor_does_not_fill_the_parent(data):
    """写标准输出：丢掉；写结果的通道：超过限额或不合规矩，就结束它。"""
    error = outcome_beside_others(
        GET_OS, "while True:", "    for fd in range(3, 9):", "        try:", f"            os['write'](fd, {data})",
        "        except OSError: pass",
    )
    assert error in (code_lab.FLOODED, code_lab.GARBLED)


def test_prints_are_thrown_away_and_do_not_disturb_the_result():
    assert unchecked(GET_OS, "os['write'](1, b'[0, [9, 9], 0]')", "return x").values == (1, 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="这个系统没有 fork")
def test_fork_is_refused():
    assert outcome_beside_others(GET_OS, "return os['fork']()") == "想做不允许的事"


def test_starting_a_process_is_refused():
    assert outcome_beside_others(GET_OS, "return os['system']('echo 1')") == "想做不允许的事"


def test_file_write_is_refused(tmp_path):
    target = str(tmp_path / "x")
    assert outcome_beside_others(GET_OS, f"return os['open']({target!r}, 65)") == "想做不允许的事"
    assert not os.path.exists(target)


def test_import_is_refused():
    assert outcome_beside_others("import socket", "return 1").startswith("运行出错（ImportError）")
    loader = "[k for k in ().__class__.__base__.__subclasses__() if k.__name__ == 'BuiltinImporter'][0]"
    assert outcome_beside_others(f"return {loader}.load_module('_socket')") != ""


def test_parent_environment_is_not_visible(monkeypatch):
    monkeypatch.setenv("COURSE_SECRET", "314159")
    run = unchecked(GET_OS, "return 1 if 'COURSE_SECRET' in os['environ'] else 2")
    assert run.values == (2, 2)
    count = unchecked(GET_OS, "return os['environ'].__len__()").values[0]
    assert count <= 2  # SYSTEMROOT（Windows），LC_CTYPE（Python 自己加的）


def test_working_directory_is_temporary_and_removed():
    run = unchecked(GET_OS, "p = os['getcwd']()", "return p.__len__() * (p != " + repr(os.getcwd()) + ")")
    assert run.values[0] is None or run.values[0] > 0


def test_exit_inside_does_not_end_the_batch():
    assert outcome_beside_others(GET_OS, "os['_exit'](0)") == code_lab.CRASHED
    exits = "[k for k in ().__class__.__base__.__subclasses__() if k.__name__ == 'BaseException'][0].__subclasses__()"
    assert outcome_beside_others(f"raise [k for k in {exits} if k.__name__ == 'SystemExit'][0]") == "想中途退出"


def test_output_that_is_not_utf8_is_an_error_and_no_crash():
    write = "    try: os['write'](fd, b'\\xff\\xfe\\n')"
    error = outcome_beside_others(GET_OS, "for fd in range(3, 9):", write, "    except OSError: pass", "return 1")
    assert error == code_lab.GARBLED


@pytest.mark.parametrize(
    "line", ["return 1.5", "return True", "return 'a'", "return None", "return 10 ** 31", "return 1 // 0"],
)
def test_result_that_is_no_small_integer_has_an_error(line):
    run = unchecked(line)
    assert run.values == (None, None) and run.error


def test_one_bad_input_leaves_the_other_results():
    run = run_program(solve("return 12 // x"), [1, 0, 4])
    assert run.values == (12, None, 3) and run.error == "除以零"


def test_many_programs_with_several_hanging_ones():
    sources = [solve(f"return x + {i}") if i % 40 else solve("while True: pass") for i in range(120)]
    runs = run_unchecked(sources, [1], 0.3)
    assert [run.values[0] for run in runs] == [i + 1 if i % 40 else None for i in range(120)]


def test_bad_arguments_of_the_runner():
    with pytest.raises(ValueError, match="inputs"):
        run_program(FINE, [1.5])
    for seconds in (0, -1, math.nan, math.inf, "1"):
        with pytest.raises(ValueError, match="seconds"):
            run_program(FINE, [1], seconds)
    assert run_programs([], [1]) == [] and run_program(FINE, []).values == ()


def test_child_that_cannot_start_is_said_in_chinese(monkeypatch):
    monkeypatch.setattr(code_lab, "_CHILD", "raise SystemExit(3)")
    with pytest.raises(RuntimeError, match="没能启动"):
        run_program(FINE, [1])


def children_of(pid):
    """pid 的子孙进程里还活着的（/proc，只在 Linux 上）。"""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as f:
            state, parent = f.read().rsplit(")", 1)[1].split()[:2]
            if state != "Z":
                parents[int(name)] = int(parent)
    found = {pid}
    while True:
        more = {child for child, parent in parents.items() if parent in found} - found
        if not more:
            return found - {pid}
        found |= more


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="要 /proc 才数得清进程")
def test_no_child_stays_behind_after_a_timeout():
    before = children_of(os.getpid())
    run_unchecked([solve("while True: pass"), FINE], [1], 0.3)
    assert children_of(os.getpid()) <= before


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="要 /proc 才数得清进程")
def test_no_child_stays_behind_after_ctrl_c():
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'lecture04')!r})\n"
        "import code_lab\n"
        "code_lab.run_unchecked(['def solve(x):\\n    while True: pass'], [1], 60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # 后台任务里 SIGINT 可能被忽略
    )
    deadline = time.monotonic() + 10
    while not (born := children_of(parent.pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert born
    time.sleep(0.2)
    parent.send_signal(signal.SIGINT)
    assert parent.wait(10) != 0
    assert not any(os.path.exists(f"/proc/{pid}") for pid in born)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="要 /proc 才数得清进程")
@pytest.mark.parametrize("blow", ["SIGKILL", "SIGTERM"])
def test_the_child_leaves_when_its_parent_is_killed(blow):
    """父进程来不及收拾：死循环里的子进程自己退出，远早于它的时间限额。"""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'lecture04')!r})\n"
        "import code_lab\n"
        "code_lab.run_unchecked(['def solve(x):\\n    while True: pass'], [1], 60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 10
    while not (born := children_of(parent.pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert born
    time.sleep(0.5)
    parent.send_signal(getattr(signal, blow))
    parent.wait(10)
    deadline = time.monotonic() + 5

    def running(pid):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8") as f:
            return f.read().rpartition(")")[2].split()[0] != "Z"  # 没有人收尸的不算
        return False

    while any(map(running, born)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(running, born))


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="要 /proc 才数得清进程")
def test_no_child_stays_behind_when_starting_is_interrupted(monkeypatch):
    def interrupted(thread):
        raise KeyboardInterrupt

    before = children_of(os.getpid())
    monkeypatch.setattr(code_lab.threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_programs([FINE], [1])
    assert children_of(os.getpid()) <= before


def test_a_child_that_cannot_start_is_a_chinese_runtime_error(monkeypatch, tmp_path):
    def broken(*args, **kwargs):
        raise OSError(28, "No space left on device")

    for target, name in ((code_lab.tempfile, "TemporaryDirectory"), (code_lab.subprocess, "Popen")):
        with monkeypatch.context() as m:
            m.setattr(target, name, broken)
            with pytest.raises(RuntimeError, match="没能启动"):
                run_programs([FINE], [1])
    monkeypatch.setattr(code_lab.sys, "executable", str(tmp_path / "没有"))
    with pytest.raises(RuntimeError, match="没能启动"):
        run_programs([FINE], [1])


@pytest.mark.parametrize("sources, inputs, name", [
    ("abc", [1], "sources"), (b"abc", [1], "sources"), (None, [1], "sources"), (3, [1], "sources"),
    ([FINE], "12", "inputs"), ([FINE], 3, "inputs"), ([FINE], [1.5], "inputs"), ([FINE], [True], "inputs"),
    ([FINE], ["1"], "inputs"), ([FINE], [10**5000], "inputs"), ([FINE], [-(10**30) - 1], "inputs"),
])
def test_odd_arguments_are_named_in_a_chinese_value_error(sources, inputs, name):
    with pytest.raises(ValueError, match=f"^{name} .*[\u4e00-\u9fff]"):
        run_programs(sources, inputs)


def test_any_iterable_will_do():
    assert run_programs((source for source in (FINE,)), range(2)) == [code_lab.Run((1, 2), "")]
    assert run_programs([FINE], [10**30 - 1, -(10**30)])[0].values == (10**30, 1 - 10**30)
    assert run_programs([], [1]) == [] and run_programs([FINE], []) == [code_lab.Run((), "")]


def test_the_runner_needs_no_alarm_and_no_resource():
    """Windows 没有 SIGALRM、killpg 和 resource：源码里不用前者，后两个只在有的时候用。"""
    text = (ROOT / "lecture04" / "code_lab.py").read_text(encoding="utf-8")
    assert "SIGALRM" not in text and "except ImportError" in text and 'hasattr(os, "killpg")' in text


# ==============================================================================
# 01 自我修正
# ==============================================================================
def test_oracle_rounds_are_pass_at_k(monkeypatch):
    """批评者从不出错时，t 轮以后的正确率就是 pass@(t+1)：与精确的 1 - (1-p)^(t+1) 对照。"""
    monkeypatch.setattr(correcting, "REPEATS", 3000)
    problem = Problem(47, (Step("mul", 12), Step("sub", 85)))
    model, rng = ToyLLM(1e10), random.Random(1)
    log = correcting.correct_rounds(model, [problem], rng, lambda p, s: not s.correct, rounds=3)
    p = sum(model.generate(problem, rng, correcting.TEMPERATURE).correct for _ in range(20000)) / 20000
    for t, (accuracy, broken, _, calls) in enumerate(log):
        exact = 1 - (1 - p) ** (t + 1)
        assert abs(accuracy - exact) < 0.035 and broken == 0
        assert abs(calls / 3000 - sum((1 - p) ** i for i in range(t + 1))) < 0.06  # 每一轮只问错的


def test_rounds_count_what_was_broken_and_mended():
    model, rng = ToyLLM(1e9), random.Random(2)
    problems = make_problem_set(rng, 20, 2, 4)
    log = correcting.correct_rounds(model, problems, rng, lambda p, s: rng.random() < 0.5)
    n = 20 * correcting.REPEATS
    for (before, *_), (after, broken, mended, _) in zip(log, log[1:]):
        assert round((after - before) * n) == mended - broken


def test_forced_change_never_returns_the_same_answer():
    model, rng = ToyLLM(1e9), random.Random(3)
    for problem in make_problem_set(rng, 30, 2, 4):
        old = model.generate(problem, rng, 0.7)
        assert correcting.forced_change(model, problem, old, rng).answer != old.answer


@given(st.floats(0.01, 0.99), st.floats(0.01, 1), st.floats(0.01, 1))
def test_break_even_is_where_the_gain_is_zero(A, h0, f0):
    a = correcting.break_even(A, h0, f0)
    gain = (1 - A) * a * f0 - A * (1 - a) * h0
    assert abs(gain) < 1e-9
    assert correcting.break_even(A, 1 - A, A) == pytest.approx(0.5)
    with pytest.raises(ValueError):
        correcting.break_even(A, 0, 0)


# ==============================================================================
# 02 RLEF
# ==============================================================================
@pytest.fixture(scope="module")
def worlds():
    return (
        ToyLLM(1e10),
        make_problem_set(random.Random(100), 200, 3, 8),
        make_problem_set(random.Random(101), 200, 3, 8),
    )


def rounded(xs):
    return [round(x, 3) for x in xs]


def test_reference_figures_with_true_feedback(worlds):
    model, train_set, test_set = worlds
    theta, log = rlef.train(model, train_set, random.Random(102))
    assert [epoch for epoch, _, _ in log] == [1, 5, 10, 15, 20, 25, 30, 35, 40]
    assert rounded(p for _, p, _ in log) == [0.124, 0.328, 0.840, 0.966, 0.981, 0.984, 0.986, 0.987, 0.992]
    rng = random.Random(103)
    scores = [rlef.evaluate(model, test_set, z, rng) for z in (rlef.THETA0, theta, 20.0)]
    assert rounded(scores) == [0.752, 0.827, 0.845]
    tries = [rlef.independent(model, test_set, k, rng) for k in (1, 3, 5, 10, 20)]
    assert rounded(tries) == [0.475, 0.743, 0.833, 0.923, 0.978]


def test_reference_figures_with_random_feedback(worlds):
    model, train_set, test_set = worlds
    theta, log = rlef.train(model, train_set, random.Random(104), "random")
    assert rounded(p for _, p, _ in log) == [0.080, 0.034, 0.018, 0.017, 0.016, 0.013, 0.012, 0.012, 0.015]
    rng = random.Random(105)
    scores = [rlef.evaluate(model, test_set, z, rng, "random") for z in (rlef.THETA0, theta, 20.0)]
    assert rounded(scores) == [0.735, 0.730, 0.570]


@given(st.floats(-800, 800))
def test_sigmoid_is_stable_and_symmetric(z):
    y = rlef.sigmoid(z)
    assert 0 <= y <= 1 and y + rlef.sigmoid(-z) == pytest.approx(1)
    if abs(z) < 30:
        assert math.log(y / (1 - y)) == pytest.approx(z, abs=1e-2)


def log_prob_of_choices(choices, theta):
    """log π：选修是 log σ(θ)，选重来是 log(1 - σ(θ))。"""
    sigma = 1 / (1 + math.exp(-theta))
    return sum(math.log(sigma if choice else 1 - sigma) for choice in choices)


@pytest.mark.parametrize("theta", [-2.2, -0.3, 0.0, 1.7])
@pytest.mark.parametrize("feedback", ["true", "random"])
def test_episode_gradient_is_the_derivative_of_log_pi(theta, feedback, monkeypatch):
    """把每一轮的选择记下来，用 log π 的有限差分对照 episode 给的梯度。"""
    choices = []
    real_repair, model = rlef.repair, ToyLLM(1e9)

    def spy_repair(*args):
        choices.append(True)
        return real_repair(*args)

    class Spy(ToyLLM):
        def generate(self, *args):
            choices.append(False)
            return super().generate(*args)

    monkeypatch.setattr(rlef, "repair", spy_repair)
    rng, seen = random.Random(5), Counter()
    for problem in make_problem_set(random.Random(6), 60, 3, 8):
        choices.clear()
        _, grad = rlef.episode(Spy(model.size), problem, theta, rng, feedback)
        later = choices[1:]  # 第一轮没有选择
        h = 1e-5
        slope = (log_prob_of_choices(later, theta + h) - log_prob_of_choices(later, theta - h)) / (2 * h)
        assert grad == pytest.approx(slope, abs=1e-6)
        seen.update(later)
    assert len(seen) == 2


def test_repair_never_writes_the_excluded_value_at_step_i():
    rng, model = random.Random(7), ToyLLM(1e9)
    for problem in make_problem_set(rng, 60, 2, 6):
        sample = model.generate(problem, rng, 1.0)
        for i in range(problem.n_steps):
            x = sample.values[i - 1] if i else problem.start
            op, b = problem.steps[i].op, problem.steps[i].operand
            right = apply_op(op, x, b)
            for avoid in (sample.values[i], right, apply_bug(op, x, b), right + CARELESS_OFFSETS[0], right + 3):
                new = rlef.repair(model, problem, sample, i, rng, avoid)
                assert new.values[:i] == sample.values[:i] and len(new.values) == problem.n_steps
                assert new.values[i] != avoid


def test_repair_has_the_renormalised_probabilities():
    """只有一步的题：修的分布与手工归一的分布对照。"""
    problem, model = Problem(47, (Step("mul", 12),)), ToyLLM(1e10)
    wrong = apply_bug("mul", 47, 12)
    sample = Sample([wrong], ["bug"], [False], wrong, False)
    rng, n = random.Random(8), 20000
    procs = Counter(rlef.repair(model, problem, sample, 0, rng, wrong).procs[0] for _ in range(n))
    p, b, c = model.step_probs("mul", 47, 12, 0, rlef.TEMPERATURE)
    assert procs["bug"] == 0
    assert procs["correct"] / n == pytest.approx(p / (p + c), abs=0.015)
    assert b > 0.1


@pytest.mark.parametrize("temperature", [0.0, 1e-3, 0.7, 50.0])
def test_repair_works_at_any_temperature(temperature, monkeypatch):
    monkeypatch.setattr(rlef, "TEMPERATURE", temperature)
    problem, model, rng = Problem(47, (Step("mul", 12), Step("add", 3))), ToyLLM(1e12), random.Random(9)
    sample = model.generate(problem, rng, temperature)
    for avoid in (564, 141):
        assert rlef.repair(model, problem, sample, 0, rng, avoid).values[0] != avoid


def test_first_wrong_step():
    def sample(ok):
        return Sample([0] * len(ok), ["bug"] * len(ok), ok, 0, False)

    assert rlef.first_wrong_step(sample([True, False, False])) == 1
    assert rlef.first_wrong_step(sample([False])) == 0
    assert rlef.first_wrong_step(sample([True, True, True])) == 2


def test_a_right_answer_ends_the_episode_and_nothing_is_drawn_after_turn_three():
    class Log(random.Random):
        draws = 0

        def random(self):
            Log.draws += 1
            return super().random()

    easy = Problem(10, (Step("add", 1),))
    reward, grad = rlef.episode(ToyLLM(1e16), easy, 0.0, Log(1))
    assert (reward, grad, Log.draws) == (1.0, 0.0, 1)

    class Hopeless(ToyLLM):
        def step_logits(self, op, a, b, step_index):
            return [-50.0, 50.0, -50.0]

    Log.draws = 0
    hard = Problem(47, (Step("mul", 12),))
    reward, grad = rlef.episode(Hopeless(1e9), hard, -40.0, Log(1))
    assert reward == 0.0 and Log.draws == 3 + 2 and grad == pytest.approx(0, abs=1e-12)  # 三次作答，两次选择


def test_unknown_feedback_and_bad_numbers_are_named():
    problem = Problem(10, (Step("add", 1),))
    with pytest.raises(ValueError, match="feedback"):
        rlef.episode(ToyLLM(1e9), problem, 0.0, random.Random(1), "none")
    with pytest.raises(ValueError, match="epochs"):
        rlef.train(ToyLLM(1e9), [problem], random.Random(1), epochs=0)


# ==============================================================================
# 03 工具
# ==============================================================================
def test_always_calling_matches_the_formula(monkeypatch):
    """总是调用的测得值与公式 Π[(1-m)(p+c) + m r p] 对照。"""
    monkeypatch.setattr(tools, "REPEATS", 40)
    model = ToyLLM(1e9)
    problems = make_problem_set(random.Random(1), 100, 2, 4)
    measured, calls = tools.evaluate(model, problems, lambda *step: True, random.Random(2))
    m, r = tools.malformed_rate(1e9), tools.RECOVER
    by_hand = []
    for problem in problems:
        by_hand.append(1.0)
        x = problem.start
        for i, (step, truth) in enumerate(zip(problem.steps, problem.true_values)):
            p, _, c = model.step_probs(step.op, x, step.operand, i)
            by_hand[-1] *= (1 - m) * (p + c) + m * r * p
            x = truth
    exact = sum(by_hand) / len(by_hand)
    assert tools.exact(model, problems, lambda *step: True) == pytest.approx(exact, abs=1e-12)
    assert abs(measured - exact) < 0.03
    assert calls == pytest.approx(sum(p.n_steps for p in problems) / 100)


def test_without_calls_it_is_the_plain_model(monkeypatch):
    monkeypatch.setattr(tools, "REPEATS", 40)
    model, problems = ToyLLM(1e10), make_problem_set(random.Random(3), 100, 2, 4)
    measured, calls = tools.evaluate(model, problems, lambda *step: False, random.Random(4))
    assert calls == 0 and abs(measured - tools.exact(model, problems, lambda *step: False)) < 0.03


def test_half_the_steps_with_a_call_matches_the_formula(monkeypatch):
    """只在乘法上调用：测得的与公式对照；从不写坏就是上限。"""
    monkeypatch.setattr(tools, "REPEATS", 60)
    model, problems = ToyLLM(1e10), make_problem_set(random.Random(8), 100, 2, 4)

    def on_products(op, x, b, i):
        return op == "mul"

    measured, _ = tools.evaluate(model, problems, on_products, random.Random(9))
    never, some, always = (
        tools.exact(model, problems, f) for f in (lambda *step: False, on_products, lambda *step: True)
    )
    assert abs(measured - some) < 0.025 and never < some < always
    assert always < tools.exact(model, problems, lambda *step: True, m=0)


@pytest.mark.parametrize("template", tools.BROKEN)
def test_every_broken_call_comes_back_as_an_error(template):
    for op, a, b in tools.EXAMPLES:
        for bug in (False, True):
            with pytest.raises(CalculatorError):
                calculate(template.format(expression_of(op, a, b, bug)))


def test_filter_keeps_no_call_that_cannot_gain_tau():
    """p > exp(-TAU) 的步骤，最好的结果也省不出 TAU：一次都不留。"""
    problems = make_problem_set(random.Random(5), 100, 2, 5)
    for size in (1e9, 1e11):
        for share, law, p in tools.toolformer_filter(ToyLLM(size), problems, random.Random(6)).values():
            assert share == 0 or p < math.exp(-tools.TAU)
            assert (share == 0) == (law == 0)


def test_kept_share_is_one_minus_m_times_one_minus_b():
    """结果对了才留得下：与 (1 - m)(1 - b) 对照，公式和真的采样都对。"""
    problems, model = [Problem(47, (Step("mul", 12),))] * 3000, ToyLLM(1e9)
    (share, law, p), = tools.toolformer_filter(model, problems, random.Random(7)).values()
    probs = model.step_probs("mul", 47, 12, 0)
    assert p == pytest.approx(probs[0]) and law == pytest.approx((1 - tools.malformed_rate(1e9)) * (1 - probs[1]))
    assert abs(share - law) < 0.03


@pytest.mark.parametrize("size", [1e8, 1e9, 1e10])
def test_the_inequality_is_the_best_choice_at_every_step(size):
    """逐题枚举每一步调不调用：没有一种选法比"按不等式"高。"""
    model, problems = ToyLLM(size), make_problem_set(random.Random(10), 20, 2, 4)
    rule = tools.policies_for(model, {})["按不等式"]
    for problem in problems:
        best = max(
            tools.exact(model, [problem], lambda op, x, b, i, picks=picks: picks[i])
            for picks in product((False, True), repeat=problem.n_steps)
        )
        assert tools.exact(model, [problem], rule) == pytest.approx(best)


# ==============================================================================
# 04 代码
# ==============================================================================
@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)).map(lambda g: (g[0], min(g))), min_size=1, max_size=4))
def test_submitting_from_clusters_matches_enumeration(groups):
    """小的情形逐个枚举：每组挑哪几个交上去，至少一个对的比例。"""
    old, coding.SUBMIT = coding.SUBMIT, 3
    try:
        ordered = sorted(groups, key=lambda g: -g[0])
        turns, left = [0] * len(ordered), min(3, sum(size for size, _ in ordered))
        while left:
            for j, (size, _) in enumerate(ordered):
                if left and turns[j] < size:
                    turns[j], left = turns[j] + 1, left - 1
        choices = [list(combinations([i < right for i in range(size)], t)) for (size, right), t in zip(ordered, turns)]
        cases = list(product(*choices))
        hits = sum(any(any(pick) for pick in case) for case in cases)
        assert coding.submit_from(groups) == pytest.approx(float(Fraction(hits, len(cases))))
    finally:
        coding.SUBMIT = old


def test_one_cluster_is_the_unbiased_pass_at_k():
    assert coding.submit_from([(30, 4)]) == pytest.approx(pass_at_k(30, 4, coding.SUBMIT))
    assert coding.submit_from([(5, 1)]) == 1.0 and coding.submit_from([(0, 0)]) == 0.0


def test_every_kind_hides_its_bug_on_the_public_inputs_and_shows_it_somewhere():
    """公开测试（最小的几个输入）看不出 bug（忘了的、门槛记大的），全部输入里看得出；手滑处处看得出。"""
    rng, cases = random.Random(1), []
    for kind in coding.KINDS:
        for _ in range(30):
            k, c = rng.randint(*kind[3]), rng.randint(*kind[4])
            right = kind[1].format(k=k, c=c)
            bugs = [kind[2].format(k=k, c=c), *(kind[1].format(k=k, c=c + shift) for shift in coding.SHIFTS)]
            cases.append((right, right + " + 2", *bugs))
    ran = coding.behaviours([coding.program([line]) for lines in cases for line in lines])
    for lines in cases:
        right, slip, *bugs = (ran[coding.program([line])] for line in lines)
        assert all(right[: coding.N_PUBLIC] == bug[: coding.N_PUBLIC] and right != bug for bug in bugs)
        assert all(y - x == 2 for x, y in zip(right, slip))


def test_the_two_groups_differ_in_the_shape_of_the_bug_only():
    """两类题用同一串随机数：每一行要么相同，要么一边忘了特殊情形、一边记大了门槛；写对的比例是 CORRECT。"""
    tasks = [coding.make_task(random.Random(i), coding.N_RULES) for i in range(6)]
    pools = coding.write_pools(tasks, 200, 7)
    lines = right = bugs = 0
    for task, apart, together in zip(tasks, pools["错得分散"], pools["错得一致"]):
        for one, other in zip(apart, together):
            for (kind, k, c), a, b in zip(task, one.split("\n")[2:-1], other.split("\n")[2:-1]):
                lines, right = lines + 1, right + (a.strip() == kind[1].format(k=k, c=c))
                if a != b:
                    bugs += 1
                    assert b.strip() == kind[2].format(k=k, c=c)
                    assert a.strip() in [kind[1].format(k=k, c=c + shift) for shift in coding.SHIFTS]
    assert right / lines == pytest.approx(coding.CORRECT, abs=0.03)
    assert bugs / lines == pytest.approx(coding.BUG, abs=0.03)


def test_filtered_submissions_match_the_formula():
    """过滤以后全对的比例是 (p / (p + b))^n：大样本里数一数。"""
    rng = random.Random(8)
    task = coding.make_task(rng, coding.N_RULES)
    sources = [coding.write_program(task, 1.0, rng) for _ in range(6000)]
    ran, truth = coding.behaviours([*sources, coding.reference(task)]), coding.reference(task)
    kept = [s for s in sources if ran[s][: coding.N_PUBLIC] == ran[truth][: coding.N_PUBLIC]]
    share = (coding.CORRECT / (coding.CORRECT + coding.BUG)) ** coding.N_RULES
    assert kept.count(truth) / len(kept) == pytest.approx(share, abs=0.015)


def test_programs_really_run_in_the_child():
    """子进程的结果与本进程 exec 的结果相同。"""
    rng = random.Random(2)
    sources = [coding.write_program(coding.make_task(rng, 4), 0.5, rng, i % 2 == 1) for i in range(20)]
    for source, values in coding.behaviours(sources).items():
        space = {}
        exec(source, space)
        assert values == tuple(space["solve"](x) for x in coding.INPUTS)


def test_dual_agreement_by_hand():
    """三个程序、三个测试，手算 |S|·|T|：两个错的程序一致，压过一个对的。"""
    truth, wrong = (1, 2, 3), (1, 2, 9)
    outputs = [truth, wrong, wrong]
    tests = [(0, 1), (1, 2), (2, 3)]  # 三个测试都是对的
    assert coding.choose_by_tests(outputs, truth, tests, dual=False) == 1.0  # 通过 3 个 对 2 个
    assert coding.choose_by_tests(outputs, truth, tests, dual=True) == 0.0  # 1×3 < 2×2
    assert coding.choose_by_tests(outputs, truth, [], dual=True) == pytest.approx(1 / 3)


# ==============================================================================
# 05 智能体
# ==============================================================================
@settings(max_examples=400)
@given(st.one_of(st.text(max_size=60), st.text(alphabet="想做看：:查算交 \n\r\t12+红", max_size=25)))
def test_protocol_accepts_a_line_exactly_or_says_why(text):
    try:
        tool, content = parse_action(text)
    except ProtocolError as error:
        assert "做：" in str(error)
        return
    *thoughts, last = text.split("\n")
    assert last == f"做：{tool} {content}" and tool in "查算交" and content.strip()
    assert all(line.startswith("想：") for line in thoughts)


@pytest.mark.parametrize("text", [
    "", "做：", "做：查", "做：查 ", "做:查 红枣", "做： 查 红枣", "做：查红枣", "做：查  红枣", "做：删 红枣",
    "做：查 红枣\n", "查 红枣", "想：好", "做：查 红枣\n做：查 红枣", "看：12 元\n做：交 12", "做：查 红枣\n想：好",
    " 做：查 红枣", "想：\n\n做：交 1", "做：查\u3000红枣",
])
def test_odd_lines_are_protocol_errors(text):
    with pytest.raises(ProtocolError):
        parse_action(text)


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.one_of(st.text(max_size=40), st.text(alphabet="做：查算交 0123+×-红枣茶", max_size=20).map("做：算 ".__add__)),
    st.booleans(), st.booleans(),
)
def test_environment_answers_anything_with_an_observation(text, guard, long):
    seen, answer = agents.environment(text, {"红枣": 12}, guard, long)
    assert seen.startswith("看：") and (answer is None or isinstance(answer, int))
    assert "\n" not in seen or "\n" in text


def test_guard_never_lets_a_spoiled_call_take_effect():
    for line in ("做：查 红枣", "做：算 0 + 12 × 3", "做：交 36"):
        seen, answer = agents.environment(agents.spoil(line), {"红枣": 12}, True, False)
        assert seen.startswith("看：错误") and answer is None
        seen, answer = agents.environment(agents.spoil(line), {"红茶": 9, "红枣": 12}, False, False)
        assert not seen.startswith("看：错误")  # 没有护栏：猜着执行
    assert agents.environment("做：算 0 + 12 ×", {}, False, False) == ("看：12", None)
    assert agents.environment("做：查 红", {"红茶": 9, "红枣": 12}, False, False) == ("看：9 元", None)


@pytest.mark.parametrize("guard", [True, False])
def test_a_careful_agent_with_a_full_table_is_always_right(guard):
    for i in range(30):
        lines, result, errors = agents.run_episode(random.Random(i), 5, guard=guard, typo=0.0)
        assert result == "对" and errors == 0 and lines[-1] == "看：收到"


def test_turn_limit_ends_an_episode(monkeypatch):
    monkeypatch.setattr(agents, "TURN_LIMIT", 6)
    lines, result, _ = agents.run_episode(random.Random(1), 3, typo=0.0)  # 3 种货要 7 轮
    assert result == "轮数用完" and sum(line.startswith("看：") for line in lines) == 6
    monkeypatch.setattr(agents, "TURN_LIMIT", 7)
    assert agents.run_episode(random.Random(1), 3, typo=0.0)[1] == "对"


def test_without_a_guard_success_decays_as_the_formula_says(monkeypatch):
    """让写坏的算式必错、货名和答案从不写坏：成功率应当正好是 (1 - TYPO)^n。"""
    monkeypatch.setattr(agents, "EPISODES", 1500)
    monkeypatch.setattr(agents, "spoil", lambda line: "做：算 0" if line.startswith("做：算") else line)
    for n in (1, 4):
        results = (result for _, result, _ in agents.episodes("t", n_goods=n, guard=False, typo=0.1))
        assert abs(agents.share(results) - 0.9**n) < 0.05


def test_a_spoiled_name_is_guessed_right_for_the_first_of_its_character():
    """逐个货名数：少一个字以后猜中的，正好是同字头里的第一种；短回话的成绩跟着公式走。"""
    hits = [agents.guess_call("查", name[:-1]) == name for name in agents.GOODS]
    firsts = [next(other for other in agents.GOODS if other[0] == name[0]) == name for name in agents.GOODS]
    assert hits == firsts and sum(hits) == 4
    wins = [agents.run_episode(random.Random(i), 3, guard=False, typo=0.1)[1] == "对" for i in range(2000)]
    assert sum(wins) / 2000 == pytest.approx(((1 - 0.1 * 2 / 3) * 0.9) ** 3, abs=0.035)


def test_thinking_alone_never_looks_at_the_table():
    """只想不查表：缺行的概率怎样变，同一串随机数给出同样的对话。"""
    runs = [agents.run_episode(random.Random(3), 3, mode="只想", missing=u)[:2] for u in (0.0, 0.3, 0.9)]
    assert runs[0] == runs[1] == runs[2]


def test_json_of_a_child_line_must_fit():
    """结果行的任何不合规矩，都是失败，不是结果。"""
    good = json.dumps([3, [1, None], "ZeroDivisionError"])
    assert code_lab._read_run(good, 3, 2) == code_lab.Run((1, None), "除以零")
    assert code_lab._read_run('[3, [1, 2], ""]', 3, 2) == code_lab.Run((1, 2), "")
    assert code_lab._read_run('[0, [], "RecursionError"]', 0, 0).error  # 没有输入，也可能编译不了
    for line in ("", "3", "[]", "[3]", '[3, [1], ""]', '[4, [1, 2], ""]', '[3, [1, 2.5], ""]', '[3, [1, true], ""]',
                 '[3, "ab", ""]', '[3, [1, 2], null]', "[" * 5000, '{"3": 1}', "null", "[3, [1, 2], 1",
                 '[3, [1, null], ""]', '[3, [1, 2], "TypeError"]', '[3, [1, null], "\\ud800"]',
                 '[3, {"1": 1, "2": 2}, ""]',
                 '[3, [1, null], "\\u001b[2J"]', '[3.0, [1, 2], ""]', f'[3, [1, {"9" * 4200}], ""]',
                 f'[3, [1, {"9" * 5000}], ""]', f'[3, [1, -1{"0" * 29}1], ""]'):
        with pytest.raises(code_lab._Failure):
            code_lab._read_run(line, 3, 2)
    with pytest.raises(code_lab._Failure):
        code_lab._read_run('[false, [1], ""]', 0, 1)


def test_procedures_are_the_course_s():
    """02 用的下标与 toy world 的次序一致。"""
    assert PROCEDURES == ("correct", "bug", "careless") and extend_trace is rlef.extend_trace

"""toy world 的规则：与独立的写法（数字串、枚举、闭式）对照，以及坏输入的错误信息。"""
import itertools
import math
import random
import re

import pytest
import toy_llm
from hypothesis import given
from hypothesis import strategies as st
from toy_llm import (
    ALPHA, CARELESS_OFFSETS, PROCEDURES, Problem, Step, ToyLLM, apply_bug, apply_op, bar, check_counts, check_each,
    check_int, check_number, check_seeds, check_step, display_width, extend_trace, fmt_size, make_problem,
    make_problem_set, mean, observe, pad, pass_at_k, path_probs, print_table, sample_index, sigmoid, softmax,
    step_hardness,
)

values = st.integers(-10**7, 10**7)
operands = st.integers(1, 999)
ops = st.sampled_from(["add", "sub", "mul"])


# ---- 难度：与"在数字串上列竖式"对照 ----
def carries_on_strings(a, b):
    width = max(len(str(a)), len(str(b)))
    carry, count = 0, 0
    for x, y in zip(reversed(str(a).zfill(width)), reversed(str(b).zfill(width))):
        carry = int(int(x) + int(y) + carry > 9)
        count += carry
    return count


def borrows_on_strings(a, b):
    """被减数有几位就看几位；0 没有数字。"""
    digits = str(a) if a else ""
    borrow, count = 0, 0
    for i, x in enumerate(reversed(digits)):
        y = str(b)[-1 - i] if i < len(str(b)) else "0"
        borrow = int(int(x) - borrow < int(y))
        count += borrow
    return count


@given(values, operands)
def test_hardness_counts_carries_and_borrows_like_column_arithmetic(a, b):
    assert step_hardness("add", a, b) == pytest.approx(0.3 * carries_on_strings(abs(a), b))
    assert step_hardness("sub", a, b) == pytest.approx(0.3 * borrows_on_strings(abs(a), b))


@given(values, operands)
def test_hardness_of_multiplication_is_a_table(a, b):
    expected = {(False, False): 0, (False, True): 0.7, (True, False): 1.5, (True, True): 2.2}[b >= 10, abs(a) >= 100]
    assert step_hardness("mul", a, b) == pytest.approx(expected)


@pytest.mark.parametrize(
    "op, a, b, hardness",
    [("add", 47, 85, 0.6), ("add", 95, 5, 0.6), ("add", 999, 1, 0.9), ("add", 12, 34, 0), ("sub", 132, 85, 0.6),
     ("sub", 100, 1, 0.6), ("sub", 5, 499, 0.3), ("sub", 0, 5, 0), ("add", -47, 85, 0.6), ("mul", 47, 12, 1.5)],
)
def test_hardness_by_hand(op, a, b, hardness):
    assert step_hardness(op, a, b) == pytest.approx(hardness)


# ---- 错误规则 ----
@given(ops, values, operands)
def test_bug_is_never_right_and_always_the_same(op, a, b):
    assert apply_bug(op, a, b) != apply_op(op, a, b)
    assert apply_bug(op, a, b) == apply_bug(op, a, b)


@pytest.mark.parametrize(
    "op, a, b, wrong",
    [("add", 47, 85, 122), ("add", 12, 34, 56), ("sub", 132, 85, 153), ("sub", 85, 132, 153), ("sub", 89, 25, 54),
     ("sub", -30, 20, 10), ("mul", 47, 12, 141), ("mul", 47, 6, 42), ("mul", -47, 6, -42), ("mul", 11, 5, 65),
     ("mul", 0, 7, 10), ("mul", 0, 12, 10), ("mul", 30, 10, 30)],
)
def test_bug_by_hand(op, a, b, wrong):
    assert apply_bug(op, a, b) == wrong


@given(st.integers(0, 10**6), operands)
def test_subtraction_bug_is_smaller_from_larger_digit_by_digit(a, b):
    width = max(len(str(a)), len(str(b)))
    digits = [abs(int(x) - int(y)) for x, y in zip(str(a).zfill(width), str(b).zfill(width))]
    wrong = int("".join(map(str, digits)))
    assert apply_bug("sub", a, b) == (wrong if wrong != a - b else a - b - 10)


# ---- softmax 与采样 ----
@given(st.lists(st.floats(-30, 30), min_size=1, max_size=5), st.floats(0.1, 20))
def test_softmax_is_the_textbook_formula(logits, temperature):
    probs = softmax(logits, temperature)
    assert math.fsum(probs) == pytest.approx(1)
    for i, p in enumerate(probs):
        textbook = 1 / math.fsum(math.exp((z - logits[i]) / temperature) for z in logits)
        assert p == pytest.approx(textbook, rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("temperature", [1e-320, 1e-12, 1e300, math.inf])
def test_softmax_survives_extreme_temperatures(temperature):
    probs = softmax([700.0, -700.0, 0.0], temperature)
    assert all(math.isfinite(p) for p in probs) and math.fsum(probs) == pytest.approx(1)


def test_greedy_takes_the_first_maximum():
    assert softmax([1.0, 3.0, 3.0], 0) == (0.0, 1.0, 0.0)


def test_sample_index_frequencies_match_the_probabilities():
    rng, probs, n = random.Random(7), (0.5, 0.3, 0.2), 40_000
    counts = [0, 0, 0]
    for _ in range(n):
        counts[sample_index(probs, rng)] += 1
    for count, p in zip(counts, probs):
        assert abs(count / n - p) < 4 * math.sqrt(p * (1 - p) / n)


class FixedRandom(random.Random):
    """random() 总返回给定的数。"""

    def __init__(self, u):
        super().__init__(0)
        self.u = u

    def random(self):
        return self.u


@pytest.mark.parametrize("u, index", [(0.0, 1), (0.3, 1), (0.49999, 1), (0.5, 2), (0.9999999999999999, 2)])
def test_sample_index_takes_the_first_index_whose_running_sum_exceeds_u(u, index):
    assert sample_index((0.0, 0.5, 0.5), FixedRandom(u)) == index


def test_sample_index_falls_back_to_the_last_possible_index():
    assert sample_index((0.3, 0.3, 0.3999, 0.0), FixedRandom(0.99999)) == 2


# ---- 题目 ----
GOLDEN_PROBLEMS = [
    (36, (("mul", 9), ("add", 402), ("sub", 496), ("add", 299), ("sub", 112), ("add", 145)), 562),
    (16, (("sub", 5), ("sub", 9), ("sub", 1), ("add", 462)), 463),
    (29, (("mul", 32), ("add", 52), ("add", 162), ("sub", 468)), 674),
    (45, (("add", 444), ("add", 32), ("sub", 281), ("sub", 24)), 216),
]


def test_problem_set_golden_values():
    """同一个种子永远是同一批题：这四道由 toy_world.md 的抽取顺序决定。"""
    problems = make_problem_set(random.Random(0), 4, 3, 8)
    assert [(p.start, tuple((s.op, s.operand) for s in p.steps), p.answer()) for p in problems] == GOLDEN_PROBLEMS


@given(st.integers(0, 10**9), st.integers(1, 12))
def test_problems_stay_in_range(seed, n_steps):
    problem = make_problem(random.Random(seed), n_steps)
    assert problem.n_steps == n_steps and 10 <= problem.start <= 50
    assert all(1 <= v <= 99999 + 499 * n_steps for v in problem.true_values)
    assert all(step.operand >= 1 for step in problem.steps)


def test_problem_is_immutable_and_prints_readably():
    problem = Problem(47, [Step("mul", 12), Step("sub", 85)])
    assert str(problem) == "从 47 开始，× 12，- 85" and problem.answer() == 479 and Problem(5, ()).answer() == 5
    assert problem == Problem(47, (Step("mul", 12), Step("sub", 85))) and len({problem, problem}) == 1
    with pytest.raises(AttributeError):
        problem.start = 1


# ---- 模型 ----
def test_the_four_contexts_of_a_1b_model():
    model = ToyLLM(1e9)
    contexts = [("add", 1, 1), ("mul", 5, 5), ("mul", 47, 12), ("mul", 472, 12)]
    probs = [model.step_probs(*context, 0)[0] for context in contexts]
    assert [round(p, 3) for p in probs] == [0.777, 0.501, 0.183, 0.100]


def test_reference_pass_at_1():
    rng, model = random.Random(1), ToyLLM(1e9)
    problems = make_problem_set(random.Random(0), 100, 3, 8)
    assert mean(model.generate(p, rng).correct for p in problems for _ in range(4)) == 0.175


def all_traces(model, problem, values=(), procs=(), p=1.0):
    """独立的枚举：每一步的 1 + 1 + 6 种写法，列出 (values, procs, 概率)。"""
    i = len(values)
    if i == problem.n_steps:
        yield values, procs, p
        return
    x = values[-1] if values else problem.start
    op, b = problem.steps[i].op, problem.steps[i].operand
    correct, bug, careless = model.step_probs(op, x, b, i)
    right = {"add": x + b, "sub": x - b, "mul": x * b}[op]
    options = [(right, "correct", correct), (apply_bug(op, x, b), "bug", bug)]
    options += [(right + d, "careless", careless / len(CARELESS_OFFSETS)) for d in CARELESS_OFFSETS]
    for value, proc, q in options:
        yield from all_traces(model, problem, (*values, value), (*procs, proc), p * q)


def test_generate_agrees_with_exact_enumeration():
    problem = Problem(47, (Step("mul", 12), Step("add", 85), Step("sub", 132)))
    model, n = ToyLLM(3e9), 20_000
    rng = random.Random(5)
    samples = [model.generate(problem, rng) for _ in range(n)]
    exact_correct = math.fsum(p for v, _, p in all_traces(model, problem) if v[-1] == problem.answer())
    exact_sound = math.fsum(p for _, procs, p in all_traces(model, problem) if set(procs) == {"correct"})
    assert math.prod(path_probs(model, problem)) == pytest.approx(exact_sound)
    assert exact_correct > exact_sound  # 两个错误会互相抵消
    measured_correct, measured_sound = mean(s.correct for s in samples), mean(s.sound for s in samples)
    for exact, measured in [(exact_correct, measured_correct), (exact_sound, measured_sound)]:
        assert abs(measured - exact) < 4 * math.sqrt(exact * (1 - exact) / n)


@given(st.integers(0, 10**6), st.integers(1, 8), st.floats(0, 3))
def test_a_sample_describes_itself_truly(seed, n_steps, temperature):
    rng = random.Random(seed)
    problem = make_problem(rng, n_steps)
    sample = ToyLLM(1e9).generate(problem, rng, temperature)
    x = problem.start
    for step, value, proc, ok in zip(problem.steps, sample.values, sample.procs, sample.local_ok, strict=True):
        right = apply_op(step.op, x, step.operand)
        allowed = {"correct": [right], "bug": [apply_bug(step.op, x, step.operand)],
                   "careless": [right + d for d in CARELESS_OFFSETS]}
        assert value in allowed[proc] and ok == (value == right)
        x = value
    assert sample.answer == x and sample.correct == (x == problem.answer())
    assert sample.correct or not sample.sound


@given(st.integers(0, 10**6), st.integers(0, 4))
def test_extending_keeps_the_prefix_and_judges_it(seed, keep):
    rng = random.Random(seed)
    problem = make_problem(rng, 4)
    first = ToyLLM(1e9).generate(problem, rng)
    again = extend_trace(ToyLLM(1e9), problem, first.values[:keep], first.procs[:keep], rng, 1.0)
    assert again.values[:keep] == first.values[:keep] and again.local_ok[:keep] == first.local_ok[:keep]
    assert len(again.values) == 4
    if keep == 4:
        assert again == first


def test_draws_per_step_are_one_plus_one_for_careless():
    """抽取的顺序是规格的一部分：每步一个 random()，careless 再一个 randrange。"""
    class Counting:
        def __init__(self, seed):
            self.rng, self.calls = random.Random(seed), []

        def random(self):
            self.calls.append("random")
            return self.rng.random()

        def randrange(self, *args):
            self.calls.append("randrange")
            return self.rng.randrange(*args)

    rng = Counting(3)
    problem = make_problem(random.Random(0), 30)
    sample = ToyLLM(1e8).generate(problem, rng)
    expected = [c for proc in sample.procs for c in (("random", "randrange") if proc == "careless" else ("random",))]
    assert "careless" in sample.procs and rng.calls == expected


def test_a_subclass_that_changes_its_logits_is_never_served_an_old_value():
    class Drifting(ToyLLM):
        boost = 0.0

        def step_logits(self, op, a, b, step_index):
            logits = super().step_logits(op, a, b, step_index)
            return [logits[0] + self.boost * (step_index + 1), *logits[1:]]

    model = Drifting(1e9)
    before = model.step_probs("add", 1, 1, 0)
    model.boost = 1.0
    after = model.step_probs("add", 1, 1, 0)
    assert after[0] > before[0] == ToyLLM(1e9).step_probs("add", 1, 1, 0)[0]
    assert model.step_probs("add", 1, 1, 1)[0] > after[0]


def test_changed_world_constants_take_effect_at_once(monkeypatch):
    before = step_hardness("add", 47, 85), ToyLLM(1e9).step_probs("add", 47, 85, 0)
    monkeypatch.setattr(toy_llm, "CARRY_HARDNESS", 0.6)
    assert step_hardness("add", 47, 85) == pytest.approx(2 * before[0])
    assert ToyLLM(1e9).step_probs("add", 47, 85, 0)[0] < before[1][0]


def test_without_cot_only_later_steps_get_harder():
    direct, cot = ToyLLM(1e9, cot=False), ToyLLM(1e9)
    assert direct.step_logits("add", 1, 1, 0) == cot.step_logits("add", 1, 1, 0)
    assert direct.step_logits("add", 1, 1, 3)[0] == cot.step_logits("add", 1, 1, 3)[0] - 3 * toy_llm.NO_COT_PENALTY


# ---- pass@k ----
@pytest.mark.parametrize("n, c, k", [(n, c, k) for n in range(1, 8) for c in range(n + 1) for k in range(n + 1)])
def test_pass_at_k_counts_the_subsets(n, c, k):
    subsets = list(itertools.combinations([i < c for i in range(n)], k))
    assert pass_at_k(n, c, k) == pytest.approx(mean(any(s) for s in subsets))


def test_pass_at_k_golden_value_and_large_n():
    assert round(pass_at_k(10, 3, 5), 4) == 0.9167
    assert pass_at_k(10_000, 1, 5_000) == 0.5 and pass_at_k(10_000, 0, 9_999) == 0.0


# ---- 打印 ----
@pytest.mark.parametrize(
    "text, width", [("abc", 3), ("规模", 4), ("1B 模型", 7), ("×√·", 3), ("，。", 4), ("e\u0301", 1)]
)
def test_display_width_counts_full_width_twice(text, width):
    assert display_width(text) == width
    assert display_width(pad(text, 12)) == display_width(pad(text, 12, "right")) == 12
    assert pad(text, 1) == text


cells = st.text("ab1规模×，", min_size=1, max_size=6)


@given(st.lists(st.lists(cells, min_size=3, max_size=3), min_size=1, max_size=4))
def test_table_columns_line_up(rows):
    import contextlib
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        print_table(["列一", "b", "第三列"], rows)
    lines = out.getvalue().splitlines()
    assert len({display_width(line) for line in lines}) == 1  # 最右一列右对齐，所以每一行一样宽
    assert len(lines) == len(rows) + 2


def test_observe_marks_and_wraps(capsys):
    observe("成立的结论", True)
    observe("不成立的结论", False)
    observe("论文里的话")
    assert capsys.readouterr().out == "  √ 成立的结论\n  × 这一次没有出现：不成立的结论\n  · 论文里的话\n"
    observe("很长的一句话，" * 20 + "数字 3.14159 不会被拆开。", True)
    lines = capsys.readouterr().out.splitlines()
    assert all(display_width(line) <= toy_llm.WIDTH for line in lines) and len(lines) > 2
    assert all(line.startswith("    ") for line in lines[1:]) and any("3.14159" in line for line in lines)
    assert not any(re.match(r"\s*[，。]", line) for line in lines)


@given(st.text("字，。 ab1.5%（）√", max_size=200))
def test_wrapping_loses_nothing_but_blanks(text):
    lines = toy_llm._wrap(text, 30)
    assert "".join("".join(lines).split()) == "".join(text.split())


@pytest.mark.parametrize(
    "size, text",
    [(1e9, "1B"), (350e6, "350M"), (1.5e12, "1.5T"), (999.9e6, "1B"), (1e4, "10K"), (12, "12"), (3e9, "3B")],
)
def test_fmt_size(size, text):
    assert fmt_size(size) == text


def test_bar_is_proportional_and_clipped():
    assert (bar(0.5, 10), bar(-1, 10), bar(7, 10), bar(0, 10)) == ("█" * 5, "", "█" * 10, "")


# ---- 坏输入：中文的 ValueError，说出参数名、收到的值和允许的范围 ----
RNG = random.Random(0)
ONE_STEP = Problem(1, (Step("add", 1),))
BAD_INPUTS = [
    (lambda: ToyLLM(-1), "size", "-1", "> 0"),
    (lambda: ToyLLM(0), "size", "0", "> 0"),
    (lambda: ToyLLM(math.nan), "size", "nan", "> 0"),
    (lambda: ToyLLM(math.inf), "size", "inf", "> 0"),
    (lambda: ToyLLM("1B"), "size", "'1B'", "> 0"),
    (lambda: ToyLLM(1e9).step_probs("add", 1, 1, 0, -1), "temperature", "-1", "≥ 0"),
    (lambda: ToyLLM(1e9).generate(make_problem(RNG, 2), RNG, math.nan), "temperature", "nan", "≥ 0"),
    (lambda: pass_at_k(5, 2, 6), "k", "6", "≤ 5"),
    (lambda: pass_at_k(5, 6, 2), "c", "6", "≤ 5"),
    (lambda: pass_at_k(-1, 0, 0), "n", "-1", "≥ 0"),
    (lambda: pass_at_k(5, 2, 1.5), "k", "1.5", "整数"),
    (lambda: make_problem_set(RNG, 0, 3, 8), "n_problems", "0", "≥ 1"),
    (lambda: make_problem_set(RNG, 5, 0, 8), "min_steps", "0", "≥ 1"),
    (lambda: make_problem_set(RNG, 5, 9, 8), "min_steps", "9", "max_steps"),
    (lambda: make_problem_set(RNG, 12.5, 3, 8), "n_problems", "12.5", "整数"),
    (lambda: apply_op("pow", 2, 3), "op", "'pow'", "add"),
    (lambda: apply_bug("pow", 2, 3), "op", "'pow'", "mul"),
    (lambda: step_hardness("div", 2, 3), "op", "'div'", "sub"),
    (lambda: ToyLLM(1e9).step_logits("div", 2, 3, 0), "op", "'div'", "sub"),
    (lambda: Step("div", 3), "op", "'div'", "sub"),
    (lambda: Step("add", 0), "operand", "0", "≥ 1"),
    (lambda: mean([]), "xs", "空", "至少"),
    (lambda: pad("a", 3, "middle"), "align", "'middle'", "left"),
    (lambda: check_number("x", 10**400), "x", "10000", "有限的数"),
    (lambda: check_each("XS", 7, check_int), "XS", "7", "至少有 1 项"),
    (lambda: check_each("XS", (1,), check_int, at_least=2), "XS", "(1,)", "至少有 2 项"),
    (lambda: check_each("XS", (1, "a"), check_number, 0), "XS 的每一项", "'a'", "≥ 0"),
    (lambda: check_counts("KS", (4, 2)), "KS", "(4, 2)", "从小到大"),
    (lambda: check_counts("KS", (1, 2.5)), "KS 里的数", "2.5", "整数"),
    (lambda: check_seeds(A=1, B=None), "B", "None", "整数"),
    (lambda: check_step("S", ("add", 47)), "S", "('add', 47)", "三项"),
    (lambda: check_step("S", ("div", 47, 85)), "S 的运算", "'div'", "mul"),
    (lambda: check_step("S", ("mul", 4.7, 6)), "S 的 a", "4.7", "整数"),
    (lambda: print_table(["a", "b"], [["1"]]), "rows", "2", "headers"),
    (lambda: extend_trace(ToyLLM(1e9), ONE_STEP, [1, 2], ["bug", "bug"], RNG), "values", "2", "1 步"),
    (lambda: extend_trace(ToyLLM(1e9), ONE_STEP, [1], [], RNG), "procs", "0", "等长"),
]


@pytest.mark.parametrize("call, name, got, allowed", BAD_INPUTS)
def test_bad_input_gets_a_chinese_error_that_names_it(call, name, got, allowed):
    with pytest.raises(ValueError) as caught:
        call()
    message = str(caught.value)
    assert re.search("[\u4e00-\u9fff]", message)
    assert name in message and got in message and allowed in message, message


@given(st.one_of(st.floats(), st.integers(), st.text(max_size=3), st.booleans(), st.none()))
def test_checks_accept_exactly_the_range(x):
    number = isinstance(x, (int, float)) and not isinstance(x, bool)
    for ok, check in [
        (number and isinstance(x, int) and 0 <= x <= 5, lambda: check_int("x", x, 0, 5)),
        (number and 0 < x <= 5, lambda: check_number("x", x, 0, 5, open_low=True)),
    ]:
        if ok:
            assert check() == x
        else:
            with pytest.raises(ValueError, match="x 应当是"):
                check()


@given(st.one_of(st.none(), st.integers(), st.lists(st.integers(-1, 4), max_size=4), st.text(max_size=3)))
def test_checks_of_tuples_accept_exactly_what_they_say(xs):
    """与照着说法直接写的条件对照：check_each 要每一项在范围里，check_counts 还要从小到大、不重复。"""
    inside = isinstance(xs, list) and len(xs) >= 2 and min(xs) >= 0 and max(xs) <= 3
    for ok, check in [
        (inside, lambda: check_each("xs", xs, check_int, 0, 3, at_least=2)),
        (inside and xs == sorted(set(xs)), lambda: check_counts("xs", xs, 0, 3)),
    ]:
        if ok:
            assert check() is xs
        else:
            with pytest.raises(ValueError, match="xs"):
                check()


@given(st.floats(-1e6, 1e6))
def test_sigmoid_is_a_two_way_softmax_and_never_overflows(x):
    """与另一条路对照：两个选择的 softmax；对称：σ(x) + σ(-x) = 1。"""
    assert sigmoid(x) == pytest.approx(toy_llm.softmax((x, 0.0))[0], abs=1e-15)
    assert sigmoid(x) + sigmoid(-x) == pytest.approx(1) and 0 <= sigmoid(x) <= 1


def test_every_op_has_its_constants():
    assert set(ALPHA) == set(toy_llm.OP_SIGNS) and len(PROCEDURES) == 3 and 0 not in CARELESS_OFFSETS


def test_the_tour_runs_as_a_script():
    from harness import run

    done = run("lecture01/toy_llm.py")
    assert done.returncode == 0 and "演示 3" in done.stdout.decode("utf-8")

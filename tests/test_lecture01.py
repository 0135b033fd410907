"""第 1 讲的脚本：每个函数与枚举、闭式或黄金值对照。"""
import itertools
import math
import random

import pytest
from harness import load
from hypothesis import given
from hypothesis import strategies as st
from toy_llm import ToyLLM, make_problem_set, mean, pass_at_k, path_probs

scaling = load("lecture01/01_scaling.py")
cot = load("lecture01/02_chain_of_thought.py")
temperature = load("lecture01/03_temperature.py")
estimators = load("lecture01/04_pass_at_k.py")


# ---- 01 ----
def test_exact_match_is_what_sampling_converges_to():
    problems = make_problem_set(random.Random(1), 20, 2, 3)
    model, rng, n = ToyLLM(1e10), random.Random(2), 1000
    measured = mean(scaling.measured_exact_match(model, problems, rng) for _ in range(n))
    exact = scaling.exact_match(model, problems)
    assert abs(measured - exact) < 4 * math.sqrt(exact * (1 - exact) / (n * len(problems)))


def test_loss_of_a_chain_is_the_sum_of_its_steps():
    """-log EM(n) = Σ -log p_i，只有一道题时两边相等。"""
    problem = make_problem_set(random.Random(3), 1, 6, 6)
    loss, _ = scaling.step_stats(ToyLLM(1e9), problem)
    assert -math.log(scaling.exact_match(ToyLLM(1e9), problem)) == pytest.approx(6 * loss)


@pytest.mark.parametrize("threshold, size", [(0.0, 1), (0.2, 10), (0.5, 100), (0.9, math.inf)])
def test_appears_at_the_first_size_over_the_threshold(threshold, size):
    assert scaling.appears_at([(1, 0.1), (10, 0.2), (100, 0.8)], threshold) == size


def test_spread_of_a_measured_score_agrees_with_enumerating_right_and_wrong():
    """三道题的 2^3 种对错全部列出来，按概率加权，比例的标准差。"""
    model, problems = ToyLLM(1e10), make_problem_set(random.Random(7), 3, 2, 3)
    probs = [math.prod(path_probs(model, problem)) for problem in problems]
    outcomes = list(itertools.product([0, 1], repeat=3))
    weights = [math.prod(p if right else 1 - p for p, right in zip(probs, o)) for o in outcomes]
    center = sum(w * sum(o) / 3 for w, o in zip(weights, outcomes))
    variance = sum(w * (sum(o) / 3 - center) ** 2 for w, o in zip(weights, outcomes))
    assert scaling.spread_of_measured(model, problems) == pytest.approx(math.sqrt(variance))


# ---- 02 ----
def test_cot_gain_is_the_product_with_and_without_the_penalty():
    """直接答的概率与"自己写一遍带罚分的 softmax"相同。"""
    problem = make_problem_set(random.Random(4), 1, 5, 5)
    product = 1.0
    for i, (step, x) in enumerate(zip(problem[0].steps, (problem[0].start, *problem[0].true_values))):
        logits = ToyLLM(1e10).step_logits(step.op, x, step.operand, i)
        weights = [math.exp(logits[0] - cot.NO_COT_PENALTY * i), *map(math.exp, logits[1:])]
        product *= weights[0] / sum(weights)
    assert cot.accuracy(1e10, False, problem) == pytest.approx(product)
    assert cot.accuracy(1e10, True, problem) > product


def test_price_counts_the_extra_values():
    assert cot.extra_values(8, 0.5) == 14 and cot.extra_values(8, 0.0) == math.inf


@pytest.mark.parametrize("xs, yes", [
    ([0, 1, 3, 2], True), ([0, 1, 2], False), ([2, 1, 0], False), ([0, 2, 1, 3, 0], False), ([0, 2, 2, 1], False),
])
def test_one_peak_means_up_then_down_with_the_top_inside(xs, yes):
    assert cot.has_one_peak(xs) is yes


@pytest.mark.parametrize("x, text", [
    (1, "1"), (26.68, "26.7"), (3574.2, "3574"), (43900, "4.39 万"), (1.48e12, "1.48 万亿"), (math.inf, "-"),
])
def test_big_numbers_are_put_in_words(x, text):
    assert cot.in_words(x) == text


# ---- 03 ----
@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.integers(1, 50))
def test_pass_at_averages_over_problems(probs, k):
    assert temperature.pass_at(probs, k) == pytest.approx(sum(1 - (1 - p) ** k for p in probs) / len(probs))


def test_best_temperature_takes_the_lower_of_two_equal_ones():
    curves = {0.5: [0.2, 0.2], 1.0: [0.2, 0.2], 2.0: [0.1, 0.2]}
    assert temperature.best_temperature(curves, 1) == 0.5
    assert temperature.best_temperature({0.5: [0.2], 1.0: [0.4], 2.0: [0.3]}, 1) == 1.0


def test_greedy_never_solves_a_trap_problem_and_always_a_plain_one():
    model, rng = ToyLLM(3e9), random.Random(5)
    for problem in make_problem_set(random.Random(6), 60, 4, 8):
        sound = {model.generate(problem, rng, 0).sound for _ in range(3)}
        leads = all(probs == max(model.step_probs(step.op, x, step.operand, 0)) for probs, step, x in zip(
            path_probs(model, problem), problem.steps, (problem.start, *problem.true_values)))
        assert sound == {leads}


# ---- 04 ----
@pytest.mark.parametrize("n, k, p", [(4, 2, 0.3), (5, 5, 0.1), (6, 1, 0.7), (6, 3, 0.5)])
@pytest.mark.parametrize("name", ["plug_in", "pass_at_k"])
def test_exact_moments_agree_with_enumerating_every_outcome(name, n, k, p):
    """把 n 次作答的 2^n 种对错全部列出来，按概率加权：与按 c 分组的二项分布公式相同。"""
    estimator = {"plug_in": estimators.plug_in, "pass_at_k": pass_at_k}[name]
    outcomes = list(itertools.product([0, 1], repeat=n))
    weights = [p ** sum(o) * (1 - p) ** (n - sum(o)) for o in outcomes]
    values = [estimator(n, sum(o), k) for o in outcomes]
    expectation = math.fsum(w * v for w, v in zip(weights, values))
    sd = math.sqrt(math.fsum(w * (v - expectation) ** 2 for w, v in zip(weights, values)))
    assert estimators.exact_moments(estimator, n, k, p) == pytest.approx((expectation, sd))


@given(st.integers(1, 30), st.data(), st.floats(0.01, 0.99))
def test_the_unbiased_estimator_is_unbiased_and_the_plug_in_is_never_high(n, data, p):
    k = data.draw(st.integers(1, n))
    plug_bias, _, fair_bias, _ = estimators.compare(n, k, p)
    assert abs(fair_bias) < 1e-9 and plug_bias < 1e-12


def test_rmse_of_an_average_agrees_with_enumerating_two_problems():
    """两道同样的题的估计取平均：误差平方的期望，直接按两个 c 的联合分布相加。"""
    n, k, p = 4, 3, 0.3
    weights = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    square = sum(
        wa * wb * ((estimators.plug_in(n, a, k) + estimators.plug_in(n, b, k)) / 2 - estimators.truth(p, k)) ** 2
        for (a, wa), (b, wb) in itertools.product(enumerate(weights), repeat=2)
    )
    assert estimators.rmse(*estimators.compare(n, k, p)[:2], 2) == pytest.approx(math.sqrt(square))


def test_golden_row():
    assert round(estimators.plug_in(10, 3, 5), 4) == 0.8319
    assert round(pass_at_k(10, 3, 5), 4) == 0.9167


def test_second_order_bias_formula_of_the_note():
    """讲义 5.1：n 大时偏差约为 -k(k-1)(1-p)^(k-2) p(1-p) / 2n。"""
    n, k, p = 1000, 5, 0.1
    bias = estimators.compare(n, k, p)[0]
    assert bias == pytest.approx(-k * (k - 1) / 2 * (1 - p) ** (k - 2) * p * (1 - p) / n, rel=0.02)


def test_the_buggy_product_of_the_note_is_right_for_k_1_only():
    """讲义"找 bug"：漏了 - i 的连乘，k = 1 时看不出来，k 大时偏小。"""
    def buggy(n, c, k):
        fail = 1.0
        for i in range(k):
            fail *= (n - c) / (n - i)
        return 1 - fail

    assert buggy(10, 3, 1) == pytest.approx(pass_at_k(10, 3, 1))
    assert buggy(10, 3, 5) < pass_at_k(10, 3, 5) - 0.1 and buggy(10, 1, 8) < 0

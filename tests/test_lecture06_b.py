"""第 6 讲：04、05、06、08。每个公式都对照一个独立的来源：全部序列的枚举、有限差分、闭式、手算的数字。"""
import itertools
import math
import random

import pytest
from harness import load
from hypothesis import given, settings
from hypothesis import strategies as st
from trainable_llm import (
    PROCEDURES, TrainableLLM, add_grad, apply_bug, apply_op, context_key, make_problem_set, mean, path_probs, pass_at_k,
    probs_for, step_records,
)

variance = load("lecture06/04_gradient_variance.py")
dr = load("lecture06/05_dr_grpo.py")
boundary = load("lecture06/06_capability_boundary.py")
scaling = load("lecture06/08_scaling_rl.py")

probabilities = st.floats(0.05, 0.95)


def softmax3(logits):
    """不借用脚本的代码：三个 logit 的 softmax。"""
    weights = [math.exp(z) for z in logits]
    return [w / sum(weights) for w in weights]


def slope(f, x, h=1e-5):
    """中心差分。"""
    return (f(x + h) - f(x - h)) / (2 * h)


# ==============================================================================
# 04 梯度的方差
# ==============================================================================
GOLDEN_REWARDS = [1, 1, 1, 0, 0, 0, 0, 0]


def test_advantages_match_the_golden_values():
    """三个 1、五个 0：只减平均是 +0.625 / -0.375，RLOO 是 +0.7143 / -0.4286。"""
    centred = variance.advantages("组平均", GOLDEN_REWARDS, None)
    rloo = variance.advantages("RLOO", GOLDEN_REWARDS, None)
    assert (centred[0], centred[-1]) == (0.625, -0.375)
    assert (rloo[0], rloo[-1]) == (pytest.approx(0.7143, abs=5e-5), pytest.approx(-0.4286, abs=5e-5))
    assert variance.advantages("无基线", GOLDEN_REWARDS, None) == GOLDEN_REWARDS
    assert variance.advantages("最优 b*", GOLDEN_REWARDS, 0.25) == [r - 0.25 for r in GOLDEN_REWARDS]


@given(st.lists(st.integers(-5, 5), min_size=2, max_size=9))
def test_rloo_is_the_group_mean_rescaled(rewards):
    n = len(rewards)
    for rloo, centred in zip(
        variance.advantages("RLOO", rewards, None), variance.advantages("组平均", rewards, None)
    ):
        assert rloo == pytest.approx(n / (n - 1) * centred, abs=1e-12)


def test_rloo_needs_two_samples_and_methods_are_known():
    with pytest.raises(ValueError, match="G"):
        variance.advantages("RLOO", [1], None)
    with pytest.raises(ValueError, match="method"):
        variance.advantages("GRPO", [1, 0], None)


def brute_stats(method, outcomes, n):
    """枚举全部 结果数^n 个有序的序列；优势按定义逐个重写一遍。"""
    second = sum(p * sum(s * s for s in score) for p, _, score in outcomes)
    best = sum(p * r * sum(s * s for s in score) for p, r, score in outcomes) / second
    n_params = len(outcomes[0][2])
    first, square = [0.0] * n_params, 0.0
    for seq in itertools.product(outcomes, repeat=n):
        weight = math.prod(p for p, _, _ in seq)
        rewards = [r for _, r, _ in seq]
        g = [0.0] * n_params
        for i, (_, r, score) in enumerate(seq):
            others = [x for j, x in enumerate(rewards) if j != i]
            baseline = {"无基线": 0, "组平均": sum(rewards) / n, "RLOO": sum(others) / (n - 1), "最优 b*": best}[method]
            for d, s in enumerate(score):
                g[d] += (r - baseline) * s / n
        for d in range(n_params):
            first[d] += weight * g[d]
            square += weight * g[d] ** 2
    return first, math.sqrt(max(0.0, square - sum(x * x for x in first)))


@pytest.mark.parametrize("method", variance.METHODS)
@given(p=probabilities, rewards=st.tuples(st.integers(1, 12), st.integers(-3, 0)), n=st.integers(2, 6))
@settings(max_examples=15, deadline=None)
def test_counting_cases_equals_listing_every_sequence(method, p, rewards, n):
    outcomes = variance.bernoulli(p, *rewards)
    centre, sd = variance.exact_stats(method, outcomes, n)
    expected, expected_sd = brute_stats(method, outcomes, n)
    assert centre == pytest.approx(expected, abs=1e-10)
    assert sd == pytest.approx(expected_sd, abs=2e-6)


@pytest.mark.parametrize("method", variance.METHODS)
def test_counting_cases_with_three_procedures(method):
    outcomes = variance.three_procedures(TrainableLLM(1e9).context_probs(("mul", 1.5)))
    centre, sd = variance.exact_stats(method, outcomes, 5)
    expected, expected_sd = brute_stats(method, outcomes, 5)
    assert centre == pytest.approx(expected, abs=1e-12)
    assert sd == pytest.approx(expected_sd, abs=1e-9)


@given(st.floats(-3, 3), st.integers(1, 12), st.integers(-5, 0))
def test_the_true_gradient_is_the_derivative_of_the_expected_reward(theta, right, wrong):
    def expected_reward(x):
        p = 1 / (1 + math.exp(-x))
        return p * right + (1 - p) * wrong

    outcomes = variance.bernoulli(1 / (1 + math.exp(-theta)), right, wrong)
    assert variance.exact_gradient(outcomes)[0] == pytest.approx(slope(expected_reward, theta), abs=1e-7)


def test_the_true_gradient_of_three_procedures():
    logits = [0.3, -0.2, 0.9]
    gradient = variance.exact_gradient(variance.three_procedures(softmax3(logits)))
    for d in range(3):
        numeric = slope(lambda x, d=d: softmax3([x if i == d else z for i, z in enumerate(logits)])[0], logits[d])
        assert gradient[d] == pytest.approx(numeric, abs=1e-8)


@given(probabilities, st.integers(2, 12))
@settings(deadline=None)
def test_only_the_mean_with_oneself_is_biased_and_by_exactly_one_over_g(p, n):
    truth = p * (1 - p)
    for method in variance.METHODS:
        factor = (n - 1) / n if method == "组平均" else 1
        assert variance.exact_stats(method, variance.bernoulli(p), n)[0][0] == pytest.approx(factor * truth, abs=1e-12)


@given(probabilities, st.floats(-2, 3), st.integers(2, 10))
@settings(deadline=None)
def test_noise_is_the_distance_from_the_best_constant(p, b, n):
    """常数基线 b 等于把奖励平移 -b、不用基线；sd = |b - b*|·√(p(1-p))/√G。"""
    sd = variance.exact_stats("无基线", variance.bernoulli(p, 1 - b, -b), n)[1]
    assert sd == pytest.approx(abs(b - (1 - p)) * math.sqrt(p * (1 - p) / n), abs=1e-7)
    assert variance.best_baseline(variance.bernoulli(p)) == pytest.approx(1 - p)


@given(probabilities, st.floats(-1, 1))
@settings(deadline=None)
def test_no_constant_beats_the_best_baseline(p, shift):
    probs = softmax3([math.log(p / (1 - p)), 0.0, -0.3])
    outcomes = variance.three_procedures(probs)
    b = variance.best_baseline(outcomes) + shift
    other = [(q, r - b, score) for q, r, score in outcomes]
    assert variance.exact_stats("最优 b*", outcomes, 4)[1] <= variance.exact_stats("无基线", other, 4)[1] + 1e-9


@pytest.mark.parametrize("n", [3, 4, 8, 16])
def test_break_even_is_where_the_two_noises_cross(n):
    """闭式 (2G-4)/(3G-5) 与二分法：RLOO 与无基线的标准差在那里相等，两边次序相反。"""
    tie = variance.break_even(n)
    gap = {
        p: variance.exact_stats("RLOO", variance.bernoulli(p), n)[1]
        - variance.exact_stats("无基线", variance.bernoulli(p), n)[1]
        for p in (tie - 0.01, tie, tie + 0.01)
    }
    below, at, above = gap.values()
    assert below < 0 < above and at == pytest.approx(0, abs=1e-9)
    assert tie < 2 / 3  # 常数基线 b = p 打平的地方：|2p - 1| = 1 - p


def test_group_mean_is_rloo_scaled_in_mean_and_in_noise():
    for p in (0.05, 0.5, 0.9):
        (a, sd_a), (b, sd_b) = (variance.exact_stats(m, variance.bernoulli(p), 8) for m in ("组平均", "RLOO"))
        assert a[0] / b[0] == pytest.approx(7 / 8) == sd_a / sd_b


def test_bad_inputs_are_named():
    with pytest.raises(ValueError, match="p 应当"):
        variance.bernoulli(1.2)
    with pytest.raises(ValueError, match="应当不同"):
        variance.bernoulli(0.5, 1, 1)
    with pytest.raises(ValueError, match="G"):
        variance.exact_stats("无基线", variance.bernoulli(0.5), 100)


# ==============================================================================
# 05 Dr. GRPO
# ==============================================================================
def test_aggregation_golden_values():
    """formulas.md：两个样本 [1,1,1,1,10] 与九个 1 加 10，三种办法 2.35、2.2、1.65。"""
    assert [dr.aggregate(m, dr.LOSSES, 10) for m in dr.METHODS] == pytest.approx([2.35, 2.2, 1.65])


@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=6), min_size=1, max_size=5), st.integers(1, 20))
def test_aggregation_is_what_the_formulas_say(losses, constant):
    each, token, const = (dr.aggregate(m, losses, constant) for m in dr.METHODS)
    flat = [x for row in losses for x in row]
    assert each == pytest.approx(mean(mean(row) for row in losses), abs=1e-9)
    assert token == pytest.approx(mean(flat), abs=1e-9)
    assert const == pytest.approx(math.fsum(flat) / (len(losses) * constant), abs=1e-9)


def test_token_weights_rejects_an_unknown_method():
    with pytest.raises(ValueError, match="method"):
        dr.token_weights("GRPO", [1, 2], 10)


def brute_push(p, n, divide_by_std):
    """枚举 2^n 个序列，优势按定义算（总体标准差）。"""
    total = 0.0
    for rewards in itertools.product((0, 1), repeat=n):
        average = sum(rewards) / n
        std = math.sqrt(sum((r - average) ** 2 for r in rewards) / n)
        scale = std if divide_by_std and std > 0 else 1.0
        push = sum((r - average) / scale * ((1 - p) if r else -p) for r in rewards) / n
        total += push * math.prod(p if r else 1 - p for r in rewards)
    return total


@given(probabilities, st.integers(2, 8), st.booleans())
@settings(max_examples=30, deadline=None)
def test_expected_push_equals_listing_every_group(p, n, divide):
    assert dr.expected_push(p, n, divide) == pytest.approx(brute_push(p, n, divide), abs=1e-12)


@given(probabilities, st.integers(2, 40))
def test_dividing_by_std_multiplies_a_group_by_one_over_std(p, n):
    for c in range(1, n):
        m = c / n
        plain, divided = dr.group_push(c, n, p, False), dr.group_push(c, n, p, True)
        assert plain == pytest.approx(m * (1 - m))
        assert divided / plain == pytest.approx(1 / math.sqrt(m * (1 - m)))


def test_the_golden_grpo_advantage_is_inside_group_push():
    """三对五错（ddof 0）：+1.2910 / -0.7746；p = 0.3 时的推力由它们直接算出。"""
    push = (3 * 1.2910 * 0.7 + 5 * 0.7746 * 0.3) / 8
    assert dr.group_push(3, 8, 0.3, True) == pytest.approx(push, abs=1e-4)


def log_length_prob(u, n, stopped):
    """log P(长度)：停下之前 n-1 次没停；截断的样本 n 次都没停。"""
    q = 1 / (1 + math.exp(-u))
    return (n - 1) * math.log(1 - q) + math.log(q) if stopped else n * math.log(1 - q)


@given(st.floats(-4, 3), st.integers(1, 60), st.booleans())
def test_length_score_is_the_derivative_of_the_log_probability(u, n, stopped):
    numeric = slope(lambda x: log_length_prob(x, n, stopped), u)
    assert dr.length_score(n, stopped, dr.stop_prob(u)) == pytest.approx(numeric, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("method", dr.METHODS)
def test_length_gradient_against_finite_differences(method):
    """冻结优势与权重之后，梯度就是 Σ w·A·log P(长度) 的导数；权重用另一种写法重算。"""
    rng = random.Random(3)
    u = (-2.0, -1.2)
    groups = [
        [(rng.random() < 0.5, *dr.draw_length(dr.stop_prob(-1.5), rng)) for _ in range(5)] for _ in range(3)
    ]

    def objective(side, x):
        total = 0.0
        for group in groups:
            average = sum(right for right, _, _ in group) / len(group)
            tokens = sum(n for _, n, _ in group)
            for right, n, stopped in group:
                weight = {"每样本平均": 1 / (len(group) * n), "按 token 平均": 1 / tokens}.get(
                    method, 1 / (len(group) * dr.START_LENGTH)
                )
                if right == (side == 0):
                    total += weight * (right - average) * log_length_prob(x, n, stopped) / len(groups)
        return total

    gradient = dr.length_gradient(method, groups, [dr.stop_prob(x) for x in u])
    for side in (0, 1):
        assert gradient[side] == pytest.approx(slope(lambda x, side=side: objective(side, x), u[side]), abs=1e-7)


@given(st.floats(0.02, 0.6))
@settings(max_examples=25, deadline=None)
def test_dividing_by_the_length_pushes_and_a_constant_does_not(q):
    """几何分布上逐项相加：E[(1-nq)/n] = q·ln(1/q)/(1-q) - q > 0，而 E[1-nq] = 0。"""
    pmf = [(n, (1 - q) ** (n - 1) * q) for n in range(1, 3000)]
    divided = math.fsum(w * dr.length_score(n, True, q) / n for n, w in pmf)
    assert divided == pytest.approx(q * math.log(1 / q) / (1 - q) - q, abs=1e-9)
    assert divided > 0
    assert math.fsum(w * dr.length_score(n, True, q) for n, w in pmf) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("q", [0.003, 0.1, 0.7])
def test_lengths_follow_the_truncated_geometric_law(q):
    rng = random.Random(4)
    draws = [dr.draw_length(q, rng) for _ in range(20000)]
    exact = math.fsum((1 - q) ** (n - 1) for n in range(1, dr.MAX_LENGTH + 1))  # Σ P(长度 ≥ n)
    assert dr.mean_length(q) == pytest.approx(exact)
    assert mean(n for n, _ in draws) == pytest.approx(exact, rel=0.04)
    assert mean(n == 1 for n, _ in draws) == pytest.approx(q, abs=4 * math.sqrt(q * (1 - q) / 20000))
    assert all((n < dr.MAX_LENGTH) == stopped for n, stopped in draws)


# ==============================================================================
# 06 能力边界
# ==============================================================================
@given(st.floats(0.001, 0.999), st.integers(1, 30))
def test_exact_pass_at_k_is_what_the_unbiased_estimator_averages_to(p, n):
    for k in {1, (n + 1) // 2, n}:
        average = math.fsum(math.comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1))
        assert boundary.pass_k(p, k) == pytest.approx(average, abs=1e-9)


def test_pass_at_k_keeps_tiny_probabilities():
    assert boundary.pass_k(1e-18, 1000) == pytest.approx(1e-15, rel=1e-9, abs=0)
    assert (boundary.pass_k(0, 5), boundary.pass_k(1, 5)) == (0, 1)


@given(probabilities, st.integers(2, 10))
def test_mixed_groups_by_listing_every_count(p, n):
    listed = math.fsum(math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(1, n))
    assert boundary.mixed(p, n) == pytest.approx(listed, abs=1e-12)


def trained_policy(arm, rng):
    """参数是随机数的策略：比零参数更容易暴露写错的地方。"""
    policy = boundary.Policy(boundary.TABLES[arm])
    for table in policy.tables.values():
        for op in ("add", "sub", "mul"):
            for hardness in (0.0, 0.3, 0.6, 0.7, 0.9, 1.5, 2.2):
                table.delta[op, hardness] = [rng.uniform(-0.5, 0.5) for _ in range(3)]
    return policy


@pytest.mark.parametrize("arm", boundary.TABLES)
def test_success_probability_matches_sampling(arm):
    rng = random.Random(5)
    policy = trained_policy(arm, rng)
    for problem, kind in boundary.make_tasks(rng, 20)[:4]:
        view = policy.view(kind)
        p = boundary.success_prob(view, problem, kind)
        hits = mean(boundary.solved(view.generate(problem, rng), kind) for _ in range(4000))
        assert hits == pytest.approx(p, abs=4.5 * math.sqrt(p * (1 - p) / 4000) + 1e-9)


def test_the_right_procedure_of_the_minority_is_the_bug():
    model = TrainableLLM(1e9)
    for problem in make_problem_set(random.Random(6), 20, 4, 6):
        for kind, rule, proc in (("多数", apply_op, "correct"), ("少数", apply_bug, "bug")):
            expected, x = 1.0, problem.start
            for step in problem.steps:
                expected *= model.context_probs(context_key(step.op, x, step.operand))[PROCEDURES.index(proc)]
                x = rule(step.op, x, step.operand)
            assert boundary.success_prob(model, problem, kind) == pytest.approx(expected, rel=1e-9, abs=0)
        assert boundary.success_prob(model, problem, "多数") == pytest.approx(math.prod(path_probs(model, problem)))


@pytest.mark.parametrize("arm", boundary.TABLES)
def test_gradient_reaches_every_table_a_problem_uses(arm):
    """log π(作答) 对每张表每个数的有限差分，等于 update 真的加上去的量；没用到的表不动。"""
    rng = random.Random(7)
    policy = trained_policy(arm, rng)
    problem, kind = boundary.make_tasks(rng, 20)[0]
    assert kind == "少数"
    sample = policy.view(kind).generate(problem, rng)
    records = step_records(problem, sample)

    def log_prob():
        view = policy.view(kind)
        return math.fsum(math.log(probs[a]) for probs, (_, a) in zip(probs_for(view, problem, sample), records))

    grads = {}
    for (key, action), probs in zip(records, probs_for(policy.view(kind), problem, sample)):
        add_grad(grads, key, action, probs, 1.0)
    before = {name: {key: list(row) for key, row in table.delta.items()} for name, table in policy.tables.items()}
    numeric = {}
    for name, table in policy.tables.items():
        for key in grads:
            for i in range(3):
                row = table.delta[key]
                old = row[i]
                row[i] = old + 1e-5
                up = log_prob()
                row[i] = old - 1e-5
                numeric[name, key, i] = (up - log_prob()) / 2e-5
                row[i] = old
    policy.update({kind: grads}, 1.0)
    for (name, key, i), derivative in numeric.items():
        assert policy.tables[name].delta[key][i] - before[name][key][i] == pytest.approx(derivative, abs=1e-7)
    assert ("共用表" in policy.tables) == (arm == "共用")


def test_tasks_hold_the_promised_share_of_minority_problems():
    tasks = boundary.make_tasks(random.Random(8), 50)
    assert sum(kind == "少数" for _, kind in tasks) == 5


# ==============================================================================
# 08 规模曲线
# ==============================================================================
@given(
    a=st.floats(0.4, 1.0), c_mid=st.floats(15, 200), b=st.floats(0.8, 4.0), r0=st.floats(0.0, 0.2),
)
@settings(max_examples=25, deadline=None)
def test_the_fit_recovers_a_synthetic_sigmoid(a, c_mid, b, r0):
    computes = [5 * 200 ** (i / 29) for i in range(30)]  # 按比例等距：再陡的上升段也有点
    points = [(c, r0 + (a - r0) / (1 + (c_mid / c) ** b)) for c in computes]
    fitted = scaling.fit_sigmoid(points, r0)
    assert fitted == (pytest.approx(a, rel=0.02), pytest.approx(c_mid, rel=0.05), pytest.approx(b, rel=0.05))


def test_sigmoid_starts_at_r0_is_half_way_at_c_mid_and_ends_at_a():
    assert scaling.sigmoid(1e-9, 0.1, 0.9, 50, 2) == pytest.approx(0.1)
    assert scaling.sigmoid(50, 0.1, 0.9, 50, 2) == pytest.approx(0.5)
    assert scaling.sigmoid(1e9, 0.1, 0.9, 50, 2) == pytest.approx(0.9)


@given(st.floats(0.05, 0.5), st.floats(0.05, 0.6))
def test_the_power_law_fit_recovers_a_power_law(a, b):
    predict = scaling.fit_power([(c, a * c**b) for c in range(10, 200, 10)])
    assert predict(1000) == pytest.approx(a * 1000**b, rel=1e-9)


@given(st.floats(0.5, 1.0), st.floats(0.3, 1.5), st.floats(0.2, 1.5))
@settings(deadline=None)
def test_the_saturating_fit_recovers_its_own_law(a, d, b):
    predict = scaling.fit_saturating([(c, a - d * c**-b) for c in range(10, 301, 10)])
    assert predict(1000) == pytest.approx(a - d * 1000**-b, abs=0.01)


def test_too_few_points_are_an_error():
    with pytest.raises(ValueError, match="至少有 3 个点"):
        scaling.fit_sigmoid([(10, 0.2), (20, 0.3)], 0.1)


def test_the_sampler_mixes_in_uniform_noise_and_shares_the_parameters():
    model = TrainableLLM(1e9)
    sampler = scaling.Sampler(model, 0.3)
    model.delta["add", 0.0] = [1.0, 0.0, 0.0]
    clean, noisy = model.step_probs("add", 1, 1, 0), sampler.step_probs("add", 1, 1, 0)
    assert noisy == pytest.approx([0.7 * p + 0.1 for p in clean])
    assert math.fsum(noisy) == pytest.approx(1)
    assert clean == pytest.approx(softmax3([1.8 + 1.0, 0.0, -0.3]))


def test_the_true_ceiling_is_the_limit_of_a_perfect_model():
    """把"正确"的 logit 抬得极高，剩下的失败只来自采样器的乱选。"""
    problems = make_problem_set(random.Random(9), 30, 3, 5)
    model = TrainableLLM(1e9)
    for problem in problems:
        for step, x in zip(problem.steps, (problem.start, *problem.true_values)):
            model.delta[context_key(step.op, x, step.operand)] = [60.0, 0.0, 0.0]
    sampler = scaling.Sampler(model, 0.06)
    limit = mean(math.prod(path_probs(sampler, problem)) for problem in problems)
    assert scaling.true_ceiling(0.06, problems) == pytest.approx(limit)

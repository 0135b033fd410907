"""第 6 讲：工具箱与 01、02、03、07。每个公式都对照一个独立的来源：枚举、有限差分、闭式、公布的数字。"""
import math
import random
import re

import pytest
from harness import load, run
from hypothesis import given
from hypothesis import strategies as st
from trainable_llm import (
    CARELESS_OFFSETS, HARD_CONTEXTS, Problem, Sample, Step, ToyLLM, TrainableLLM, add_grad, apply_bug,
    apply_grads, apply_op, context_key, context_report, entropy_of, evaluate, make_problem_set, mean, probs_for, sft,
    step_records,
)


@pytest.fixture(scope="module")
def star_script():
    return load("lecture06/01_star.py")


@pytest.fixture(scope="module")
def pg():
    return load("lecture06/02_policy_gradient.py")


def tables_of(path):
    """脚本打印的表，每行只留下小数与整数：{行首: [数字]}（后面的同名行覆盖前面的）。"""
    rows = {}
    for line in run(path).stdout.decode().splitlines():
        cells = re.split(r"  +", line.strip())
        if len(cells) > 1:
            rows[cells[0]] = [float(x) for cell in cells[1:] for x in re.findall(r"-?\d+(?:\.\d+)?", cell)]
    return rows


def random_delta(rng, keys):
    return {key: [rng.uniform(-1, 1) for _ in range(3)] for key in keys}


def enumerate_traces(model, problem):
    """一道题的全部作答与各自的精确概率：[(Sample, P)]。每步 2 + 6 种写法。"""
    traces = [([], [], 1.0)]
    for i, step in enumerate(problem.steps):
        longer = []
        for values, procs, p in traces:
            x = values[-1] if values else problem.start
            right = apply_op(step.op, x, step.operand)
            p_right, p_bug, p_slip = model.step_probs(step.op, x, step.operand, i)
            options = [("correct", right, p_right), ("bug", apply_bug(step.op, x, step.operand), p_bug)]
            options += [("careless", right + d, p_slip / len(CARELESS_OFFSETS)) for d in CARELESS_OFFSETS]
            longer += [([*values, v], [*procs, proc], p * q) for proc, v, q in options]
        traces = longer
    return [(Sample(v, procs, [], v[-1], v[-1] == problem.answer()), p) for v, procs, p in traces]


# ==============================================================================
# 工具箱
# ==============================================================================
def test_toolbox_prints_the_reference_figures():
    out = run("lecture06/trainable_llm.py").stdout.decode()
    assert re.findall(r"0\.\d+", out) == ["0.777", "0.501", "0.183", "0.100", "0.175"]


def test_context_is_op_and_hardness():
    assert context_key("mul", 47, 12) == ("mul", 1.5)
    assert context_key("mul", 472, 12) == ("mul", 2.2)
    assert context_key("add", 999, 1) == ("add", 0.9)  # 0.3 × 3 不是恰好 0.9，键要舍入


@given(
    st.sampled_from(["add", "sub", "mul"]), st.integers(-99999, 99999), st.integers(1, 499),
    st.sampled_from([1e8, 1e9]),
)
def test_untrained_model_is_the_toy_llm(op, a, b, size):
    model = TrainableLLM(size)
    assert model.step_probs(op, a, b, 3) == ToyLLM(size).step_probs(op, a, b, 3)
    assert model.p_correct(context_key(op, a, b)) == pytest.approx(model.step_probs(op, a, b, 3)[0], abs=1e-12)


def test_offsets_shift_the_logits_of_their_context_only():
    model = TrainableLLM(1e9, {("mul", 1.5): [0.5, -1.0, 2.0]})
    assert model.step_logits("mul", 47, 12, 0) == pytest.approx([0.56 - 1.5 + 0.5, -1.0, -0.3 + 2.0])
    assert model.step_logits("mul", 472, 12, 0) == ToyLLM(1e9).step_logits("mul", 472, 12, 0)


def test_copies_share_no_parameters():
    delta = {("mul", 1.5): [0.0, 0.0, 0.0]}
    first = TrainableLLM(1e9, delta)
    second = first.copy("另一个")
    apply_grads(second, {("mul", 1.5): [1.0, 0.0, 0.0]}, 1.0)
    assert delta == first.delta == {("mul", 1.5): [0.0, 0.0, 0.0]}
    assert second.delta == {("mul", 1.5): [1.0, 0.0, 0.0]} and second.name == "另一个"


def test_delta_of_wrong_length_is_an_error():
    with pytest.raises(ValueError, match="delta"):
        TrainableLLM(1e9, {("mul", 1.5): [0.0]})


def test_records_use_the_written_values():
    problem = Problem(47, (Step("mul", 12), Step("mul", 12)))
    sample = Sample([60, 720], ["bug", "correct"], [False, True], 720, False)
    assert step_records(problem, sample) == [(("mul", 1.5), 1), (("mul", 1.5), 0)]  # 正确的 564 会是 ("mul", 2.2)
    probs = probs_for(TrainableLLM(1e9), problem, sample)
    assert probs[1] == TrainableLLM(1e9).step_probs("mul", 60, 12, 1)


@given(st.integers(0, 10**6))
def test_add_grad_is_the_finite_difference_of_log_pi(seed):
    rng = random.Random(seed)
    key, action, weight, eps = ("mul", 1.5), rng.randrange(3), rng.uniform(-2, 2), 1e-5
    model = TrainableLLM(1e9, random_delta(rng, [key]))
    grads = {}
    add_grad(grads, key, action, model.step_probs("mul", 47, 12, 0), weight)
    for i in range(3):
        log_pi = []
        for sign in (1, -1):
            moved = model.copy()
            moved.delta[key][i] += sign * eps
            log_pi.append(math.log(moved.step_probs("mul", 47, 12, 0)[action]))
        assert grads[key][i] == pytest.approx(weight * (log_pi[0] - log_pi[1]) / (2 * eps), abs=1e-8)


def test_gradients_accumulate_and_ascend():
    grads = {}
    add_grad(grads, "c", 0, (0.5, 0.3, 0.2), 1.0)
    add_grad(grads, "c", 2, (0.5, 0.3, 0.2), -0.5)
    assert grads["c"] == pytest.approx([0.5 + 0.25, -0.3 + 0.15, -0.2 - 0.4])
    model = TrainableLLM(1e9)
    apply_grads(model, grads, 2.0)
    assert model.delta["c"] == pytest.approx([1.5, -0.3, -1.2])


def test_sft_matches_a_step_by_step_loop():
    """对照：不合并同类，逐样本、逐步骤、逐遍地加梯度。"""
    rng = random.Random(5)
    problems = make_problem_set(rng, 12, 2, 5)
    data = [(problem, ToyLLM(1e9).generate(problem, rng)) for problem in problems]
    fast = sft(TrainableLLM(1e9), data, epochs=4, lr=1.5)
    slow = TrainableLLM(1e9)
    total = sum(problem.n_steps for problem in problems)
    for _ in range(4):
        grads = {}
        for problem, sample in data:
            for (key, action), probs in zip(step_records(problem, sample), probs_for(slow, problem, sample)):
                add_grad(grads, key, action, probs, 1 / total)
        apply_grads(slow, grads, 1.5)
    assert fast.delta.keys() == slow.delta.keys()
    for key in fast.delta:
        assert fast.delta[key] == pytest.approx(slow.delta[key])


def test_sft_approaches_the_frequencies_of_the_data():
    """最大似然的闭式解：每种语境里各做法的概率等于数据里的频率。"""
    problem = Problem(47, (Step("mul", 12),))
    data = [(problem, Sample([0], [proc], [False], 0, False)) for proc in ["correct"] * 6 + ["bug"] * 3 + ["careless"]]
    model = sft(TrainableLLM(1e9), data, epochs=300)
    assert model.step_probs("mul", 47, 12, 0) == pytest.approx((0.6, 0.3, 0.1), abs=1e-3)


def test_sft_on_nothing_changes_nothing():
    model = TrainableLLM(1e9)
    assert sft(model, []) is model and model.delta == {}


def test_evaluate_is_close_to_the_enumerated_accuracy():
    problem = Problem(47, (Step("mul", 12), Step("sub", 85)))
    model = TrainableLLM(1e9)
    p = math.fsum(q for sample, q in enumerate_traces(model, problem) if sample.correct)
    scores = evaluate(model, [problem], random.Random(0), n=8000, ks=(1, 2))
    assert scores[1] == pytest.approx(p, abs=0.02)
    assert scores[2] == pytest.approx(1 - (1 - p) ** 2, abs=0.03)


def test_entropy_is_the_enumerated_entropy():
    problem = Problem(47, (Step("mul", 12),))
    p = TrainableLLM(1e9).step_probs("mul", 47, 12, 0)
    assert entropy_of(TrainableLLM(1e9), [problem], random.Random(0)) == pytest.approx(-sum(q * math.log(q) for q in p))
    certain = TrainableLLM(1e9, {("mul", 1.5): [2000.0, 0.0, 0.0]})
    assert entropy_of(certain, [problem], random.Random(0)) == 0


@pytest.mark.parametrize("kwargs", [{"problems": []}, {"n": 0}, {"n": 2, "ks": (3,)}])
def test_evaluate_refuses_bad_arguments(kwargs):
    with pytest.raises(ValueError, match="应当"):
        evaluate(**{"model": TrainableLLM(1e9), "problems": make_problem_set(random.Random(0), 2, 2, 2),
                    "rng": random.Random(0), **kwargs})


def test_context_report_names_four_contexts():
    assert list(context_report(TrainableLLM(1e9))) == list(HARD_CONTEXTS)
    p = [1 / (1 + (1 + math.exp(-0.3)) * math.exp(-z)) for z in (1.8, 0.56, 0.56 - 1.5, 0.56 - 2.2)]
    assert list(context_report(TrainableLLM(1e9)).values()) == pytest.approx(p)


# ==============================================================================
# 01 STaR
# ==============================================================================
def test_star_prints_the_reference_figures():
    rows = tables_of("lecture06/01_star.py")
    columns = [
        ("0.114 0.255 0.341 0.414 0.399 0.406 0.412", "0 41 92 135 142 152 141", "0 0 0 0 0 0 0"),
        ("0.114 0.365 0.459 0.471 0.475 0.460 0.470", "0 137 258 274 279 274 271", "0 0 0 0 0 0 0"),
        ("0.114 0.141 0.175 0.215 0.249 0.210 0.240", "0 131 139 174 183 182 180", "0 90 86 107 98 106 95"),
    ]
    for i in range(7):
        assert rows[str(i)] == [float(column.split()[i]) for run_ in columns for column in run_]
    after = {
        "加法，无进位": (0.937, 0.933, 0.866), "乘一位数": (0.787, 0.788, 0.648),
        "乘两位数": (0.604, 0.689, 0.516), "乘两位数、被乘数 ≥ 100": (0.210, 0.525, 0.164),
    }
    for name, expected in after.items():
        assert tuple(rows[name][1::2]) == expected


def test_hint_raises_one_logit_and_is_not_in_the_data(star_script):
    delta = {("mul", 1.5): [0.5, 0.1, -0.2]}
    plain, hinted = TrainableLLM(1e9, delta), star_script.Hinted(1e9, delta)
    difference = [h - p for h, p in zip(hinted.step_logits("mul", 47, 12, 0), plain.step_logits("mul", 47, 12, 0))]
    assert difference == pytest.approx([star_script.HINT_BONUS, 0, 0])
    data = star_script.collect(plain, make_problem_set(random.Random(1), 50, 3, 5), random.Random(2), True, False)
    assert data and all(sample.correct for _, sample in data)
    model = sft(TrainableLLM(1e9), data)  # 数据里只有 (语境, 做法)：微调的是没有提示的模型
    assert type(model) is TrainableLLM


def test_coarse_verifier_reads_the_units_digit_only(star_script):
    problem = Problem(47, (Step("mul", 12),))
    for answer, exact, coarse in ((564, True, True), (-34, False, True), (4, False, True), (565, False, False)):
        sample = Sample([answer], ["bug"], [False], answer, answer == 564)
        assert star_script.verify(problem, sample, False) is exact
        assert star_script.verify(problem, sample, True) is coarse


def test_star_restarts_from_the_base_model_every_round(star_script, monkeypatch):
    """每次 sft 收到的都是没有训练过的模型。"""
    seen = []

    def spy(model, data):
        seen.append(dict(model.delta))
        return sft(model, data)

    monkeypatch.setattr(star_script, "sft", spy)
    problems = make_problem_set(random.Random(1), 20, 2, 3)
    history = star_script.star(1e9, problems, problems, random.Random(2))
    assert seen == [{}] * star_script.ITERATIONS
    assert [h["iter"] for h in history] == list(range(star_script.ITERATIONS + 1))
    assert [h["n_wrong_kept"] for h in history] == [0] * len(history)


# ==============================================================================
# 02 优势与策略梯度
# ==============================================================================
REWARDS = [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_policy_gradient_prints_the_reference_figures():
    rows = tables_of("lecture06/02_policy_gradient.py")
    columns = [
        "0.138 0.287 0.511 0.757 0.854", "0.138 0.290 0.489 0.728 0.845", "0.138 0.282 0.455 0.691 0.819",
        "0.138 0.480 0.824 0.921 0.949", "0.138 0.777 0.948 0.964 0.978",
    ]
    for i, step in enumerate(("0", "15", "30", "45", "60")):
        assert rows[step] == [float(column.split()[i]) for column in columns]
    assert rows["所有样本的平均 |A|"] == [0.126, 0.221, 0.201, 0.426]
    assert rows["基座 T = 1.0"] == [0.127, 0.675, 0.833]
    assert rows["基座 T = 0.7"] == [0.204, 0.740]
    assert rows["基座 T = 0.4"] == [0.394, 0.720]
    assert rows["GRPO T = 1.0"] == [0.955, 1.000, 0.045]
    assert [rows[name][-1] for name in HARD_CONTEXTS] == [0.995, 0.986, 0.986, 0.988]


def test_advantages_golden_values(pg):
    assert pg.advantages("grpo", REWARDS, {})[::7] == pytest.approx([1.2910, -0.7746], abs=1e-4)
    assert pg.advantages("rloo", REWARDS, {})[::7] == pytest.approx([0.7143, -0.4286], abs=1e-4)
    assert pg.advantages("reinforce_baseline", REWARDS, {})[::7] == [0.625, -0.375]
    assert pg.advantages("reinforce_baseline", REWARDS, {"baseline": 0.25})[::7] == [0.75, -0.25]
    assert pg.advantages("sft_correct", REWARDS, {}) == REWARDS
    g = len(REWARDS)  # ddof 1（TRL、verl）与 ddof 0 只差一个常数
    ddof1 = [a * math.sqrt((g - 1) / g) for a in pg.advantages("grpo", REWARDS, {})]
    assert ddof1[::7] == pytest.approx([1.2076, -0.7246], abs=1e-4)


rewards_lists = st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=16)


@given(rewards_lists, st.randoms(use_true_random=False))
def test_advantages_follow_a_permutation_and_sum_to_zero(rewards, rng):
    module = load("lecture06/02_policy_gradient.py")
    order = list(range(len(rewards)))
    rng.shuffle(order)
    for method in module.METHODS:
        adv = module.advantages(method, rewards, {})
        assert module.advantages(method, [rewards[i] for i in order], {}) == pytest.approx([adv[i] for i in order])
    for method in ("rloo", "grpo"):
        assert math.fsum(module.advantages(method, rewards, {})) == pytest.approx(0, abs=1e-9)


@given(rewards_lists)
def test_rloo_is_the_scaled_deviation_from_the_group_mean(rewards):
    module = load("lecture06/02_policy_gradient.py")
    g, m = len(rewards), mean(rewards)
    assert module.advantages("rloo", rewards, {}) == pytest.approx([g / (g - 1) * (r - m) for r in rewards])


@pytest.mark.parametrize("method", ["rloo", "grpo"])
@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_group_without_spread_teaches_nothing(pg, method, reward):
    assert pg.advantages(method, [reward] * 8, {}) == [0.0] * 8


def test_bad_groups_and_methods_are_chinese_errors(pg):
    with pytest.raises(ValueError, match="GROUP"):
        pg.advantages("rloo", [1.0], {})
    with pytest.raises(ValueError, match="GROUP"):
        pg.advantages("grpo", [], {})
    with pytest.raises(ValueError, match="method 应当是"):
        pg.advantages("ppo", REWARDS, {})
    assert pg.advantages("grpo", [1.0], {}) == [0.0]


def test_enumerated_policy_gradient_is_the_slope_of_the_success_rate(pg):
    """得分函数的恒等式：∑ P(τ) r ∑ (onehot - probs) 等于 J 的有限差分。"""
    problem = Problem(47, (Step("mul", 12), Step("sub", 85)))
    model = TrainableLLM(1e9, random_delta(random.Random(3), [("mul", 1.5), ("sub", 0.3)]))
    exact = {}
    for sample, p in enumerate_traces(model, problem):
        pg.accumulate(exact, model, problem, sample, p * sample.correct, {})
    eps = 1e-5
    for key, g in exact.items():
        for i in range(3):
            J = []
            for sign in (1, -1):
                moved = model.copy()
                moved.delta.setdefault(key, [0.0] * 3)[i] += sign * eps
                J.append(math.fsum(p for sample, p in enumerate_traces(moved, problem) if sample.correct))
            assert g[i] == pytest.approx((J[0] - J[1]) / (2 * eps), abs=1e-8)


@pytest.mark.parametrize("method", ["sft_correct", "reinforce_baseline", "rloo"])
def test_sampled_policy_gradient_matches_the_enumeration(pg, method):
    """三种无偏的优势：许多组的平均梯度落在精确值的 5 个标准误之内。"""
    problem = Problem(47, (Step("mul", 12), Step("sub", 85)))
    model, rng = TrainableLLM(1e9), random.Random(8)
    exact = {}
    for sample, p in enumerate_traces(model, problem):
        pg.accumulate(exact, model, problem, sample, p * sample.correct, {})
    groups, n, probs = [], 4, {}
    for _ in range(2000):
        samples = [model.generate(problem, rng) for _ in range(n)]
        grads = {key: [0.0] * 3 for key in exact}
        adv = pg.advantages(method, [float(s.correct) for s in samples], {"baseline": 0.3})
        for sample, a in zip(samples, adv):
            pg.accumulate(grads, model, problem, sample, a / n, probs)
        groups.append(grads)
    for key, g in exact.items():
        for i in range(3):
            values = [grads[key][i] for grads in groups]
            m = mean(values)
            error = math.sqrt(mean((v - m) ** 2 for v in values) / len(values))
            assert abs(m - g[i]) < 5 * error + 1e-12


def test_baseline_moves_only_after_the_update(pg, monkeypatch):
    """每一步用的都是上一步的基线；第 1 步还没有基线。"""
    seen = []
    real = pg.advantages

    def spy(method, rewards, state):
        seen.append((state.get("baseline"), rewards))
        return real(method, rewards, state)

    monkeypatch.setattr(pg, "advantages", spy)
    monkeypatch.setattr(pg, "STEPS", 3)
    monkeypatch.setattr(pg, "BATCH", 4)
    problems = make_problem_set(random.Random(1), 10, 2, 3)
    pg.train("reinforce_baseline", problems, problems, 0)
    expected = None
    for step in range(3):
        batch = seen[4 * step:4 * step + 4]
        assert [baseline for baseline, _ in batch] == [expected if expected is None else pytest.approx(expected)] * 4
        m = mean(r for _, rewards in batch for r in rewards)
        expected = m if expected is None else 0.9 * expected + 0.1 * m


@pytest.mark.parametrize("constant, value, message", [
    ("BATCH", 11, "BATCH"), ("BATCH", 0, "BATCH"), ("GROUP", 1, "GROUP"), ("STEPS", -1, "STEPS"),
    ("EVAL_EVERY", 0, "EVAL_EVERY"),
])
def test_training_refuses_bad_constants(pg, monkeypatch, constant, value, message):
    problems = make_problem_set(random.Random(1), 10, 2, 3)
    monkeypatch.setattr(pg, "BATCH", 4)
    monkeypatch.setattr(pg, constant, value)
    with pytest.raises(ValueError, match=message):
        pg.train("rloo", problems, problems, 0)


def test_training_with_nothing_to_do_leaves_the_model_alone(pg, monkeypatch):
    problems = make_problem_set(random.Random(1), 10, 2, 3)
    monkeypatch.setattr(pg, "BATCH", 10)
    with pytest.raises(ValueError, match="method"):
        pg.train("ppo", problems, problems, 0)
    model, curve = pg.train("grpo", problems, problems, 0, lr=0)
    assert all(value == 0 for offsets in model.delta.values() for value in offsets)
    monkeypatch.setattr(pg, "STEPS", 0)
    model, curve = pg.train("grpo", problems, problems, 0)
    assert model.delta == {} and [step for step, _ in curve] == [0]

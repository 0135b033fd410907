"""第 6 讲：工具箱与 01、02、03、07。每个公式都对照一个独立的来源：枚举、有限差分、闭式、公布的数字。"""
import math
import random
import re

import pytest
from harness import load, run
from hypothesis import given
from hypothesis import strategies as st
from toy_llm import CARELESS_OFFSETS, Problem, Sample, Step, ToyLLM
from trainable_llm import (
    HARD_CONTEXTS, TrainableLLM, add_grad, add_grpo_group, apply_bug, apply_grads, apply_op, check_setting,
    context_key, context_report, entropy_of, evaluate, exact_scores, make_problem_set, mean, path_probs, probs_for,
    sft, step_records, true_contexts, value_at,
)


@pytest.fixture(scope="module")
def star_script():
    return load("lecture06/01_star.py")


PG = load("lecture06/02_policy_gradient.py")  # hypothesis 的测试不能用 fixture，所以放在这里


@pytest.fixture
def pg():
    return PG


@pytest.mark.parametrize("place, value, name", [
    (0, 0, "BASE_SIZE"), (0, None, "BASE_SIZE"), (1, 0, "N_TRAIN"), (2, 2.5, "N_TEST"), (3, 0, "MIN_STEPS"),
    (4, 2, "MAX_STEPS"), (5, 1, "GROUP"), (6, 101, "BATCH"),
])
def test_check_setting_names_the_one_bad_constant(place, value, name):
    setting = [1e9, 100, 50, 3, 8, 4, 100]
    check_setting(*setting)
    setting[place] = value
    with pytest.raises(ValueError, match=f"^{name} 应当是.*收到的是 {value!r}$"):
        check_setting(*setting)


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

    def spy(model, data, epochs):
        seen.append((dict(model.delta), epochs))
        return sft(model, data, epochs)

    monkeypatch.setattr(star_script, "sft", spy)
    problems = make_problem_set(random.Random(1), 20, 2, 3)
    history = star_script.star(1e9, problems, problems, random.Random(2))
    assert seen == [({}, star_script.SFT_EPOCHS)] * star_script.ITERATIONS
    assert [h["iter"] for h in history] == list(range(star_script.ITERATIONS + 1))
    assert [h["n_wrong_kept"] for h in history] == [0] * len(history)


def test_going_on_hands_the_trained_model_to_the_next_round(star_script, monkeypatch):
    """restart=False：除了第 1 轮，sft 收到的都是上一轮训练过的模型。"""
    seen = []

    def spy(model, data, epochs):
        seen.append(dict(model.delta))
        return sft(model, data, 1)

    monkeypatch.setattr(star_script, "sft", spy)
    problems = make_problem_set(random.Random(1), 40, 1, 2)
    star_script.star(1e11, problems, problems, random.Random(2), restart=False)
    assert seen[0] == {} and all(delta for delta in seen[1:])


def test_more_epochs_close_the_gap_to_the_data(star_script):
    """30 遍停在四成，300 遍停在九成：数据里几乎没有错的步骤，差的是训练（审稿人用另一份代码量过的数字）。"""
    train = make_problem_set(random.Random(star_script.TRAIN_SEED), 300, 3, 8)
    test = make_problem_set(random.Random(star_script.TEST_SEED), 200, 3, 8)
    runs = {e: star_script.star(1e9, train, test, random.Random(142), epochs=e)[-1] for e in (30, 100, 300)}
    assert [round(h["test_pass1"], 2) for h in runs.values()] == [0.41, 0.73, 0.89]
    assert runs[300]["contexts"]["乘两位数、被乘数 ≥ 100"] == pytest.approx(0.968, abs=1e-3)
    model = TrainableLLM(1e9)
    data = star_script.collect(model, train, random.Random(7), False, False)
    wrong = sum(proc != "correct" for _, sample in data for proc in sample.procs)
    total = sum(len(sample.procs) for _, sample in data)
    assert 0 < wrong < 0.1 * total  # 留下的过程里几乎没有错步


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
    order = list(range(len(rewards)))
    rng.shuffle(order)
    for method in PG.METHODS:
        adv = PG.advantages(method, rewards, {})
        assert PG.advantages(method, [rewards[i] for i in order], {}) == pytest.approx([adv[i] for i in order])
    for method in ("rloo", "grpo"):
        assert math.fsum(PG.advantages(method, rewards, {})) == pytest.approx(0, abs=1e-9)


@given(rewards_lists)
def test_rloo_is_the_scaled_deviation_from_the_group_mean(rewards):
    g, m = len(rewards), mean(rewards)
    assert PG.advantages("rloo", rewards, {}) == pytest.approx([g / (g - 1) * (r - m) for r in rewards])


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


def test_a_grpo_group_is_the_lesson_of_02_written_once(pg):
    """工具箱的 add_grpo_group 与 02 摊开写的 advantages + accumulate 相同；死组不留下任何梯度。"""
    rng, model = random.Random(9), TrainableLLM(1e9, random_delta(random.Random(3), [("mul", 1.5), ("sub", 0.3)]))
    problem = Problem(47, (Step("mul", 12), Step("sub", 85)))
    samples = [model.generate(problem, rng) for _ in range(12)]
    rewards = [float(sample.correct) for sample in samples]
    assert 0 < sum(rewards) < 12
    once, spelled_out, dead = {}, {}, {}
    add_grpo_group(once, model, problem, samples, rewards, 48)
    for sample, a in zip(samples, pg.advantages("grpo", rewards, {})):
        pg.accumulate(spelled_out, model, problem, sample, a / 48, {})
    assert once.keys() == spelled_out.keys()
    for key in once:
        assert once[key] == pytest.approx(spelled_out[key])
    for reward in (0.0, 1.0):
        add_grpo_group(dead, model, problem, samples, [reward] * 12, 48)
    assert dead == {}


# ==============================================================================
# 03 DAPO
# ==============================================================================
@pytest.fixture(scope="module")
def dapo():
    return load("lecture06/03_dapo.py")


def clip_objective(rho, advantage, low=0.2, high=0.2):
    """PPO 的目标，照论文的写法：min(ρA, clip(ρ, 1-low, 1+high)·A)。"""
    return min(rho * advantage, max(1 - low, min(1 + high, rho)) * advantage)


def test_ppo_clip_quadrants(dapo):
    """四个象限的公布值，以及"梯度是 0"与目标的有限差分一致。"""
    golden = {(0.5, -1): -0.8, (2, -1): -2.0, (5, -1): -5.0, (0.5, 1): 0.5, (2, 1): 1.2, (1, 1): 1.0, (1, -1): -1.0}
    for (rho, advantage), value in golden.items():
        assert clip_objective(rho, advantage) == pytest.approx(value)
        slope = (clip_objective(rho + 1e-6, advantage) - clip_objective(rho - 1e-6, advantage)) / 2e-6
        assert slope == pytest.approx(0 if dapo.is_clipped(rho, advantage, 0.2, 0.2) else advantage)
    assert dapo.is_clipped(1.25, 1, 0.2, 0.2) and not dapo.is_clipped(1.25, 1, 0.2, 0.28)
    assert dapo.is_clipped(0.75, -1, 0.2, 0.28) and not dapo.is_clipped(0.75, 1, 0.2, 0.28)


@pytest.mark.parametrize("p, group", [(0.01, 8), (0.3, 2), (0.5, 8), (0.0, 4), (1.0, 4)])
def test_mixed_probability_matches_the_enumeration(dapo, p, group):
    total = math.fsum(math.comb(group, c) * p**c * (1 - p) ** (group - c) for c in range(1, group))
    assert dapo.p_mixed(p, group) == pytest.approx(total)
    if (p, group) == (0.01, 8):
        assert dapo.p_mixed(p, group) == pytest.approx(0.077, abs=1e-3)


@pytest.fixture(scope="module")
def training_set():
    return make_problem_set(random.Random(1), 40, 3, 8)


def test_dynamic_sampling_holds_only_mixed_groups(dapo, training_set):
    groups, n_correct = dapo.draw_groups(TrainableLLM(1e9), training_set, random.Random(2), dapo.REFILL, 12)
    assert len(groups) == 12 and len(n_correct) > 12  # 丢掉了一些组，又补满了
    for _, samples, adv in groups:
        assert 0 < sum(sample.correct for sample in samples) < dapo.GROUP
        assert any(adv)
    assert sum(0 < c < dapo.GROUP for c in n_correct) == 12


def test_plain_sampling_keeps_every_group(dapo, training_set):
    groups, n_correct = dapo.draw_groups(TrainableLLM(1e9), training_set, random.Random(2), dapo.KEEP, 12)
    assert len(groups) == len(n_correct) == 12
    assert [sum(s.correct for s in samples) for _, samples, _ in groups] == n_correct
    assert 0 in n_correct  # 死组也在里面，优势全是 0
    assert all(not any(adv) for (_, _, adv), c in zip(groups, n_correct) if c in (0, dapo.GROUP))


def test_dropping_dead_groups_draws_no_more_samples(dapo, training_set):
    """只丢不补：抽的组与不丢的相同，留下的恰好是活组；留着的死组只让分母变大，梯度的方向相同。"""
    model = TrainableLLM(1e9)
    kept, n_kept = dapo.draw_groups(model, training_set, random.Random(2), dapo.KEEP, 12)
    dropped, n_dropped = dapo.draw_groups(model, training_set, random.Random(2), dapo.DROP, 12)
    assert n_kept == n_dropped and len(dropped) == sum(0 < c < dapo.GROUP for c in n_kept) < 12
    all_weights, live_weights = dapo.total_weights(kept, False), dapo.total_weights(dropped, False)
    assert all_weights.keys() == live_weights.keys()
    for item, weight in all_weights.items():
        assert live_weights[item] == pytest.approx(weight * 12 / len(dropped))


def test_dynamic_sampling_gives_up_on_a_perfect_model(dapo, training_set):
    keys = {key for path in dapo.true_contexts(training_set) for key in path}
    perfect = TrainableLLM(1e9, {key: [1000.0, 0.0, 0.0] for key in keys})
    groups, n_correct = dapo.draw_groups(perfect, training_set, random.Random(2), dapo.REFILL, 4)
    assert groups == [] and len(n_correct) == 4 * dapo.MAX_REFILL
    before = perfect.copy()
    dapo.update(perfect, dapo.total_weights(groups, True), 0.2)  # 没有数据：什么也不动
    assert perfect.delta == before.delta


def hand_made_groups():
    """两道题、每题一对一错的样本，步数不同：手算得清的一批。"""
    short, long = Problem(47, (Step("mul", 12),)), Problem(47, (Step("mul", 12), Step("mul", 2), Step("mul", 3)))
    groups = []
    for problem in (short, long):
        n = problem.n_steps
        right = Sample(list(problem.true_values), ["correct"] * n, [True] * n, problem.answer(), True)
        wrong = Sample([1] * n, ["bug"] * n, [False] * n, 1, False)
        groups.append((problem, [right, wrong], [1.0, -1.0]))
    return groups


def test_loss_weights_sample_level_and_token_level(dapo):
    """样本级：每个样本的权重相同；token 级：每一步的权重相同。"""
    groups = hand_made_groups()
    sample_level, token_level = dapo.total_weights(groups, False), dapo.total_weights(groups, True)
    for weights in (sample_level, token_level):
        assert math.fsum(abs(w) for w in weights.values()) == pytest.approx(1)
        assert all((w > 0) == positive for (_, _, positive), w in weights.items())
    item = (("mul", 1.5), 0, True)  # 47 × 12 做对：短题一步，长题的第一步
    assert sample_level[item] == pytest.approx(1 / 4 + 1 / 4 / 3)
    assert token_level[item] == pytest.approx(2 / 8)


@pytest.mark.parametrize("losses, expected", [([[1, 1, 1, 1, 10], [1] * 9 + [10]], (2.35, 2.2))])
def test_loss_aggregation_golden_values(losses, expected):
    assert mean(mean(loss) for loss in losses) == pytest.approx(expected[0])
    assert mean(x for loss in losses for x in loss) == pytest.approx(expected[1])


def test_first_update_is_the_plain_policy_gradient(dapo, pg, monkeypatch):
    """ρ = 1 时 PPO 的梯度等于 REINFORCE 的梯度。"""
    monkeypatch.setattr(dapo, "UPDATES", 1)
    monkeypatch.setattr(dapo, "LR", 1.0)
    groups = hand_made_groups()
    model = TrainableLLM(1e9)
    dapo.update(model, dapo.total_weights(groups, True), 0.2)
    grads = {}
    for problem, samples, adv in groups:
        for sample, a in zip(samples, adv):
            pg.accumulate(grads, TrainableLLM(1e9), problem, sample, a / 8, {})
    assert model.delta.keys() == grads.keys()
    for key in grads:
        assert model.delta[key] == pytest.approx(grads[key])


def test_repeated_updates_follow_the_clipped_objective(dapo, monkeypatch):
    """第二次更新的梯度，等于在第一次之后的参数上对 PPO 目标做有限差分。"""
    monkeypatch.setattr(dapo, "LR", 3.0)
    weights = {(("mul", 1.5), 0, True): 0.2, (("mul", 1.5), 1, False): -0.3, (("mul", 1.5), 2, True): 0.05}
    start = TrainableLLM(1e9)

    def after(n_updates):
        monkeypatch.setattr(dapo, "UPDATES", n_updates)
        model = start.copy()
        dapo.update(model, weights, 0.28)
        return model

    once, twice = after(1), after(2)
    key, old = ("mul", 1.5), start.context_probs(("mul", 1.5))

    def objective(model):
        p = model.context_probs(key)
        return sum(clip_objective(p[a] / old[a], 1 if w > 0 else -1, 0.2, 0.28) * abs(w)
                   for (_, a, _), w in weights.items())

    for i in range(3):
        values = []
        for sign in (1, -1):
            moved = once.copy()
            moved.delta[key][i] += sign * 1e-6
            values.append(objective(moved))
        slope = (values[0] - values[1]) / 2e-6
        assert twice.delta[key][i] - once.delta[key][i] == pytest.approx(3.0 * slope, abs=1e-6)


def test_exact_scores_match_path_probabilities(training_set):
    rng = random.Random(4)
    paths = true_contexts(training_set)
    model = TrainableLLM(1e9, random_delta(rng, sorted({key for path in paths for key in path})))
    sound, h = exact_scores(model, paths)
    assert sound == pytest.approx(mean(math.prod(path_probs(model, problem)) for problem in training_set))
    right = [Sample(list(p.true_values), ["correct"] * p.n_steps, [], p.answer(), True) for p in training_set]
    steps = [q for problem, sample in zip(training_set, right) for q in probs_for(model, problem, sample)]
    assert h == pytest.approx(mean(-sum(x * math.log(x) for x in q) for q in steps))


def test_value_at_interpolates_the_first_crossing():
    history = [{"x": 0.0, "y": 10}, {"x": 0.4, "y": 20}, {"x": 0.3, "y": 25}, {"x": 0.8, "y": 30}]
    assert value_at(history, "x", 0.2, "y") == pytest.approx(15)
    assert value_at(history, "x", 0.5, "y") == pytest.approx(27)
    assert value_at(history, "x", 0.9, "y") == 30


# ==============================================================================
# 07 奖励作弊
# ==============================================================================
@pytest.fixture(scope="module")
def hacking():
    return load("lecture06/07_reward_hacking.py")


def test_each_verifier_has_exactly_its_hole(hacking):
    problem = Problem(47, (Step("mul", 12),))  # 564
    right, same_units, wrong = (Sample([x], ["bug"], [x == 564], x, x == 564) for x in (564, 574, 141))
    table = {("个位", False): (True, True, False, False), ("个位", True): (True, False, False, False),
             ("格式", False): (True, False, False, True), ("格式", True): (True, False, False, False)}
    for (hole, exact), expected in table.items():
        assert tuple(hacking.passes(hole, problem, s, exact) for s in (right, same_units, wrong, None)) == expected
    with pytest.raises(ValueError, match="hole"):
        hacking.passes("长度", problem, right)


def test_template_probability_is_the_sigmoid_of_the_gate(hacking):
    rng, problem = random.Random(3), Problem(47, (Step("mul", 12),))
    model = hacking.Cheater(1e9, -1.0)
    share = mean(model.attempt(problem, rng) is None for _ in range(20000))
    assert share == pytest.approx(1 / (1 + math.e), abs=0.01)
    assert hacking.Cheater(1e9).p_template == 0.0


def test_exact_checks_everywhere_leave_no_hole(hacking, monkeypatch):
    """share = 1 时模板从来拿不到奖励：P(模板) 只会下降。"""
    monkeypatch.setattr(hacking, "STEPS", 20)
    monkeypatch.setattr(hacking, "TEMPLATE_P", 0.3)
    problems = make_problem_set(random.Random(1), 60, 2, 4)
    history = hacking.train("格式", problems, problems, share=1.0)
    assert history[-1]["template"] < history[0]["template"] == pytest.approx(0.3)
    assert history[-1]["true"] > history[0]["true"]


def test_gate_gradient_is_the_slope_of_the_reward(hacking, monkeypatch):
    """一步训练后 gate 的方向：模板一律通过、解题全错时，P(模板) 上升。"""
    monkeypatch.setattr(hacking, "STEPS", 1)
    monkeypatch.setattr(hacking, "EVAL_EVERY", 1)
    monkeypatch.setattr(hacking, "TEMPLATE_P", 0.5)
    monkeypatch.setattr(hacking, "BASE_SIZE", 1.0)  # 极小的模型：几乎不会做对
    problems = make_problem_set(random.Random(1), 40, 4, 6)
    history = hacking.train("格式", problems, problems, lr=1.0)
    assert history[1]["template"] > history[0]["template"]

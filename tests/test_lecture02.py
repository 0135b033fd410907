"""第 2 讲：投票、验证器、搜索、记账，与逐个枚举、闭式或另写一遍的朴素算法对照。"""
import itertools
import json
import math
import os
import random
import subprocess
import sys
from collections import Counter
from fractions import Fraction

import pytest
from harness import ROOT, load
from hypothesis import given
from hypothesis import strategies as st
from tts_tools import (
    CARELESS_OFFSETS, ORM, PRM, Meter, Problem, Step, ToyLLM, answer_law, apply_bug, apply_op, auc, beam_search,
    best_of_n, coverage, flops, is_rounded, majority_vote, make_problem_set, mean, paired_gain, path_probs,
    sample_traces, weighted_vote,
)

sampling = load("lecture02/01_repeated_sampling.py")
voting = load("lecture02/02_majority_vote.py")
verifying = load("lecture02/03_verifier_best_of_n.py")
searching = load("lecture02/04_prm_beam_search.py")
revising = load("lecture02/05_revise_or_resample.py")
allocating = load("lecture02/06_compute_optimal.py")

ANSWERS = st.lists(st.integers(0, 5), min_size=1, max_size=30)


def some_samples(n_problems=12, n=40, size=1e9, low=3, high=5, seed=1):
    """[(题目, [Sample])]：几道题，每题几份作答。"""
    model, rng = ToyLLM(size), random.Random(seed)
    return [(p, sample_traces(model, p, n, rng)) for p in make_problem_set(rng, n_problems, low, high)]


# ---- 投票 ----
def count_one_by_one(answers):
    """朴素的唱票：先数出最高票数，再从头唱一遍，谁先到这个数谁赢。"""
    top = max(answers.count(a) for a in answers)
    for i, answer in enumerate(answers):
        if answers[: i + 1].count(answer) == top:
            return answer


@given(ANSWERS)
def test_majority_vote_agrees_with_counting_one_by_one(answers):
    assert majority_vote(answers) == count_one_by_one(answers)


@given(ANSWERS, st.randoms(use_true_random=False))
def test_vote_ignores_the_order_unless_there_is_a_tie(answers, rng):
    """没有平票时打乱次序不改变结果；平票时赢家总在并列的几个里面。"""
    top = max(Counter(answers).values())
    tied = {a for a, c in Counter(answers).items() if c == top}
    shuffled = answers[:]
    rng.shuffle(shuffled)
    assert majority_vote(shuffled) in tied
    if len(tied) == 1:
        assert majority_vote(shuffled) == majority_vote(answers)


def test_a_tie_goes_to_the_first_to_reach_the_top_count():
    """A B B A：两票都有，B 先到 2 票。与"先出现的赢"（Counter.most_common）不同。"""
    assert majority_vote("ABBA") == "B" and Counter("ABBA").most_common(1)[0][0] == "A"
    assert majority_vote([7, 8, 9]) == 7


def test_a_tie_favours_nobody():
    """把一组平票的所有次序都投一遍，并列的几个赢的次数相同。"""
    wins = Counter(majority_vote(order) for order in itertools.permutations("AABBCC"))
    assert len(set(wins.values())) == 1 and set(wins) == set("ABC")


@given(ANSWERS, st.sampled_from([0.0, 0.1, 1 / 3, 1, 1e-300, 1e9]))
def test_equal_weights_are_a_majority_vote(answers, weight):
    assert weighted_vote(answers, [weight] * len(answers)) == majority_vote(answers)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-3, 9)), min_size=1, max_size=20))
def test_integer_weights_are_repeated_ballots(pairs):
    """权重 w 等于把这张票投 w 次（负的不算）：总票数用整数另数一遍。"""
    answers, weights = zip(*pairs)
    totals = Counter()
    for answer, weight in pairs:
        totals[answer] += max(0, weight)
    winner = weighted_vote(answers, weights)
    if max(totals.values()) > 0:
        assert totals[winner] == max(totals.values())
    else:
        assert winner == majority_vote(answers)


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0.01, 1)), min_size=2, max_size=15), st.randoms())
def test_float_weights_do_not_depend_on_the_order(pairs, rng):
    totals = {a: sum(Fraction(w) for b, w in pairs if b == a) for a, _ in pairs}
    best = [a for a in totals if float(totals[a]) == max(map(float, totals.values()))]
    shuffled = pairs[:]
    rng.shuffle(shuffled)
    assert {weighted_vote(*zip(*order)) for order in (pairs, shuffled)} <= set(best)


# ---- 精确的分布与覆盖率 ----
def test_answer_law_agrees_with_walking_every_path():
    """8^3 条路一条一条走（3 种做法，手滑 6 种），按答案加起来。"""
    model = ToyLLM(3e9)
    for problem in make_problem_set(random.Random(2), 5, 3, 3):
        walked = Counter()
        for path in itertools.product(range(2 + len(CARELESS_OFFSETS)), repeat=3):
            x, weight = problem.start, 1.0
            for i, (step, branch) in enumerate(zip(problem.steps, path)):
                probs, right = model.step_probs(step.op, x, step.operand, i), apply_op(step.op, x, step.operand)
                if branch < 2:
                    x, weight = (right, apply_bug(step.op, x, step.operand))[branch], weight * probs[branch]
                else:
                    x, weight = right + CARELESS_OFFSETS[branch - 2], weight * probs[2] / len(CARELESS_OFFSETS)
            walked[x] += weight
        law = answer_law(model, problem)
        assert law.keys() == walked.keys() and math.fsum(law.values()) == pytest.approx(1)
        assert all(law[a] == pytest.approx(walked[a]) for a in law)
        assert law[problem.answer()] >= math.prod(path_probs(model, problem))


@given(st.fractions(0, 1, max_denominator=1000), st.integers(0, 40))
def test_coverage_is_one_minus_failing_every_time(p, k):
    assert coverage(float(p), k) == pytest.approx(float(1 - (1 - p) ** k), abs=1e-12)


def test_coverage_keeps_its_digits_where_the_plain_formula_loses_them():
    p, k = 1e-17, 1000
    assert coverage(p, k) == pytest.approx(1e-14) and 1 - (1 - p) ** k == 0


# ---- 验证器 ----
def test_best_of_n_with_a_perfect_verifier_is_coverage():
    oracle, found, exact = ORM(0), [], []
    for problem, samples in some_samples(n_problems=60, n=8):
        chosen = best_of_n(samples, [oracle.score(problem, s.values) for s in samples])
        assert chosen.correct == any(s.correct for s in samples)
        found.append(chosen.correct)
        exact.append(coverage(answer_law(ToyLLM(1e9), problem)[problem.answer()], 8))
    assert abs(mean(found) - mean(exact)) < 4 * math.sqrt(0.25 / len(found))


def test_best_of_n_with_a_random_verifier_is_pass_at_1():
    rng, hits, p = random.Random(3), [], []
    for problem, samples in some_samples(n_problems=40, n=160):
        for i in range(0, 160, 8):
            hits.append(best_of_n(samples[i : i + 8], [rng.random() for _ in range(8)]).correct)
        p.append(answer_law(ToyLLM(1e9), problem)[problem.answer()])
    assert abs(mean(hits) - mean(p)) < 4 * math.sqrt(0.25 / len(hits))


def test_a_verifier_repeats_itself_whatever_the_order():
    """同一份作答永远同一个分数：换次序、换一个同样的验证器、换一个相等的题目对象，都不变。"""
    for kind in (ORM, PRM):
        pairs = [(p, s.values) for p, samples in some_samples(4, 10) for s in samples]
        forward, backward = kind(0.4, 0.5, seed=7), kind(0.4, 0.5, seed=7)
        first = [forward.score(p, v) for p, v in pairs]
        again = [forward.score(Problem(p.start, p.steps), tuple(v)) for p, v in pairs]
        reversed_order = [backward.score(p, v) for p, v in reversed(pairs)][::-1]
        assert first == again == reversed_order
        assert first != [kind(0.4, 0.5, seed=8).score(p, v) for p, v in pairs]


# 三份作答的分数，四位小数：全对；先 bug 再 bug 再对；中间手滑 +1
GOLDEN_ORM = [0.5749, 0.0177, 0.2806]
GOLDEN_PRM = [1.3902, 0.208, 0.3814]
SCORES = """
import json, sys
sys.path[:0] = [{root!r} + "/lecture02"]
from tts_tools import ORM, PRM, Problem, Step
problem = Problem(47, (Step("mul", 12), Step("sub", 85), Step("add", 9)))
traces = ([564, 479, 488], [141, 144, 153], [564, 480, 489])
print(json.dumps([[kind(0.3, 0.5, seed=1).score(problem, v) for v in traces] for kind in (ORM, PRM)]))
"""


def test_scores_do_not_depend_on_the_hash_seed():
    outputs = set()
    for seed in ("0", "1", "12345"):
        done = subprocess.run(
            [sys.executable, "-c", SCORES.format(root=str(ROOT))], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1
    orm, prm = json.loads(outputs.pop())
    assert [round(x, 4) for x in orm] == GOLDEN_ORM
    assert [round(x, 4) for x in prm] == GOLDEN_PRM


def test_the_noise_has_the_stated_spread():
    orm = ORM(0.4, seed=3)
    noise = [
        orm.score(p, s.values) - s.correct
        for p, samples in some_samples(60, 60) for s in {tuple(s.values): s for s in samples}.values()
    ]
    n = len(noise)
    assert n > 1000 and abs(mean(noise)) < 4 * 0.4 / math.sqrt(n)
    assert math.sqrt(mean(x * x for x in noise)) == pytest.approx(0.4, rel=4 / math.sqrt(2 * n))


def test_orm_looks_at_the_answer_and_then_for_slips():
    """没有噪声时：答案对 1 分；错处全是 bug 得 bug_credit 的连乘；有看得出的手滑 0 分。"""
    for problem, samples in some_samples():
        for s in samples:
            wrong = s.local_ok.count(False)
            looks = [
                ok or written == apply_bug(step.op, before, step.operand)
                for ok, step, before, written in zip(s.local_ok, problem.steps, (problem.start, *s.values), s.values)
            ]
            expected = 1.0 if s.correct else 1.05 ** wrong if all(looks) else 0.0
            assert ORM(0, 1.05).score(problem, s.values) == pytest.approx(expected)
            assert ORM(0).score(problem, s.values) == s.correct


def test_prm_is_the_product_of_its_steps_and_knows_the_process():
    """步分的乘积等于总分；没有噪声时，一步都没错才是 1 分，错 m 步是 FLOOR 的 m 次方。"""
    noisy = PRM(0.3, 0.4, seed=5)
    for problem, samples in some_samples():
        for s in samples:
            steps = noisy.step_scores(problem, s.values)
            assert math.prod(steps) == pytest.approx(noisy.score(problem, s.values))
            assert noisy.step_scores(problem, s.values[:2]) == steps[:2]
            assert PRM(0).score(problem, s.values) == pytest.approx(PRM.FLOOR ** s.local_ok.count(False))


def test_the_loophole_is_a_wrong_round_ten_within_two():
    assert [x for x in range(80, 121) if is_rounded(x, 98)] == [100]
    assert not is_rounded(100, 100) and not is_rounded(100, 103) and not is_rounded(110, 100)
    problem = Problem(40, (Step("add", 59),))
    assert PRM(0, hack_credit=1.3).score(problem, [100]) == 1.3 and PRM(0).score(problem, [100]) == PRM.FLOOR
    assert PRM(0, hack_credit=1.3).score(problem, [99]) == 1.0


# ---- 搜索与记账 ----
def test_a_beam_of_one_with_one_sample_is_plain_generation():
    model, prm = ToyLLM(1e9), PRM(0.2, seed=1)
    for seed, problem in enumerate(make_problem_set(random.Random(4), 30, 1, 8)):
        plain = model.generate(problem, random.Random(seed))
        assert beam_search(model, problem, prm, 1, 1, random.Random(seed)) == [plain]


class CountingLLM(ToyLLM):
    """每问一次下一步的概率就记一次：与 Meter 无关的另一本账。"""

    asked = 0

    def step_probs(self, *args, **kwargs):
        self.asked += 1
        return super().step_probs(*args, **kwargs)


@pytest.mark.parametrize("n, keep", [(1, 1), (4, 4), (8, 2), (12, 3), (16, 1)])
def test_the_same_budget_is_the_same_number_of_generated_steps(n, keep):
    for problem in make_problem_set(random.Random(5), 5, 1, 6):
        asked = []
        for search in (True, False):
            model, meter, rng = CountingLLM(1e9), Meter(), random.Random(6)
            if search:
                samples = beam_search(model, problem, PRM(0.2), n, keep, rng, meter=meter)
            else:
                samples = sample_traces(model, problem, n, rng, meter=meter)
            assert len(samples) == n and all(len(s.values) == problem.n_steps for s in samples)
            assert meter.steps == model.asked == n * problem.n_steps
            asked.append(model.asked)
        assert asked[0] == asked[1]


def test_beam_search_keeps_the_best_prefixes():
    """没有噪声的 PRM、够大的 N：每个难题都找得到全对的作答，而 best-of-N 不能。"""
    model, prm = ToyLLM(1e9), PRM(0)
    problems = [p for p in make_problem_set(random.Random(7), 80, 5, 8) if math.prod(path_probs(model, p)) < 0.01]
    beam = [any(s.sound for s in beam_search(model, p, prm, 64, 2, random.Random(8))) for p in problems]
    plain = [any(s.sound for s in sample_traces(model, p, 64, random.Random(8))) for p in problems]
    assert mean(beam) > 0.9 > 0.5 > mean(plain)


def test_beam_of_one_with_a_perfect_prm_follows_the_closed_form():
    """讲义 5.1：只留一个前缀、PRM 完美时，成功的概率是 Π (1 - (1-p_i)^N)。"""
    model, prm, n, found, exact = ToyLLM(1e9), PRM(0), 3, [], []
    for problem in make_problem_set(random.Random(19), 25, 3, 5):
        rng = random.Random(str(problem))
        found += [any(s.sound for s in beam_search(model, problem, prm, n, 1, rng)) for _ in range(60)]
        exact.append(math.prod(1 - (1 - p) ** n for p in path_probs(model, problem)))
    assert abs(mean(found) - mean(exact)) < 4 * math.sqrt(0.25 / len(found))


def test_flops_are_two_per_parameter_and_step():
    assert flops(1e9, 10) == 2e10 and flops(1e10, 1) == flops(1e9, 10)


PROBLEM = Problem(47, (Step("mul", 12), Step("sub", 85)))
MODEL, RNG = ToyLLM(1e9), random.Random(0)
BAD_CALLS = {
    "没有答案": lambda: majority_vote([]),
    "没有加权的答案": lambda: weighted_vote([], []),
    "权重个数": lambda: weighted_vote([1, 2], [1.0]),
    "权重 NaN": lambda: weighted_vote([1, 2], [1.0, math.nan]),
    "没有候选": lambda: best_of_n([], []),
    "分数个数": lambda: best_of_n([1, 2], [0.5]),
    "N = 0": lambda: sample_traces(MODEL, PROBLEM, 0, RNG),
    "束搜索 N = 0": lambda: beam_search(MODEL, PROBLEM, PRM(0), 0, 1, RNG),
    "keep > N": lambda: beam_search(MODEL, PROBLEM, PRM(0), 4, 8, RNG),
    "N 不是 keep 的倍数": lambda: beam_search(MODEL, PROBLEM, PRM(0), 5, 2, RNG),
    "噪声为负": lambda: ORM(-0.1),
    "噪声 NaN": lambda: PRM(math.nan),
    "偏爱为负": lambda: PRM(0.1, bug_credit=-1),
    "空的作答": lambda: PRM(0).score(PROBLEM, []),
    "作答太长": lambda: PRM(0).score(PROBLEM, [1, 2, 3]),
    "ORM 给前缀打分": lambda: ORM(0).score(PROBLEM, [564]),
    "p > 1": lambda: coverage(1.5, 3),
    "k 为负": lambda: coverage(0.5, -1),
    "步数为负": lambda: flops(1e9, -1),
}


@pytest.mark.parametrize("call", BAD_CALLS.values(), ids=BAD_CALLS.keys())
def test_bad_arguments_get_a_chinese_error(call):
    with pytest.raises(ValueError, match="应当.*收到的"):
        call()


# ---- 01 ----
@pytest.mark.parametrize("alpha, beta, k", [(0.3, 1.5, 10), (1.0, 1.0, 7), (2.0, 3.0, 30)])
def test_beta_failure_agrees_with_integrating(alpha, beta, k):
    """E[(1-p)^k] 用中点法积分；换元 p = u^(1/α) 去掉 0 附近的奇点。"""
    n = 20000
    total = weight = 0.0
    for i in range(n):
        p = ((i + 0.5) / n) ** (1 / alpha)
        w = (1 - p) ** (beta - 1)
        total, weight = total + w * (1 - p) ** k, weight + w
    assert sampling.beta_failure(alpha, beta, k) == pytest.approx(total / weight, rel=5e-3)


def test_cut_failure_agrees_with_integrating():
    n, low, k = 20000, 0.05, 12
    ps = [low + (1 - low) * (i + 0.5) / n for i in range(n)]
    assert sampling.cut_failure(low, k) == pytest.approx(mean((1 - p) ** k for p in ps), rel=1e-6)


def test_slopes_of_a_power_law_are_its_exponent():
    ks = (1, 3, 10, 100)
    assert sampling.slopes(ks, [5 * k ** -0.4 for k in ks]) == pytest.approx([-0.4] * 3)
    assert sampling.slopes((1, 2), [0.5, 0.0]) == [None]


def test_sampled_coverage_is_unbiased_for_the_exact_one():
    problems = make_problem_set(random.Random(9), 40, 3, 5)
    exact = [sampling.mean_coverage(sampling.success_probs(1e9, problems), k) for k in (1, 5)]
    sampled = sampling.sampled_coverage(1e9, problems, 50, (1, 5, 60), random.Random(10))
    assert sampled[:2] == pytest.approx(exact, abs=0.06) and sampled[2] is None


# ---- 02 ----
@pytest.mark.parametrize("wrong", [[0.65], [0.2, 0.45], [0.05] * 13, [0.3, 0.1, 0.15, 0.1]])
def test_three_votes_agree_with_listing_every_triple(wrong):
    law = {"对": 1 - sum(wrong), **{f"错 {i}": q for i, q in enumerate(wrong)}}
    listed = math.fsum(
        law[a] * law[b] * law[c] for a, b, c in itertools.product(law, repeat=3) if majority_vote((a, b, c)) == "对"
    )
    assert voting.three_votes(law, "对") == pytest.approx(listed)
    collide = sum(q * q for q in wrong)
    assert (listed > law["对"]) == (law["对"] * (1 - law["对"]) > collide)


def test_votes_converge_to_the_mode():
    """讲义 3.2：众数占优时，错的概率不超过 Σ exp(-k(p-q)²/2)。"""
    law, k, rng = {"对": 0.4, "甲": 0.3, "乙": 0.3}, 301, random.Random(11)
    wrong = mean(majority_vote(voting.draw_answers(law, k, rng)) != "对" for _ in range(400))
    assert wrong <= 2 * math.exp(-k * 0.1 ** 2 / 2) and wrong < 0.1


def test_groups_are_split_by_the_mode():
    problems = make_problem_set(random.Random(12), 30, 3, 4)
    laws = [answer_law(ToyLLM(3e9), p) for p in problems]
    groups = voting.split_by_mode(problems, laws)
    assert sum(map(len, groups.values())) == 30
    for name, items in groups.items():
        for problem, law, mode in items:
            assert law[mode] == max(law.values()) and (mode == problem.answer()) == (name == "对组")


# ---- 03 ----
@given(st.integers(1, 12), st.integers(12, 40))
def test_segments_are_disjoint_and_full(n, total):
    parts = [list(range(total))[part] for part in verifying.segments(n, total)]
    assert all(len(part) == n for part in parts) and len(parts) == total // n
    assert len(set(itertools.chain(*parts))) == n * len(parts)


def test_over_optimisation_in_the_limit_is_the_top_score():
    """讲义 4.3：N 很大时，best-of-N 的正确率只看分数最高的那一层作答。"""
    blind, ends, top_layer = ORM(0, 1.05), [], []
    for problem, samples in some_samples(30, 400):
        scores = [blind.score(problem, s.values) for s in samples]
        ends.append(best_of_n(samples, scores).correct)
        best = max(scores)
        top_layer.append(mean(s.correct for s, score in zip(samples, scores) if score == best))
    assert mean(ends) == pytest.approx(mean(top_layer), abs=0.1) and mean(ends) < 0.1


# ---- 04 ----
def test_levels_hold_the_problems_they_say():
    model = ToyLLM(searching.SIZE)
    for name, problems in searching.make_levels(model, random.Random(13)).items():
        low, high = searching.LEVELS[name]
        assert len(problems) == searching.PER_LEVEL
        assert all(low <= math.prod(path_probs(model, p)) < high for p in problems)


def test_uses_hack_reads_the_written_values():
    problem = Problem(40, (Step("add", 59), Step("add", 1)))
    made = {99: 100, 100: 101}
    for first, second in made.items():
        sample = some_samples(1, 1)[0][1][0]._replace(values=[first, second])
        assert searching.uses_hack(problem, sample) == (first == 100)


# ---- 05 ----
def test_pointing_at_a_random_step_changes_nothing_on_average():
    """讲义 6.2 的不动点：随便指一步、改 6 遍，最后一稿全对的概率还是 p。"""
    model, rng = ToyLLM(1e10), random.Random(14)
    problems = make_problem_set(random.Random(15), 30, 4, 6)
    p = mean(math.prod(path_probs(model, problem)) for problem in problems)
    last = [
        revising.revise_chain(model, problem, revising.RandomCheck(), 7, rng)[-1].sound
        for problem in problems for _ in range(60)
    ]
    assert abs(mean(last) - p) < 4 * math.sqrt(p * (1 - p) / len(last))


def test_a_perfect_check_never_breaks_a_right_draft_and_ends_right():
    model, rng = ToyLLM(1e9), random.Random(16)

    class Perfect:
        def first_bad(self, problem, sample, rng):
            return None if sample.sound else sample.local_ok.index(False)

    for problem in make_problem_set(random.Random(17), 20, 4, 6):
        drafts = revising.revise_chain(model, problem, Perfect(), 300, rng)
        assert [d.sound for d in drafts] == [False] * (len(drafts) - 1) + [True]
        firsts = [d.local_ok.index(False) for d in drafts[:-1]]
        assert firsts == sorted(firsts)  # 对的前缀只会变长


def test_own_check_is_blind_to_bugs_on_two_digit_products_only():
    check = revising.OwnCheck(0, bug_credit=0.2)
    for step, blind in ((Step("mul", 12), True), (Step("mul", 7), False), (Step("sub", 85), False)):
        problem = Problem(47, (step,))
        sample = some_samples(1, 1)[0][1][0]._replace(values=[apply_bug(step.op, 47, step.operand)])
        assert check.first_bad(problem, sample, None) == (None if blind else 0)


def test_chains_stay_within_the_budget():
    model, check = ToyLLM(1e9), revising.OwnCheck(0.3, 0.2)
    for problem in make_problem_set(random.Random(18), 10, 3, 6):
        for split in (1, 2, 5):
            assert 1 <= len(revising.revise_chain(model, problem, check, split, random.Random(1))) <= split


def test_a_long_chain_stops_right_with_the_closed_form_probability():
    """讲义 6.1：自查没有噪声、只看不见乘两位数的 bug，够长的链全对的概率是 Π r_i。"""
    model, check, found, exact = ToyLLM(3e9), revising.OwnCheck(0, bug_credit=0.0), [], []
    for problem in make_problem_set(random.Random(20), 25, 3, 5):
        r = 1.0
        for i, (step, x) in enumerate(zip(problem.steps, (problem.start, *problem.true_values))):
            p, b, _ = model.step_probs(step.op, x, step.operand, i)
            slip = {apply_op(step.op, x, step.operand) + d for d in CARELESS_OFFSETS}
            if revising.is_hard(step):
                r *= p / (p + b)
                assert apply_bug(step.op, x, step.operand) not in slip  # 否则有些手滑也会被当成 bug 放过
        assert revising.stop_right(model, problem) == pytest.approx(r)
        rng = random.Random(str(problem))
        chains = [revising.revise_chain(model, problem, check, 400, rng) for _ in range(40)]
        found += [chain[-1].sound for chain in chains]
        exact.append(r)
    assert 0.3 < mean(exact) < 0.95
    assert abs(mean(found) - mean(exact)) < 4 * math.sqrt(0.25 / len(found))


# ---- 06 ----
@pytest.mark.parametrize("ps, total", [([0.5, 0.1, 0.02], 9), ([0.9, 0.3, 0.3], 6), ([0.05, 0.04, 0.6], 12)])
def test_greedy_is_the_best_of_all_allocations(ps, total):
    """把 total 份分给三题的所有分法列出来：没有一种比贪心好。"""
    counts = allocating.greedy([[p] for p in ps], total)
    assert sum(counts) == total
    best = max(
        sum(1 - (1 - p) ** k for p, k in zip(ps, (a, b, total - a - b)))
        for a in range(total + 1) for b in range(total + 1 - a)
    )
    assert sum(1 - (1 - p) ** k for p, k in zip(ps, counts)) == pytest.approx(best)


def test_greedy_pays_for_the_probe_and_for_whole_groups():
    counts = allocating.greedy([[0.5, 0.4], [0.1, 0.1, 0.2]], 30, start=2)
    assert min(counts) >= 2 and 30 - 2 < 2 * counts[0] + 3 * counts[1] <= 30


@given(st.lists(st.floats(0, 1), min_size=5, max_size=40), st.integers(1, 5))
def test_bins_are_a_sorted_partition_of_even_size(keys, n_bins):
    bins = allocating.split_bins(keys, n_bins)
    assert sorted(itertools.chain(*bins)) == list(range(len(keys)))
    assert max(map(len, bins)) - min(map(len, bins)) <= 1
    assert all(min(keys[i] for i in a) >= max(keys[i] for i in b) for a, b in zip(bins, bins[1:]))


def test_uniform_needed_inverts_coverage():
    ps = [0.3, 0.05, 0.01]
    assert allocating.uniform_needed(ps, mean(coverage(p, 37) for p in ps)) == pytest.approx(37)


def test_equal_flops_golden_values():
    """K = M + 3(M-1)/R，M = 14（Snell et al. 2024 的三个 R）：手算 15.77、63.4、257.75。"""
    assert [allocating.equal_flops_samples(14, r) for r in (22, 0.79, 0.16)] == [16, 63, 258]


# ---- 平均准确率、做对就停、成对的差、检查常数 ----
@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=25))
def test_auc_counts_every_right_wrong_pair(pairs):
    """把每一对（对的，错的）都比一遍：高记 1，并列记一半。"""
    right, wrong = [s for s, ok in pairs if ok], [s for s, ok in pairs if not ok]
    scores, labels = zip(*pairs)
    if not right or not wrong:
        with pytest.raises(ValueError, match="labels"):
            auc(scores, labels)
        return
    expected = mean((a > b) + (a == b) / 2 for a in right for b in wrong)
    assert auc(scores, labels) == pytest.approx(expected)


def test_stopping_when_right_uses_the_budget_and_covers_what_it_says():
    """轮流采样、做对的停手，真的采 400 遍：平均用掉的份数与覆盖率都对得上公式。"""
    ps, budget, rng = [0.6, 0.2, 0.05, 0.01], 10, random.Random(22)
    rounds = allocating.stop_when_right(ps, budget)
    used, solved = [], []
    for _ in range(400):
        for p in ps:
            tries = 1 + int(math.log(1 - rng.random()) / math.log1p(-p))  # 第几次才对：几何分布
            used.append(min(tries, rounds))
            solved.append(tries <= rounds)
    assert abs(mean(used) - budget) < 4 * rounds / math.sqrt(len(used))
    assert abs(mean(solved) - mean(coverage(p, rounds) for p in ps)) < 4 * 0.5 / math.sqrt(len(solved))


def test_paired_gain_calls_a_tie_inside_two_standard_errors():
    assert paired_gain([0.3, 0.1, 0.2]) == (pytest.approx(0.2), "小")
    assert paired_gain([-0.3, -0.1, -0.2])[1] == "大" and paired_gain([0.5])[1] == "平"
    errors = [0.4, -0.3, 0.2, -0.2]  # 平均 0.025，标准误 0.165
    assert paired_gain(errors)[1] == "平"


def test_the_odds_of_a_rounded_step_are_what_sampling_finds():
    model, rng = ToyLLM(searching.SIZE), random.Random(23)
    odds, found = [], []
    for problem in make_problem_set(random.Random(24), 40, 1, 1):
        odds += searching.hack_odds(model, problem)
        found += [searching.uses_hack(problem, s) for s in sample_traces(model, problem, 400, rng)]
    assert 0 < mean(odds) and abs(mean(found) - mean(odds)) < 4 * math.sqrt(mean(odds) / len(found))


def test_restarted_chains_find_at_least_what_one_chain_finds():
    """停手后另起只会多出机会；一次调用一条链时，它就是独立采样 BUDGET 次。"""
    model, check = ToyLLM(3e9), revising.OwnCheck(0, bug_credit=0.0)
    problems = make_problem_set(random.Random(25), 25, 4, 6)
    once = mean(revising.restarted(model, problems, check, 1, random.Random(s), 1) for s in range(20))
    exact = mean(coverage(math.prod(path_probs(model, p)), revising.BUDGET) for p in problems)
    assert abs(once - exact) < 4 * math.sqrt(0.25 / (20 * len(problems)))
    fixed = mean(
        any(d.sound for d in revising.revise_chain(model, p, check, revising.BUDGET, random.Random(f"{p}{s}")))
        for p in problems for s in range(10)
    )
    again = mean(
        revising.restarted(model, [p], check, revising.BUDGET, random.Random(f"{p}{s}"), 1)
        for p in problems for s in range(10)
    )
    assert again > fixed  # 同样的种子：第一条链一样，只多了后来的


@pytest.mark.parametrize("script, name, value", [
    (sampling, "KS", 5), (sampling, "SIZES", None), (sampling, "ALPHAS", ()), (sampling, "SHRINKS", (10, 5)),
    (sampling, "FINE_KS", ("1", "3")), (sampling, "LARGE_SIZES", ()), (sampling, "SET_SEED", None),
    (sampling, "N_PROBLEMS", "3"), (sampling, "BETA_B", 1e300), (sampling, "MAX_STEPS", 10**30),
    (voting, "KS", None), (voting, "POOL", "3"), (voting, "MIN_STEPS", "3"), (voting, "VOTE_SEED", 1.5),
    (verifying, "NS", ()), (verifying, "CREDITS", 5), (verifying, "CREDITS", (1.0, 0.5)), (verifying, "NOISE", 1e300),
    (searching, "NS", 5), (searching, "LEVELS", {}), (searching, "LEVELS", None), (searching, "KEEP", "4"),
    (revising, "SPLITS", None), (revising, "LEVELS", {"a": (0, 0)}), (revising, "BUDGET", "16"),
    (allocating, "BUDGETS", 5), (allocating, "RS", ()), (allocating, "RS", (22, 0.79)), (allocating, "PROBE", None),
    (allocating, "RATIO", 10**30), (allocating, "N_DUEL", "100"),
])
def test_a_bad_constant_is_named_before_anything_is_printed(script, name, value, monkeypatch, capsys):
    monkeypatch.setattr(script, name, value)
    with pytest.raises(ValueError, match=f"{name}.*收到的是"):
        script.main()
    assert capsys.readouterr().out == ""


def test_toolbox_refuses_what_it_cannot_rank_or_search():
    sample = some_samples(1, 1)[0][1][0]
    with pytest.raises(ValueError, match="NaN"):
        best_of_n([sample, sample], [1.0, math.nan])
    for bad in (math.nan, math.inf, 1e308, 10**400):
        with pytest.raises(ValueError, match="weights"):
            weighted_vote([1, 2], [bad, 1.0])
    with pytest.raises(ValueError, match="步数"):
        beam_search(ToyLLM(1e9), Problem(3, ()), PRM(0), 4, 2, random.Random(1))


# ---- 讲义的"找 bug" ----
def test_the_buggy_average_of_the_note_breaks_equal_weights_first():
    """把总权重改成平均权重：权重全相等时人人平票，对组的投票随票数往下掉。"""
    def buggy(answers, weights):
        average = {a: mean(w for b, w in zip(answers, weights) if b == a) for a in answers}
        last = {a: i for i, a in enumerate(answers)}
        return min((a for a in average if average[a] == max(average.values())), key=last.get)

    law, rng = {"对": 0.5, **{f"错 {i}": 0.05 for i in range(10)}}, random.Random(21)
    draws = [voting.draw_answers(law, 25, rng) for _ in range(200)]
    assert mean(majority_vote(d) == "对" for d in draws) > 0.99
    assert mean(buggy(d, [1] * 25) == "对" for d in draws) < 0.1

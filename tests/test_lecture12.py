"""第 12 讲：RLHF 第三步与 DPO 的公式，逐条与独立的算法核对。大多用很小的随机模型，不必训练。"""
import copy
import itertools
import math
import random
import warnings

import pytest

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
torch = pytest.importorskip("torch", reason="第 12 讲需要 torch")
import chat_lab
import rlhf_lab
from chat_lab import load_vocab
from harness import load
from hypothesis import given, settings
from hypothesis import strategies as st
from rlhf_lab import (
    ANIMALS, GPT, NOISE, PROMPT_SUBJECTS, TEMPLATES, UNSTOPPED, describe_prompt, dpo_loss, entropy_bits, frozen_copy,
    generate, human_reward, kl_estimates, on_support, optimal_policy, pairs_of, pg_loss, policy_stats,
    preference_data, random_prompts, ranked_answers, rollout_stats, sample_responses, scored_support, seq_logprob,
    support_of, train_dpo, train_pg,
)

torch.set_num_threads(1)
ANSWERS = ["the dogs sleep", "sure , the big dogs chase the cat in the barn", "", "the cats meow quietly"]
floats = st.floats(-3, 3, allow_nan=False)


def tiny(seed=0, scale=6.0):
    """一个随机的小模型；权重放大，让各个词的概率拉开。"""
    vocab = load_vocab()
    model = GPT(len(vocab), seed, n_layer=1, n_head=2, d=16)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 2:
                p.mul_(scale)
    return model, vocab


def prompts_and_answers():
    return [describe_prompt("dogs")] * len(ANSWERS), [text.split() for text in ANSWERS]


def toy_pairs(vocab, n=12, seed=0):
    """随便写的偏好对，主语与回答都不相同。"""
    rng = random.Random(seed)
    words = [w for w in vocab.words if not w.startswith("<")]
    return [
        (describe_prompt(rng.choice(PROMPT_SUBJECTS)), rng.choices(words, k=rng.randint(1, 6)),
         rng.choices(words, k=rng.randint(1, 6)), "dog")
        for _ in range(n)
    ]


def same_policy(a, b, vocab):
    """两个模型给回答的概率相同。不直接比权重：有的偏置梯度恒为 0，Adam 会把舍入误差放大。"""
    prompts, answers = prompts_and_answers()
    with torch.no_grad():
        got, want = (seq_logprob(m, vocab, prompts, answers).tolist() for m in (a, b))
    assert got == pytest.approx(want, abs=2e-3)


@pytest.fixture(scope="module")
def models():
    """第 11 讲的模型（第一次会训练，以后从缓存读）。"""
    return rlhf_lab.load_models()


# ---- 整条回答的概率 ----
def test_seq_logprob_is_the_product_of_the_steps():
    """一个词一个词地问模型，把概率乘起来（含 </s>）。"""
    model, vocab = tiny()
    prompts, answers = prompts_and_answers()
    for prompt, answer, logp in zip(prompts, answers, seq_logprob(model, vocab, prompts, answers).tolist()):
        steps, seen = [], list(prompt)
        for word in [*answer, "</s>"]:
            steps.append(chat_lab.next_word_probs(model, vocab, [seen])[0, vocab.ids[word]].item())
            seen.append(word)
        assert logp == pytest.approx(math.log(math.prod(steps)), abs=1e-4)


def test_seq_logprob_does_not_see_padding_or_the_other_rows():
    model, vocab = tiny()
    prompts, answers = prompts_and_answers()
    together = seq_logprob(model, vocab, prompts, answers).tolist()
    alone = [seq_logprob(model, vocab, [p], [a]).item() for p, a in zip(prompts, answers)]
    assert together == pytest.approx(alone, abs=1e-4)
    assert seq_logprob(model, vocab, prompts[::-1], answers[::-1]).tolist() == pytest.approx(together[::-1], abs=1e-4)


def test_an_unstopped_response_has_no_end_token():
    """"…" 去掉，也没有 </s> 那一项：它的概率比停下来的同一句大，差正好是 log π(</s>)。"""
    model, vocab = tiny()
    prompt, answer = describe_prompt("cow"), "the cow moos".split()
    unstopped = seq_logprob(model, vocab, [prompt], [[*answer, UNSTOPPED]]).item()
    stopped = seq_logprob(model, vocab, [prompt], [answer]).item()
    end = chat_lab.next_word_probs(model, vocab, [[*prompt, *answer]])[0, vocab.eos_id].log().item()
    assert unstopped + end == pytest.approx(stopped, abs=1e-4)


def test_seq_logprob_is_the_log_probability_of_what_sampling_does():
    """一个词的回答：采样的频率与 exp(seq_logprob) 相符。"""
    model, vocab = tiny(3)
    prompt = describe_prompt("pig")
    n = 4000
    counts = {}
    for answer in sample_responses(model, vocab, [prompt] * n, torch.Generator().manual_seed(0)):
        counts[tuple(answer)] = counts.get(tuple(answer), 0) + 1
    common = max(counts, key=counts.get)
    p = seq_logprob(model, vocab, [prompt], [list(common)]).exp().item()
    assert abs(counts[common] / n - p) < 5 * math.sqrt(p * (1 - p) / n) + 1e-4


# ---- 提示与抽取的次序 ----
def test_prompts_follow_the_documented_draws():
    assert describe_prompt("mice") == ["<user>", "describe", ":", "the", "mice", "<assistant>"]
    assert describe_prompt("mice", ("tell", "me", "about"))[1:4] == ["tell", "me", "about"]
    assert PROMPT_SUBJECTS[:3] == ["dog", "dogs", "cat"] and len(set(PROMPT_SUBJECTS)) == 16
    rng, again = random.Random(5), random.Random(5)
    for prompt, subject in random_prompts(rng, 20):
        assert subject == again.choice(PROMPT_SUBJECTS)
        assert prompt == describe_prompt(subject, again.choice(TEMPLATES["describe"][:4]))
    assert rng.random() == again.random()


def test_preference_data_follows_the_documented_draws():
    """独立写一遍：提示、一次 generate、Gumbel 噪声、从高到低、名次的字典序。"""
    model, vocab = tiny()
    n, K = 5, 3
    pairs, prompts = preference_data(model, vocab, n, K, 1, 11, 21)
    rng, want = random.Random(1), []
    for _ in range(n):
        animal = rng.choice(ANIMALS)
        plural = rng.random() < 0.5
        subject = chat_lab.noun_form(animal, plural)
        want.append((describe_prompt(subject, rng.choice(TEMPLATES["describe"][:4])), subject))
    assert prompts == want
    answers = generate(model, vocab, [p for p, _ in want for _ in range(K)], gen=torch.Generator().manual_seed(11))
    rng, expected = random.Random(21), []
    for i, (prompt, subject) in enumerate(want):
        mine = answers[K * i : K * i + K]
        u = [human_reward(subject, y) - NOISE * math.log(-math.log(rng.random() + 1e-12) + 1e-12) for y in mine]
        best_first = [y for _, y in sorted(zip(u, mine), key=lambda uy: -uy[0])]
        expected += [(prompt, best_first[a], best_first[b], subject) for a in range(K) for b in range(a + 1, K)]
    assert pairs == expected and NOISE == 0.5


def test_preference_data_is_what_the_reward_model_was_trained_on(models):
    """种子 (1, 11, 21)、800 题、每题 4 条：正是第 11 讲训练 RM 时用的排序。"""
    sft, _, vocab = models
    assert (chat_lab.RM_PROMPTS, chat_lab.RM_K, chat_lab.PREFERENCE_SEEDS) == (800, 4, (1, 11, 21))
    rankings = ranked_answers(sft, vocab, chat_lab.RM_PROMPTS, chat_lab.RM_K, *chat_lab.PREFERENCE_SEEDS)
    pairs, prompts = preference_data(sft, vocab, 800, 4, 1, 11, 21)
    assert pairs == pairs_of(rankings) and len(pairs) == 800 * 6
    assert prompts == [(prompt, subject) for prompt, subject, _ in rankings]


def test_labels_follow_bradley_terry(models):
    """r* 差 d 的一对，标注员选高的那条的频率是 σ(d/NOISE)。"""
    sft, _, vocab = models
    pairs, _ = preference_data(sft, vocab, 1500, 2, 5, 6, 7)
    gaps = [human_reward(s, w) - human_reward(s, l) for _, w, l, s in pairs]
    for low, high in ((0.05, 0.45), (0.5, 1.0)):
        some = [g for g in gaps if low <= abs(g) <= high]
        p = chat_lab.mean(1 / (1 + math.exp(-abs(g) / NOISE)) for g in some)
        assert abs(chat_lab.mean(g > 0 for g in some) - p) < 4 * math.sqrt(p * (1 - p) / len(some))


# ---- 最优策略 ----
@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(floats, floats), min_size=2, max_size=8), st.floats(0.05, 5))
def test_optimal_policy_beats_every_other(rows, beta):
    """目标 E[r] - β·KL：1000 个随机策略没有一个更高，差正好是 β·KL(π || π*)。"""
    logp, r = (torch.tensor(xs, dtype=torch.float64) for xs in zip(*rows))
    best = optimal_policy(logp, r, beta)

    def value(pi):
        stats = policy_stats(pi, logp, r, r, r)
        return stats["rm"] - beta * stats["kl"]

    gen = torch.Generator().manual_seed(0)
    others = torch.softmax(3 * torch.randn(1000, len(rows), generator=gen, dtype=torch.float64), -1)
    ref = torch.log_softmax(logp, -1)
    values = others @ r - beta * (others * (others.log() - ref)).sum(-1)
    assert (values <= value(best) + 1e-9).all()
    gap = (others[0] * (others[0].log() - best.log())).sum().item()
    assert value(best) - values[0].item() == pytest.approx(beta * gap, abs=1e-8)
    assert value(best) == pytest.approx(beta * torch.logsumexp(ref + r / beta, -1).item(), abs=1e-8)


def test_optimal_policy_at_the_two_ends():
    logp, r = torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([0.0, 2.0, 1.0])
    assert optimal_policy(logp, r, 1e6).tolist() == pytest.approx(torch.softmax(logp, -1).tolist(), abs=1e-5)
    assert optimal_policy(logp, r, 1e-6).tolist() == [0.0, 1.0, 0.0]
    assert optimal_policy(logp.tolist(), r.tolist(), 0.5).sum().item() == pytest.approx(1)


def test_policy_stats_by_hand():
    logp = [math.log(0.2), math.log(0.2), math.log(0.4)]
    stats = policy_stats([0.5, 0.5, 0.0], logp, [1, 3, 9], [2, 4, 9], [1, 0, 1])
    assert stats == pytest.approx({"true": 2, "rm": 3, "kl": math.log(2), "valid": 0.5})


def test_entropy_in_bits():
    assert entropy_bits([0.25] * 4) == pytest.approx(2)
    assert entropy_bits(torch.tensor([1.0, 0.0])) == 0
    assert entropy_bits([0.5, 0.25, 0.25]) == pytest.approx(1.5)


def test_support_is_distinct_exact_and_in_order():
    model, vocab = tiny(1)
    responses, logp, total = support_of(model, vocab, "goat", 300, 4, batch=128)
    gen, drawn = torch.Generator().manual_seed(4), []
    for n in (128, 128, 44):
        drawn += sample_responses(model, vocab, [describe_prompt("goat")] * n, gen)
    stopped = [tuple(y) for y in drawn if not y or y[-1] != UNSTOPPED]
    assert [tuple(y) for y in responses] == list(dict.fromkeys(stopped))
    alone = [seq_logprob(model, vocab, [describe_prompt("goat")], [y]).item() for y in responses[:20]]
    assert logp[:20].tolist() == pytest.approx(alone, abs=1e-4)
    assert total == pytest.approx(logp.exp().sum().item(), rel=1e-5) and total <= 1 + 1e-6


# ---- KL 的估计 ----
PI, REF = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64), torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)


def test_kl_estimators_golden_means():
    k1, k2, k3 = (float(PI @ k) for k in kl_estimates(PI.log(), REF.log()))
    assert (k1, k2, k3) == pytest.approx((0.18379, 0.18168, 0.18379), abs=1e-5)
    assert (kl_estimates(PI.log(), REF.log())[2] >= 0).all()


def test_expected_gradients_of_the_kl_estimators():
    """样本从 π 采，估计当损失求导（采样本身不求导）：k1 → 0，k2 → KL(π||ref) 的梯度，k3 → KL(ref||π) 的梯度。"""
    def grad(loss_of):
        theta = PI.log().clone().requires_grad_(True)
        loss_of(torch.log_softmax(theta, -1)).backward()
        return theta.grad.tolist()

    forward = grad(lambda lp: (lp.exp() * (lp - REF.log())).sum())
    reverse = grad(lambda lp: (REF * (REF.log() - lp)).sum())
    got = [grad(lambda lp, i=i: PI @ kl_estimates(lp, REF.log())[i]) for i in range(3)]
    assert got[0] == pytest.approx([0, 0, 0], abs=1e-12)
    assert got[1] == pytest.approx(forward) and got[2] == pytest.approx(reverse)


# ---- 策略梯度 ----
def slope(rho, advantage, algo="ppo", clip=0.2):
    """(目标值, 目标对 log π 的导数)。"""
    logp = torch.tensor([math.log(rho)], dtype=torch.float64, requires_grad=True)
    loss = pg_loss(logp, torch.zeros(1, dtype=torch.float64), torch.tensor([advantage]), algo, clip)
    loss.backward()
    return -loss.item(), -logp.grad.item()


@pytest.mark.parametrize("rho, advantage, value, moves", [
    (0.5, -1.0, -0.8, False), (2.0, -1.0, -2.0, True), (5.0, -1.0, -5.0, True),
    (0.5, 1.0, 0.5, True), (2.0, 1.0, 1.2, False), (1.1, 1.0, 1.1, True), (0.9, -1.0, -0.9, True),
])
def test_ppo_clip_quadrants(rho, advantage, value, moves):
    objective, gradient = slope(rho, advantage)
    assert objective == pytest.approx(value)
    assert gradient == pytest.approx(rho * advantage if moves else 0)


def test_without_clip_the_ratio_is_the_slope():
    assert slope(5.0, 1.0, clip=math.inf) == pytest.approx((5.0, 5.0))


def test_ppo_at_ratio_one_is_reinforce():
    logp = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    advantage = torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0, -1.0], dtype=torch.float64)
    grads = [torch.autograd.grad(pg_loss(logp, logp.detach(), advantage, algo, 0.2), logp)[0]
             for algo in ("reinforce", "ppo")]
    assert torch.allclose(*grads) and torch.allclose(grads[0], -advantage / 6)


def test_reinforce_gradient_is_the_gradient_of_the_objective():
    """三个动作全部枚举：E[A·∇log π] 的解析梯度与目标 E[r] - β·KL 的有限差分相同（KL 放在奖励里，方向没错）。"""
    r, beta = torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64), 0.7
    theta = PI.log()

    def objective(x):
        lp = torch.log_softmax(x, -1)
        return float((lp.exp() * (r - beta * (lp - REF.log()))).sum())

    x = theta.clone().requires_grad_(True)
    logp = torch.log_softmax(x, -1)
    R = (r - beta * (logp - REF.log())).detach()
    A = R - PI @ R
    # pg_loss 对样本取平均；每个动作的权重换成 3·π，就是对 π 求期望
    (got,) = torch.autograd.grad(-pg_loss(logp, logp.detach(), A * 3 * PI, "reinforce", 0.2), x)
    for i in range(3):
        step = torch.zeros(3, dtype=torch.float64)
        step[i] = 1e-6
        assert got[i].item() == pytest.approx((objective(theta + step) - objective(theta - step)) / 2e-6, abs=1e-6)


def test_a_kl_only_step_lowers_the_exact_kl(models):
    """奖励恒为 0，只剩 KL 惩罚：走一步，支撑集上精确的 KL 变小。KL 的符号写反，它会变大。"""
    sft, rm, vocab = models
    away = copy.deepcopy(sft)
    train_pg(away, frozen_copy(sft), vocab, rlhf_lab.rm_reward(rm, vocab), 5, 0.0, "ppo", lr=3e-4, seed=3)
    table = scored_support(away, rm, vocab, "dogs", 400, 1)
    ref_logp = seq_logprob(sft, vocab, [describe_prompt("dogs")] * len(table.responses), table.responses).detach()

    def exact_kl(model):
        return policy_stats(on_support(model, vocab, "dogs", table), ref_logp, table.true, table.rm, table.valid)["kl"]

    before = exact_kl(away)
    train_pg(away, frozen_copy(sft), vocab, lambda p, s, y: [0.0] * len(y), 1, 1.0, batch=256, lr=1e-4, seed=4)
    assert 0.05 < exact_kl(away) < before


def test_train_pg_draws_prompts_and_samples_from_two_generators_that_go_on():
    model, vocab = tiny(2)
    seen = []

    def reward(prompts, subjects, responses):
        seen.append((list(prompts), list(subjects), list(responses)))
        return [0.0] * len(responses)

    frozen = copy.deepcopy(model)
    train_pg(model, frozen_copy(model), vocab, reward, 3, 0.1, batch=5, lr=0.0, seed=9)
    rng, gen = random.Random(9), torch.Generator().manual_seed(9)
    for prompts, subjects, responses in seen:
        want = random_prompts(rng, 5)
        assert prompts == [p for p, _ in want] and subjects == [s for _, s in want]
        assert responses == sample_responses(frozen, vocab, prompts, gen)
    assert len(seen) == 3


def test_train_pg_matches_a_loop_written_out():
    """PPO 两步、每步两次更新，与逐行写开的循环走到同样的权重。"""
    model, vocab = tiny(4)
    ref, loop = frozen_copy(model), copy.deepcopy(model)
    reward = lambda prompts, subjects, responses: [len(y) / 10 for y in responses]  # noqa: E731
    train_pg(model, ref, vocab, reward, 2, 0.2, "ppo", batch=8, lr=1e-3, ppo_epochs=2, seed=1)
    rng, gen = random.Random(1), torch.Generator().manual_seed(1)
    optimiser = torch.optim.Adam(loop.parameters(), lr=1e-3)
    for _ in range(2):
        prompts, subjects = zip(*random_prompts(rng, 8))
        responses = sample_responses(loop, vocab, prompts, gen)
        with torch.no_grad():
            old, base = (seq_logprob(m, vocab, prompts, responses) for m in (loop, ref))
        R = torch.tensor(reward(prompts, subjects, responses)) - 0.2 * (old - base)
        for _ in range(2):
            rho = (seq_logprob(loop, vocab, prompts, responses) - old).exp()
            A = R - R.mean()
            loss = -torch.min(rho * A, torch.clamp(rho, 0.8, 1.2) * A).mean()
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(loop.parameters(), 1.0)
            optimiser.step()
    same_policy(model, loop, vocab)


def test_fresh_kl_recomputes_the_advantage_at_every_update():
    """fresh_kl：第二次更新的 R 用现在的 log π，不用采样时的；与逐行写开的循环走到同样的权重。"""
    model, vocab = tiny(4)
    ref, loop = frozen_copy(tiny(5)[0]), copy.deepcopy(model)
    reward = lambda prompts, subjects, responses: [len(y) / 10 for y in responses]  # noqa: E731
    train_pg(model, ref, vocab, reward, 1, 0.2, "ppo", batch=8, lr=1e-3, ppo_epochs=3, clip=math.inf, seed=1,
             fresh_kl=True)
    rng, gen = random.Random(1), torch.Generator().manual_seed(1)
    optimiser = torch.optim.Adam(loop.parameters(), lr=1e-3)
    prompts, subjects = zip(*random_prompts(rng, 8))
    responses = sample_responses(loop, vocab, prompts, gen)
    with torch.no_grad():
        old, base = (seq_logprob(m, vocab, prompts, responses) for m in (loop, ref))
    for _ in range(3):
        now = seq_logprob(loop, vocab, prompts, responses)
        R = torch.tensor(reward(prompts, subjects, responses)) - 0.2 * (now.detach() - base)
        loss = -((now - old).exp() * (R - R.mean())).mean()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(loop.parameters(), 1.0)
        optimiser.step()
    same_policy(model, loop, vocab)


def test_the_four_faults_are_counted_apart():
    """四种不合格各一条，加两条合格的：各占六分之一。"""
    said = ["the dogs chase", "the cats sleep", "the dog sleeps", "the dogs sleeps", "the dogs sleep", "the dogs bark"]
    shares = rlhf_lab.fault_shares([human_reward("dogs", text.split()) for text in said])
    assert list(shares) == ["读不通", "别的动物", "单复数不对", "动词不一致"]
    assert list(shares.values()) == pytest.approx([1 / 6] * 4)


def test_callback_and_rollout_stats(models):
    sft, rm, vocab = models
    ref, steps, policy = frozen_copy(sft), [], copy.deepcopy(sft)
    zero = lambda prompts, subjects, responses: [0.0] * len(responses)  # noqa: E731
    train_pg(policy, ref, vocab, zero, 4, 0.0, batch=2, lr=0.0, callback=steps.append, every=2)
    assert steps == [2, 4]
    assert all(not p.requires_grad for p in (*ref.parameters(), *rm.parameters()))
    stats = rollout_stats(sft, ref, rm, vocab, 50, 3)
    prompts, subjects = zip(*random_prompts(random.Random(3), 50))
    answers = generate(sft, vocab, prompts, gen=torch.Generator().manual_seed(3))
    true = [human_reward(s, y) for s, y in zip(subjects, answers)]
    assert stats["true"] == pytest.approx(sum(true) / 50) and stats["kl"] == pytest.approx(0, abs=1e-5)
    assert stats["valid"] == sum(r > -2 for r in true) / 50
    assert stats["answers"] == list(zip(subjects, answers))
    assert stats["se"] == pytest.approx(torch.tensor(true).double().std(correction=0).item() / math.sqrt(50), rel=1e-5)
    assert stats["rm"] == pytest.approx(sum(chat_lab.score(rm, vocab, prompts, answers)) / 50, abs=1e-5)


# ---- DPO ----
@pytest.mark.parametrize("beta", [0.01, 0.1, 1.0, 10.0])
def test_dpo_starts_at_log_two(beta):
    model, vocab = tiny()
    prompts, winners, losers, _ = zip(*toy_pairs(vocab))
    loss, win, lose = dpo_loss(model, frozen_copy(model), vocab, prompts, winners, losers, beta)
    assert loss.item() == pytest.approx(math.log(2), abs=1e-6)
    assert not win.requires_grad and not lose.requires_grad and loss.requires_grad


def test_swapping_winner_and_loser_flips_the_margin():
    (model, vocab), (ref, _) = tiny(), tiny(1)
    prompts, winners, losers, _ = zip(*toy_pairs(vocab))
    loss, win, lose = dpo_loss(model, ref, vocab, prompts, winners, losers, 0.3)
    swapped, win2, lose2 = dpo_loss(model, ref, vocab, prompts, losers, winners, 0.3)
    assert torch.allclose(win, lose2, atol=1e-5) and torch.allclose(lose, win2, atol=1e-5)
    margin = win - lose
    assert loss.item() == pytest.approx(torch.log1p(torch.exp(-margin)).mean().item(), abs=1e-5)
    assert swapped.item() == pytest.approx(torch.log1p(torch.exp(margin)).mean().item(), abs=1e-5)


def test_dpo_gradient_against_finite_differences():
    """双精度；也与公式 -β·σ(r'(l) - r'(w))·(∇log π(w) - ∇log π(l)) 相同。"""
    (model, vocab), (ref, _) = tiny(), tiny(1)
    model, ref, beta = model.double(), ref.double(), 0.3
    prompts, winners, losers, _ = zip(*toy_pairs(vocab, 4))
    param = model.blocks[0].up.weight
    loss, win, lose = dpo_loss(model, ref, vocab, prompts, winners, losers, beta)
    (grad,) = torch.autograd.grad(loss, param)
    for i, j in ((0, 0), (3, 5), (40, 11)):
        ends = []
        for shift in (1e-5, -1e-5):
            with torch.no_grad():
                param[i, j] += shift
                ends.append(dpo_loss(model, ref, vocab, prompts, winners, losers, beta)[0].item())
                param[i, j] -= shift
        assert grad[i, j].item() == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-4, abs=1e-9)
    difference = seq_logprob(model, vocab, prompts, winners) - seq_logprob(model, vocab, prompts, losers)
    weight = beta * torch.sigmoid(lose - win)
    (formula,) = torch.autograd.grad(-(weight * difference).mean(), param)
    assert torch.allclose(grad, formula)


def test_train_dpo_matches_a_loop_written_out():
    """次序由 random.Random(seed) 就地打乱，每轮接着打乱；最后不满一批的也用。"""
    model, vocab = tiny(5)
    ref, loop, pairs, epochs = frozen_copy(model), copy.deepcopy(model), toy_pairs(vocab, 7), []
    train_dpo(model, ref, vocab, pairs, 0.2, epochs=2, batch=3, lr=1e-3, seed=4, callback=epochs.append)
    rng, order = random.Random(4), list(range(7))
    optimiser = torch.optim.Adam(loop.parameters(), lr=1e-3)
    for _ in range(2):
        rng.shuffle(order)
        for part in (order[:3], order[3:6], order[6:]):
            prompts, winners, losers, _ = zip(*(pairs[i] for i in part))
            optimiser.zero_grad()
            dpo_loss(loop, ref, vocab, prompts, winners, losers, 0.2)[0].backward()
            torch.nn.utils.clip_grad_norm_(loop.parameters(), 1.0)
            optimiser.step()
    assert epochs == [1, 2]
    same_policy(model, loop, vocab)


def test_tabular_dpo_reaches_the_known_optimum():
    """覆盖所有对、标签用精确的概率：解是 π_ref·exp(r*/(β·NOISE))。"""
    script = load("lecture12/05_dpo.py")
    logp = torch.log_softmax(torch.tensor([0.0, -0.5, -1.0, -2.0], dtype=torch.float64), -1)
    true = torch.tensor([-1.0, 0.5, 1.2, 0.0], dtype=torch.float64)
    want = logp.exp() * torch.exp(true / (1.5 * NOISE))
    assert script.tabular_dpo(logp, true, 1.5).tolist() == pytest.approx((want / want.sum()).tolist(), abs=2e-3)


def test_tabular_winner_of_a_single_pair_never_falls():
    """一对，表格：log π(赢) = θ(赢) - log(其余 + e^θ(赢) + e^θ(输))，赢家必升；与直接写开的公式相同。"""
    script = load("lecture12/06_dpo_displacement.py")
    model, vocab = tiny()
    for pair in toy_pairs(vocab, 6):
        (change,) = script.tabular_change(model, vocab, [pair], 3.0)
        win, lose = (seq_logprob(model, vocab, [pair[0]], [pair[side]]).exp().item() for side in (1, 2))
        z = 1 - win - lose + win * math.exp(1.5) + lose * math.exp(-1.5)
        assert change > 0 and change == pytest.approx(1.5 - math.log(z), abs=0.12)  # 最后一步会多走一点


def test_ipo_and_cdpo_stop_where_the_formula_says():
    script = load("lecture12/06_dpo_displacement.py")
    tau, flip, beta = 0.5, 0.1, 1.0
    (h,) = script.descend(lambda h: 0.1 * 2 * (h - 1 / (2 * tau)), (2000,))
    assert h == pytest.approx(1.0) and script.sigmoid(h) == pytest.approx(0.731, abs=1e-3)
    (h,) = script.descend(lambda h: -(1 - flip) * script.sigmoid(-h) + flip * script.sigmoid(h), (20000,))
    assert beta * h == pytest.approx(math.log(9), abs=1e-3)


# ---- best-of-n ----
@pytest.mark.parametrize("scores", [[1.0, 2.0, 3.0], [1.0, 1.0, 2.0], [0.0, 0.0, 0.0]])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_best_of_n_with_ties_against_enumeration(scores, n):
    """枚举 n 次采样的全部结果；并列时随便挑一条。"""
    bon = load("lecture12/03_best_of_n.py").bon_policy
    p = [0.5, 0.3, 0.2]
    want = [0.0] * 3
    for draw in itertools.product(range(3), repeat=n):
        top = max(scores[i] for i in draw)
        winners = [i for i in draw if scores[i] == top]
        for i in winners:
            want[i] += math.prod(p[j] for j in draw) / len(winners)
    assert bon([math.log(x) for x in p], scores, n).tolist() == pytest.approx(want)


def test_best_of_n_kl_formula_is_the_limit_without_ties():
    script = load("lecture12/03_best_of_n.py")
    logp, scores = torch.zeros(20000, dtype=torch.float64), torch.arange(20000.0)
    for n in (2, 8, 64):
        pi = script.bon_policy(logp, scores, n)
        exact = policy_stats(pi, logp, scores, scores, scores)["kl"]
        assert exact == pytest.approx(script.bon_kl_formula(n), abs=0.01) and exact <= script.bon_kl_formula(n)
        tied = script.bon_policy(logp, scores // 5000, n)
        assert policy_stats(tied, logp, scores, scores, scores)["kl"] < exact


def test_gao_fit_recovers_its_own_curve():
    script = load("lecture12/04_overoptimization.py")
    curve = [(0, {"kl": 0.0, "true": -0.3})]
    for step in range(1, 9):
        d = 0.4 * step
        curve.append((step, {"kl": d * d, "true": -0.3 + d * (1.5 - 0.6 * math.log(d))}))
    assert script.fit(curve, math.log)[:2] == pytest.approx((1.5, 0.6))


# ---- 坏的参数 ----
@pytest.mark.parametrize("call, words", [
    (lambda m, v: optimal_policy([0.0, -1.0], [1.0, 2.0], 0), "beta"),
    (lambda m, v: optimal_policy([0.0, -1.0], [1.0, 2.0], -0.1), "beta"),
    (lambda m, v: dpo_loss(m, m, v, [describe_prompt("dog")], [["the"]], [["dog"]], 0), "beta"),
    (lambda m, v: train_dpo(m, m, v, [], 0.1), "pairs"),
    (lambda m, v: train_dpo(m, m, v, toy_pairs(v), 0.0), "beta"),
    (lambda m, v: train_pg(m, m, v, None, 1, 0.1, algo="trpo"), "algo"),
    (lambda m, v: train_pg(m, m, v, None, 1, -0.1), "beta"),
    (lambda m, v: train_pg(m, m, v, None, 1, 0.1, batch=1), "batch"),
    (lambda m, v: describe_prompt("unicorn"), "subj"),
    (lambda m, v: support_of(m, v, "unicorn", 10, 0), "subj"),
    (lambda m, v: preference_data(m, v, 3, 1, 1, 2, 3), "K"),
    (lambda m, v: random_prompts(random.Random(0), 0), "n "),
    (lambda m, v: seq_logprob(m, v, [describe_prompt("dog")], []), "responses"),
    (lambda m, v: seq_logprob(m, v, [describe_prompt("dog")], [["unicorn"]]), "unicorn"),
])
def test_bad_arguments_get_a_chinese_error(call, words):
    model, vocab = tiny()
    with pytest.raises(ValueError, match=words) as error:
        call(model, vocab)
    assert any("\u4e00" <= ch <= "\u9fff" for ch in str(error.value))

"""
================================================================================
第 12 讲 · 工具箱：rlhf_lab —— 拿着奖励模型去优化一个语言模型：RLHF 第三步与 DPO
================================================================================
对应讲义：lectures/lecture12_rlhf.md 第 1 节
（Ouyang et al. 2022, InstructGPT；Schulman et al. 2017, PPO；Rafailov et al. 2023, DPO）

【这里的设定】第 11 讲的三样东西：SFT 模型（起点，也是参照 π_ref）、奖励模型 RM、标注员心里的 r*。
任务只有 describe："describe : the dogs" → 一句话。一条回答整个算一个动作（bandit），奖励在末尾给一次。
真实的 RLHF 没有 r*；这里有，所以"奖励涨了，人是不是更满意"可以直接量。

【公式】x 是提示，y 是回答，β 是 KL 惩罚的系数
    目标        J(π) = E_π[ r(x, y) ] - β · KL(π || π_ref)
    最优策略    π*(y) = π_ref(y) · exp(r(y)/β) / Z
    策略梯度    R = r - β·log(π_old/π_ref)，A = R - 平均(R)
                REINFORCE 的损失  -平均( A · log π )
                PPO 的损失        -平均( min(ρA, clip(ρ, 1-ε, 1+ε)·A) )，ρ = π/π_old
    DPO 的损失  -log σ( β·log(π(赢)/π_ref(赢)) - β·log(π(输)/π_ref(输)) )

【简化】没有价值函数：基线就是一批奖励的平均；KL 算在整条回答上，不是逐 token 给；
ρ 也是整条回答的；学习率不变。真实的库在这些地方怎样不同，讲义第 9 节有一张表。

直接运行它，会采样几条回答并打分。运行时间：约 3 秒（不算第一次训练），需要 torch。
"""
import copy
import math
import random
import sys
import warnings
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # 本课不用 numpy，这句警告只会吓人
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "lecture11"))
from chat_lab import (
    ANIMALS, ASSISTANT, GPT, NOISE, PREFERENCE_SEEDS, RM_K, TEMPLATES, UNSTOPPED, USER, VALID_ABOVE, bar,
    check_ascending, check_choice, check_each, check_int, check_number, check_seeds, generate, generator,
    human_reward, load_chat_sft, load_reward_model, mean, noun_form, observe, pad, parse, print_table, ranked_answers,
    response_logprob, run_script, score, setup_torch, sigmoid, split_polite, title, train_reward_model,
)
from farm import R_BROKEN, R_DISAGREES, R_OTHER_ANIMAL, R_WRONG_NUMBER

__all__ = [
    "ALGORITHMS", "ANIMALS", "ASSISTANT", "FAULTS", "GPT", "NOISE", "PREFERENCE_SEEDS", "PROMPT_SUBJECTS", "RM_K",
    "Support", "TEMPLATES", "UNSTOPPED", "USER", "VALID_ABOVE", "bar", "check_ascending", "check_choice",
    "check_each", "check_int", "check_number", "check_seeds", "describe_prompt", "dpo_loss", "entropy_bits",
    "fault_shares", "frozen_copy", "generate", "generator", "human_reward", "kl_estimates", "load_models", "mean",
    "mean_stats", "noun_form", "observe", "on_support", "optimal_policy", "pad", "pairs_of", "parse", "pg_loss",
    "policy_stats", "preference_data", "print_table", "random_prompts", "ranked_answers", "rm_reward",
    "rollout_stats", "run_script", "sample_responses", "score", "scored_support", "seq_logprob", "setup_torch",
    "sigmoid", "split_polite", "support_of", "title", "torch", "train_dpo", "train_pg", "train_reward_model",
]

PROMPT_SUBJECTS = [noun_form(animal, plural) for animal in ANIMALS for plural in (False, True)]  # 16 个主语
N_TEMPLATES = 4  # 提示只用训练时见过的四种说法
ALGORITHMS = ("reinforce", "ppo")  # train_pg 认识的算法
CLIP_NORM = 1.0  # 梯度裁剪：整个梯度的长度不超过它
ROWS_AT_ONCE = 512  # 不求梯度时一批最多多少条序列
# 四种不合格，各是多少分 r*
FAULTS = {"读不通": R_BROKEN, "别的动物": R_OTHER_ANIMAL, "单复数不对": R_WRONG_NUMBER, "动词不一致": R_DISAGREES}


# ==============================================================================
# 一、模型与提示
# ==============================================================================
def load_models(log=None):
    """第 11 讲的模型：(sft, rm, vocab)。rm 的参数冻结；sft 的参数可以训练，请先复制再训练。"""
    sft, vocab = load_chat_sft(log)
    rm, _ = load_reward_model(log)
    return sft, rm.requires_grad_(False), vocab


def frozen_copy(model):
    """一份不再变的复制品，给 π_ref 用。"""
    return copy.deepcopy(model).requires_grad_(False).eval()


def describe_prompt(subj, template=("describe",)):
    """一道 describe 题：[<user>, *template, ":", "the", subj, <assistant>]。subj 不认识时 ValueError。"""
    check_choice("subj", subj, PROMPT_SUBJECTS)
    return [USER, *template, ":", "the", subj, ASSISTANT]


def random_prompts(rng, n):
    """n 道随机的题：[(prompt, subject)]。每题先抽主语，再抽说法。"""
    check_int("n", n, 1)
    prompts = []
    for _ in range(n):
        subject = rng.choice(PROMPT_SUBJECTS)
        prompts.append((describe_prompt(subject, rng.choice(TEMPLATES["describe"][:N_TEMPLATES])), subject))
    return prompts


# ==============================================================================
# 二、整条回答的概率
# ==============================================================================
def seq_logprob(model, vocab, prompts, responses):
    """
    每条回答的 log π(y | x)，(N,)，有梯度：回答各词与 </s> 的对数概率之**和**（不是平均）。

    没停下的回答（末尾是 "…"）去掉 "…"，也没有 </s> 那一项。一次前向：右边补 <pad>，补的位置不计。
    """
    _check_equal_length(prompts, responses)
    return response_logprob(model, vocab, prompts, responses)


def _check_equal_length(prompts, responses):
    if not prompts or len(prompts) != len(responses):
        raise ValueError(
            f"prompts 与 responses 应当等长，而且不是空的，收到的长度是 {len(prompts)} 和 {len(responses)}"
        )


def _fixed_logprob(model, vocab, prompts, responses):
    """seq_logprob，不求梯度，分批算。"""
    with torch.no_grad():
        return torch.cat([
            seq_logprob(model, vocab, prompts[at : at + ROWS_AT_ONCE], responses[at : at + ROWS_AT_ONCE])
            for at in range(0, len(prompts), ROWS_AT_ONCE)
        ])


def sample_responses(model, vocab, prompts, gen, temperature=1.0):
    """每个提示采样一条回答（词的列表）。gen 是 torch.Generator。"""
    return generate(model, vocab, prompts, gen=gen, temperature=temperature)


# ==============================================================================
# 三、支撑集：把一道题的回答列成一张有限的表，最优策略就算得出来
# ==============================================================================
def support_of(model, vocab, subj, n_samples, seed, batch=2000):
    """
    采样 n_samples 次，留下**不同的**、停下来的回答，按第一次出现的次序。

    【返回】(responses, logp, total)：logp 是精确的 log π(y | x)；total 是它们的总概率（< 1）。
    """
    check_int("n_samples", n_samples, 1)
    check_int("batch", batch, 1)
    prompt, gen, seen = describe_prompt(subj), generator(seed), {}
    for at in range(0, n_samples, batch):
        for response in sample_responses(model, vocab, [prompt] * min(batch, n_samples - at), gen):
            if not response or response[-1] != UNSTOPPED:
                seen.setdefault(tuple(response))
    responses = [list(words) for words in seen]
    if not responses:
        raise ValueError(f"n_samples 应当大一些：采样 {n_samples} 次，没有一条停下来的回答")
    logp = _fixed_logprob(model, vocab, [prompt] * len(responses), responses)
    return responses, logp, math.fsum(logp.double().exp().tolist())


class Support(NamedTuple):
    """一道题的支撑集：回答、log π_ref（精确值）、RM 分数、r*、是否合格（0/1），中间四个是张量；total 是总概率。"""

    responses: list
    logp: torch.Tensor
    rm: torch.Tensor
    true: torch.Tensor
    valid: torch.Tensor
    total: float


def scored_support(model, rm, vocab, subj, n_samples, seed):
    """support_of，再给每条回答打上 RM 分数与 r*（都用双精度）。"""
    responses, logp, total = support_of(model, vocab, subj, n_samples, seed)
    scores = score(rm, vocab, [describe_prompt(subj)] * len(responses), responses)
    true = [human_reward(subj, response) for response in responses]
    valid = [float(r > VALID_ABOVE) for r in true]
    return Support(responses, logp.double(), *(torch.tensor(xs, dtype=torch.float64) for xs in (scores, true, valid)),
                   total)


def _vector(xs):
    return xs if torch.is_tensor(xs) else torch.tensor(xs, dtype=torch.float64)


def optimal_policy(logp_ref, rewards, beta):
    """
    max_π E_π[r] - β·KL(π || π_ref) 的解 π* = softmax(log π_ref + r/β)，与 logp_ref 同形状、同精度。

    【边界】β ≤ 0：ValueError。β = 0 时没有惩罚，最优就是只写分数最高的那一条，公式在这里除以 0。
    """
    check_number("beta", beta, 0, open_low=True)
    logp_ref = _vector(logp_ref)
    return torch.softmax(logp_ref.double() + _vector(rewards).double() / beta, -1).to(logp_ref.dtype)


def policy_stats(pi, logp_ref, true_r, rm_r, valid):
    """
    支撑集上的策略 pi 的精确统计量：{"true": E[r*], "rm": E[RM], "kl": KL(π || π_ref), "valid": 合格的概率}。

    π_ref 先在支撑集上归一。
    """
    pi, logp_ref, true_r, rm_r, valid = (_vector(xs).double() for xs in (pi, logp_ref, true_r, rm_r, valid))
    kl = torch.special.xlogy(pi, pi) - pi * torch.log_softmax(logp_ref, -1)
    return {"true": (pi @ true_r).item(), "rm": (pi @ rm_r).item(), "kl": kl.sum().item(),
            "valid": (pi @ valid).item()}


def on_support(policy, vocab, subj, table):
    """神经网络的策略 policy 在 subj 的支撑集 table 上的概率（精确值，归一，双精度）。"""
    logp = _fixed_logprob(policy, vocab, [describe_prompt(subj)] * len(table.responses), table.responses)
    return torch.softmax(logp.double(), -1)


def mean_stats(tables, policies):
    """每道题一张支撑集、一个策略：policy_stats 在各题上的平均。"""
    stats = [policy_stats(pi, t.logp, t.true, t.rm, t.valid) for t, pi in zip(tables, policies)]
    return {key: mean(s[key] for s in stats) for key in stats[0]}


def kl_estimates(logp, logp_ref):
    """
    KL(π || π_ref) 的三种单样本估计，样本从 **π** 采：logp、logp_ref 是样本的 log π、log π_ref，(N,)。

        k1 = log π - log π_ref；  k2 = k1^2 / 2；  k3 = π_ref/π - 1 + k1
    k1、k3 的期望正好是 KL，k3 处处 ≥ 0；k2 有偏。当损失求导时又是另一回事，见讲义 2.4 节。
    """
    k1 = logp - logp_ref
    return k1, k1**2 / 2, torch.exp(-k1) - 1 + k1


def entropy_bits(p):
    """熵 -Σ p·log2 p，单位 bit；0·log 0 = 0。"""
    return torch.special.entr(_vector(p).double()).sum().item() / math.log(2)


# ==============================================================================
# 四、策略梯度：REINFORCE 与 PPO
# ==============================================================================
def pg_loss(logp, logp_old, advantage, algo, clip):
    """
    一批回答的损失（标量，有梯度）。logp 是现在的 log π，logp_old 是采样时的，advantage 是 A，都是 (N,)。

    前面的负号不能丢：优化器做的是下降，我们要的是上升。clip = math.inf 就是不裁剪的 PPO。
    """
    if algo == "reinforce":
        return -(advantage * logp).mean()
    ratio = (logp - logp_old).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()


def train_pg(policy, ref, vocab, reward_fn, steps, beta, algo="reinforce", batch=64, lr=1e-4, ppo_epochs=4, clip=0.2,
             seed=0, callback=None, every=0, log=None, fresh_kl=False):
    """
    就地训练 policy，走 steps 步；每一步采样 batch 条回答。

        R = r - β·(log π_old(y) - log π_ref(y))；  A = R - 这一批 R 的平均
        REINFORCE 每批更新一次；PPO 每批更新 ppo_epochs 次，A 用的是采样时的 π_old，不再变。
        fresh_kl = True：每次更新都用现在的 π 重算 R 与 A（只有 02 的演示 3 用它）。

    【参数】reward_fn(prompts, subjects, responses) → 数的列表；callback(走完的步数)，每 every 步叫一次
    （every = 0 不叫）；log：一个列表，给了就往里加每次更新的 (步, 第几次, ρ 的最小值, 最大值, 出界的比例)。
    【边界】β < 0、未知的 algo、batch < 2（只有一条，减去平均就是 0）：ValueError。
    """
    check_choice("algo", algo, ALGORITHMS)
    check_int("steps", steps, 0)
    check_number("beta", beta, 0)
    check_int("batch", batch, 2)
    check_number("lr", lr, 0)
    check_int("ppo_epochs", ppo_epochs, 1)
    check_int("every", every, 0)
    if clip != math.inf:
        check_number("clip", clip, 0, open_low=True)
    setup_torch()
    rng, gen = random.Random(seed), generator(seed)
    optimiser = torch.optim.Adam(policy.parameters(), lr=lr, fused=True)
    for step in range(1, steps + 1):
        prompts, subjects = map(list, zip(*random_prompts(rng, batch)))
        responses = sample_responses(policy, vocab, prompts, gen)
        reward = torch.tensor(reward_fn(prompts, subjects, responses))
        logp_ref = _fixed_logprob(ref, vocab, prompts, responses)
        for epoch in range(ppo_epochs if algo == "ppo" else 1):
            logp = seq_logprob(policy, vocab, prompts, responses)
            if epoch == 0:
                logp_old = logp.detach()
            if epoch == 0 or fresh_kl:
                R = reward - beta * (logp.detach() - logp_ref)
                advantage = R - R.mean()
            if log is not None:
                ratio = (logp.detach() - logp_old).exp()
                outside = ((ratio - 1).abs() > clip).double().mean().item()
                log.append((step, epoch, ratio.min().item(), ratio.max().item(), outside))
            _update(policy, optimiser, pg_loss(logp, logp_old, advantage, algo, clip))
        if callback and every and step % every == 0:
            callback(step)


def _update(policy, optimiser, loss):
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), CLIP_NORM)
    if not torch.isfinite(norm):
        raise ValueError("lr 应当小一些：梯度已经不是有限的数，训练散了")
    optimiser.step()


def rm_reward(rm, vocab):
    """用奖励模型打分的 reward_fn。"""
    return lambda prompts, subjects, responses: score(rm, vocab, prompts, responses)


def fault_shares(true):
    """一批回答的 r*（数的列表）里，四种不合格各占多少：{"读不通": …, "别的动物": …, …}。"""
    return {name: mean(r == value for r in true) for name, value in FAULTS.items()}


def rollout_stats(policy, ref, rm, vocab, n, seed):
    """
    policy 在 n 道随机的题上各答一条：{"rm", "true", "valid", "kl", "nostop", "se", "faults", "answers"}。

    rm、true、kl 是平均（kl 是 log π - log π_ref 的平均，蒙特卡洛估计 KL(π || π_ref)）；valid、nostop 是比例；
    se 是 true 的标准误；faults 是四种不合格各占多少；answers 是 [(subject, 回答)]。
    """
    prompts, subjects = map(list, zip(*random_prompts(random.Random(seed), n)))
    responses = sample_responses(policy, vocab, prompts, generator(seed))
    true = [human_reward(subject, response) for subject, response in zip(subjects, responses)]
    kl = _fixed_logprob(policy, vocab, prompts, responses) - _fixed_logprob(ref, vocab, prompts, responses)
    average = mean(true)
    return {
        "rm": mean(score(rm, vocab, prompts, responses)),
        "true": average,
        "valid": mean(r > VALID_ABOVE for r in true),
        "kl": mean(kl.tolist()),
        "nostop": mean(bool(response) and response[-1] == UNSTOPPED for response in responses),
        "se": math.sqrt(mean((r - average) ** 2 for r in true) / n),
        "faults": fault_shares(true),
        "answers": list(zip(subjects, responses)),
    }


# ==============================================================================
# 五、偏好数据与 DPO
# ==============================================================================
def preference_data(sft, vocab, n_prompts, K, prompt_seed, sample_seed, label_seed):
    """
    n_prompts 道题，每题由 sft 采样 K 条回答，标注员带着噪声排序，拆成全部 C(K, 2) 对。

    标注员心里的分 u = r* + NOISE × Gumbel，所以 P(a 赢 b) = σ((r*_a - r*_b)/NOISE)：Bradley–Terry。
    种子 PREFERENCE_SEEDS = (1, 11, 21) 就是奖励模型的训练数据。
    【返回】([(prompt, winner, loser, subject)], [(prompt, subject)])
    """
    rankings = ranked_answers(sft, vocab, n_prompts, K, prompt_seed, sample_seed, label_seed)
    return pairs_of(rankings), [(prompt, subject) for prompt, subject, _ in rankings]


def pairs_of(rankings):
    """把 [(prompt, subject, 从好到坏的回答)] 拆成对：名次 i < j，按字典序。"""
    return [
        (prompt, winner, loser, subject)
        for prompt, subject, answers in rankings
        for winner, loser in combinations(answers, 2)
    ]


def dpo_loss(policy, ref, vocab, prompts, winners, losers, beta):
    """
    DPO 的损失 -log σ(r'(赢) - r'(输)) 的平均，r'(y) = β·log(π(y)/π_ref(y)) 是隐式奖励（implicit reward）。

    【返回】(loss, r'(赢) (n,), r'(输) (n,))，n 是对数，后两个不带梯度。policy = ref 时 loss = ln 2。
    【边界】β ≤ 0：ValueError（β = 0 时损失恒为 ln 2，什么也学不到）。
    """
    check_number("beta", beta, 0, open_low=True)
    _check_equal_length(winners, losers)
    logp_ref = _fixed_logprob(ref, vocab, [*prompts, *prompts], [*winners, *losers])
    win, lose = _implicit_rewards(policy, vocab, prompts, winners, losers, logp_ref, beta)
    return -F.logsigmoid(win - lose).mean(), win.detach(), lose.detach()


def _implicit_rewards(policy, vocab, prompts, winners, losers, logp_ref, beta):
    """(r'(赢), r'(输))，有梯度；赢家与输家在同一次前向里算。logp_ref 是 (2N,)，前一半是赢家。"""
    logp = seq_logprob(policy, vocab, [*prompts, *prompts], [*winners, *losers])
    return (beta * (logp - logp_ref)).chunk(2)


def train_dpo(policy, ref, vocab, pairs, beta, epochs=3, batch=64, lr=1e-4, seed=0, callback=None, loss_fn=None):
    """
    就地训练 policy。pairs 的每一项以 (prompt, 赢的回答, 输的回答) 开头；每遍打乱一次。

    π_ref 不变，所以每条回答的 log π_ref 只算一次。
    【参数】callback(走完的遍数)；loss_fn(r'(赢) - r'(输)) → (N,) 的损失，默认是 DPO 的 -log σ。
    【边界】空的 pairs、β ≤ 0：ValueError。
    """
    check_number("beta", beta, 0, open_low=True)
    check_int("pairs 的条数", len(pairs), 1)
    check_int("epochs", epochs, 0)
    check_int("batch", batch, 1)
    check_number("lr", lr, 0)
    setup_torch()
    loss_fn = loss_fn or (lambda margin: -F.logsigmoid(margin))
    sides = [[(tuple(prompt), tuple(response)) for prompt, response in ((p[0], p[1]), (p[0], p[2]))] for p in pairs]
    unique = list(dict.fromkeys(side for pair in sides for side in pair))
    row = {side: i for i, side in enumerate(unique)}
    logp_ref = _fixed_logprob(ref, vocab, *map(list, zip(*unique)))
    rng, order = random.Random(seed), list(range(len(pairs)))
    optimiser = torch.optim.Adam(policy.parameters(), lr=lr, fused=True)
    for epoch in range(1, epochs + 1):
        rng.shuffle(order)
        for at in range(0, len(order), batch):
            part = order[at : at + batch]
            prompts, winners, losers = zip(*(pairs[i][:3] for i in part))
            known = logp_ref[[row[sides[i][k]] for k in (0, 1) for i in part]]
            win, lose = _implicit_rewards(policy, vocab, prompts, winners, losers, known, beta)
            _update(policy, optimiser, loss_fn(win - lose).mean())
        if callback:
            callback(epoch)


# ==============================================================================
# 直接运行：看一看起点
# ==============================================================================
TOUR_SUBJECT = "dogs"
TOUR_SAMPLES = 2000
TOUR_SEED = 1
TOUR_ROWS = 6


def main():
    title(f'演示 1：起点 —— SFT 模型对 "describe : the {TOUR_SUBJECT}" 最常写的几条')
    setup_torch()
    sft, rm, vocab = load_models()
    table = scored_support(sft, rm, vocab, TOUR_SUBJECT, TOUR_SAMPLES, TOUR_SEED)
    best = sorted(range(len(table.responses)), key=lambda i: -table.logp[i].item())[:TOUR_ROWS]
    print_table(
        ["回答", "log π", "RM", "r*"],
        [[" ".join(table.responses[i]), *(f"{xs[i].item():.2f}" for xs in (table.logp, table.rm, table.true))]
         for i in best],
    )
    stats = rollout_stats(sft, sft, rm, vocab, TOUR_SAMPLES, TOUR_SEED)
    print(f"\n  随机 {TOUR_SAMPLES} 题：RM {stats['rm']:.2f}，r* {stats['true']:.2f}，合格 {stats['valid']:.2f}")


if __name__ == "__main__":
    run_script(main)

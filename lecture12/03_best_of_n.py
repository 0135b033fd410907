"""
================================================================================
第 12 讲 · 03：best-of-n —— 不训练，采 n 条挑最好的
================================================================================
对应讲义：lectures/lecture12_rlhf.md 第 4 节
（Stiennon et al. 2020；Gao et al. 2022；Beirami et al., "best-of-n alignment policy"）

【问题】采 n 条、让 RM 挑一条，这样的"策略"离 π_ref 有多远？与训练出来的策略比，谁划算？

【这里的设定】在支撑集上，best-of-n 的分布有精确的公式，并列（tie）也算进去：
同分的几条里随便挑。再真的去采样，看公式对不对；再与 01 的最优策略、02 的 PPO 在同样的 KL 上比。
简化：n 次采样的代价这里不算；真实的部署里，每个问题都要付 n 倍的生成费，训练只付一次。

【公式】把分数从低到高排成几级，F(s) 是 π_ref 得分 ≤ s 的概率，p(s) 是恰好得 s 的概率
    P_n(s) = F(s)^n - (F(s) - p(s))^n            best-of-n 恰好得 s 的概率；级内仍按 π_ref 分
    KL(π_bon || π_ref) = Σ_s P_n(s)·log( P_n(s)/p(s) ) ≤ log n - (n-1)/n
没有并列（分数连续）时取等号。一条回答被采到两次，也是并列。

运行时间：约 15 秒，需要 torch。
"""
import copy
import math
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from rlhf_lab import (
    check_int, check_number, frozen_copy, generator, human_reward, load_models, mean, mean_stats, observe, on_support,
    optimal_policy, print_table, random_prompts, rm_reward, run_script, sample_responses, score, scored_support,
    setup_torch, title, torch, train_pg,
)

NS = (1, 2, 4, 8, 16, 32, 64)  # best-of-n 的 n
SUBJECTS = ("dog", "cats", "cow", "horses", "pig", "ducks", "goat", "mice")  # 演示用的题，表里是它们的平均
N_SAMPLES = 2000  # 每道题采样多少次，来收集不同的回答
SUPPORT_SEED = 1  # 收集回答的随机种子
GOOD_ABOVE = 0.0  # 演示 1：只会说“满意 / 不满意”的人，r* 高于它算满意
N_PROMPTS = 100  # 演示 2：真的采样，多少道随机的题（每题采 n 最大的那么多条）
SAMPLE_SEED = 5  # 演示 2：出题与采样的随机种子
BETA = 0.1  # 演示 3：PPO 的 KL 系数
LR = 3e-4  # 演示 3：PPO 的学习率
PPO_STEPS = (4, 8, 16, 24)  # 演示 3：在哪几步停下来比
TRAIN_SEED = 1  # 演示 3：PPO 的随机种子
BISECTIONS = 60  # 演示 3：二分法找"同样的 KL"，对半分多少次


def bon_kl_formula(n):
    """没有并列时 best-of-n 的 KL：log n - (n-1)/n。"""
    return math.log(n) - (n - 1) / n


def bon_policy(logp, scores, n):
    """
    支撑集上 best-of-n 的精确分布，(N,)。logp 先归一；n ≥ 1，可以不是整数（公式里它只是指数）。

    【思路】按分数排序、同分的并成一级；P_n(s) = F(s)^n - F(s-)^n；级内按 π_ref 的比例分。
    """
    check_number("n", n, 1)
    p = torch.softmax(torch.as_tensor(logp, dtype=torch.float64), -1)
    levels, level = torch.unique(torch.as_tensor(scores, dtype=torch.float64), return_inverse=True)
    mass = torch.zeros(len(levels), dtype=torch.float64).index_add(0, level, p)
    upto = mass.cumsum(0).clamp(max=1.0)
    below = torch.cat([torch.zeros(1, dtype=torch.float64), upto[:-1]])
    picked = upto**n - below**n
    return p * (picked / mass)[level]


def bon_stats(tables, by, n):
    """各题上 best-of-n 的统计量的平均。by 是 "rm" 或 "true"：谁来挑。"""
    return mean_stats(tables, [bon_policy(t.logp, getattr(t, by), n) for t in tables])


def good_kl(tables, n):
    """挑的人只分满意（r* > GOOD_ABOVE）与不满意时，best-of-n 的 KL，各题的平均。"""
    policies = [bon_policy(t.logp, (t.true > GOOD_ABOVE).double(), n) for t in tables]
    return mean_stats(tables, policies)["kl"]


def best_stats(tables, beta):
    """各题上最优策略（奖励是 RM 分数）的统计量的平均。"""
    return mean_stats(tables, [optimal_policy(t.logp, t.rm, beta) for t in tables])


def at_same_kl(kl_of, target, low, high):
    """二分（在对数刻度上）：让 kl_of(x) = target 的 x。kl_of 从 low 到 high 是递增的。"""
    for _ in range(BISECTIONS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if kl_of(middle) < target else (low, middle)
    return math.sqrt(low * high)


def best_at_kl(tables, kl):
    """KL 与给定值相同的那个最优策略的统计量。"""
    return best_stats(tables, 1 / at_same_kl(lambda x: best_stats(tables, 1 / x)["kl"], kl, 1e-3, 1e3))


def main():
    for n in NS:
        check_int("NS 的每一项", n, 1)
    if list(NS) != sorted(set(NS)) or len(NS) < 2:
        raise ValueError(f"NS 应当从小到大、至少两项，收到的是 {NS!r}")
    check_number("LR", LR, 0, 0.01)
    check_number("BETA", BETA, 0)
    check_int("N_PROMPTS", N_PROMPTS, 1)
    check_int("N_SAMPLES", N_SAMPLES, 100)
    check_int("BISECTIONS", BISECTIONS, 20)
    for steps in PPO_STEPS:
        check_int("PPO_STEPS 的每一项", steps, 1)
    setup_torch()

    title("演示 1：KL 的公式是上界 —— 支撑集上的精确值")
    sft, rm, vocab = load_models()
    tables = [scored_support(sft, rm, vocab, s, N_SAMPLES, SUPPORT_SEED + i) for i, s in enumerate(SUBJECTS)]
    by_rm = {n: bon_stats(tables, "rm", n) for n in NS}
    by_true = {n: bon_stats(tables, "true", n) for n in NS}
    by_good = {n: good_kl(tables, n) for n in NS}
    rows = []
    for n in NS:
        a, b = by_rm[n], by_true[n]
        rows.append([str(n), f"{bon_kl_formula(n):.2f}", f"{abs(a['kl']):.2f}", f"{a['rm']:.2f}", f"{a['true']:.2f}",
                     f"{abs(b['kl']):.2f}", f"{b['true']:.2f}", f"{abs(by_good[n]):.2f}"])
    print_table(["n", "公式的 KL", "RM 挑：KL", "RM", "r*", "r* 挑：KL", "它的 r*", "满意否 挑：KL"], rows)
    last, first = NS[-1], NS[0]
    print("观察：")
    observe(
        f"公式处处是上界。RM 与 r* 挑，并列很少，差不到 "
        f"{max(bon_kl_formula(last) - x[last]['kl'] for x in (by_rm, by_true)) + 0.01:.2f}。",
        all(kl <= bon_kl_formula(n) + 1e-9 for n in NS for kl in (by_rm[n]["kl"], by_true[n]["kl"], by_good[n])),
    )
    observe(
        f"只分满意、不满意，到处是并列：n = {last} 时公式说 {bon_kl_formula(last):.2f}，其实只有 {by_good[last]:.2f}，"
        "再大也不怎么动了。满意的里面谁也不比谁好，多采也没得挑。",
        by_good[last] < 0.8 * bon_kl_formula(last)
        and by_good[last] - by_good[NS[-2]] < 0.5 * (bon_kl_formula(last) - bon_kl_formula(NS[-2])),
    )
    rises = [b["true"] - a["true"] for a, b in zip(by_rm.values(), list(by_rm.values())[1:])]
    observe(
        f"RM 挑，r* 从 {by_rm[first]['true']:.2f} 升到 {by_rm[last]['true']:.2f}，n 每翻一番，涨幅从 {rises[0]:.2f} "
        f"缩到 {rises[-1]:.2f}，没有掉头：best-of-n 只能花 log n 那么多的 KL，想过度优化也不容易。",
        by_rm[last]["true"] > by_rm[first]["true"] + 0.5 and min(rises) > 0 and rises[-1] < rises[0],
    )

    title(f"演示 2：真的去采样（{N_PROMPTS} 道随机的题，每题 {last} 条）")
    prompts, subjects = zip(*random_prompts(random.Random(SAMPLE_SEED), N_PROMPTS))
    repeated = [prompt for prompt in prompts for _ in range(last)]
    answers = sample_responses(sft, vocab, repeated, generator(SAMPLE_SEED))
    scores = score(rm, vocab, repeated, answers)
    true = [human_reward(subjects[i // last], answer) for i, answer in enumerate(answers)]
    rows, sampled = [], {}
    for n in NS:
        picks = {"RM": [], "r*": []}
        for i in range(N_PROMPTS):
            group = range(i * last, i * last + n)
            picks["RM"].append(max(group, key=scores.__getitem__))
            picks["r*"].append(max(group, key=true.__getitem__))
        sampled[n] = mean(true[j] for j in picks["RM"])
        by_truth = mean(true[j] for j in picks["r*"])
        rows.append([str(n), f"{mean(scores[j] for j in picks['RM']):.2f}", f"{sampled[n]:.2f}",
                     f"{by_rm[n]['true']:.2f}", f"{by_truth:.2f}", f"{by_true[n]['true']:.2f}"])
    print_table(["n", "RM 挑：RM", "r*", "精确的 r*", "r* 挑：r*", "精确的 r*"], rows)
    print("观察：")
    observe(
        f"采样的与算出来的走同一条路，n = {last} 时 r* 采得 {sampled[last]:.2f}，"
        f"支撑集上算得 {by_rm[last]['true']:.2f}。"
        "不会正好相等：采样会碰到支撑集外的回答，少见，大多更长，有好有坏。",
        sampled[last] > sampled[first] + 0.5 and all(abs(sampled[n] - by_rm[n]["true"]) < 0.7 for n in NS),
    )
    observe(
        f"n = {last}：RM 挑出来的 r* 是 {sampled[last]:.2f}，让 r* 自己挑是 {by_truth:.2f}。差的那一截，是 RM 的错。",
        by_truth > sampled[last] + 0.3,
    )

    title("演示 3：同样的 KL，best-of-n、PPO 与最优策略谁的 RM 分数高")
    rows, shares = [], []
    for n in NS[1:]:
        best = best_at_kl(tables, by_rm[n]["kl"])
        shares.append((by_rm[n]["rm"] - by_rm[NS[0]]["rm"]) / (best["rm"] - by_rm[NS[0]]["rm"]))
        rows.append([f"best-of-{n}", f"{by_rm[n]['kl']:.2f}", f"{by_rm[n]['rm']:.2f}", f"{by_rm[n]['rm']:.2f}",
                     f"{best['rm']:.2f}", f"{by_rm[n]['true']:.2f}"])
    policy, ref, ppo = copy.deepcopy(sft), frozen_copy(sft), []

    def compare(step):
        if step in PPO_STEPS:
            mine = mean_stats(tables, [on_support(policy, vocab, s, t) for s, t in zip(SUBJECTS, tables)])
            n = at_same_kl(lambda n: bon_stats(tables, "rm", n)["kl"], mine["kl"], 1, 1e5)
            bon = bon_stats(tables, "rm", n)
            ppo.append((mine, bon))
            rows.append([f"PPO {step} 步", f"{mine['kl']:.2f}", f"{mine['rm']:.2f}", f"{bon['rm']:.2f}",
                         f"{best_at_kl(tables, mine['kl'])['rm']:.2f}", f"{mine['true']:.2f}"])

    train_pg(policy, ref, vocab, rm_reward(rm, vocab), max(PPO_STEPS), BETA, "ppo", lr=LR, seed=TRAIN_SEED,
             callback=compare, every=1)
    print_table(["策略", "KL", "它的 RM", "同 KL 的 best-of-n", "同 KL 的 π*", "它的 r*"], rows)
    print("观察：")
    observe(
        f"best-of-n 很接近最优：同样的 KL，它拿到最优策略 RM 涨幅的 {min(shares):.0%} 以上。",
        min(shares) > 0.75,
    )
    observe(
        f"PPO 花同样的 KL，RM 分数都不如 best-of-n（差 {min(b['rm'] - m['rm'] for m, b in ppo):.2f} 到 "
        f"{max(b['rm'] - m['rm'] for m, b in ppo):.2f}）。best-of-n 是很硬的对手，只是每次回答都要付 n 倍的钱。",
        all(m["rm"] < b["rm"] for m, b in ppo),
    )


if __name__ == "__main__":
    run_script(main)

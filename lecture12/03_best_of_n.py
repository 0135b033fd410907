"""
================================================================================
第 12 讲 · 03：best-of-N —— 不训练，采 N 条挑最好的
================================================================================
对应讲义：lectures/lecture12_rlhf.md 第 4 节
（Stiennon et al. 2020；Gao et al. 2022；Beirami et al. 2024）

【问题】采 N 条、让 RM 挑一条，这样的"策略"离 π_ref 有多远？与训练出来的策略比，谁划算？

【这里的设定】在支撑集上，best-of-N 的分布有精确的公式，并列（tie）也算进去：同分的几条里随便挑。
演示 1、3 用这个公式，演示 3 与 01 的最优策略在同样的 KL 上比。演示 2、4 真的去采样，支撑集外的回答也算进来：
看差多少，再与 02 的 PPO 比。
简化：演示 4 里 best-of-N 的 KL 用公式的上界，所以比的时候它吃一点亏。每次回答都要付 N 倍的生成费，这里不算。

【公式】把分数从低到高排成几级，F(s) 是 π_ref 得分 ≤ s 的概率，p(s) 是恰好得 s 的概率
    P_N(s) = F(s)^N - (F(s) - p(s))^N            best-of-N 恰好得 s 的概率；级内仍按 π_ref 分
    KL(π_bon || π_ref) = Σ_s P_N(s)·log( P_N(s)/p(s) ) ≤ log N - (N-1)/N
没有并列（分数连续）时取等号。一条回答被采到两次，也是并列。

运行时间：约 13 秒，需要 torch。
"""
import copy
import math
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from rlhf_lab import (
    PROMPT_SUBJECTS, VALID_ABOVE, check_ascending, check_choice, check_each, check_int, check_number, check_seeds,
    frozen_copy, generator, human_reward, load_models, mean, mean_stats, observe, optimal_policy, print_table,
    random_prompts, rm_reward, rollout_stats, run_script, sample_responses, score, scored_support, setup_torch,
    title, torch, train_pg,
)

NS = (1, 2, 4, 8, 16, 32, 64)  # best-of-N 的 N
SUBJECTS = ("dog", "cats", "cow", "horses", "pig", "ducks", "goat", "mice")  # 演示用的题，表里是它们的平均
N_SAMPLES = 2000  # 每道题采样多少次，来收集不同的回答
SUPPORT_SEED = 1  # 收集回答的随机种子
GOOD_ABOVE = 0.0  # 演示 1：只会说“满意 / 不满意”的人，r* 高于它算满意
N_PROMPTS = 100  # 演示 2：真的采样，多少道随机的题（每题采 N 最大的那么多条）
SAMPLE_SEED = 5  # 演示 2：出题与采样的随机种子
BISECTIONS = 60  # 演示 3：二分法找"同样的 KL"，对半分多少次
BETA = 0.1  # 演示 4：PPO 的 KL 系数
LR = 3e-4  # 演示 4：PPO 的学习率
PPO_STEPS = (3, 6, 9)  # 演示 4：在哪几步停下来比
TRAIN_SEEDS = (1, 2)  # 演示 4：PPO 的随机种子，表里是它们的平均
EVAL_PROMPTS = 500  # 演示 4：每个种子每次测量用多少道随机的题
EVAL_SEED = 77  # 演示 4：测量的随机种子


def bon_kl_formula(n):
    """没有并列时 best-of-N 的 KL：log N - (N-1)/N，n 就是 N。"""
    return math.log(n) - (n - 1) / n


def bon_policy(logp, scores, n):
    """
    支撑集上 best-of-N 的精确分布，与 logp 同形状。logp 先归一；n 是 N，≥ 1，可以不是整数（公式里它只是指数）。

    【思路】按分数排序、同分的并成一级；P_N(s) = F(s)^N - F(s-)^N；级内按 π_ref 的比例分。
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
    """各题上 best-of-N 的统计量的平均。by 是 "rm" 或 "true"：谁来挑。"""
    return mean_stats(tables, [bon_policy(t.logp, getattr(t, by), n) for t in tables])


def good_kl(tables, n):
    """挑的人只分满意（r* > GOOD_ABOVE）与不满意时，best-of-N 的 KL，各题的平均。"""
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


def rm_at_kl(sampled, kl):
    """采样的 best-of-N 在给定的 KL 上的 RM 分数：N 的两档之间按直线算；比最大的 N 还远，就用最大的 N（低估它）。"""
    for low, high in zip(NS, NS[1:]):
        a, b = bon_kl_formula(low), bon_kl_formula(high)
        if kl <= b:
            share = max(0.0, kl - a) / (b - a)
            return sampled[low]["rm"] + share * (sampled[high]["rm"] - sampled[low]["rm"])
    return sampled[NS[-1]]["rm"]


def main():
    check_each("NS", check_ascending("NS", NS), check_int, 1)
    check_each("SUBJECTS", SUBJECTS, check_choice, PROMPT_SUBJECTS)
    check_number("GOOD_ABOVE", GOOD_ABOVE)
    check_number("LR", LR, 0, 0.01)
    check_number("BETA", BETA, 0)
    check_int("N_PROMPTS", N_PROMPTS, 1)
    check_int("N_SAMPLES", N_SAMPLES, 100)
    check_int("BISECTIONS", BISECTIONS, 20)
    check_int("EVAL_PROMPTS", EVAL_PROMPTS, 2)
    check_each("TRAIN_SEEDS", TRAIN_SEEDS, check_int)
    check_each("PPO_STEPS", PPO_STEPS, check_int, 1)
    check_seeds(SUPPORT_SEED=SUPPORT_SEED, SAMPLE_SEED=SAMPLE_SEED, EVAL_SEED=EVAL_SEED)
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
    print_table(["N", "公式的 KL", "RM 挑：KL", "RM", "r*", "r* 挑：KL", "它的 r*", "满意否 挑：KL"], rows)
    last, first = NS[-1], NS[0]
    print("观察：")
    observe(
        f"公式处处是上界。RM 的分数几乎不并列；r* 只有几十级，并列到处都是，但分得够细，N = {last} 时 KL 也只少 "
        f"{bon_kl_formula(last) - by_true[last]['kl']:.2f}。",
        all(kl <= bon_kl_formula(n) + 1e-9 for n in NS for kl in (by_rm[n]["kl"], by_true[n]["kl"], by_good[n]))
        and bon_kl_formula(last) - by_true[last]["kl"] < 0.1,
    )
    observe(
        f"只分满意、不满意，到处是并列：N = {last} 时公式说 {bon_kl_formula(last):.2f}，其实只有 {by_good[last]:.2f}，"
        "再大也不怎么动了。满意的里面谁也不比谁好，多采也没得挑。",
        by_good[last] < 0.8 * bon_kl_formula(last)
        and by_good[last] - by_good[NS[-2]] < 0.5 * (bon_kl_formula(last) - bon_kl_formula(NS[-2])),
    )
    rises = [b["true"] - a["true"] for a, b in zip(by_rm.values(), list(by_rm.values())[1:])]
    observe(
        f"RM 挑，r* 从 {by_rm[first]['true']:.2f} 升到 {by_rm[last]['true']:.2f}，N 每翻一番，涨幅从 {rises[0]:.2f} "
        f"缩到 {rises[-1]:.2f}，没有掉头：best-of-N 只能花 log N 那么多的 KL，想过度优化也不容易。",
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
        sampled[n] = {"rm": mean(scores[j] for j in picks["RM"]), "true": mean(true[j] for j in picks["RM"])}
        by_truth = mean(true[j] for j in picks["r*"])
        rows.append([str(n), f"{sampled[n]['rm']:.2f}", f"{by_rm[n]['rm']:.2f}", f"{sampled[n]['true']:.2f}",
                     f"{by_rm[n]['true']:.2f}", f"{by_truth:.2f}", f"{by_true[n]['true']:.2f}"])
    print_table(["N", "RM 挑：RM", "表上", "RM 挑：r*", "表上", "r* 挑：r*", "表上"], rows)
    seen = {subject: set(map(tuple, table.responses)) for subject, table in zip(SUBJECTS, tables)}
    where = {name: [i for i, answer in enumerate(answers) if subjects[i // last] in seen
                    and (tuple(answer) in seen[subjects[i // last]]) == inside]
             for name, inside in (("表里", True), ("表外", False))}
    if not all(where.values()):
        raise ValueError(f"N_PROMPTS 应当大一些：采到的回答全在表里，或全在表外，收到的是 {N_PROMPTS}")
    total = math.fsum(map(len, where.values()))
    kinds = {name: [len(rows) / total, mean(len(answers[i]) for i in rows), mean(scores[i] for i in rows),
                    mean(true[i] for i in rows), mean(true[i] > VALID_ABOVE for i in rows)]
             for name, rows in where.items()}
    print(f"\n  同样这些回答，在不在演示 1 的表里（只数主语是那 {len(SUBJECTS)} 个的）")
    print_table(["回答", "占多少", "平均几个词", "RM", "r*", "合格"],
                [[name, f"{share:.2f}", f"{words:.1f}", *(f"{x:.2f}" for x in rest)]
                 for name, (share, words, *rest) in kinds.items()])
    gaps = [sampled[n]["rm"] - by_rm[n]["rm"] for n in NS]
    (_, few_words, low_rm, _, more_valid), (outside, many_words, high_rm, _, less_valid) = kinds.values()
    print("观察：")
    observe(
        f"采样的 RM 分数处处比表上高（N = {last} 时 {sampled[last]['rm']:.2f} 对 {by_rm[last]['rm']:.2f}）：表外的回答"
        f"占 {outside:.0%}，一条一条都少见，加起来不少。它们更长（{many_words:.1f} 个词对 {few_words:.1f} 个），RM 分数"
        f"更高（{high_rm:.2f} 对 {low_rm:.2f}），合格的却少（{less_valid:.2f} 对 {more_valid:.2f}）。",
        min(gaps) > 0 and mean(gaps) > 0.2 and outside > 0.2 and many_words > few_words + 1
        and high_rm > low_rm + 0.3 and less_valid < more_valid - 0.05,
    )
    observe(
        f"N = {last}：RM 挑，r* 是 {sampled[last]['true']:.2f}；让 r* 自己挑，{by_truth:.2f}。差的一截，是 RM 的错。",
        by_truth > sampled[last]["true"] + 0.3,
    )

    title("演示 3：同样的 KL，best-of-N 与最优策略谁的 RM 分数高（支撑集上的精确值）")
    rows, shares = [], []
    for n in NS[1:]:
        best = best_at_kl(tables, by_rm[n]["kl"])
        shares.append((by_rm[n]["rm"] - by_rm[first]["rm"]) / (best["rm"] - by_rm[first]["rm"]))
        rows.append([f"best-of-{n}", f"{by_rm[n]['kl']:.2f}", f"{by_rm[n]['rm']:.2f}", f"{best['rm']:.2f}",
                     f"{shares[-1]:.0%}", f"{by_rm[n]['true']:.2f}", f"{best['true']:.2f}"])
    print_table(["策略", "KL", "RM", "同 KL 的 π*：RM", "涨幅之比", "r*", "π* 的 r*"], rows)
    print("观察：")
    observe(
        f"best-of-N 很接近最优：同样的 KL，它拿到最优策略 RM 涨幅的 {min(shares):.0%} 以上。",
        min(shares) > 0.75,
    )

    title(f"演示 4：best-of-N 与 PPO，都真的作答（β = {BETA:g}，PPO 是 {len(TRAIN_SEEDS)} 个训练种子的平均）")
    ref, found = frozen_copy(sft), {steps: [] for steps in PPO_STEPS}
    for k, seed in enumerate(TRAIN_SEEDS):
        policy = copy.deepcopy(sft)

        def compare(step, policy=policy, k=k):
            if step in found:
                found[step].append(rollout_stats(policy, ref, rm, vocab, EVAL_PROMPTS, EVAL_SEED + k))

        train_pg(policy, ref, vocab, rm_reward(rm, vocab), max(PPO_STEPS), BETA, "ppo", lr=LR, seed=seed,
                 callback=compare, every=1)
    rows = [[f"best-of-{n}", f"{bon_kl_formula(n):.2f}", *(f"{sampled[n][key]:.2f}" for key in ("rm", "true")), "—"]
            for n in NS]
    ppo = []
    for steps, stats in found.items():
        mine = {key: mean(s[key] for s in stats) for key in ("kl", "rm", "true")}
        ppo.append((mine, rm_at_kl(sampled, mine["kl"])))
        rows.append([f"PPO {steps} 步", *(f"{mine[key]:.2f}" for key in ("kl", "rm", "true")), f"{ppo[-1][1]:.2f}"])
    print_table(["策略", "KL", "RM", "r*", "同 KL 的 best-of-N：RM"], rows)
    print("观察：")
    observe(
        f"PPO 花同样的 KL，RM 分数都不如 best-of-N（差 {min(bon - m['rm'] for m, bon in ppo):.2f} 到 "
        f"{max(bon - m['rm'] for m, bon in ppo):.2f}）。best-of-N 是很硬的对手，只是每次回答都要付 N 倍的钱。",
        all(m["rm"] < bon for m, bon in ppo),
    )


if __name__ == "__main__":
    run_script(main)

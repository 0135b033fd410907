"""
================================================================================
第 12 讲 · 02：REINFORCE 与 PPO —— 同一批样本，多用几次，又不能用过头
================================================================================
对应讲义：lectures/lecture12_rlhf.md 第 3 节
（Schulman et al. 2017, PPO；Ziegler et al. 2019；Ouyang et al. 2022, InstructGPT）

【问题】01 算出了最优策略。真的用策略梯度去训练神经网络，要采多少样本才走得到那里？

【这里的设定】从 SFT 模型出发，奖励是 RM 分数减去 KL 惩罚，β 固定。REINFORCE 每批样本更新一次；
PPO 同一批更新几次，用重要性比率 ρ 把"旧策略采的样本"改算成"新策略的期望"；已经走够的样本，clip 不让它再出力。
简化：没有价值函数，基线是一批奖励的平均；整条回答算一个动作，ρ 也是整条回答的
（真实的 PPO 逐 token 算 ρ、逐 token 给 KL）；学习率不变。

【公式】R = r - β·(log π_old - log π_ref)，A = R - 平均(R)，ρ = π/π_old
    REINFORCE  最大化  平均( A · log π )
    PPO        最大化  平均( min(ρA, clip(ρ, 1-ε, 1+ε)·A) )
π 是正在训练的策略，π_old 是采样时的，π_ref 是 SFT；ε 是 clip 的宽度。

运行时间：约 25 秒，需要 torch。
"""
import copy
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from rlhf_lab import (
    PROMPT_SUBJECTS, check_choice, check_each, check_int, check_number, check_seeds, describe_prompt, frozen_copy,
    load_models, mean, mean_stats, observe, optimal_policy, pg_loss, print_table, rm_reward, rollout_stats,
    run_script, scored_support, seq_logprob, setup_torch, title, torch, train_pg,
)

BETA = 0.1  # KL 惩罚的系数
BATCH = 64  # 每一步采样多少条回答
STEPS = 16  # 演示 1：每种算法走多少步
EVERY = 8  # 演示 1：每几步量一次
LR = 3e-4  # 学习率（Adam），两种算法相同
LR_TIMES = 4  # 演示 1：REINFORCE 另走一遍，学习率乘上多少
PPO_EPOCHS = 4  # PPO 同一批样本更新几次
CLIP = 0.2  # PPO 的 clip 宽度 ε
TRAIN_SEEDS = (1, 2)  # 训练的随机种子，表里是它们的平均；演示 4 只用第一个
EVAL_PROMPTS = 300  # 每个训练种子每次测量用多少道随机的题
EVAL_SEED = 77  # 测量的随机种子；第 k 个训练种子用 EVAL_SEED + k，题不重样
RATIOS = (0.5, 1.0, 2.0, 5.0)  # 演示 2：看哪几个 ρ
MANY_EPOCHS = 12  # 演示 3：同一批样本更新得太多是多少次
MANY_STEPS = 4  # 演示 3：走多少步
SUBJECTS = ("dogs", "cow", "mice", "goat")  # 演示 4：在哪几道题的支撑集上与 π* 对比
N_SAMPLES = 1000  # 演示 4：收集支撑集时每题采样多少次
SUPPORT_SEED = 1  # 演示 4：收集支撑集的随机种子


def measure(policy, ref, rm, vocab, k):
    """第 k 个训练种子的策略答 EVAL_PROMPTS 道题的统计量，再添上目标 "J"。"""
    stats = rollout_stats(policy, ref, rm, vocab, EVAL_PROMPTS, EVAL_SEED + k)
    return {**stats, "J": stats["rm"] - BETA * stats["kl"]}


def train(sft, ref, rm, vocab, algo, steps, every, epochs, clip, k, lr_times=1, fresh_kl=False):
    """从 SFT 出发，用第 k 个种子训练一个策略，每 every 步量一次：(策略, [(步数, 统计量)], [每次更新的 ρ])。"""
    policy, log, curve = copy.deepcopy(sft), [], []
    train_pg(policy, ref, vocab, rm_reward(rm, vocab), steps, BETA, algo, batch=BATCH, lr=LR * lr_times,
             ppo_epochs=epochs, clip=clip, seed=TRAIN_SEEDS[k], every=every, log=log, fresh_kl=fresh_kl,
             callback=lambda step: curve.append((step, measure(policy, ref, rm, vocab, k))))
    return policy, curve, log


def average(stats):
    """几个种子的统计量的平均：{"J", "rm", "kl", "true", "valid"}，和 r* 的标准误 "se"。"""
    means = {key: mean(s[key] for s in stats) for key in ("J", "rm", "kl", "true", "valid")}
    return {**means, "se": math.sqrt(math.fsum(s["se"] ** 2 for s in stats)) / len(stats)}


def cells(stats):
    """表格里的五格：J、RM、KL、r*、合格。"""
    return [f"{round(stats[key], 2) + 0.0:.2f}" for key in ("J", "rm", "kl", "true", "valid")]


def in_table(policy, vocab, subject, table):
    """策略在支撑集上的对数概率（双精度，没有归一）。"""
    with torch.no_grad():
        return seq_logprob(policy, vocab, [describe_prompt(subject)] * len(table.responses), table.responses).double()


def clip_cell(rho, advantage):
    """单个样本：PPO 的目标值，和它对 log π 的斜率（自动求导，不是公式）。"""
    logp = torch.tensor([math.log(rho)], dtype=torch.float64, requires_grad=True)
    loss = pg_loss(logp, torch.zeros(1, dtype=torch.float64), torch.tensor([advantage]), "ppo", CLIP)
    loss.backward()
    return -loss.item(), -logp.grad.item()


def main():
    check_number("BETA", BETA, 0, open_low=True)
    check_number("LR", LR, 0, 0.01)
    check_number("CLIP", CLIP, 0, 1, open_low=True)
    check_int("BATCH", BATCH, 2)
    check_int("STEPS", STEPS, 2)
    check_int("EVERY（STEPS 里至少量两次）", EVERY, 1, STEPS // 2)
    check_int("MANY_STEPS", MANY_STEPS, 1)
    check_int("PPO_EPOCHS", PPO_EPOCHS, 1)
    check_number("LR_TIMES", LR_TIMES, 0, 10, open_low=True)
    check_each("TRAIN_SEEDS", TRAIN_SEEDS, check_int)
    check_each("RATIOS", RATIOS, check_number, 0, None, True)  # 大于 0
    check_each("SUBJECTS", SUBJECTS, check_choice, PROMPT_SUBJECTS)
    check_seeds(EVAL_SEED=EVAL_SEED, SUPPORT_SEED=SUPPORT_SEED)
    check_int("MANY_EPOCHS", MANY_EPOCHS, 2)
    check_int("N_SAMPLES", N_SAMPLES, 100)
    check_int("EVAL_PROMPTS", EVAL_PROMPTS, 2)
    setup_torch()

    seeds = range(len(TRAIN_SEEDS))
    title(f"演示 1：同样多的样本，REINFORCE 与 PPO（β = {BETA:g}，{len(seeds)} 个训练种子的平均）")
    sft, rm, vocab = load_models()
    ref = frozen_copy(sft)
    start = average([measure(sft, ref, rm, vocab, k) for k in seeds])
    big_name = f"学习率 ×{LR_TIMES:g}"
    runs = {
        name: [train(sft, ref, rm, vocab, algo, STEPS, EVERY, PPO_EPOCHS, CLIP, k, times) for k in seeds]
        for name, algo, times in (("REINFORCE", "reinforce", 1), ("PPO", "ppo", 1), (big_name, "reinforce", LR_TIMES))
    }
    curves = {name: [average([curve[i][1] for _, curve, _ in run]) for i in range(len(run[0][1]))]
              for name, run in runs.items()}
    samples = [step * BATCH for step, _ in runs["PPO"][0][1]]
    rows = [["SFT", "0", *cells(start)]]
    rows += [[name, str(n), *cells(stats)] for name, curve in curves.items() for n, stats in zip(samples, curve)]
    print_table(["算法", "采样数", "J", "RM", "KL", "r*", "合格"], rows)
    slow, ppo, big = curves.values()
    half = len(ppo) // 2 - 1
    print(f"  第三种是 REINFORCE，{big_name}。每格量 {len(seeds) * EVAL_PROMPTS} 条，r* 的标准误最大 "
          f"{max(s['se'] for curve in curves.values() for s in curve):.2f}\n  （不含训练种子之间的差别）")
    print("观察：")
    observe(
        f"学习率相同，同一批样本 PPO 更新 {PPO_EPOCHS} 次：每一行都是它的 J 高，{samples[0]} 个样本时 "
        f"{ppo[0]['J']:.2f} 对 {slow[0]['J']:.2f}。它用 {samples[half]} 个样本走到 {ppo[half]['J']:.2f}，REINFORCE 用 "
        f"{samples[-1]} 个是 {slow[-1]['J']:.2f}。采样和打分最贵，多更新几次便宜。",
        all(p["J"] > r["J"] for p, r in zip(ppo, slow)) and ppo[half]["J"] > slow[-1]["J"] - 0.05,
    )
    observe(
        f"省样本主要是因为步子大：把 REINFORCE 的学习率乘 {LR_TIMES:g}，J 与 PPO 差不到 "
        f"{max(abs(b['J'] - p['J']) for b, p in zip(big, ppo)) + 0.01:.2f}（最后 {big[-1]['J']:.2f} 对 "
        f"{ppo[-1]['J']:.2f}），只是 KL 大一些（{big[-1]['kl']:.1f} 对 {ppo[-1]['kl']:.1f}）。",
        all(abs(b["J"] - p["J"]) < 0.2 for b, p in zip(big, ppo)) and PPO_EPOCHS > 1,
    )
    observe(
        f"PPO 的 r* 也从 {start['true']:.2f} 升到 {ppo[0]['true']:.2f}、{ppo[-1]['true']:.2f}，合格的却从 "
        f"{start['valid']:.2f} 到 {ppo[-1]['valid']:.2f}：讨好 RM 大体就是讨好人，以后升不升，要看 RM 哪里看错（04）。",
        min(ppo[0]["true"], ppo[-1]["true"]) > start["true"] + 0.3,
    )

    title(f"演示 2：clip 的四个角（ε = {CLIP:g}，单个样本）")
    corner = {(rho, sign): clip_cell(rho, sign) for rho in RATIOS for sign in (1.0, -1.0)}
    print_table(
        ["ρ", "A = +1：目标", "对 log π 的斜率", "A = -1：目标", "对 log π 的斜率"],
        [[f"{rho:g}", *(f"{x + 0.0:.1f}" for sign in (1.0, -1.0) for x in corner[rho, sign])] for rho in RATIOS],
    )
    print("观察：")
    low, high = min(RATIOS), max(RATIOS)
    observe(
        f"好样本（A > 0）的 ρ 升到 {high:g}，或坏样本的 ρ 已降到 {low:g}：该做的已经做够，斜率是 0，样本不再推它。",
        corner[high, 1.0][1] == 0 and corner[low, -1.0][1] == 0,
    )
    observe(
        f"走反了的照推：好样本的 ρ 降到 {low:g}，斜率是 {corner[low, 1.0][1]:.1f}；坏样本的 ρ 升到 {high:g}，斜率是 "
        f"{corner[high, -1.0][1]:.1f}，ρ 越大，往回拉得越使劲。",
        abs(corner[high, -1.0][1] + high) < 1e-9 and abs(corner[low, 1.0][1] - low) < 1e-9,
    )

    title(f"演示 3：同一批样本更新几次，要不要 clip（{MANY_STEPS} 步，{len(seeds)} 个种子的平均）")
    variants = {
        f"{PPO_EPOCHS} 次，ε = {CLIP:g}": (PPO_EPOCHS, CLIP, False),
        f"{MANY_EPOCHS} 次，ε = {CLIP:g}": (MANY_EPOCHS, CLIP, False),
        f"{MANY_EPOCHS} 次，没有 clip": (MANY_EPOCHS, math.inf, False),
        f"{MANY_EPOCHS} 次，没有 clip，每次重算 KL": (MANY_EPOCHS, math.inf, True),
    }
    rows, finals, logs = [], [], []
    for name, (epochs, clip, fresh) in variants.items():
        trained = [train(sft, ref, rm, vocab, "ppo", MANY_STEPS, MANY_STEPS, epochs, clip, k, fresh_kl=fresh)
                   for k in seeds]
        finals.append(average([curve[-1][1] for _, curve, _ in trained]))
        logs.append([entry for _, _, log in trained for entry in log])
        rows.append([name, *cells(finals[-1]), f"{max(entry[3] for entry in logs[-1]):.3g}"])
    print_table(["每批更新", "J", "RM", "KL", "r*", "合格", "最大的 ρ"], rows)
    _, clipped, free, fresh = finals
    first = [entry for log in logs for entry in log if entry[1] == 0]
    outside = [mean(entry[4] for entry in logs[1] if entry[1] == epoch) for epoch in (1, MANY_EPOCHS - 1)]
    print("观察：")
    observe(
        f"每批的第一次更新，ρ 处处是 {first[0][2]:g}：样本就是现在的策略采的，PPO 与 REINFORCE 的梯度相同。",
        all(low == high == 1 for _, _, low, high, _ in first),
    )
    observe(
        f"更新 {MANY_EPOCHS} 次，第 2 次有 {outside[0]:.2f} 的 ρ 出界，最后一次有 {outside[1]:.2f}：样本越用越旧。"
        f"有 clip，最大的 ρ 也到了 {rows[1][-1]}，远不止 1 + ε：clip 不是一道墙。",
        outside[1] > outside[0] + 0.2 and max(entry[3] for entry in logs[1]) > 2 * (1 + CLIP),
    )
    observe(
        f"去掉 clip，ρ 大到 {rows[2][-1]}，RM 分数没有变坏（{free['rm']:.2f} 对 {clipped['rm']:.2f}），KL 却是 "
        f"{free['kl']:.1f}（有 clip 是 {clipped['kl']:.1f}），J 只有 {free['J']:.2f}（{clipped['J']:.2f}），r* 只有 "
        f"{free['true']:.2f}（{clipped['true']:.2f}）。",
        free["kl"] > 1.3 * clipped["kl"] and free["J"] < clipped["J"] and free["true"] < clipped["true"]
        and free["rm"] > clipped["rm"] - 0.15,
    )
    observe(
        f"不全怪 ρ。A 里的 KL 是采样时算的，策略走了，惩罚没有跟着变重；每次重算，不用 clip，KL 是 "
        f"{fresh['kl']:.1f}，J 回到 {fresh['J']:.2f}。",
        fresh["kl"] < free["kl"] and fresh["J"] > free["J"],
    )

    title(f"演示 4：表上的最优策略，是不是训练的尽头（β = {BETA:g}，{len(SUBJECTS)} 道题的支撑集）")
    tables = [scored_support(sft, rm, vocab, s, N_SAMPLES, SUPPORT_SEED + i) for i, s in enumerate(SUBJECTS)]
    policies = {"SFT": (sft, start)}
    for name in ("REINFORCE", "PPO"):
        policy, curve, _ = runs[name][0]
        policies[name] = (policy, curve[-1][1])
    rows, on_table, covered = [], [], []
    for name, (policy, sampled) in policies.items():
        logps = [in_table(policy, vocab, s, t) for s, t in zip(SUBJECTS, tables)]
        exact = mean_stats(tables, [torch.softmax(logp, -1) for logp in logps])
        covered.append(mean(math.fsum(logp.exp().tolist()) for logp in logps))
        on_table.append(exact["rm"] - BETA * exact["kl"])
        rows.append([name, f"{covered[-1]:.3f}", f"{on_table[-1]:.2f}", f"{sampled['J']:.2f}"])
    exact = mean_stats(tables, [optimal_policy(t.logp, t.rm, BETA) for t in tables])
    best = exact["rm"] - BETA * exact["kl"]
    rows.append(["π*", "1.000", f"{best:.2f}", "—"])
    print_table(["策略", "表里的总概率", "J：表上（精确）", "J：真的作答（采样）"], rows)
    print("观察：")
    observe(
        f"在表上，π* 的 J = {best:.2f} 谁也越不过去，PPO 是 {on_table[-1]:.2f}，REINFORCE 是 {on_table[1]:.2f}。",
        on_table[0] < on_table[1] < on_table[2] < best,
    )
    observe(
        f"可是训练以后，PPO 的概率只剩 {covered[-1]:.3f} 在表里（SFT 有 {covered[0]:.2f}）：表上的数只说这一小部分。"
        f"真的作答，PPO 的 J 是 {policies['PPO'][1]['J']:.2f}，比表上的 π* 还高：RM 更喜欢的回答在表外，SFT 很少写，"
        "采不到。",
        covered[-1] < 0.5 * covered[0] and policies["PPO"][1]["J"] > best,
    )


if __name__ == "__main__":
    run_script(main)

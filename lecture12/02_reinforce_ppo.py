"""
================================================================================
第 12 讲 · 02：REINFORCE 与 PPO —— 同一批样本，多用几次，又不能用过头
================================================================================
对应讲义：lectures/lecture12_rlhf.md 第 3 节
（Schulman et al. 2017, "PPO"；Ziegler et al. 2019；Ouyang et al. 2022, "InstructGPT"）

【问题】01 算出了最优策略。真的用策略梯度去训练神经网络，要采多少样本才走得到那里？

【这里的设定】从 SFT 模型出发，奖励是 RM 分数减去 KL 惩罚，β 固定。REINFORCE 每批样本更新一次；
PPO 同一批更新几次，用比值 ρ 把"旧策略采的样本"改算成"新策略的期望"，再用 clip 拦住走得太远的 ρ。
简化：没有 critic，基线是一批奖励的平均；整条回答算一个动作，ρ 也是整条回答的
（真实的 PPO 逐 token 算 ρ、逐 token 给 KL）；学习率不变。

【公式】R = r - β·(log π_old - log π_ref)，A = R - 平均(R)，ρ = π/π_old
    REINFORCE  最大化  平均( A · log π )
    PPO        最大化  平均( min(ρA, clip(ρ, 1-ε, 1+ε)·A) )
π 是正在训练的策略，π_old 是采样时的，π_ref 是 SFT；ε 是 clip 的宽度。

运行时间：约 40 秒，需要 torch。
"""
import copy
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from rlhf_lab import (
    PROMPT_SUBJECTS, check_choice, check_int, check_number, describe_prompt, frozen_copy, load_models, mean,
    mean_stats, observe, on_support, optimal_policy, pg_loss, print_table, rm_reward, rollout_stats, run_script,
    scored_support, seq_logprob, setup_torch, title, torch, train_pg,
)

BETA = 0.1  # KL 惩罚的系数
BATCH = 64  # 每一步采样多少条回答
STEPS = 32  # 演示 1：每种算法走多少步
EVERY = 8  # 演示 1：每几步量一次
LR = 3e-4  # 学习率（Adam），两种算法相同
LR_TIMES = 4  # 演示 1：REINFORCE 另走一遍，学习率乘上多少
PPO_EPOCHS = 4  # PPO 同一批样本更新几次
CLIP = 0.2  # PPO 的 clip 宽度 ε
TRAIN_SEEDS = (1, 2)  # 训练的随机种子，表里是它们的平均；演示 4 只用第一个
EVAL_PROMPTS = 150  # 每次测量用多少道随机的题
EVAL_SEED = 77  # 测量的随机种子
RATIOS = (0.5, 1.0, 2.0, 5.0)  # 演示 2：看哪几个 ρ
MANY_EPOCHS = 12  # 演示 3：同一批样本更新得太多是多少次
MANY_STEPS = 6  # 演示 3：走多少步
SUBJECTS = ("dogs", "cow", "mice", "goat")  # 演示 4：在哪几道题的支撑集上与 π* 对比
N_SAMPLES = 2000  # 演示 4：收集支撑集时每题采样多少次
SUPPORT_SEED = 1  # 演示 4：收集支撑集的随机种子


def train(sft, ref, rm, vocab, algo, steps, every, epochs, clip, seed, lr_times=1):
    """从 SFT 出发训练一个策略，每 every 步量一次，返回 (策略, [(步数, rollout_stats)], [每次更新的 ρ])。"""
    policy, log, curve = copy.deepcopy(sft), [], []

    def measure(step):
        curve.append((step, rollout_stats(policy, ref, rm, vocab, EVAL_PROMPTS, EVAL_SEED)))

    train_pg(policy, ref, vocab, rm_reward(rm, vocab), steps, BETA, algo, batch=BATCH, lr=LR * lr_times,
             ppo_epochs=epochs, clip=clip, seed=seed, callback=measure, every=every, log=log)
    return policy, curve, log


def average(curves, i):
    """几条曲线在第 i 个测量点的平均：{"rm", "true", "valid", "kl"}。"""
    return {key: mean(curve[i][1][key] for curve in curves) for key in ("rm", "true", "valid", "kl")}


def cells(stats):
    """表格里的四格：RM、r*、合格、KL。"""
    return [f"{round(stats[key], 2) + 0.0:.2f}" for key in ("rm", "true", "valid", "kl")]


def objective(stats):
    """目标 J = RM - β·KL。"""
    return stats["rm"] - BETA * stats["kl"]


def coverage(policy, vocab, subject, table):
    """策略在支撑集上一共放了多少概率。"""
    with torch.no_grad():
        prompts = [describe_prompt(subject)] * len(table.responses)
        return math.fsum(seq_logprob(policy, vocab, prompts, table.responses).double().exp().tolist())


def clip_cell(rho, advantage):
    """单个样本：PPO 的目标值，和它对 ρ 的斜率（自动求导，不是公式）。"""
    logp = torch.tensor([math.log(rho)], dtype=torch.float64, requires_grad=True)
    loss = pg_loss(logp, torch.zeros(1, dtype=torch.float64), torch.tensor([advantage]), "ppo", CLIP)
    loss.backward()
    return -loss.item(), -logp.grad.item() / rho


def main():
    check_number("BETA", BETA, 0, open_low=True)
    check_number("LR", LR, 0, 0.01)
    check_number("CLIP", CLIP, 0, 1, open_low=True)
    check_int("EVERY", EVERY, 1)
    check_int("STEPS", STEPS, 2 * EVERY)
    check_int("MANY_STEPS", MANY_STEPS, 1)
    check_int("PPO_EPOCHS", PPO_EPOCHS, 1)
    check_number("LR_TIMES", LR_TIMES, 0, 10, open_low=True)
    for name in ("TRAIN_SEEDS", "RATIOS", "SUBJECTS"):
        check_int(f"{name} 的项数", len(globals()[name]), 1)
    for rho in RATIOS:
        check_number("RATIOS 的每一项", rho, 0, open_low=True)
    for subject in SUBJECTS:
        check_choice("SUBJECTS 的每一项", subject, PROMPT_SUBJECTS)
    check_int("MANY_EPOCHS", MANY_EPOCHS, 2)
    check_int("N_SAMPLES", N_SAMPLES, 100)
    check_int("EVAL_PROMPTS", EVAL_PROMPTS, 1)
    setup_torch()

    title(f"演示 1：同样多的样本，REINFORCE 与 PPO（β = {BETA:g}，{len(TRAIN_SEEDS)} 个训练种子的平均）")
    sft, rm, vocab = load_models()
    ref = frozen_copy(sft)
    start = rollout_stats(sft, ref, rm, vocab, EVAL_PROMPTS, EVAL_SEED)
    runs = {
        name: [train(sft, ref, rm, vocab, algo, STEPS, EVERY, PPO_EPOCHS, CLIP, seed, times) for seed in TRAIN_SEEDS]
        for name, algo, times in (("reinforce", "reinforce", 1), ("ppo", "ppo", 1), ("big", "reinforce", LR_TIMES))
    }
    curves = {algo: [[(0, start), *curve] for _, curve, _ in run] for algo, run in runs.items()}
    n_points = len(curves["ppo"][0])
    rows = []
    for i in range(n_points):
        rows.append([
            str(curves["ppo"][0][i][0] * BATCH),
            *(cell for algo in curves for k, cell in enumerate(cells(average(curves[algo], i)))
              if algo == "ppo" or k != 2),
        ])
    print(f"  RF 是 REINFORCE，最后三列的学习率乘 {LR_TIMES:g}")
    head = ["采样数", "RF：RM", "r*", "KL", "PPO：RM", "r*", "合格", "KL", f"RF×{LR_TIMES:g}：RM", "r*", "KL"]
    print_table(head, rows)

    rm_of = {algo: [average(curves[algo], i)["rm"] for i in range(n_points)] for algo in curves}
    half, early, late = n_points // 2, average(curves["ppo"], 1), average(curves["ppo"], -1)
    print("观察：")
    observe(
        f"同样的学习率，同一批样本 PPO 更新 {PPO_EPOCHS} 次：起点之后每一行都是它的 RM 分数高，"
        f"{rows[1][0]} 个样本时 {rm_of['ppo'][1]:.2f} 对 {rm_of['reinforce'][1]:.2f}。",
        all(p > r for p, r in zip(rm_of["ppo"][1:], rm_of["reinforce"][1:])),
    )
    observe(
        f"PPO 用 {rows[half][0]} 个样本走到 {rm_of['ppo'][half]:.2f}，REINFORCE 用 {rows[-1][0]} 个还没走到"
        f"（{rm_of['reinforce'][-1]:.2f}）。真实的 RLHF 里，采样和打分最贵，多更新几次便宜。",
        rm_of["ppo"][half] > rm_of["reinforce"][-1],
    )
    big = average(curves["big"], -1)
    observe(
        f"这里有学习率的一份功劳：PPO 更新 {PPO_EPOCHS} 倍，所以走得远。把 REINFORCE 的学习率乘 {LR_TIMES:g}，"
        f"最后的 RM 分数就差不多追上了：RM {big['rm']:.2f} 对 {late['rm']:.2f}，r* {big['true']:.2f} 对 "
        f"{late['true']:.2f}，KL {big['kl']:.1f} 对 {late['kl']:.1f}。",
        big["rm"] > late["rm"] - 0.15 and PPO_EPOCHS > 1,
    )
    observe(
        f"PPO 的 r* 也从 {start['true']:.2f} 升到 {early['true']:.2f}（{rows[1][0]} 个样本）、{late['true']:.2f}"
        f"（最后），合格的从 {start['valid']:.2f} 到 {late['valid']:.2f}：讨好 RM 大体就是讨好人，"
        "以后升不升，要看 RM 哪里看错（04）。",
        min(early["true"], late["true"]) > start["true"] + 0.3,
    )

    title(f"演示 2：clip 的四个角（ε = {CLIP:g}，单个样本）")
    corner = {(rho, sign): clip_cell(rho, sign) for rho in RATIOS for sign in (1.0, -1.0)}
    print_table(
        ["ρ", "A = +1：目标", "斜率", "A = -1：目标", "斜率"],
        [[f"{rho:g}", *(f"{x + 0.0:.1f}" for sign in (1.0, -1.0) for x in corner[rho, sign])] for rho in RATIOS],
    )
    print("观察：")
    low, high = min(RATIOS), max(RATIOS)
    observe(
        f"好样本（A > 0）的 ρ 升到 {high:g}，或坏样本的 ρ 已降到 {low:g}：该做的已经做够，斜率是 0，样本不再推它。",
        corner[high, 1.0][1] == 0 and corner[low, -1.0][1] == 0,
    )
    observe(
        f"坏样本的 ρ 升到 {high:g}，斜率仍是 {corner[high, -1.0][1]:.0f}；好样本的 ρ 降到 {low:g}，斜率仍是 "
        f"{corner[low, 1.0][1]:.0f}：clip 只拦走得太远的，不拦走错了方向的。",
        abs(corner[high, -1.0][1] + 1) < 1e-9 and abs(corner[low, 1.0][1] - 1) < 1e-9,
    )

    title(f"演示 3：同一批样本更新几次，要不要 clip（{MANY_STEPS} 步，{len(TRAIN_SEEDS)} 个种子的平均）")
    variants = [(PPO_EPOCHS, CLIP), (MANY_EPOCHS, CLIP), (MANY_EPOCHS, math.inf)]
    rows, finals, logs = [], [], []
    for epochs, clip in variants:
        trained = [
            train(sft, ref, rm, vocab, "ppo", MANY_STEPS, MANY_STEPS, epochs, clip, seed) for seed in TRAIN_SEEDS
        ]
        curves = [curve for _, curve, _ in trained]
        finals.append(average(curves, -1))
        logs.append([entry for _, _, log in trained for entry in log])
        rows.append([f"{epochs} 次，{'没有 clip' if clip == math.inf else f'ε = {clip:g}'}",
                     *cells(finals[-1]), f"{objective(finals[-1]):.2f}", f"{max(entry[3] for entry in logs[-1]):.3g}"])
    print_table(["每批更新", "RM", "r*", "合格", "KL", "J", "最大的 ρ"], rows)
    first = [entry for log in logs for entry in log if entry[1] == 0]
    outside = [mean(entry[4] for entry in logs[1] if entry[1] == epoch) for epoch in (1, MANY_EPOCHS - 1)]
    print("观察：")
    observe(
        f"每批的第一次更新，ρ 处处是 {first[0][2]:g}：样本就是现在的策略采的，PPO 与 REINFORCE 的梯度相同。",
        all(low == high == 1 for _, _, low, high, _ in first),
    )
    observe(
        f"更新 {MANY_EPOCHS} 次，第 2 次有 {outside[0]:.2f} 的 ρ 出界，最后一次有 {outside[1]:.2f}：样本越用越旧。",
        outside[1] > outside[0] + 0.2,
    )
    observe(
        f"去掉 clip，ρ 大到 {rows[2][-1]}。RM 分数没有变坏（{finals[2]['rm']:.2f}，有 clip 是 {finals[1]['rm']:.2f}），"
        f"可是 KL 是 {finals[2]['kl']:.1f}（有 clip 是 {finals[1]['kl']:.1f}），目标 J = RM - β·KL 只有 "
        f"{objective(finals[2]):.2f}（有 clip 是 {objective(finals[1]):.2f}），r* 只有 {finals[2]['true']:.2f}"
        f"（有 clip 是 {finals[1]['true']:.2f}）。",
        finals[2]["kl"] > 1.3 * finals[1]["kl"] and finals[2]["true"] < finals[1]["true"] - 0.3
        and objective(finals[2]) < objective(finals[1]) and finals[2]["rm"] > finals[1]["rm"] - 0.1,
    )
    observe(
        f"有 clip 时，最大的 ρ 也到了 {rows[1][-1]}，远不止 1 + ε：出界的样本只是不再出力，别的样本改动共享的参数，"
        "照样把它带走。",
        max(entry[3] for entry in logs[1]) > 2 * (1 + CLIP),
    )

    title(f"演示 4：离 01 的最优策略还有多远（β = {BETA:g}，{len(SUBJECTS)} 道题的支撑集上的精确值）")
    tables = [scored_support(sft, rm, vocab, s, N_SAMPLES, SUPPORT_SEED + i) for i, s in enumerate(SUBJECTS)]
    policies = [("π_ref", lambda s, t: torch.softmax(t.logp, -1))]
    covered = {"π_ref": mean(t.total for t in tables), "π*": 1.0}
    for algo, name in (("reinforce", "REINFORCE"), ("ppo", "PPO")):
        trained = runs[algo][0][0]
        policies.append((name, lambda s, t, trained=trained: on_support(trained, vocab, s, t)))
        covered[name] = mean(coverage(trained, vocab, s, t) for s, t in zip(SUBJECTS, tables))
    policies.append(("π*", lambda s, t: optimal_policy(t.logp, t.rm, BETA)))
    rows, values = [], []
    for name, policy in policies:
        stats = mean_stats(tables, [policy(s, t) for s, t in zip(SUBJECTS, tables)])
        values.append(objective(stats))
        rows.append([name, f"{covered[name]:.3f}", *cells(stats), f"{values[-1]:.2f}"])
    print_table(["策略", "总概率", "RM", "r*", "合格", "KL", "J(π)"], rows)
    share = (values[2] - values[0]) / (values[3] - values[0])
    print("观察：")
    observe(
        f"{STEPS * BATCH} 个样本，PPO 走完了从 π_ref 到 π* 的 {share:.0%}（按 J 算），"
        f"REINFORCE 走完了 {(values[1] - values[0]) / (values[3] - values[0]):.0%}。π* 是表上最大的 J，越不过去。",
        values[0] < values[1] < values[2] < values[3] and share > 0.7,
    )
    observe(
        f"表只盖住 π_ref 的 {covered['π_ref']:.2f}；训练以后，PPO 只剩 {covered['PPO']:.3f} 的概率还在表里。"
        "各个策略都先在表上归一，所以上一条说的是“在这些回答之间怎样分配”，不是整个策略。",
        covered["PPO"] < 0.5 * covered["π_ref"],
    )


if __name__ == "__main__":
    run_script(main)

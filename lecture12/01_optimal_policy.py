"""
================================================================================
第 12 讲 · 01：最优策略有公式 —— RLHF 要去的地方，不训练就能算出来
================================================================================
对应讲义：lectures/lecture12_rlhf.md 第 2 节
（Ouyang et al. 2022, InstructGPT；Rafailov et al. 2023, DPO 的式 4；Gao et al. 2022）

【问题】RLHF 的目标是"奖励要高，又不许离 SFT 模型太远"。这个目标的最优解长什么样？β 管什么？

【这里的设定】一道题的回答有无穷多条；这里只看 SFT 采样出来的那些（支撑集，support），把它们列成一张表，
概率、RM 分数、r* 都有精确值。在这张表上，最优策略是一个 softmax，不用训练。
简化：表只盖住六七成的概率，真实的最优策略还会用到表外的回答。这里没有神经网络在学习：
训练出来的策略能不能走到公式所说的地方，是 02 的事。

【公式】J(π) = E_π[r] - β·KL(π || π_ref)
    π*(y) = π_ref(y)·exp(r(y)/β) / Z，Z = Σ_y π_ref(y)·exp(r(y)/β)
    J(π*) = β·log Z；任何别的策略  J(π) = β·log Z - β·KL(π || π*)
    沿着最优策略走，奖励对 KL 的斜率：dE[r]/dKL = β
r 是奖励，π_ref 是 SFT 模型，β 是惩罚的系数，Z 是归一化常数。

运行时间：约 10 秒，需要 torch。
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from rlhf_lab import (
    PROMPT_SUBJECTS, check_choice, check_each, check_int, check_number, check_seeds, entropy_bits, generator,
    kl_estimates, load_models, mean, mean_stats, observe, optimal_policy, policy_stats, print_table, run_script,
    scored_support, setup_torch, title, torch,
)

BETAS = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003)  # KL 惩罚的系数，从大到小
SUBJECTS = tuple(PROMPT_SUBJECTS)  # 演示用的题（全部 16 个主语），表里是它们的平均
N_SAMPLES = 2000  # 每道题采样多少次，来收集不同的回答
SUPPORT_SEED = 1  # 收集回答的随机种子
CHECK_BETA = 0.3  # 演示 2：检查哪一个 β
N_RANDOM = 1000  # 演示 2：随机扰动出多少个别的策略
SHAKE = 0.5  # 演示 2：扰动的大小（加在 log π* 上的正态噪声的标准差）
SHAKE_SEED = 2  # 演示 2：扰动的随机种子
ASCENT_STEPS = (10, 100, 1000)  # 演示 2：梯度上升走多少步
ASCENT_LR = 0.1  # 演示 2：梯度上升的学习率（Adam，变量是每条回答的 logit）
KL_SAMPLES = 2000  # 演示 4：估计 KL 用多少个样本
KL_SEED = 3  # 演示 4：采样的随机种子
NEAR_BETA = 3.0  # 演示 4：再看一个离 π_ref 近的 π*，它的 β
NUDGE = 0.02  # 演示 3：量斜率时 β 上下各变这个比例


def log_partition(logp, rewards, beta):
    """log Z，π_ref 先在支撑集上归一。"""
    return torch.logsumexp(torch.log_softmax(logp, -1) + rewards / beta, -1).item()


def objective(pi, logp, rewards, beta):
    """J(π) = E_π[r] - β·KL(π || π_ref)，精确值。"""
    stats = policy_stats(pi, logp, rewards, rewards, rewards)
    return stats["rm"] - beta * stats["kl"]


def kl(p, q):
    """KL(p || q) = Σ p·log(p/q)。"""
    return (torch.special.xlogy(p, p) - torch.special.xlogy(p, q)).sum().item()


def sweep(tables, by):
    """对每个 β，各题的最优策略的统计量的平均。by 是 "rm" 或 "true"：拿哪一个当奖励。"""
    rows = []
    for beta in BETAS:
        policies = [optimal_policy(t.logp, getattr(t, by), beta) for t in tables]
        row = mean_stats(tables, policies)
        row["entropy"] = mean(entropy_bits(pi) for pi in policies)
        row["value"] = mean(beta * log_partition(t.logp, getattr(t, by), beta) for t in tables)
        rows.append(row)
    return rows


def gradient_ascent(logp, rewards, beta, steps):
    """从 π_ref 出发，用梯度上升最大化 J；变量是每条回答自己的 logit（没有共享的参数）。"""
    theta = torch.log_softmax(logp, -1).clone().requires_grad_(True)
    start = theta.detach().clone()
    optimiser = torch.optim.Adam([theta], lr=ASCENT_LR)
    for _ in range(steps):
        logpi = torch.log_softmax(theta, -1)
        loss = -(logpi.exp() * (rewards - beta * (logpi - start))).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return torch.softmax(theta.detach(), -1)


def shaken(pi, rng):
    """π* 附近的另一个策略：每条回答的对数概率加一点正态噪声，再归一。"""
    noise = torch.randn(len(pi), generator=rng, dtype=torch.float64)
    return torch.softmax(pi.log() + SHAKE * noise, -1)


def kl_spread(table, beta):
    """β 的最优策略上，k1、k2、k3 的标准差（精确值）。"""
    pi, spread = optimal_policy(table.logp, table.rm, beta), []
    for k in kl_estimates(pi.log(), torch.log_softmax(table.logp, -1)):
        spread.append((pi @ (k - pi @ k) ** 2).sqrt().item())
    return spread


def main():
    for name in ("CHECK_BETA", "NEAR_BETA", "ASCENT_LR", "SHAKE"):
        check_number(name, globals()[name], 0.01)
    check_int("KL_SAMPLES", KL_SAMPLES, 2)
    check_number("NUDGE", NUDGE, 0.001, 0.5)
    check_each("BETAS", BETAS, check_number, 0.001, at_least=3)
    check_each("SUBJECTS", SUBJECTS, check_choice, PROMPT_SUBJECTS)
    check_int("N_RANDOM", N_RANDOM, 1)
    check_int("N_SAMPLES", N_SAMPLES, 100)
    check_each("ASCENT_STEPS", ASCENT_STEPS, check_int, 1)
    check_seeds(SUPPORT_SEED=SUPPORT_SEED, SHAKE_SEED=SHAKE_SEED, KL_SEED=KL_SEED)
    setup_torch()

    title("演示 1：奖励用 RM 分数，还是用 r* —— 每个 β 的最优策略")
    sft, rm, vocab = load_models()
    tables = [scored_support(sft, rm, vocab, s, N_SAMPLES, SUPPORT_SEED + i) for i, s in enumerate(SUBJECTS)]
    print(f"  {len(SUBJECTS)} 道题，平均每题 {mean(len(t.responses) for t in tables):.0f} 条不同的回答，"
          f"盖住 π_ref 的 {mean(t.total for t in tables):.2f}\n")
    by_rm, by_true = sweep(tables, "rm"), sweep(tables, "true")
    rows = [
        [f"{beta:g}", f"{a['rm']:.2f}", f"{a['true']:.2f}", f"{a['valid']:.2f}", f"{a['kl']:.2f}",
         f"{a['entropy']:.1f}", f"{a['value']:.2f}", f"{b['true']:.2f}", f"{b['kl']:.2f}"]
        for beta, a, b in zip(BETAS, by_rm, by_true)
    ]
    print_table(["β", "RM", "r*", "合格", "KL", "熵（bit）", "β·log Z", "用 r* 优化：r*", "KL"], rows)

    true = [row["true"] for row in by_rm]
    peak = max(range(len(true)), key=true.__getitem__)
    print("观察：")
    observe(
        f"β 从 {BETAS[0]:g} 降到 {BETAS[-1]:g}，RM 分数从 {by_rm[0]['rm']:.2f} 一路升到 {by_rm[-1]['rm']:.2f}，"
        f"KL 从 {by_rm[0]['kl']:.2f} 升到 {by_rm[-1]['kl']:.1f}：奖励是拿 KL 买来的。",
        all(a["rm"] < b["rm"] and a["kl"] < b["kl"] for a, b in zip(by_rm, by_rm[1:])),
    )
    observe(
        f"真正想要的 r* 却在 β = {BETAS[peak]:g} 到顶（{true[peak]:.2f}），再小就掉：β = {BETAS[-1]:g} 时只有 "
        f"{true[-1]:.2f}，合格的比例也从 {by_rm[peak]['valid']:.2f} 掉到 {by_rm[-1]['valid']:.2f}。"
        "最优策略没有做错，错在它相信了 RM。",
        true[0] < true[peak] > true[-1] + 0.2 and by_rm[-1]["valid"] < by_rm[peak]["valid"],
    )
    observe(
        f"奖励换成 r* 本身，β 再小也不会掉：r* 升到 {by_true[-1]['true']:.2f}。过度优化来自 RM 的错，不来自优化。",
        all(a["true"] < b["true"] for a, b in zip(by_true, by_true[1:])) and by_true[-1]["true"] > true[peak],
    )
    observe(
        f"还有一样代价：变得单调。π* 的熵在 β = {BETAS[0]:g} 时是 {by_rm[0]['entropy']:.1f} bit，"
        f"β = {BETAS[-1]:g} 时只剩 {by_rm[-1]['entropy']:.1f} bit：几乎只写一条。",
        by_rm[-1]["entropy"] < min(1.0, 0.5 * by_rm[0]["entropy"]),
    )

    title(f"演示 2：没有别的策略更好（{SUBJECTS[0]}，β = {CHECK_BETA:g}，奖励是 RM 分数）")
    t = tables[0]
    best = optimal_policy(t.logp, t.rm, CHECK_BETA)
    top = CHECK_BETA * log_partition(t.logp, t.rm, CHECK_BETA)
    rng = generator(SHAKE_SEED)
    others = [shaken(best, rng) for _ in range(N_RANDOM)]
    nearest = max(others, key=lambda pi: objective(pi, t.logp, t.rm, CHECK_BETA))
    greedy = torch.nn.functional.one_hot(t.rm.argmax(), len(t.rm)).double()
    policies = [
        ("π*", best), ("π_ref", torch.softmax(t.logp, -1)), ("只写 RM 最高的那条", greedy),
        (f"π* 扰动 {N_RANDOM} 次，最好的", nearest),
        *((f"梯度上升 {steps} 步", gradient_ascent(t.logp, t.rm, CHECK_BETA, steps)) for steps in ASCENT_STEPS),
    ]
    values = [objective(pi, t.logp, t.rm, CHECK_BETA) for _, pi in policies]
    gaps = [CHECK_BETA * kl(pi, best) for _, pi in policies]
    rows = [
        [name, f"{value:.4f}", f"{round(top - value, 4) + 0.0:.4f}", f"{round(gap, 4) + 0.0:.4f}"]
        for (name, _), value, gap in zip(policies, values, gaps)
    ]
    print_table(["策略 π", "J(π)", "β·log Z - J(π)", "β·KL(π || π*)"], rows)
    print("观察：")
    observe(
        f"最高的是 π*，J = {values[0]:.4f}，正好是 β·log Z；扰动 {N_RANDOM} 次没有一次超过它。",
        abs(values[0] - top) < 1e-9 and max(values[1:]) <= top + 1e-9,
    )
    observe(
        "最后两列处处相等：离最优差多少分，就是离 π* 有多远（乘上 β）。KL 不会是负的，所以 π* 是唯一的最优解。",
        all(abs(top - value - gap) < 1e-6 for value, gap in zip(values, gaps)),
    )
    observe(
        f"梯度上升自己走到了同一个地方：{ASCENT_STEPS[-1]} 步后差不到 {max(0.0, top - values[-1]) + 1e-4:.4f}，"
        f"{ASCENT_STEPS[0]} 步时还差 {top - values[-len(ASCENT_STEPS)]:.2f}。",
        abs(top - values[-1]) < 0.01 and values[-1] > values[-len(ASCENT_STEPS)],
    )

    title("演示 3：β 是价钱 —— 多花 1 nat 的 KL，能多换来多少奖励")
    rows, ratios = [], []
    for beta in BETAS[2:]:
        ends = [
            mean_stats(tables, [optimal_policy(t.logp, t.rm, b) for t in tables])
            for b in (beta * (1 + NUDGE), beta * (1 - NUDGE))
        ]
        rise, cost, true_rise = (ends[1][key] - ends[0][key] for key in ("rm", "kl", "true"))
        ratios.append(rise / cost / beta)
        rows.append([f"{beta:g}", f"{cost:.4f}", f"{rise:.5f}", f"{rise / cost:.4f}", f"{true_rise / cost:.4f}"])
    print_table(["β", "KL 多花", "RM 多得", "RM 多得 / KL 多花", "r* 多得 / KL 多花"], rows)
    print("观察：")
    observe(
        f"第四列就是 β（两者之比在 {min(ratios):.3f} 到 {max(ratios):.3f} 之间）："
        "最优策略把 KL 花到边际收益正好等于 β 为止。",
        all(abs(ratio - 1) < 0.02 for ratio in ratios),
    )
    observe(
        "第五列是同样的 KL 换来的 r*：β 大时它与 RM 同涨，β 小到一定程度，RM 还在涨，换来的 r* 已经是负的。",
        float(rows[0][4]) > 0 > min(float(row[4]) for row in rows),
    )

    title(f"演示 4：KL 怎样估计（{SUBJECTS[0]}，β = {CHECK_BETA:g} 的 π*，{KL_SAMPLES} 个样本）")
    logpi, logref = best.log(), torch.log_softmax(t.logp, -1)
    draws = torch.multinomial(best, KL_SAMPLES, replacement=True, generator=generator(KL_SEED))
    true_kl, rows, found = kl(best, logref.exp()), [], []
    for name, k in zip(("k1 = log(π/π_ref)", "k2 = k1^2/2", "k3 = π_ref/π - 1 + k1"), kl_estimates(logpi, logref)):
        sample = k[draws]
        expected = (best @ k).item()
        found.append((expected, (best @ (k - expected) ** 2).sqrt().item(), sample.min().item()))
        rows.append([name, f"{found[-1][0]:.3f}", f"{sample.mean().item():.3f}", f"{found[-1][1]:.2f}",
                     f"{found[-1][2]:.2f}"])
    print_table(["估计", "期望（精确）", "样本平均", "标准差（精确）", "最小的样本"], rows)
    print("观察：")
    observe(
        f"KL 的精确值是 {true_kl:.3f}：k1、k3 的期望正好是它，k2 不是（{found[1][0]:.3f}）。离得远的时候 k2 偏得厉害。",
        abs(found[0][0] - true_kl) < 1e-6 and abs(found[2][0] - true_kl) < 1e-6 and abs(found[1][0] - true_kl) > 0.1,
    )
    observe(
        f"k1 的单个样本可以是负的（最小 {found[0][2]:.2f}），k3 不会（最小 {found[2][2]:.2f}）。"
        "后面凡是采样量的 KL，都是 k1 的平均。",
        found[0][2] < 0 <= found[2][2] + 1e-9,
    )
    near = kl_spread(t, NEAR_BETA)
    observe(
        f"k3 常被说成方差小。离 π_ref 近时是这样：β = {NEAR_BETA:g} 的 π*，标准差 k1 是 {near[0]:.3f}，k3 是 "
        f"{near[2]:.3f}。这里离得远，k3 是 {found[2][1]:.1f}，k1 是 {found[0][1]:.1f}：π_ref/π 很大的样本偶尔来一个。",
        found[2][1] > found[0][1] and near[2] < near[0],
    )


if __name__ == "__main__":
    run_script(main)

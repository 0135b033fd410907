"""
================================================================================
第 12 讲 · 05：DPO —— 不训练奖励模型，也不采样，直接从偏好学
================================================================================
对应讲义：lectures/lecture12_rlhf.md 第 6 节
（Rafailov et al. 2023, DPO）

【问题】01 说最优策略有公式。把公式反过来用，能不能跳过奖励模型和 RL？

【这里的设定】偏好数据与奖励模型的相同：SFT 采样，标注员带噪声地比较。DPO 只做监督学习：
每一对（赢，输），让 log π 的差比 π_ref 的差更大。演示 1～3 训练小 GPT；演示 4 换成一张表
（每条回答一个 logit），那里 DPO 的最优解已知，可以对答案。
简化：学习率不变，没有 warm-up；真实的 DPO 学习率小两个数量级（Rafailov et al. 用 1e-6），数据也大得多。

【公式】推导（π* 是 01 的最优策略）：
    π*(y) = π_ref(y)·exp(r(y)/β)/Z   →   r(y) = β·log(π*(y)/π_ref(y)) + β·log Z
    代入 Bradley–Terry：P(w 赢 l) = σ(r(w) - r(l))，同一个提示的 β·log Z 相减消掉
    损失 = -log σ( r'(w) - r'(l) )，r'(y) = β·log(π(y)/π_ref(y))
    梯度 = -β·σ(r'(l) - r'(w))·( log π(w) 的梯度 - log π(l) 的梯度 )
r' 是隐式奖励（implicit reward，论文里写作 r 戴帽）；梯度前面的 σ 是权重：排错了的对，权重大。

运行时间：约 15 秒，需要 torch。
"""
import copy
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from rlhf_lab import (
    NOISE, PROMPT_SUBJECTS, check_choice, check_each, check_int, check_number, check_seeds, dpo_loss, frozen_copy,
    human_reward, load_models, mean, observe, optimal_policy, pairs_of, policy_stats, print_table, ranked_answers,
    rm_reward, rollout_stats, run_script, score, scored_support, setup_torch, sigmoid, title, torch, train_dpo,
    train_pg, train_reward_model,
)

BETAS = (0.05, 0.1, 0.3, 1.0)  # DPO 的 β
N_PROMPTS = 200  # 偏好数据有多少道题
K = 4  # 每道题几条回答，拆成 C(K, 2) 对
DATA_SEEDS = (1, 11, 21)  # 偏好数据的种子：提示、采样、标注
N_TRACKED = 300  # 演示 1：量前面多少对
FRESH_PROMPTS = 60  # 量排序准确率用的新题
FRESH_SEEDS = (2, 12, 22)  # 新题的种子
EPOCHS = 2  # 偏好数据走几遍
LR = 2e-4  # 学习率（Adam）
TRAIN_SEED = 1  # 打乱次序的随机种子
EVAL_PROMPTS = 500  # 量 r*、KL 用多少道随机的题
EVAL_SEED = 77  # 测量的随机种子
PPO_STEPS = 15  # 演示 3：PPO 走多少步（每步采样 64 条）
PPO_BETA = 0.1  # 演示 3：PPO 的 KL 系数
PPO_LR = 3e-4  # 演示 3：PPO 的学习率
TABLE_SUBJECT = "dogs"  # 演示 4：哪道题
TABLE_SIZE = 12  # 演示 4：表里放最常见的几条回答
TABLE_BETAS = (0.5, 1.0, 2.0, 5.0)  # 演示 4：DPO 的 β
TABLE_STEPS = 200  # 演示 4：最多下降多少步（L-BFGS：记住曲率的下降，几十步就到底）
SUPPORT_SAMPLES = 1000  # 演示 4：采样多少次来找常见的回答
SUPPORT_SEED = 1  # 演示 4：采样的随机种子


def margins(policy, ref, vocab, pairs, beta):
    """(每一对的隐式奖励之差 r'(赢) - r'(输), 平均损失, log π(赢) 的平均变化, log π(输) 的平均变化)。"""
    prompts, winners, losers, _ = zip(*pairs)
    with torch.no_grad():
        loss, win, lose = dpo_loss(policy, ref, vocab, prompts, winners, losers, beta)
    return (win - lose).tolist(), loss.item(), win.mean().item() / beta, lose.mean().item() / beta


def accuracy(differences):
    """差 > 0 的比例；正好是 0 的算一半。"""
    return mean(0.5 if d == 0 else float(d > 0) for d in differences)


def clean_pairs(pairs):
    """按 r* 重新排好的对（去掉标注员的噪声），同分的不要。"""
    ordered = []
    for prompt, a, b, subject in pairs:
        ra, rb = human_reward(subject, a), human_reward(subject, b)
        if ra != rb:
            ordered.append((prompt, a, b, subject) if ra > rb else (prompt, b, a, subject))
    return ordered


def tabular_dpo(logp_ref, true, beta):
    """
    表格里的 DPO：每条回答一个 logit，从 π_ref 出发，最小化所有对上的**期望**损失
    （标签的概率用 Bradley–Terry 的精确值 σ((r*_i - r*_j)/NOISE)），返回策略。
    """
    want = torch.sigmoid((true[:, None] - true[None, :]) / NOISE)
    theta = logp_ref.clone().requires_grad_(True)
    optimiser = torch.optim.LBFGS([theta], max_iter=TABLE_STEPS, tolerance_grad=1e-9, tolerance_change=0.0,
                                  line_search_fn="strong_wolfe")

    def loss():
        optimiser.zero_grad()
        implicit = beta * (torch.log_softmax(theta, -1) - logp_ref)
        value = -(want * torch.nn.functional.logsigmoid(implicit[:, None] - implicit[None, :])).mean()
        value.backward()
        return value

    optimiser.step(loss)
    return torch.softmax(theta.detach(), -1)


def main():
    check_number("PPO_BETA", PPO_BETA, 0)
    check_int("N_PROMPTS", N_PROMPTS, 1)
    check_int("K", K, 2)
    check_int("EPOCHS", EPOCHS, 1)
    check_int("FRESH_PROMPTS", FRESH_PROMPTS, 10)
    check_int("N_TRACKED", N_TRACKED, 1)
    check_int("TABLE_SIZE", TABLE_SIZE, 2)
    check_int("TABLE_STEPS", TABLE_STEPS, 50)
    check_int("EVAL_PROMPTS", EVAL_PROMPTS, 2)
    check_int("PPO_STEPS", PPO_STEPS, 1)
    check_int("SUPPORT_SAMPLES", SUPPORT_SAMPLES, 1)
    check_choice("TABLE_SUBJECT", TABLE_SUBJECT, PROMPT_SUBJECTS)
    for name, value, high in (("LR", LR, 0.01), ("PPO_LR", PPO_LR, 0.01)):
        check_number(name, value, 0, high)
    for name, betas, at_least in (("BETAS", BETAS, 3), ("TABLE_BETAS", TABLE_BETAS, 1)):
        check_each(name, betas, check_number, 0, None, True, at_least=at_least)  # 都大于 0
    for name, seeds in (("DATA_SEEDS", DATA_SEEDS), ("FRESH_SEEDS", FRESH_SEEDS)):
        check_int(f"{name} 的项数", len(check_each(name, seeds, check_int)), 3, 3)
    check_seeds(TRAIN_SEED=TRAIN_SEED, EVAL_SEED=EVAL_SEED, SUPPORT_SEED=SUPPORT_SEED)
    setup_torch()

    title("演示 1：从 policy = π_ref 出发，损失与权重")
    sft, rm, vocab = load_models()
    ref = frozen_copy(sft)
    rankings = ranked_answers(sft, vocab, N_PROMPTS, K, *DATA_SEEDS)
    pairs = pairs_of(rankings)
    fresh = clean_pairs(pairs_of(ranked_answers(sft, vocab, FRESH_PROMPTS, K, *FRESH_SEEDS)))
    some, track, runs = pairs[:N_TRACKED], [], {}
    policies = {beta: copy.deepcopy(sft) for beta in BETAS}
    second = BETAS[1]
    for beta, policy in policies.items():
        def watch(epoch, policy=policy):
            track.append((f"训练 {epoch} 遍", *margins(policy, ref, vocab, some, second)))

        if beta == second:
            watch(0)
        train_dpo(policy, ref, vocab, pairs, beta, epochs=EPOCHS, lr=LR, seed=TRAIN_SEED,
                  callback=watch if beta == second else None)
    print_table(
        [f"β = {second:g}", "损失", "βh = r'(赢) - r'(输)", "平均权重 σ(-βh)", "最小的权重", "最大的"],
        [[name, f"{loss:.4f}", f"{round(mean(m), 3) + 0.0:.3f}", f"{mean(sigmoid(-x) for x in m):.3f}",
          f"{sigmoid(-max(m)):.2f}", f"{sigmoid(-min(m)):.2f}"] for name, m, loss, *_ in track],
    )
    last = track[-1][1]
    print("观察：")
    observe(
        f"起点的损失是 ln 2 = {math.log(2):.4f}，每一对的权重都是一半：DPO 还不知道谁好。",
        abs(track[0][2] - math.log(2)) < 1e-5,
    )
    observe(
        f"训练以后，βh 平均升到 {mean(last):.2f}，平均权重降到 {mean(sigmoid(-x) for x in last):.2f}："
        f"已经排对很多的对不再用力；还排错的，权重到 {sigmoid(-min(last)):.2f}。",
        track[-1][2] < track[0][2] and mean(sigmoid(-x) for x in last) < 0.5 < sigmoid(-min(last)),
    )

    title(f"演示 2：β 管走多远（{len(pairs)} 对，{EPOCHS} 遍）")
    start = rollout_stats(sft, ref, rm, vocab, EVAL_PROMPTS, EVAL_SEED)
    rows = [["SFT", "0.50", "0.0", "0.0", f"{start['true']:.2f}", f"{start['valid']:.2f}", "0.00"]]
    for beta, policy in policies.items():
        m, _, win, lose = margins(policy, ref, vocab, fresh, beta)
        runs[beta] = {**rollout_stats(policy, ref, rm, vocab, EVAL_PROMPTS, EVAL_SEED), "acc": accuracy(m), "win": win,
                      "lose": lose}
        run = runs[beta]
        rows.append([f"β = {beta:g}", f"{run['acc']:.2f}", f"{win:.1f}", f"{lose:.1f}", f"{run['true']:.2f}",
                     f"{run['valid']:.2f}", f"{run['kl']:.2f}"])
    scores = [score(rm, vocab, *map(list, zip(*((p[0], p[i]) for p in fresh)))) for i in (1, 2)]
    rm_accuracy = accuracy([w - l for w, l in zip(*scores)])
    by_length = accuracy([len(p[1]) - len(p[2]) for p in fresh])
    rows += [["第 11 讲的 RM", f"{rm_accuracy:.2f}", *["—"] * 5], ["总选长的", f"{by_length:.2f}", *["—"] * 5]]
    print_table(["新题上", "排序准确率", "log π(赢) 变化", "log π(输) 变化", "r*", "合格", "KL"], rows)
    print(f"  r* 量了 {EVAL_PROMPTS} 条，标准误最大 {max(run['se'] for run in runs.values()):.2f}")
    near, far = [run["true"] for run in runs.values()][:-1], runs[BETAS[-1]]
    print("观察：")
    observe(
        f"β 越小走得越远：KL 从 β = {BETAS[-1]:g} 的 {runs[BETAS[-1]]['kl']:.2f} 到 β = {BETAS[0]:g} 的 "
        f"{runs[BETAS[0]]['kl']:.1f}。",
        all(runs[a]["kl"] > runs[b]["kl"] for a, b in zip(BETAS, BETAS[1:])),
    )
    observe(
        f"没有奖励模型，也没有采样，r* 从 {start['true']:.2f} 升到 {min(near):.2f}～{max(near):.2f}"
        f"（β = {BETAS[0]:g}～{BETAS[-2]:g}，这几个差不多）；β = {BETAS[-1]:g} 走得太近，只有 {far['true']:.2f}。",
        min(near) > far["true"] > start["true"] + 0.2,
    )
    accs = [run["acc"] for run in runs.values()]
    observe(
        f"隐式奖励会排序：{min(accs):.2f}～{max(accs):.2f}，与 RM（800 道题，{rm_accuracy:.2f}）差不多。"
        f"不过总选长的那条也有 {by_length:.2f}。",
        min(accs) > 0.6 and abs(max(accs) - rm_accuracy) < 0.1,
    )
    observe(
        f"β = {BETAS[0]:g}：新题上赢家的 log π 变了 {runs[BETAS[0]]['win']:.1f}，输家变了 "
        f"{runs[BETAS[0]]['lose']:.1f}。差拉开了，赢家自己却变少见了：见 06。",
        runs[BETAS[0]]["lose"] < runs[BETAS[0]]["win"] < 0,
    )

    title("演示 3：同一份偏好数据，DPO 与 RM + PPO")
    small_rm = train_reward_model(sft, vocab, rankings, log=False).requires_grad_(False)
    ppo = copy.deepcopy(sft)
    train_pg(ppo, ref, vocab, rm_reward(small_rm, vocab), PPO_STEPS, PPO_BETA, "ppo", lr=PPO_LR, seed=TRAIN_SEED)
    by_ppo = rollout_stats(ppo, ref, small_rm, vocab, EVAL_PROMPTS, EVAL_SEED)
    rows = [
        [name, str(samples), f"{s['true']:.2f}", f"{s['valid']:.2f}", f"{s['kl']:.2f}"]
        for name, samples, s in (("SFT", 0, start), (f"DPO，β = {second:g}", 0, runs[second]),
                                 (f"RM + PPO，β = {PPO_BETA:g}", PPO_STEPS * 64, by_ppo))
    ]
    print_table(["方法", "训练中采样几条", "r*", "合格", "KL"], rows)
    print("观察：")
    observe(
        f"两条路都比 SFT 好（{start['true']:.2f}）：DPO {runs[second]['true']:.2f}，RM + PPO {by_ppo['true']:.2f}。"
        "谁高谁低随种子变，这里不下结论。",
        min(runs[second]["true"], by_ppo["true"]) > start["true"] + 0.2,
    )
    observe("Xu et al.（2024）调好的 PPO 在他们的任务上都胜过 DPO；Rafailov et al.（2023）的摘要任务上 DPO 胜。")

    title(f"演示 4：表格里的 DPO 走到 01 的公式（{TABLE_SUBJECT}，最常见的 {TABLE_SIZE} 条回答）")
    table = scored_support(sft, rm, vocab, TABLE_SUBJECT, SUPPORT_SAMPLES, SUPPORT_SEED)
    top = table.logp.topk(min(TABLE_SIZE, len(table.logp))).indices
    logp_ref, true = torch.log_softmax(table.logp[top], -1), table.true[top]
    rows, errors = [], []
    for beta in TABLE_BETAS:
        learned, exact = tabular_dpo(logp_ref, true, beta), optimal_policy(logp_ref, true, beta * NOISE)
        a, b = (policy_stats(pi, logp_ref, true, true, true) for pi in (learned, exact))
        errors.append((learned - exact).abs().max().item())
        rows.append([f"{beta:g}", f"{beta * NOISE:g}", f"{a['true']:.4f}", f"{b['true']:.4f}", f"{a['kl']:.4f}",
                     f"{b['kl']:.4f}", f"{errors[-1]:.4f}"])
    print_table(["DPO 的 β", "公式的 β", "DPO：r*", "公式：r*", "DPO：KL", "公式：KL", "概率最多差"], rows)
    print("观察：")
    observe(
        f"概率差不到 {max(errors) + 1e-4:.4f}：数据无穷多、覆盖所有的对时，DPO 的解就是 01 的最优策略。"
        f"标注员的噪声是 {NOISE:g}，他说的奖励其实是 r*/{NOISE:g}，所以公式的 β 要乘 {NOISE:g}。",
        max(errors) < 0.01,
    )


if __name__ == "__main__":
    run_script(main)

"""
================================================================================
第 12 讲 · 07：现采还是旧数据 —— 同样多的标注，一次买完，还是边训练边买
================================================================================
对应讲义：lectures/lecture12_rlhf.md 第 8 节
（Guo et al. 2024, "OAIF"；Tang et al. 2024；Xu et al. 2024；Tajwar et al. 2024）

【问题】标注的钱是固定的。全部花在 SFT 写的回答上（离线，offline），还是分几轮、每轮标注
当时的策略写的回答（在线，online）？

【这里的设定】两边都用 DPO，标注员相同（r* 加噪声），对数相同，更新的次数也相同，π_ref 都是 SFT。
唯一的差别：第 2 轮起，在线的那一边，回答是训练到一半的策略写的。
简化：每一轮的数据只在那一轮里用（真实的做法常把旧数据也留着）；标注立刻就有，不算等待的时间。

【公式】第 t 轮：y_1 … y_K ~ π_t，标注员排序；用这些对按 DPO 的损失训练，得到 π_{t+1}
    离线   π_t 处处换成 π_ref
排序正确率：隐式奖励 β·log(π/π_ref) 把一对排对的比例。

运行时间：约 18 秒，需要 torch。
"""
import copy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from rlhf_lab import (
    check_int, check_number, dpo_loss, frozen_copy, human_reward, load_models, mean, observe, preference_data,
    print_table, rollout_stats, run_script, setup_torch, title, torch, train_dpo,
)

ROUNDS = 4  # 分几轮
PROMPTS_PER_ROUND = 80  # 每轮多少道题
K = 4  # 每道题几条回答，拆成 C(K, 2) 对
EPOCHS = 2  # 每轮的数据走几遍
BETA = 0.1  # DPO 的 β
LR = 2e-4  # 学习率（Adam）
TRAIN_SEEDS = (1, 2)  # 训练与采样的随机种子，表里是它们的平均
FRESH_PROMPTS = 60  # 量排序正确率：每次用多少道新题
FRESH_SEEDS = (2, 12, 22)  # 新题的种子：提示、采样、标注
EVAL_PROMPTS = 250  # 量 r*、KL 用多少道随机的题
EVAL_SEED = 77  # 测量的随机种子


def ranking_accuracy(policy, ref, vocab, pairs):
    """隐式奖励把一对排对的比例；对错按 r* 算（不看标注的噪声），r* 相同的对不算。"""
    clear = [p for p in pairs if human_reward(p[3], p[1]) != human_reward(p[3], p[2])]
    prompts, first, second, _ = zip(*clear)
    with torch.no_grad():
        _, a, b = dpo_loss(policy, ref, vocab, prompts, first, second, BETA)
    better = torch.tensor([human_reward(p[3], p[1]) > human_reward(p[3], p[2]) for p in clear])
    return ((a > b) == better).double().mean().item()


def train(sft, ref, rm, vocab, online, seed):
    """
    训练 ROUNDS 轮，返回 (策略, 每轮之后的统计量, 每轮训练用的回答的平均 r*)。

    【参数】online：False 时每轮的回答都由 SFT 写。
    """
    policy, curve, quality = copy.deepcopy(sft), [], []
    for t in range(ROUNDS):
        seeds = [1000 * seed + 10 * t + offset for offset in (1, 2, 3)]
        pairs, _ = preference_data(policy if online else sft, vocab, PROMPTS_PER_ROUND, K, *seeds)
        quality.append(mean(human_reward(subject, y) for _, win, lose, subject in pairs for y in (win, lose)))
        train_dpo(policy, ref, vocab, pairs, BETA, epochs=EPOCHS, lr=LR, seed=seeds[0])
        curve.append(rollout_stats(policy, ref, rm, vocab, EVAL_PROMPTS, EVAL_SEED))
    return policy, curve, quality


def main():
    check_int("ROUNDS", ROUNDS, 2)
    check_int("TRAIN_SEEDS 的项数", len(TRAIN_SEEDS), 1)
    check_int("PROMPTS_PER_ROUND", PROMPTS_PER_ROUND, 1)
    check_int("K", K, 2)
    check_int("EPOCHS", EPOCHS, 1)
    check_number("BETA", BETA, 0, open_low=True)
    check_number("LR", LR, 0, 0.01)
    check_int("FRESH_PROMPTS", FRESH_PROMPTS, 10)
    check_int("EVAL_PROMPTS", EVAL_PROMPTS, 1)
    setup_torch()

    n_pairs = ROUNDS * PROMPTS_PER_ROUND * K * (K - 1) // 2
    title(f"演示 1：{n_pairs} 对标注，一次买完（离线）还是分 {ROUNDS} 轮买（在线），{len(TRAIN_SEEDS)} 个种子的平均")
    sft, rm, vocab = load_models()
    ref = frozen_copy(sft)
    start = rollout_stats(sft, ref, rm, vocab, EVAL_PROMPTS, EVAL_SEED)
    runs = {
        name: [train(sft, ref, rm, vocab, online, seed) for seed in TRAIN_SEEDS]
        for name, online in (("离线", False), ("在线", True))
    }

    def at(name, t, key):
        return start[key] if t < 0 else mean(curve[t][key] for _, curve, _ in runs[name])

    rows = []
    for t in range(-1, ROUNDS):
        row = [str(t + 1)]
        for name in runs:
            row += [f"{round(at(name, t, key), 2) + 0.0:.2f}" for key in ("true", "valid", "kl")]
            row.append("—" if t < 0 else f"{mean(quality[t] for _, _, quality in runs[name]):.2f}")
        rows.append(row)
    print_table(["轮", "离线：r*", "合格", "KL", "回答的 r*", "在线：r*", "合格", "KL", "回答的 r*"], rows)
    off, on = (at(name, ROUNDS - 1, "true") for name in ("离线", "在线"))
    answers = [mean(quality[-1] for _, _, quality in runs[name]) for name in ("离线", "在线")]
    print("观察：")
    observe(
        f"最后的 r*：在线 {on:.2f}，离线 {off:.2f}，起点 {start['true']:.2f}。同样多的标注，标在现在写的回答上更值。",
        on > off + 0.2,
    )
    observe(
        f"合格的比例：在线 {at('在线', ROUNDS - 1, 'valid'):.2f}，离线 {at('离线', ROUNDS - 1, 'valid'):.2f}。"
        "策略走到 SFT 不去的地方，犯新的错；只有现采的回答里有这些错，标注员才有机会说不好。",
        at("在线", ROUNDS - 1, "valid") > at("离线", ROUNDS - 1, "valid") + 0.03,
    )
    observe(
        f"最后一轮拿去标注的回答，在线的平均 r* 是 {answers[1]:.2f}，离线的是 {answers[0]:.2f}："
        "标注花在了策略现在会写的东西上。",
        answers[1] > answers[0] + 0.3,
    )

    title("演示 2：谁更会排序（隐式奖励，按 r* 算对错）")
    by_sft, _ = preference_data(sft, vocab, FRESH_PROMPTS, K, *FRESH_SEEDS)
    rows, accuracy = [], {}
    for name in runs:
        on_sft, on_own = [], []
        for policy, _, _ in runs[name]:
            own, _ = preference_data(policy, vocab, FRESH_PROMPTS, K, *FRESH_SEEDS)
            on_sft.append(ranking_accuracy(policy, ref, vocab, by_sft))
            on_own.append(ranking_accuracy(policy, ref, vocab, own))
        accuracy[name] = (mean(on_sft), mean(on_own))
        rows.append([name, *(f"{x:.3f}" for x in accuracy[name]), f"{at(name, ROUNDS - 1, 'true'):.2f}"])
    print_table(["训练方式", "SFT 写的回答", "自己写的回答", "生成的 r*"], rows)
    print("观察：")
    observe(
        f"在 SFT 写的回答上排序，两边差不多（离线 {accuracy['离线'][0]:.2f}，在线 {accuracy['在线'][0]:.2f}），"
        f"生成的 r* 却差 {on - off:.2f}：会排序不等于会写。",
        abs(accuracy["离线"][0] - accuracy["在线"][0]) < 0.1 and on > off + 0.2,
    )
    observe(
        "Tang et al.（2024）在真实的模型上看到的更强：离线的策略是更好的分类器，却是更差的生成器。"
        "Guo et al.（2024）让人比较在线与离线 DPO 的摘要：在线胜 63.7%，平 28.6%，负 7.7%。"
    )
    observe("Tulu 3 里 PPO 与 DPO 差不多，PPO 却要 2 个节点跑 28 小时，DPO 是 1 个节点 4 小时：离线便宜。")


if __name__ == "__main__":
    run_script(main)

"""
================================================================================
第 12 讲 · 07：现采还是旧数据 —— 同样多的标注，一次买完，还是边训练边买
================================================================================
对应讲义：lectures/lecture12_rlhf.md 第 8 节
（Guo et al. 2024, OAIF；Tang et al. 2024；Xu et al. 2024；Tajwar et al. 2024）

【问题】标注的钱是固定的。全部花在 SFT 写的回答上（离线，offline），还是分几轮、每轮标注
当时的策略写的回答（在线，online）？

【这里的设定】两边都用 DPO，标注员相同（r* 加噪声），对数相同，更新的次数也相同，π_ref 都是 SFT。
唯一的差别：第 2 轮起，在线的那一边，回答是训练到一半的策略写的。
简化：每一轮的数据只在那一轮里用（真实的做法常把旧数据也留着）；标注立刻就有，不算等待的时间。

【公式】第 t 轮：y_1 … y_K ~ π_t，标注员排序；用这些对按 DPO 的损失训练，得到 π_{t+1}
    离线   π_t 处处换成 π_ref
排序准确率：隐式奖励 β·log(π/π_ref) 把一对排对的比例。

运行时间：约 25 秒，需要 torch。
"""
import copy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from rlhf_lab import (
    FAULTS, check_each, check_int, check_number, check_seeds, dpo_loss, frozen_copy, human_reward, load_models, mean,
    observe, preference_data, print_table, rollout_stats, run_script, score, setup_torch, title, torch, train_dpo,
)

ROUNDS = 4  # 分几轮
PROMPTS_PER_ROUND = 60  # 每轮多少道题
K = 4  # 每道题几条回答，拆成 C(K, 2) 对
EPOCHS = 2  # 每轮的数据走几遍
BETA = 0.1  # DPO 的 β
LR = 2e-4  # 学习率（Adam）
TRAIN_SEEDS = (1, 2, 3, 4)  # 训练与采样的随机种子，表里是它们的平均
FRESH_PROMPTS = 50  # 量排序准确率：每次用多少道新题
FRESH_SEEDS = (2, 12, 22)  # 新题的种子：提示、采样、标注
EVAL_PROMPTS = 150  # 量 r*、KL：每个训练种子每次用多少道随机的题
EVAL_SEED = 77  # 测量的随机种子；第 k 个训练种子用 EVAL_SEED + k，题不重样


def ranking_accuracy(pairs, points):
    """points(题, 回答) 打分，把一对排对的比例；对错按 r* 算（不看标注的噪声），r* 相同的对不算，同分算一半。"""
    clear = [p for p in pairs if human_reward(p[3], p[1]) != human_reward(p[3], p[2])]
    prompts, first, second, _ = zip(*clear)
    hits = []
    for pair, a, b in zip(clear, points(prompts, first), points(prompts, second)):
        better = human_reward(pair[3], pair[1]) > human_reward(pair[3], pair[2])
        hits.append(0.5 if a == b else float((a > b) == better))
    return mean(hits)


def implicit(policy, ref, vocab):
    """DPO 的隐式奖励，给 ranking_accuracy 用。"""
    def points(prompts, answers):
        with torch.no_grad():
            return dpo_loss(policy, ref, vocab, prompts, answers, answers, BETA)[1].tolist()

    return points


def train(sft, ref, rm, vocab, k):
    """
    用第 k 个种子训练 ROUNDS 轮：{"离线": (策略, 每轮之后的统计量, 每轮训练用的回答的平均 r*), "在线": 同样的三样}。

    第 1 轮两边都是 SFT 写的，完全相同，只训练一次；从第 2 轮起分开。
    """
    def one_round(policy, curve, quality, writer):
        seeds = [1000 * TRAIN_SEEDS[k] + 10 * len(curve) + offset for offset in (1, 2, 3)]
        pairs, _ = preference_data(writer, vocab, PROMPTS_PER_ROUND, K, *seeds)
        quality.append(mean(human_reward(subject, y) for _, win, lose, subject in pairs for y in (win, lose)))
        train_dpo(policy, ref, vocab, pairs, BETA, epochs=EPOCHS, lr=LR, seed=seeds[0])
        curve.append(rollout_stats(policy, ref, rm, vocab, EVAL_PROMPTS, EVAL_SEED + k))

    offline = (copy.deepcopy(sft), [], [])
    one_round(*offline, sft)
    online = (copy.deepcopy(offline[0]), *map(list, offline[1:]))
    for _ in range(ROUNDS - 1):
        one_round(*offline, sft)
        one_round(*online, online[0])
    return {"离线": offline, "在线": online}


def main():
    check_int("ROUNDS", ROUNDS, 2)
    check_each("TRAIN_SEEDS", TRAIN_SEEDS, check_int)
    check_int("PROMPTS_PER_ROUND", PROMPTS_PER_ROUND, 1)
    check_int("K", K, 2)
    check_int("EPOCHS", EPOCHS, 1)
    check_number("BETA", BETA, 0, open_low=True)
    check_number("LR", LR, 0, 0.01)
    check_int("FRESH_PROMPTS", FRESH_PROMPTS, 10)
    check_int("FRESH_SEEDS 的项数", len(check_each("FRESH_SEEDS", FRESH_SEEDS, check_int)), 3, 3)
    check_int("EVAL_PROMPTS", EVAL_PROMPTS, 2)
    check_seeds(EVAL_SEED=EVAL_SEED)
    setup_torch()

    n_pairs = ROUNDS * PROMPTS_PER_ROUND * K * (K - 1) // 2
    title(f"演示 1：{n_pairs} 对标注，一次买完（离线）还是分 {ROUNDS} 轮买（在线），{len(TRAIN_SEEDS)} 个种子的平均")
    sft, rm, vocab = load_models()
    ref = frozen_copy(sft)
    seeds = range(len(TRAIN_SEEDS))
    starts = [rollout_stats(sft, ref, rm, vocab, EVAL_PROMPTS, EVAL_SEED + k) for k in seeds]
    trained = [train(sft, ref, rm, vocab, k) for k in seeds]
    runs = {name: [both[name] for both in trained] for name in trained[0]}

    def at(name, t, key):
        return mean(s[key] for s in (starts if t < 0 else [curve[t] for _, curve, _ in runs[name]]))

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
    print("\n  每个种子的 r*，一轮一轮地看")
    print_table(["种子", *(f"{name} {t}" for name in runs for t in range(1, ROUNDS + 1))],
                [[str(seed), *(f"{stats['true']:.2f}" for name in runs for stats in runs[name][k][1])]
                 for k, seed in enumerate(TRAIN_SEEDS)])
    faults = {name: {kind: mean(curve[-1]["faults"][kind] for _, curve, _ in runs[name]) for kind in FAULTS}
              for name in runs}
    print("\n  最后的策略，哪样不合格占多少")
    print_table(["训练方式", *FAULTS],
                [[name, *(f"{x:.3f}" for x in kinds.values())] for name, kinds in faults.items()])
    last = [[curve[-1]["true"] for _, curve, _ in runs[name]] for name in ("离线", "在线")]
    wins = [b > a for a, b in zip(*last)].count(True)
    print("观察：")
    observe(
        f"最后的 r*：在线 {on:.2f}，离线 {off:.2f}，起点 {at('在线', -1, 'true'):.2f}；{len(seeds)} 个种子里"
        f"在线赢了 {wins} 个。同样多的标注，标在现在写的回答上更值，不过不是每次都值。",
        on > off + 0.2 and wins > len(seeds) / 2,
    )
    observe(
        f"合格的比例：在线 {at('在线', ROUNDS - 1, 'valid'):.2f}，离线 {at('离线', ROUNDS - 1, 'valid'):.2f}。",
        at("在线", ROUNDS - 1, "valid") > at("离线", ROUNDS - 1, "valid") + 0.02,
    )
    observe(
        f"最后一轮拿去标注的回答，在线的平均 r* 是 {answers[1]:.2f}，离线的是 {answers[0]:.2f}："
        "标注花在了策略现在会写的东西上。",
        answers[1] > answers[0] + 0.3,
    )

    title("演示 2：谁更会排序（按 r* 算对错）")
    by_sft, _ = preference_data(sft, vocab, FRESH_PROMPTS, K, *FRESH_SEEDS)
    written = {name: [preference_data(policy, vocab, FRESH_PROMPTS, K, *FRESH_SEEDS)[0] for policy, _, _ in run]
               for name, run in runs.items()}
    everyone = {"SFT": [by_sft], **written}
    table = {name: {"SFT": mean(ranking_accuracy(by_sft, implicit(policy, ref, vocab)) for policy, _, _ in run),
                    name: mean(ranking_accuracy(pairs, implicit(policy, ref, vocab))
                               for pairs, (policy, _, _) in zip(written[name], run))}
             for name, run in runs.items()}
    others = {"第 11 讲的 RM": lambda prompts, answers: score(rm, vocab, list(prompts), list(answers)),
              "总选长的": lambda prompts, answers: [len(answer) for answer in answers]}
    for name, points in others.items():
        table[name] = {who: mean(ranking_accuracy(pairs, points) for pairs in data) for who, data in everyone.items()}
    table["标注员（带噪声）"] = {
        who: mean(mean(human_reward(p[3], p[1]) > human_reward(p[3], p[2]) for p in pairs
                       if human_reward(p[3], p[1]) != human_reward(p[3], p[2])) for pairs in data)
        for who, data in everyone.items()
    }
    print_table(
        ["谁来排", *(f"{who} 写的" for who in everyone)],
        [[f"{name}的隐式奖励" if name in runs else name,
          *(f"{row[who]:.3f}" if who in row else "—" for who in everyone)] for name, row in table.items()],
    )
    print("观察：")
    observe(
        f"在 SFT 写的回答上排序，两边差不多（离线 {table['离线']['SFT']:.2f}，在线 {table['在线']['SFT']:.2f}），"
        f"生成的 r* 却差 {on - off:.2f}：会排序不等于会写。",
        abs(table["离线"]["SFT"] - table["在线"]["SFT"]) < 0.1 and on > off + 0.2,
    )
    own = [table[name][name] for name in ("离线", "在线")]
    referee = [table["第 11 讲的 RM"][name] for name in ("离线", "在线")]
    observe(
        f"换成自己写的回答，隐式奖励就差多了（{own[0]:.2f} 与 {own[1]:.2f}）；RM 也从 "
        f"{table['第 11 讲的 RM']['SFT']:.2f} 降到 {referee[0]:.2f} 与 {referee[1]:.2f}。标注员还是 "
        f"{table['标注员（带噪声）']['在线']:.2f}。",
        all(table[name][name] < table[name]["SFT"] - 0.02 for name in runs)
        and max(referee) < table["第 11 讲的 RM"]["SFT"] - 0.02,
    )
    observe(
        "Tang et al.（2024）在真实的模型上看到的更强：离线的策略是更好的分类器，却是更差的生成器。"
        "Guo et al.（2024）让人比较在线与离线 DPO 的摘要：在线胜 63.7%，平 28.6%，负 7.7%。"
    )
    observe("Tulu 3 里 PPO 与 DPO 差不多，PPO 却要 2 个节点跑 28 小时，DPO 是 1 个节点 4 小时：离线便宜。")


if __name__ == "__main__":
    run_script(main)

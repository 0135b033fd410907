"""
================================================================================
第 11 讲 · 06：奖励模型 —— 学生比标签准，可是只在合格的回答上
================================================================================
对应讲义：lectures/lecture11_instruction_tuning.md 第 7 节
（Ouyang et al. 2022, InstructGPT；Stiennon et al. 2020）

【问题】用带噪声的排序训练出来的奖励模型（reward model，RM）有多准？能比教它的标签更准吗？

【这里的设定】SFT 模型给 800 道 describe 题各写 4 条回答，标注员（r* + 噪声）排好，4800 对。
RM 是 SFT 模型的主干（trunk）换上打分的头（head），训练 4 遍。下面用新的题、回答、标签来考它。
演示 2 改训练题的多少、标注员的噪声，各重新训练一个。它看不见什么，是 07 的事。
简化：真实的 RM 只能用标签来考；这里有 r*，所以"与标签一致"和"与真值一致"能分开量。

【公式】损失 = -(1/C(K,2)) Σ_{i 排在 j 前} log σ(r(x, y_i) - r(x, y_j))，同一题的全部对一起算。
p = σ((r*_a - r*_b) / 噪声) 是标注员说 a 赢的概率，标注员自己的准确率由它精确算出。

运行时间：约 12 秒，需要 torch。
"""
import sys
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
from chat_lab import (
    NOISE, RM_K, RM_PROMPTS, VALID_ABOVE, check_ascending, check_each, check_int, check_number, human_reward,
    load_chat_sft, load_reward_model, mean, observe, print_table, ranked_answers, run_script, score, sigmoid, title,
    train_reward_model,
)

K = 4  # 每题几条回答
TEST_PROMPTS, TEST_SEEDS = 600, (90, 91, 92)  # 考 RM 的新题：题数；题、回答、标签的种子
NOISY = 2.0  # 演示 2：手更抖的标注员的噪声
RM_SIZES = (50, 200)  # 演示 2：题少的 RM 用几道题（噪声大时只用头一种）；题多的都是 RM_PROMPTS 道
TRAIN_SEEDS = (93, 94, 95)  # 演示 2：训练数据的种子
AT_LEAST = 200  # 演示 2：题少的 RM 换数据多训练几次取平均，一共用到这么多道题


class Pair(NamedTuple):
    """同一题的两条回答 a、b；标签说 a 赢。每一项都是 (a 的, b 的)。"""

    truth: tuple  # r*
    score: tuple  # RM 的分
    length: tuple  # 词数


def graded_pairs(rankings, rm=None, vocab=None):
    """每一题的每两条回答是一个 Pair。分数由 rm 给；rm 是 None 时都是 0。"""
    flat = [(prompt, answer) for prompt, _, answers in rankings for answer in answers]
    pairs, scores = [], iter(score(rm, vocab, *map(list, zip(*flat))) if rm else [0] * len(flat))
    for _, subject, answers in rankings:
        known = [(human_reward(subject, answer), next(scores), len(answer)) for answer in answers]
        pairs += [Pair(*zip(a, b)) for a, b in combinations(known, 2)]
    return pairs


def win(x, y):
    """x 比 y 大得 1 分，相等得半分（抛硬币）。"""
    return 0.5 if x == y else float(x > y)


def by_kind(pairs):
    """有真值的对（r* 不相等）：(全部, 两条都合格的, 一条合格一条不合格的)。"""
    ordered = [pair for pair in pairs if pair.truth[0] != pair.truth[1]]
    valid = [sum(r > VALID_ABOVE for r in pair.truth) for pair in ordered]
    return ordered, *([pair for pair, n in zip(ordered, valid) if n == want] for want in (2, 1))


def accuracies(pairs, judge):
    """
    裁判与什么一致：(新标签, 真值, 都合格的对上的真值, 一条不合格的对上的真值)。

    【参数】judge(pair) ∈ [0, 1]：裁判说 a 赢的概率。
    """
    truths = (mean(judge(p) if p.truth[0] > p.truth[1] else 1 - judge(p) for p in group) for group in by_kind(pairs))
    return mean(judge(pair) for pair in pairs), *truths


def larger(field):
    """看一对里的 field（"truth"、"score"、"length"）、选大的裁判。"""
    return lambda pair: win(*getattr(pair, field))


def labeller(noise):
    """标注员这个裁判：按 Bradley–Terry 的概率说 a 赢。"""
    return lambda pair: sigmoid((pair.truth[0] - pair.truth[1]) / noise)


AGREES = ("与新标签一致", "与真值一致", "都合格", "一条不合格")  # 表头，accuracies 的四项


def main():
    for name, low in (("K", 2), ("TEST_PROMPTS", 50), ("AT_LEAST", 1)):
        check_int(name, globals()[name], low)
    check_number("NOISE", NOISE, 0, open_low=True)
    check_number("NOISY", NOISY, 1.5 * NOISE)
    check_each("RM_SIZES", check_ascending("RM_SIZES", RM_SIZES, 1), check_int, 1, RM_PROMPTS - 1)
    for name, seeds in (("TEST_SEEDS", TEST_SEEDS), ("TRAIN_SEEDS", TRAIN_SEEDS)):
        check_int(f"{name} 的项数", len(check_each(name, seeds, check_int)), 3, 3)

    title(f"演示 1：奖励模型有多准 —— {TEST_PROMPTS} 道新题，每题 {K} 条新回答")
    (sft, vocab), (rm, _) = load_chat_sft(), load_reward_model()
    test = ranked_answers(sft, vocab, TEST_PROMPTS, K, *TEST_SEEDS)
    pairs = graded_pairs(test, rm, vocab)
    judges = {
        "r* 自己": larger("truth"), "另一个标注员": labeller(NOISE), "奖励模型": larger("score"),
        "总选长的": larger("length"),
    }
    results = {name: accuracies(pairs, judge) for name, judge in judges.items()}
    print_table(["裁判", *AGREES], [[name, *(f"{x:.3f}" for x in result)] for name, result in results.items()])
    ordered, *kinds = by_kind(pairs)
    valid, mixed = (len(kind) / len(ordered) for kind in kinds)
    print(f"  （后两列也是与真值一致：都合格，只看两条都合格的对，占 {valid:.0%}；")
    print(f"    一条不合格，只看一条合格、一条不合格的对，占 {mixed:.0%}）")
    ceiling, human, model, longer = results.values()
    print("观察：")
    observe(
        f"与新标签，奖励模型一致 {model[0]:.3f}；天花板（按 r* 猜）是 {ceiling[0]:.3f}，另一个标注员也只有 "
        f"{human[0]:.3f}。什么也不懂、总选长的，就有 {longer[0]:.3f}。",
        model[0] < ceiling[0] - 0.05 and human[0] < ceiling[0] - 0.02 and 0.6 < longer[0] < ceiling[0] - 0.05,
    )
    observe(
        f"两条都合格时，奖励模型与真值一致 {model[2]:.3f}，超过教它的标注员（{human[2]:.3f}）。一条不合格时，老师"
        f"很少看错（{human[3]:.3f}），它却只有 {model[3]:.3f}，全部合起来就不如老师。为什么，07 来查。",
        model[2] > human[2] and human[3] > 0.9 and model[3] < human[3] - 0.2 and model[1] < human[1] - 0.03,
    )

    title(f"演示 2：数据多少、标注员手多抖 —— 噪声 {NOISE} 与 {NOISY}")
    rows, table = [], {(NOISE, RM_PROMPTS): model}
    for noise in (NOISE, NOISY):
        exam = test if noise == NOISE else ranked_answers(sft, vocab, TEST_PROMPTS, K, *TEST_SEEDS, noise=noise)
        labels, longest = (accuracies(graded_pairs(exam), judge) for judge in (labeller(noise), larger("length")))
        rows += [[noise, "另一个标注员", *labels], [noise, "总选长的", *longest]]
        for n in (*(RM_SIZES if noise == NOISE else RM_SIZES[:1]), RM_PROMPTS):
            runs = []
            for i in range(0 if (noise, n) in table else max(1, AT_LEAST // n)):
                data = ranked_answers(sft, vocab, n, RM_K, *(seed + 10 * i for seed in TRAIN_SEEDS), noise=noise)
                pupil = train_reward_model(sft, vocab, data, seed=i, name=f"奖励模型（噪声 {noise}，{n} 题）")
                runs.append(accuracies(graded_pairs(exam, pupil, vocab), larger("score")))
            table.setdefault((noise, n), [mean(column) for column in zip(*runs)])
            rows.append([noise, f"奖励模型，{n} 题", *table[noise, n]])
    print_table(["噪声", "裁判", *AGREES], [[*row[:2], *(f"{x:.3f}" for x in row[2:])] for row in rows])
    best, few, few_noisy = table[NOISY, RM_PROMPTS], table[NOISE, RM_SIZES[0]][2], table[NOISY, RM_SIZES[0]][2]
    print("观察：")
    observe(
        f"噪声 {NOISY} 时，标签只有 {labels[2]:.3f} 与真值一致，用它们训练的奖励模型却有 {best[2]:.3f}：噪声在几千对里"
        f"互相抵消。与新标签它只有 {best[0]:.3f} 一致，那是标签差，不是它差。",
        best[2] > labels[2] + 0.04 and best[0] < best[1],
    )
    observe(
        f"可是“总选长的”就有 {longest[2]:.3f}，它只差 {best[2] - longest[2]:+.3f}：光看这个数，说不出它学到了比长度更"
        f"多的东西。噪声 {NOISE}、{RM_PROMPTS} 道题时差 {model[2] - longest[2]:+.3f}，才超出长度。",
        abs(best[2] - longest[2]) < 0.04 and model[2] > longest[2] + 0.02 and model[2] > best[2],
    )
    observe(
        f"题从 {RM_SIZES[0]} 道加到 {RM_PROMPTS} 道，都合格时与真值的一致从 {few:.3f} 升到 {model[2]:.3f}；"
        f"噪声 {NOISY} 时从 {few_noisy:.3f} 升到 {best[2]:.3f}。噪声要用数据来换。",
        model[2] > few and best[2] > few_noisy,
    )


if __name__ == "__main__":
    run_script(main)

"""
================================================================================
第 11 讲 · 06：奖励模型 —— 学生比标签准，却有老师没有的盲点
================================================================================
对应讲义：lectures/lecture11_instruction_tuning.md 第 7 节
（Ouyang et al. 2022, InstructGPT；Singhal et al. 2024, "A Long Way to Go"）

【问题】用带噪声的排序训练出来的奖励模型（RM，reward model）有多准？它看的是什么，看不见什么？

【这里的设定】SFT 模型给 800 道 describe 题各写 4 条回答，标注员（r* + 噪声）排好，4800 对。
RM 是 SFT 模型的身子加一个打分的头，训练 4 轮。下面用新的题、回答、标签来考它。
演示 3 做最小改动（minimal edit）：一条合格的回答只改一处，看 RM 给谁的分高。
简化：真实的 RM 只能用标签来考；这里有 r*，所以"与标签一致"和"与真值一致"能分开量。

【公式】损失 = -(1/C(K,2)) Σ_{i 排在 j 前} log σ(r(x, y_i) - r(x, y_j))，同一题的全部对一起算。
p = σ((r*_a - r*_b) / 噪声) 是标注员说 a 赢的概率，标注员自己的准确率由它精确算出。

运行时间：约 15 秒，需要 torch。
"""
import math
import random
import sys
from itertools import combinations
from pathlib import Path
from statistics import correlation  # 皮尔逊相关系数（Pearson）

sys.path.insert(0, str(Path(__file__).resolve().parent))
from chat_lab import (
    ADJECTIVES, ANIMALS, NOISE, NOUNS, OPPOSITE, PLACES, PREFERENCE_SEEDS, RM_K, RM_PROMPTS, VALID_ABOVE, VERB_INFO,
    check_int, check_number, generate, generator, human_reward, load_chat_sft, load_reward_model, mean, noun_form,
    observe, parse, preference_prompts, print_table, ranked_answers, run_script, score, title, train_reward_model,
    verb_form,
)
from farm import R_BROKEN
from toy_llm import check_ascending

K = 4  # 每题几条回答
TEST_PROMPTS, TEST_SEEDS = 600, (90, 91, 92)  # 考 RM 的新题：题数；题、回答、标签的种子
NOISY = 2.0  # 演示 2：手更抖的标注员的噪声
SIZES = (50, 200)  # 演示 2：题少的 RM 用几道题（噪声大时只用头一种）；题多的都是 RM_PROMPTS 道
TRAIN_SEEDS = (93, 94, 95)  # 演示 2：训练数据的种子
AT_LEAST = 200  # 演示 2：题少的 RM 换数据多训练几次取平均，一共用到这么多道题
N_EDITS, EDIT_SEED = 1500, 96  # 演示 3：从多少条回答里找能改的
N_SHOW, SHOW_SEED = 1500, 97  # 演示 4：多少条回答


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def graded_pairs(rankings, rm=None, vocab=None):
    """同一题的每两条回答 → (r*_a, r*_b, 分_a, 分_b, 长_a, 长_b)；标签说 a 赢。分数由 rm 给；rm 是 None 时都是 0。"""
    flat = [(prompt, answer) for prompt, _, answers in rankings for answer in answers]
    pairs, scores = [], iter(score(rm, vocab, *map(list, zip(*flat))) if rm else [0] * len(flat))
    for _, subject, answers in rankings:
        known = [(human_reward(subject, answer), next(scores), len(answer)) for answer in answers]
        pairs += [(a[0], b[0], a[1], b[1], a[2], b[2]) for a, b in combinations(known, 2)]
    return pairs


def win(x, y):
    """x 比 y 大得 1 分，相等得半分（抛硬币）。"""
    return 0.5 if x == y else float(x > y)


def accuracies(pairs, judge):
    """
    裁判与什么一致：(新标签, 真值, 两条都合格时的真值)。r* 相等的对没有真值，后两项不算。

    【参数】judge(pair) ∈ [0, 1]：裁判说 a 赢的概率。
    """
    ordered = [pair for pair in pairs if pair[0] != pair[1]]
    valid = [pair for pair in ordered if min(pair[:2]) > VALID_ABOVE]

    def against_truth(group):
        return mean(judge(pair) if pair[0] > pair[1] else 1 - judge(pair) for pair in group)

    return mean(judge(pair) for pair in pairs), against_truth(ordered), against_truth(valid)


def larger(i):
    """看一对里的第 i 与 i + 1 项、选大的裁判：0 看 r*，2 看 RM 的分，4 看长度。"""
    return lambda pair: win(pair[i], pair[i + 1])


def labeller(noise):
    """标注员这个裁判：按 Bradley–Terry 的概率说 a 赢。"""
    return lambda pair: sigmoid((pair[0] - pair[1]) / noise)


# ---- 最小改动：改不了时返回 None ----
def add_place(rng, subject, words):
    return None if parse(words).has_place or "and" in words else words + rng.choice(PLACES)


def add_adjective(rng, subject, words):
    at, word = words.index(subject), rng.choice(ADJECTIVES)
    return None if word in words[:at] or OPPOSITE[word] in words[:at] else [*words[:at], word, *words[at:]]


def double_adjective(rng, subject, words):
    at = words.index(subject)
    return None if at < 2 else [*words[:at], words[at - 1], *words[at:]]


def other_animal(rng, subject, words):
    """主语换成别的动物，单复数不变，动词不用改。"""
    mine = NOUNS.index(subject)
    other = rng.choice([animal for animal in ANIMALS if animal != ANIMALS[mine // 2]])
    return [noun_form(other, mine % 2 == 1) if word == subject else word for word in words]


def break_agreement(rng, subject, words):
    at = next(i for i, word in enumerate(words) if word in VERB_INFO)
    verb, plural = VERB_INFO[words[at]]
    return [*words[:at], verb_form(verb, not plural), *words[at + 1 :]]


EDITS = {  # 演示 3 的五种最小改动
    "加一个地点": add_place, "加一个形容词": add_adjective, "重复一个形容词": double_adjective,
    "主语换成别的动物": other_animal, "动词的单复数写反": break_agreement,
}
CLAIMED = (add_place, add_adjective, double_adjective, other_animal, break_agreement)  # 演示 3 的观察要用的
AGREES = ("与新标签一致", "与真值一致", "与真值一致（都合格）")  # 表头，accuracies 的三项


def main():
    for name, low in (("TEST_PROMPTS", 50), ("N_EDITS", 200), ("N_SHOW", 50), ("AT_LEAST", 1)):
        check_int(name, globals()[name], low)
    check_number("NOISE", NOISE, 0, open_low=True)
    check_number("NOISY", NOISY, 1.5 * NOISE)
    for n in check_ascending("SIZES", SIZES, 1):
        check_int("SIZES 里的题数", n, 1, RM_PROMPTS - 1)
    if missing := [edit.__name__ for edit in CLAIMED if edit not in EDITS.values()]:
        raise ValueError(f"EDITS 里应当有 {'、'.join(missing)}：演示 3 的观察要用")
    title(f"演示 1：奖励模型有多准 —— {TEST_PROMPTS} 道新题，每题 {K} 条新回答")
    (sft, vocab), (rm, _) = load_chat_sft(), load_reward_model()
    test = ranked_answers(sft, vocab, TEST_PROMPTS, K, *TEST_SEEDS)
    pairs = graded_pairs(test, rm, vocab)
    judges = {"r* 自己": larger(0), "另一个标注员": labeller(NOISE), "奖励模型": larger(2), "总选长的": larger(4)}
    results = {name: accuracies(pairs, judge) for name, judge in judges.items()}
    print_table(["裁判", *AGREES], [[name, *(f"{x:.3f}" for x in result)] for name, result in results.items()])
    ceiling, human, model, longer = results.values()
    print("观察：")
    observe(
        f"与新标签，奖励模型一致 {model[0]:.3f}；天花板（按 r* 猜）是 {ceiling[0]:.3f}，另一个标注员也只有 "
        f"{human[0]:.3f}。什么也不懂、总选长的，就有 {longer[0]:.3f}。",
        model[0] < ceiling[0] - 0.05 and human[0] < ceiling[0] - 0.02 and 0.6 < longer[0] < ceiling[0] - 0.05,
    )
    observe(
        f"两条都合格时，奖励模型与真值一致 {model[2]:.3f}，超过教它的标注员（{human[2]:.3f}）。可是加上"
        f"不合格的回答，它落到 {model[1]:.3f}，老师是 {human[1]:.3f}。差在哪里，看演示 3。",
        model[2] > human[2] and model[1] < human[1] - 0.03,
    )

    title(f"演示 2：数据多少、标注员手多抖 —— 噪声 {NOISE} 与 {NOISY}")
    rows, table = [], {(NOISE, RM_PROMPTS): model}
    for noise in (NOISE, NOISY):
        exam = test if noise == NOISE else ranked_answers(sft, vocab, TEST_PROMPTS, K, *TEST_SEEDS, noise=noise)
        labels, longest = (accuracies(graded_pairs(exam), judge) for judge in (labeller(noise), larger(4)))
        rows += [[noise, "另一个标注员", *labels], [noise, "总选长的", *longest]]
        for n in (*(SIZES if noise == NOISE else SIZES[:1]), RM_PROMPTS):
            runs = []
            for i in range(0 if (noise, n) in table else max(1, AT_LEAST // n)):
                data = ranked_answers(sft, vocab, n, RM_K, *(seed + 10 * i for seed in TRAIN_SEEDS), noise=noise)
                pupil = train_reward_model(sft, vocab, data, seed=i, name=f"奖励模型（噪声 {noise}，{n} 题）")
                runs.append(accuracies(graded_pairs(exam, pupil, vocab), larger(2)))
            table.setdefault((noise, n), [mean(column) for column in zip(*runs)])
            rows.append([noise, f"奖励模型，{n} 题", *table[noise, n]])
    print_table(["噪声", "裁判", *AGREES], [[*row[:2], *(f"{x:.3f}" for x in row[2:])] for row in rows])
    best, few, few_noisy = table[NOISY, RM_PROMPTS], table[NOISE, SIZES[0]][2], table[NOISY, SIZES[0]][2]
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
        f"题从 {SIZES[0]} 道加到 {RM_PROMPTS} 道，都合格时与真值的一致从 {few:.3f} 升到 {model[2]:.3f}；"
        f"噪声 {NOISY} 时从 {few_noisy:.3f} 升到 {best[2]:.3f}。噪声要用数据来换。",
        model[2] > few and best[2] > few_noisy,
    )

    title("演示 3：最小改动 —— 一条合格的回答只改一处，谁的分高")
    rng, prompts = random.Random(EDIT_SEED), preference_prompts(N_EDITS, EDIT_SEED)
    answers = generate(sft, vocab, [prompt for prompt, _ in prompts], gen=generator(EDIT_SEED))
    good = [(*case, words) for case, words in zip(prompts, answers) if words[:1] != ["sure"]]
    good = [case for case in good if human_reward(*case[1:]) > VALID_ABOVE]
    rows, prefers = [], {}
    for name, edit in EDITS.items():
        cases = [(*case, changed) for case in good if (changed := edit(rng, *case[1:]))]
        old, new = (score(rm, vocab, [case[0] for case in cases], [case[j] for case in cases]) for j in (2, 3))
        wins = list(map(win, new, old))
        groups = [[w for w, case in zip(wins, cases) if NOUNS.index(case[1]) % 2 == plural] for plural in (0, 1)]
        prefers[edit] = [mean(group) for group in (wins, *groups)]
        truth = mean(win(human_reward(case[1], case[3]), human_reward(case[1], case[2])) for case in cases)
        rows.append([name, len(cases), f"{truth:.2f}", *(f"{x:.2f}" for x in prefers[edit])])
    print_table(["改动", "条数", "r* 说变好了", "RM 说变好了", "主语单数时", "主语复数时"], rows)
    place, adjective, double, other, broken = (prefers[edit] for edit in CLAIMED)
    pairs = [pair[:2] for pair in graded_pairs(ranked_answers(sft, vocab, RM_PROMPTS, RM_K, *PREFERENCE_SEEDS))]
    marks = [a > b for a, b in pairs if R_BROKEN < min(a, b) <= VALID_ABOVE < max(a, b)]  # 合格的对写错的
    print("观察：")
    observe(
        f"它看得见地点（{place[0]:.2f}）和形容词（{adjective[0]:.2f}）：标注员常常在这上面分高下。",
        place[0] > 0.85 and adjective[0] > 0.85,
    )
    observe(
        f"主语换错（{other[0]:.2f}）、动词写反（{broken[0]:.2f}），平均不比乱猜好多少，而 r* 一扣就到 -3 和 -2.3。"
        f"按单复数拆开，动词写反是 {broken[1]:.2f} 与 {broken[2]:.2f}：一半可以是相反的偏爱抵消出来的。",
        min(other[0], broken[0]) > 0.3,
    )
    observe(
        f"数据是有的：训练的对里 {len(marks) / len(pairs):.0%} 是合格的对主语或动词写错的，标签对了 {mean(marks):.0%}。"
        "可是要把回答与题目、主语与动词对起来看才用得上；地点、形容词看一个词就知道，学得快得多。",
        0.05 < len(marks) / len(pairs) < 0.3 and mean(marks) > 0.9,
    )
    observe(
        f"重复一个形容词，{double[0]:.0%} 的时候它说更好：它学到的是“形容词多就好”。第 12 讲的强化学习会专找这样的洞。",
        double[0] > 0.6,
    )

    title("演示 4：它其实在看什么 —— 分数与 r*、与长度的相关")
    prompts = preference_prompts(N_SHOW, SHOW_SEED)
    answers = generate(sft, vocab, [prompt for prompt, _ in prompts], gen=generator(SHOW_SEED))
    scores = score(rm, vocab, [prompt for prompt, _ in prompts], answers)
    known = [(s, human_reward(subject, a), len(a)) for s, (_, subject), a in zip(scores, prompts, answers)]
    table, rows = {}, []
    for name, group in (("全部", known), ("合格的", [case for case in known if case[1] > VALID_ABOVE])):
        table[name] = [correlation([c[i] for c in group], [c[j] for c in group]) for i, j in ((0, 1), (0, 2), (1, 2))]
        rows.append([name, *(f"{x:.2f}" for x in table[name])])
    print_table(["回答", "分数与 r*", "分数与长度", "r* 与长度"], rows)
    print("观察：")
    observe(
        f"合格的回答里，长度是好答案的影子（r* 与长度 {table['合格的'][2]:.2f}）。全部回答里，r* 与长度只有 "
        f"{table['全部'][2]:.2f}，分数与长度却还是 {table['全部'][1]:.2f}：它把长度当成了质量。",
        table["合格的"][2] > 0.6 and table["全部"][1] > table["全部"][2] + 0.1,
    )
    observe(
        "真实的 RM 也这样：Singhal et al.（2024）的三个数据集上，RM 的分与长度的相关是 0.72、0.55、0.67。"
        "InstructGPT 的 RM 对自己的标注员是 72.4%，对没参加训练的标注员是 69.6%。"
    )


if __name__ == "__main__":
    run_script(main)

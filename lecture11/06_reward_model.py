"""
================================================================================
第 11 讲 · 06：奖励模型 —— 学生超过了老师，也学会了老师的盲点
================================================================================
对应讲义：lectures/lecture11_instruction_tuning.md 第 7 节
（Ouyang et al. 2022, InstructGPT；Singhal et al. 2024, "A Long Way to Go"）

【问题】用带噪声的排序训练出来的奖励模型（RM，reward model）有多准？它看的是什么，看不见什么？

【这里的设定】SFT 模型给 800 道 describe 题各写 4 条回答，标注员（r* + 噪声）排好，4800 对。
RM 是 SFT 模型的身子加一个打分的头，训练 4 轮。下面用新的题、新的回答、新的标签来考它。
演示 3 做最小改动（minimal edit）：一条合格的回答只改一处，看 RM 给谁的分高。
简化：真实的 RM 只能用标签来考；这里有 r*，所以"对标签"和"对真值"能分开量。

【公式】损失 = -(1/C(K,2)) Σ_{i 排在 j 前} log σ(r(x, y_i) - r(x, y_j))，同一题的全部对一起算。
p = σ((r*_a - r*_b) / 噪声) 是标注员说 a 赢的概率，标注员自己的准确率由它精确算出。

运行时间：约 15 秒，需要 torch。
"""
import math
import random
import sys
from itertools import combinations
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from chat_lab import (
    ADJECTIVES, ANIMALS, NOISE, NOUNS, OPPOSITE, PLACES, RM_PROMPTS, VALID_ABOVE, VERB_INFO, check_int, check_number,
    generate, generator, human_reward, load_chat_sft, load_reward_model, mean, noun_form, observe, parse,
    preference_prompts, print_table, ranked_answers, run_script, score, title, train_reward_model, verb_form,
)

K = 4  # 每题几条回答
TEST_PROMPTS, TEST_SEEDS = 600, (90, 91, 92)  # 考 RM 的新题：题数；题、回答、标签的种子
NOISY = 2.0  # 演示 2：手更抖的标注员的噪声
RUNS = ((NOISE, 50), (NOISE, 200), (NOISY, 50), (NOISY, RM_PROMPTS))  # 演示 2：另外训练的 RM（噪声, 题数）
TRAIN_SEEDS = (93, 94, 95)  # 演示 2：训练数据的种子
AT_LEAST = 200  # 演示 2：题少的 RM 换数据多训练几次取平均，一共用到这么多道题
N_EDITS, EDIT_SEED = 1500, 96  # 演示 3：从多少条回答里找能改的
SHOW_SEED = 97  # 演示 4：采样的种子
N_SHOW = 1500  # 演示 4：多少条回答


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def graded_pairs(rankings, scores):
    """
    同一题的每两条回答 → (r*_a, r*_b, 分_a, 分_b, 长_a, 长_b)；标签说 a 赢。

    【参数】scores：与 rankings 里的回答一一对应的分数。
    """
    pairs, scores = [], iter(scores)
    for _, subject, answers in rankings:
        known = [(human_reward(subject, answer), next(scores), len(answer)) for answer in answers]
        pairs += [(a[0], b[0], a[1], b[1], a[2], b[2]) for a, b in combinations(known, 2)]
    return pairs


def win(x, y):
    """x 比 y 大得 1 分，相等得半分（抛硬币）。"""
    return 0.5 if x == y else float(x > y)


def accuracies(pairs, judge):
    """
    裁判的三个准确率：(对新标签, 对真值, 两条都合格时对真值)。r* 相等的对没有真值，后两项不算。

    【参数】judge(pair) ∈ [0, 1]：裁判说 a 赢的概率。
    """
    ordered = [pair for pair in pairs if pair[0] != pair[1]]
    valid = [pair for pair in ordered if min(pair[:2]) > VALID_ABOVE]

    def against_truth(group):
        return mean(judge(pair) if pair[0] > pair[1] else 1 - judge(pair) for pair in group)

    return mean(judge(pair) for pair in pairs), against_truth(ordered), against_truth(valid)


def rm_judge(pair):
    return win(pair[2], pair[3])


def labeller(noise):
    """标注员这个裁判：按 Bradley–Terry 的概率说 a 赢。"""
    return lambda pair: sigmoid((pair[0] - pair[1]) / noise)


def score_rankings(rm, vocab, rankings):
    flat = [(prompt, answer) for prompt, _, answers in rankings for answer in answers]
    return score(rm, vocab, *map(list, zip(*flat)))


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


def correlation(xs, ys):
    """皮尔逊相关系数（Pearson）。"""
    mx, my = mean(xs), mean(ys)
    cov = mean((x - mx) * (y - my) for x, y in zip(xs, ys))
    return cov / math.sqrt(mean((x - mx) ** 2 for x in xs) * mean((y - my) ** 2 for y in ys))


def main():
    check_int("TEST_PROMPTS", TEST_PROMPTS, 50)
    check_int("N_EDITS", N_EDITS, 200)
    check_int("N_SHOW", N_SHOW, 50)
    check_number("NOISY", NOISY, 1.5 * NOISE)
    check_int("AT_LEAST", AT_LEAST, 1)
    title(f"演示 1：奖励模型有多准 —— {TEST_PROMPTS} 道新题，每题 {K} 条新回答")
    (sft, vocab), (rm, _) = load_chat_sft(), load_reward_model()
    test = ranked_answers(sft, vocab, TEST_PROMPTS, K, *TEST_SEEDS)
    pairs = graded_pairs(test, score_rankings(rm, vocab, test))
    judges = {
        "r* 自己": lambda pair: win(pair[0], pair[1]), "另一个标注员": labeller(NOISE), "奖励模型": rm_judge,
        "总选长的": lambda pair: win(pair[4], pair[5]),
    }
    results = {name: accuracies(pairs, judge) for name, judge in judges.items()}
    rows = [[name, *(f"{x:.3f}" for x in result)] for name, result in results.items()]
    print_table(["裁判", "对新标签", "对真值", "对真值（都合格）"], rows)
    ceiling, human, model, longer = results.values()
    print("观察：")
    observe(
        f"对新标签，奖励模型 {model[0]:.3f}；天花板（按 r* 猜）是 {ceiling[0]:.3f}，另一个标注员也只有 {human[0]:.3f}。"
        f"什么也不懂、总选长的，就有 {longer[0]:.3f}。",
        model[0] < ceiling[0] - 0.05 and human[0] < ceiling[0] - 0.02 and 0.6 < longer[0] < ceiling[0] - 0.05,
    )
    observe(
        f"两条都合格时，奖励模型对真值 {model[2]:.3f}，教它的标注员 {human[2]:.3f}：噪声在几千对里互相抵消，"
        f"学生不比老师差。可是加上不合格的回答，它落到 {model[1]:.3f}，老师是 {human[1]:.3f}。差在哪里，看演示 3。",
        model[2] > human[2] - 0.02 and model[1] < human[1] - 0.03,
    )

    title(f"演示 2：数据多少、标注员手多抖 —— 噪声 {NOISE} 与 {NOISY}")
    tests = {NOISE: test, NOISY: ranked_answers(sft, vocab, TEST_PROMPTS, K, *TEST_SEEDS, noise=NOISY)}
    table = {(NOISE, RM_PROMPTS): model}
    for noise, n in RUNS:
        runs = []
        for i in range(max(1, AT_LEAST // n)):
            data = ranked_answers(sft, vocab, n, K, *(seed + 10 * i for seed in TRAIN_SEEDS), noise=noise)
            pupil = train_reward_model(sft, vocab, data, seed=i, name=f"奖励模型（噪声 {noise}，{n} 题）")
            runs.append(accuracies(graded_pairs(tests[noise], score_rankings(pupil, vocab, tests[noise])), rm_judge))
        table[noise, n] = [mean(column) for column in zip(*runs)]
    right = {noise: accuracies(pairs, labeller(noise))[2] for noise in (NOISE, NOISY)}
    rows = [[*key, *(f"{x:.3f}" for x in table[key]), f"{right[key[0]]:.3f}"] for key in sorted(table)]
    print_table(["噪声", "题数", "对新标签", "对真值", "对真值（都合格）", "标签对真值（都合格）"], rows)
    few, best = table[NOISE, RUNS[0][1]], table[NOISY, RM_PROMPTS]
    print("观察：")
    observe(
        f"标注员手很抖（噪声 {NOISY}）时，标签只有 {right[NOISY]:.3f} 与真值一致，用它们训练的奖励模型却有 "
        f"{best[2]:.3f}：学生超过了老师。对新标签它只有 {best[0]:.3f}，那是标签差，不是它差。",
        best[2] > right[NOISY] + 0.04 and best[0] < best[1],
    )
    observe(
        f"题从 {RUNS[0][1]} 道加到 {RM_PROMPTS} 道，对真值（都合格）从 {few[2]:.3f} 升到 {model[2]:.3f}；"
        f"噪声 {NOISY} 时从 {table[NOISY, RUNS[2][1]][2]:.3f} 升到 {best[2]:.3f}。噪声要用数据来换。",
        model[2] > few[2] and best[2] > table[NOISY, RUNS[2][1]][2],
    )

    title("演示 3：最小改动 —— 一条合格的回答只改一处，谁的分高")
    rng = random.Random(EDIT_SEED)
    prompts = preference_prompts(N_EDITS, EDIT_SEED)
    answers = generate(sft, vocab, [prompt for prompt, _ in prompts], gen=generator(EDIT_SEED))
    rows, prefers = [], {}
    for name, edit in EDITS.items():
        cases = []
        for (prompt, subject), words in zip(prompts, answers):
            if words[:1] != ["sure"] and human_reward(subject, words) > VALID_ABOVE:
                changed = edit(rng, subject, words)
                cases += [(prompt, subject, words, changed)] if changed else []
        old, new = (score(rm, vocab, [case[0] for case in cases], [case[j] for case in cases]) for j in (2, 3))
        prefers[name] = mean(map(win, new, old))
        truth = mean(win(human_reward(case[1], case[3]), human_reward(case[1], case[2])) for case in cases)
        rows.append([name, len(cases), f"{truth:.2f}", f"{prefers[name]:.2f}"])
    print_table(["改动", "条数", "r* 说变好了", "RM 说变好了"], rows)
    place, adjective, double, other, broken = prefers.values()
    print("观察：")
    observe(
        f"它看得见地点（{place:.2f}）和形容词（{adjective:.2f}）：标注员常常在这上面分高下。",
        place > 0.85 and adjective > 0.85,
    )
    observe(
        f"主语换错（{other:.2f}）、动词写反（{broken:.2f}），它像抛硬币，而 r* 一扣就到 -3 和 -2.3。"
        "SFT 的回答里这样的错只有几个百分点，标签里很少有这样的对比，它没有机会学。",
        0.25 < other < 0.75 and 0.25 < broken < 0.75,
    )
    observe(
        f"重复一个形容词，{double:.0%} 的时候它说更好：它学到的是“形容词多就好”。第 12 讲的强化学习会专找这样的洞。",
        double > 0.6,
    )

    title("演示 4：它其实在看什么 —— 分数与 r*、与长度的相关")
    prompts = preference_prompts(N_SHOW, SHOW_SEED)
    answers = generate(sft, vocab, [prompt for prompt, _ in prompts], gen=generator(SHOW_SEED))
    scores = score(rm, vocab, [prompt for prompt, _ in prompts], answers)
    known = [(s, human_reward(subject, a), len(a)) for s, (_, subject), a in zip(scores, prompts, answers)]
    table, rows = {}, []
    for name, group in (("全部", known), ("合格的", [case for case in known if case[1] > VALID_ABOVE])):
        table[name] = [correlation(*zip(*((case[0], case[j]) for case in group))) for j in (1, 2)]
        rows.append([name, *(f"{x:.2f}" for x in table[name])])
    print_table(["回答", "分数与 r*", "分数与长度"], rows)
    print("观察：")
    observe(
        f"全部回答里，分数与长度的相关（{table['全部'][1]:.2f}）比与 r* 的（{table['全部'][0]:.2f}）还高；"
        f"只看合格的，与 r* 有 {table['合格的'][0]:.2f}。加地点、加形容词都会变长，长度成了好答案的影子。",
        table["全部"][1] > table["全部"][0] and table["合格的"][0] > 0.6,
    )
    observe(
        "真实的 RM 也这样：Singhal et al.（2024）里，“总选长的”在三个数据集上就能对 55.7%、59.6%、63.1%。"
        "InstructGPT 的 RM 对自己的标注员是 72.4%，对没参加训练的标注员是 69.6%。"
    )


if __name__ == "__main__":
    run_script(main)

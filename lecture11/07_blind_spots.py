"""
================================================================================
第 11 讲 · 07：奖励模型的盲点 —— 它数形容词和地点，不看主语对不对
================================================================================
对应讲义：lectures/lecture11_instruction_tuning.md 第 7 节
（Ouyang et al. 2022, InstructGPT；Singhal et al. 2023, "A Long Way to Go"）

【问题】奖励模型（RM）给分时看的是什么，看不见什么？分数与长度相关，是因为它喜欢长的吗？

【这里的设定】还是 06 的 RM，用 SFT 模型写的 describe 回答来查。
演示 1 做最小改动（minimal edit）：一条合格的回答只改一处，看 RM 给谁的分高，再问 r*。
演示 2 把 RM 的分拆开：用 r* 的 7 样成分做线性回归，再看添上长度能不能多解释一点。
简化：真实的回答没有这么干净的"一处"，改一处往往牵动别处；真实的 r* 也拆不成 7 样。

【公式】RM 分 ≈ 常数 + Σ_i w_i × 第 i 样成分，w 用最小二乘定；
    R^2 = 1 - 残差的方差 / 分数的方差：成分解释掉的那一份。

运行时间：约 5 秒，需要 torch。
"""
import random
import sys
from itertools import combinations
from pathlib import Path
from statistics import correlation  # 皮尔逊相关系数（Pearson）

sys.path.insert(0, str(Path(__file__).resolve().parent))
from chat_lab import (
    ADJECTIVES, ANIMALS, NOUNS, OPPOSITE, PLACES, PREFERENCE_SEEDS, RM_K, RM_PROMPTS, SOUNDS, VALID_ABOVE, VERB_INFO,
    check_int, check_seeds, generate, generator, human_reward, load_chat_sft, load_reward_model, mean, noun_form,
    observe, parse, preference_prompts, print_table, ranked_answers, reward_features, run_script, score, title, torch,
    verb_form,
)
from farm import (
    INTRANSITIVE, R_ADJECTIVE, R_ADVERB, R_BROKEN, R_FALSE_SOUND, R_PLACE, R_POLITE, R_TRANSITIVE, R_TRUE_SOUND,
)

N_EDITS, EDIT_SEED = 1500, 96  # 演示 1：从多少条回答里找能改的
N_SHOW, SHOW_SEED = 1500, 97  # 演示 2：多少条回答
INGREDIENTS = {  # 演示 2：r* 的 7 样成分（次序同 reward_features），各值几分
    "形容词（最多 2）": R_ADJECTIVE, "有地点": R_PLACE, "有副词": R_ADVERB, "及物动词": R_TRANSITIVE,
    "叫对": R_TRUE_SOUND, "叫错": R_FALSE_SOUND, "客气": R_POLITE,
}


def win(x, y):
    """x 比 y 大得 1 分，相等得半分（抛硬币）。"""
    return 0.5 if x == y else float(x > y)


# ---- 最小改动：改不了时返回 None ----
def add_place(rng, subject, words):
    return None if parse(words).has_place or "and" in words else words + rng.choice(PLACES)


def add_adjective(rng, subject, words):
    at, word = words.index(subject), rng.choice(ADJECTIVES)
    return None if word in words[:at] or OPPOSITE[word] in words[:at] else [*words[:at], word, *words[at:]]


def double_adjective(rng, subject, words):
    at = words.index(subject)
    return None if at < 2 else [*words[:at], words[at - 1], *words[at:]]


def add_useless(rng, subject, words):
    """再接一截没用的 "and sleep"：r* 不变，只是长了两个词。太长的不改，免得 r* 扣分。"""
    new = [verb for verb in (verb_form(v, NOUNS.index(subject) % 2 == 1) for v in INTRANSITIVE) if verb not in words]
    return [*words, "and", rng.choice(new)] if len(words) < 10 and new else None


def other_sound(rng, subject, words):
    """叫对的改成叫错。"""
    own, plural = SOUNDS[NOUNS.index(subject) // 2], NOUNS.index(subject) % 2 == 1
    other = verb_form(rng.choice([sound for sound in SOUNDS if sound != own]), plural)
    mine = verb_form(own, plural)
    return [other if word == mine else word for word in words] if mine in words else None


def other_animal(rng, subject, words):
    """主语换成别的动物，单复数不变，动词不用改。"""
    mine = NOUNS.index(subject)
    other = rng.choice([animal for animal in ANIMALS if animal != ANIMALS[mine // 2]])
    return [noun_form(other, mine % 2 == 1) if word == subject else word for word in words]


def break_agreement(rng, subject, words):
    at = next(i for i, word in enumerate(words) if word in VERB_INFO)
    verb, plural = VERB_INFO[words[at]]
    return [*words[:at], verb_form(verb, not plural), *words[at + 1 :]]


def regress(rows, y):
    """最小二乘 y ≈ 常数 + rows · w。【返回】(w, R^2)：R^2 是解释掉的方差的比例。"""
    x, y = torch.tensor([[1, *row] for row in rows], dtype=torch.float64), torch.tensor(y, dtype=torch.float64)
    w = torch.linalg.lstsq(x, y[:, None]).solution[:, 0]
    return w[1:].tolist(), 1 - ((y - x @ w).var() / y.var()).item()


def main():
    check_int("N_EDITS", N_EDITS, 200)
    check_int("N_SHOW", N_SHOW, 50)
    check_seeds(EDIT_SEED=EDIT_SEED, SHOW_SEED=SHOW_SEED)

    title("演示 1：最小改动 —— 一条合格的回答只改一处，谁的分高")
    (sft, vocab), (rm, _) = load_chat_sft(), load_reward_model()
    rng, prompts = random.Random(EDIT_SEED), preference_prompts(N_EDITS, EDIT_SEED)
    answers = generate(sft, vocab, [prompt for prompt, _ in prompts], gen=generator(EDIT_SEED))
    good = [(*case, words) for case, words in zip(prompts, answers) if words[:1] != ["sure"]]
    good = [case for case in good if human_reward(*case[1:]) > VALID_ABOVE]
    edits = {
        "加一个地点": add_place, "加一个形容词": add_adjective, "重复一个形容词": double_adjective,
        "加没用的 and VP": add_useless, "叫声换成别的动物的": other_sound, "主语换成别的动物": other_animal,
        "动词的单复数写反": break_agreement,
    }
    rows, prefers, truths = [], [], []
    for name, edit in edits.items():
        cases = [(*case, changed) for case in good if (changed := edit(rng, *case[1:]))]
        old, new = (score(rm, vocab, [case[0] for case in cases], [case[j] for case in cases]) for j in (2, 3))
        wins = list(map(win, new, old))
        groups = [[w for w, case in zip(wins, cases) if NOUNS.index(case[1]) % 2 == plural] for plural in (0, 1)]
        prefers.append([mean(group) for group in (wins, *groups)])
        truths.append(mean(win(human_reward(case[1], case[3]), human_reward(case[1], case[2])) for case in cases))
        rows.append([name, len(cases), f"{truths[-1]:.2f}", *(f"{x:.2f}" for x in prefers[-1])])
    print_table(["改动", "条数", "r* 说变好了", "RM 说变好了", "主语单数时", "主语复数时"], rows)
    place, adjective, double, useless, sound, other, broken = prefers
    rankings = ranked_answers(sft, vocab, RM_PROMPTS, RM_K, *PREFERENCE_SEEDS)  # 训练 RM 的那一份
    known = [[human_reward(subject, answer) for answer in answers] for _, subject, answers in rankings]
    pairs = [pair for rewards in known for pair in combinations(rewards, 2)]
    marks = [a > b for a, b in pairs if R_BROKEN < min(a, b) <= VALID_ABOVE < max(a, b)]  # 合格的对写错的
    print("观察：")
    observe(
        f"它看得见地点（{place[0]:.2f}）和形容词（{adjective[0]:.2f}）：标注员常常在这上面分高下。",
        place[0] > 0.85 and adjective[0] > 0.85,
    )
    observe(
        f"叫错（{sound[0]:.2f}）、主语换错（{other[0]:.2f}）、动词写反（{broken[0]:.2f}），平均起来像乱猜，"
        "r* 却都要扣分。",
        all(0.3 < x[0] < 0.7 for x in (sound, other, broken)) and max(truths[4:]) < 0.05,
    )
    observe(
        f"平均像乱猜，不等于处处在乱猜：按单复数拆开，动词写反是 {broken[1]:.2f} 与 {broken[2]:.2f}。换个种子，"
        "偏向哪一边会变，不作结论。"
    )
    observe(
        f"数据是有的：训练的对里 {len(marks) / len(pairs):.0%} 是合格的对主语或动词写错的，标签对了 {mean(marks):.0%}。"
        "可是要把回答与题目、主语与动词对起来看才用得上；地点、形容词看一个词就知道，学得快得多。",
        0.05 < len(marks) / len(pairs) < 0.3 and mean(marks) > 0.9,
    )
    trained = [answer for _, _, answers in rankings for answer in answers]
    repeats = mean(any(a == b in ADJECTIVES for a, b in zip(answer, answer[1:])) for answer in trained)
    observe(
        f"重复一个形容词，{double[0]:.0%} 的时候它说更好：训练用的回答里，这样重复的只有 {repeats:.1%}，它学到的是"
        "“形容词多就好”。第 12 讲的强化学习会专找这样的洞。",
        double[0] > 0.6 and repeats < 0.03,
    )

    title("演示 2：分数与长度相关，是因为它在数词吗")
    prompts = preference_prompts(N_SHOW, SHOW_SEED)
    answers = generate(sft, vocab, [prompt for prompt, _ in prompts], gen=generator(SHOW_SEED))
    scores = score(rm, vocab, [prompt for prompt, _ in prompts], answers)
    known = [(s, human_reward(subject, a), len(a), subject, a) for s, (_, subject), a in zip(scores, prompts, answers)]
    good = [case for case in known if case[1] > VALID_ABOVE]
    table = [
        [correlation([c[i] for c in group], [c[j] for c in group]) for i, j in ((0, 1), (0, 2), (1, 2))]
        for group in (known, good)
    ]
    rows = [[name, *(f"{x:.2f}" for x in row)] for name, row in zip(("全部", "合格的"), table)]
    print_table(["回答", "分数与 r* 的相关", "分数与长度", "r* 与长度"], rows)
    phi, y = [reward_features(*case[3:]) for case in good], [case[0] for case in good]
    (plain, fit), (longer, fit_longer) = regress(phi, y), regress([[*x, c[2]] for x, c in zip(phi, good)], y)
    rows = [[item[0], str(item[1]), f"{a:.2f}", f"{b:.2f}"] for item, a, b in zip(INGREDIENTS.items(), plain, longer)]
    rows += [["长度，每个词", "0", "—", f"{longer[-1]:.2f}"], ["R^2", "—", f"{fit:.3f}", f"{fit_longer:.3f}"]]
    print("\n  合格的回答，分数对各样成分做线性回归：")
    print_table(["成分", "r* 给几分", "RM 给几分", "添上长度"], rows)
    print("观察：")
    observe(
        f"分数与长度的相关有 {table[1][1]:.2f}，可是它不是在数词：添上长度，R^2 只从 {fit:.3f} 到 {fit_longer:.3f}；"
        f"演示 1 里加一截没用的 and VP，它只有 {useless[0]:.0%} 的时候说更好。它数的是形容词、地点；这些让句子变长。",
        table[1][1] > 0.4 and fit_longer - fit < 0.03 and useless[0] < 0.6,
    )
    observe(
        f"全部回答里，分数与长度的相关仍有 {table[0][1]:.2f}，r* 与长度只有 {table[0][2]:.2f}：不合格的长句里也有"
        "形容词、地点，它照样给分。",
        table[1][2] > 0.6 and table[0][1] > table[0][2] + 0.1,
    )
    observe(
        "真实的 RM 的分也与长度相关：Singhal et al.（2023）的三个数据集上是 0.72、0.55、0.67。"
        "InstructGPT 的 RM 对自己的标注员是 72.4%，对没参加训练的标注员是 69.6%。"
    )


if __name__ == "__main__":
    run_script(main)

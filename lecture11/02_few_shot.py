"""
================================================================================
第 11 讲 · 02：少样本提示 —— 例子教的是格式，还是内容？
================================================================================
对应讲义：lectures/lecture11_instruction_tuning.md 第 3 节
（Brown et al. 2020, GPT-3；Min et al. 2022, "Rethinking the Role of Demonstrations"）

【问题】不改权重，在提示里放 k 个例子（few-shot，少样本），预训练模型能学到什么？
例子的答案是对的还是乱写的，有关系吗？

【这里的设定】还是 01 的预训练模型。两种写法的例子：
    见过的写法   the dogs bark . the cat meows . the ducks __    语料里的常识就这么写；
    没见过的写法 big : small . old : young . happy : __          语料里从来没有"题目 : 答案"。
每种写法量两样：格式（下一个词是不是这一类的词）与内容（在这一类的词里，给正确答案多少）。
都是模型给出的概率，精确值，不采样。
简化：上下文只有 40 个词，放不下几个例子；而且一篇文档写到 24 个词就收尾，再往后模型没见过新句子的开头，
所以例子加题目都不超过 24 个词。

【公式】格式 = Σ_{w ∈ 候选} p(w | 例子, 题目)；  内容 = p(正确答案 | 例子, 题目) / 格式。

运行时间：约 3 秒，需要 torch。
"""
import math
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from chat_lab import (
    ADJECTIVES, ANIMALS, NOUNS, OPPOSITE, SOUNDS, check_each, check_int, check_seeds, load_base, mean, next_word_probs,
    noun_form, observe, print_table, run_script, title, verb_form,
)

SHOTS = (0, 1, 2, 4)  # 提示里放几个例子
N_PROMPTS = 300  # 每一格平均多少道题
SEED = 50  # 出题、乱写答案的种子
LONGEST = 24  # 例子加题目最多多少个词


def ask_sound(rng):
    """【返回】(题目的词, 正确答案, 候选的词)。叫声：the dogs → bark。"""
    i, plural = rng.randrange(len(ANIMALS)), rng.random() < 0.5
    return ["the", noun_form(ANIMALS[i], plural)], verb_form(SOUNDS[i], plural), [verb_form(s, plural) for s in SOUNDS]


def ask_opposite(rng):
    """反义词：big → small。"""
    word = rng.choice(ADJECTIVES)
    return [word], OPPOSITE[word], ADJECTIVES


def ask_plural(rng):
    """复数：dog → dogs。"""
    animal = rng.choice(ANIMALS)
    return [animal], noun_form(animal, True), NOUNS


def seen(words, answer=()):
    """见过的写法：答案直接接在后面。"""
    return [*words, *answer]


def unseen(words, answer=()):
    """没见过的写法：题目 : 答案。"""
    return [*words, ":", *answer]


def few_shot_prompt(rng, ask, write, k, random_labels):
    """
    k 个例子加一道题：(提示, 正确答案, 候选)。random_labels：例子的答案从候选里乱抽（题目的答案照旧）。

    例子里不会出现要问的那道题：否则照抄就行，量不出"学会"。
    """
    words, answer, candidates = ask(rng)
    prompt = []
    for _ in range(k):
        other = words
        while other == words:
            other, label, options = ask(rng)
        prompt += [*write(other, [rng.choice(options) if random_labels else label]), "."]
    return prompt + write(words), answer, candidates


def measure(model, vocab, ask, write, k, random_labels):
    """【返回】(格式, 内容)，在 N_PROMPTS 道题上平均。"""
    rng = random.Random(SEED)
    trials = [few_shot_prompt(rng, ask, write, k, random_labels) for _ in range(N_PROMPTS)]
    longest = max(len(prompt) for prompt, _, _ in trials)
    if longest > LONGEST:
        raise ValueError(f"SHOTS 应当小一些：提示不超过 LONGEST = {LONGEST} 个词，收到的 {k} 个例子要 {longest} 个词")
    probs = next_word_probs(model, vocab, [prompt for prompt, _, _ in trials])
    form, content = [], []
    for (_, answer, candidates), p in zip(trials, probs):
        total = math.fsum(p[vocab.ids[w]].item() for w in candidates)
        form.append(total)
        content.append(p[vocab.ids[answer]].item() / total)
    return mean(form), mean(content)


def shot_rows(model, vocab, ask, write):
    """一种写法的整张表：{(k, 乱写吗): (格式, 内容)} 与表格的行。"""
    cells = {(k, wrong): measure(model, vocab, ask, write, k, wrong) for k in SHOTS for wrong in (False, True)}
    rows = [[k, *(f"{cells[k, wrong][j]:.3f}" for wrong in (False, True) for j in (0, 1))] for k in SHOTS]
    return cells, rows


def main():
    check_each("SHOTS", SHOTS, check_int, 0, at_least=2)
    check_int("N_PROMPTS", N_PROMPTS, 1)
    check_int("LONGEST", LONGEST, 1)
    check_seeds(SEED=SEED)
    headers = ["例子数 k", "格式（答案对）", "内容（答案对）", "格式（乱写）", "内容（乱写）"]
    first, last = SHOTS[0], SHOTS[-1]

    title("演示 1：见过的写法 —— the dogs bark . the cat meows . the ducks __")
    base, vocab = load_base()
    known, rows = shot_rows(base, vocab, ask_sound, seen)
    print_table(headers, rows)
    chance = 1 / len(SOUNDS)
    gains = [known[after, False][0] - known[before, False][0] for before, after in zip(SHOTS, SHOTS[1:])]
    print("观察：")
    observe(
        f"格式靠例子：没有例子时，the ducks 后面只有 {known[first, False][0]:.2f} 的概率写叫声（故事里鸭子还会跑、"
        f"会吃）；{SHOTS[1]} 个例子 {known[SHOTS[1], False][0]:.2f}，{last} 个 {known[last, False][0]:.2f}。"
        "头一两个例子最管用。",
        known[last, False][0] > known[first, False][0] + 0.3 and max(gains[:2]) > gains[-1],
    )
    observe(
        f"内容不靠例子：一个例子没有时已是 {known[first, False][1]:.2f}（乱猜 {chance:.2f}），"
        f"{last} 个例子 {known[last, False][1]:.2f}。叫声是预训练时记在权重里的。",
        known[first, False][1] > 0.75 and known[last, False][1] > 0.85,
    )
    worst = max(abs(known[k, True][j] - known[k, False][j]) for k in SHOTS for j in (0, 1))
    observe(
        f"例子的答案全部乱写，格式和内容最多只差 {worst:.3f}：模型看的是例子的样子，没看例子的答案。",
        worst < 0.1,
    )
    observe(
        "Min et al.（2022）在 12 个模型上看到同样的形状：例子的标签随机打乱，成绩几乎不掉；要紧的是标签的范围、"
        "输入的样子和格式。"
    )

    title("演示 2：没见过的写法 —— big : small . old : young . happy : __")
    lifts = {}
    for name, ask in (("反义词", ask_opposite), ("复数", ask_plural)):
        cells, rows = shot_rows(base, vocab, ask, unseen)
        print(f"  {name}：")
        print_table(headers, rows)
        lifts[name] = (cells[last, False][1] - cells[first, False][1], cells[last, False][1] - cells[last, True][1])
        print()
    print(f"  （内容乱猜：反义词 {1 / len(ADJECTIVES):.2f}，复数 {1 / len(NOUNS):.2f}）")
    known_answer = opposite_cloze(base, vocab)
    print("观察：")
    observe(
        f"例子从 {first} 个加到 {last} 个，内容没有起色：反义词变了 {lifts['反义词'][0]:+.3f}，"
        f"复数 {lifts['复数'][0]:+.3f}。答案对与乱写也只差 {abs(lifts['反义词'][1]):.3f} 和 "
        f"{abs(lifts['复数'][1]):.3f}。它没有从例子里看出“题目 : 答案”的关系："
        "语料里冒号后面总是题目的输入，从来不是答案。",
        all(abs(lift) < 0.1 for pair in lifts.values() for lift in pair),
    )
    observe(
        f"不是不知道：把题目改写成它见过的填空，the opposite of happy is __，给正确答案的概率是 {known_answer:.2f}。"
        "对付预训练模型，改写提示往往比加例子管用。",
        known_answer > 0.8,
    )
    observe(
        "GPT-3 能从例子里学新任务（Brown et al. 2020），我们的不能：它只有 11 万个参数，语料里也没有一篇文档奖励"
        "“看前面的例子、照着做”。上下文学习（in-context learning）要规模，也要语料。"
    )

    title("演示 3：编一个新规矩 —— 例子里，同一种动物总是叫错声")
    rows, copies = [], []
    for k in SHOTS:
        wrong, right = made_up_rule(base, vocab, k)
        copies.append((wrong, right))
        rows.append([k, f"{wrong:.3f}", f"{right:.3f}"])
    print_table(["例子数 k", "照例子写", "照常识写"], rows)
    print("观察：")
    observe(
        f"例子里刚说过 {last} 遍“这种动物这么叫”，再问它，照例子写的概率只有 {copies[-1][0]:.2f}，照常识写的仍有 "
        f"{copies[-1][1]:.2f}：权重里的知识压过了上下文。要换一种行为，得改权重：下一个脚本的指令微调。",
        copies[-1][1] > copies[-1][0] + 0.3,
    )


def opposite_cloze(model, vocab):
    """反义词改写成填空之后，给正确答案的概率（在 8 个形容词里算），平均。"""
    probs = next_word_probs(model, vocab, [["the", "opposite", "of", word, "is"] for word in ADJECTIVES])
    ids = [vocab.ids[word] for word in ADJECTIVES]
    return mean((p[vocab.ids[OPPOSITE[word]]] / p[ids].sum()).item() for word, p in zip(ADJECTIVES, probs))


def made_up_rule(model, vocab, k):
    """例子里同一种动物 k 次都叫成另一种声音，再问它：(照例子的概率, 照常识的概率)，在 8 种叫声里算。"""
    trials = []
    for i, animal in enumerate(ANIMALS):
        for shift in range(1, len(SOUNDS)):
            wrong, right = SOUNDS[(i + shift) % len(SOUNDS)], SOUNDS[i]
            line = ["the", noun_form(animal, True)]
            trials.append(([*line, wrong, "."] * k + line, wrong, right))
    probs = next_word_probs(model, vocab, [prompt for prompt, _, _ in trials])
    ids = [vocab.ids[s] for s in SOUNDS]
    shares = [[(p[vocab.ids[w]] / p[ids].sum()).item() for w in pair] for (_, *pair), p in zip(trials, probs)]
    return mean(wrong for wrong, _ in shares), mean(right for _, right in shares)


if __name__ == "__main__":
    run_script(main)

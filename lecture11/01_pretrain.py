"""
================================================================================
第 11 讲 · 01：续写还是回答 —— 预训练模型什么都知道一点，就是不回答问题
================================================================================
对应讲义：lectures/lecture11_instruction_tuning.md 第 2 节
（Brown et al. 2020, GPT-3；Ouyang et al. 2022, InstructGPT）

【问题】预训练（pretraining）之后的模型会什么？向它提问，它会怎样？

【这里的设定】农场语言的 2 万篇文档：60% 故事、25% 常识、15% 习题。习题**只有题目，没有答案**。
11 万参数的 GPT 只学一件事：给出前面的词，预测下一个词。
简化：真实的预训练语料里也有带答案的问答，只是占得少；这里一条也没有，效果因此推到极端。

【公式】每词的 bit 数 = -(1/N) Σ_t log2 p(w_t | w_1 … w_{t-1})，N 是词数。越小越好。
    unigram（一元）p(w_t)：只看词频；    bigram（二元）p(w_t | w_{t-1})：只看前一个词。

运行时间：约 4 秒（不算第一次训练的约 25 秒），需要 torch。
"""
import math
import random
import sys
import textwrap
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from chat_lab import (
    ADJECTIVES, ANIMALS, ASSISTANT, BASE_STEPS, NOUNS, NUMBERS, OPPOSITE, SOUNDS, TASKS, WORDS, check_ascending,
    check_each, check_int, check_number, check_seeds, document_bits, generate, generator, load_base, make_example, mean,
    next_word_probs, noun_form, observe, parse, pretraining_corpus, print_table, run_script, title, verb_form,
)

COUNT_DOCUMENTS, COUNT_SEED = 8000, 40  # 数一元、二元词频用多少篇文档
TEST_DOCUMENTS, TEST_SEED = 400, 41  # 几个模型都在这些新文档上比
SMOOTHING = 0.1  # 一元、二元模型里，每种情形先加这么多次，没见过的也有一点概率
CURVE = (1, 30, 100, 300, 700, 1500)  # 训练到第几步时看损失
WINDOW = 20  # 每个点取最后这么多步的平均
N_STORIES = 400  # 演示 2：以 "the 名词" 开头续写多少次
N_QUESTIONS = 200  # 演示 3：每种提示多少题
SAMPLE_SEED = 42  # 续写与出题的种子


def ngram_bits(train, test):
    """
    从 train 数出一元、二元模型，在 test 上每词多少 bit。文档首尾各补一个边界记号。

    【返回】(unigram, bigram)
    """
    words = [w for document in train for w in [*document, "</s>"]]
    pairs = [pair for document in train for pair in zip(["<s>", *document], [*document, "</s>"])]
    unigram, bigram, first = Counter(words), Counter(pairs), Counter(w for w, _ in pairs)
    total, size = len(words), len(WORDS)
    one, two = [], []
    for document in test:
        for before, w in zip(["<s>", *document], [*document, "</s>"]):
            one.append(-math.log2((unigram[w] + SMOOTHING) / (total + SMOOTHING * size)))
            two.append(-math.log2((bigram[before, w] + SMOOTHING) / (first[before] + SMOOTHING * size)))
    return mean(one), mean(two)


def fact_questions():
    """
    四种常识，改写成填空：(种类, 前文, 正确的下一个词, 候选的词)。

    前文就是语料里那句话少了最后一个词，所以"知道"与"会答题"分得开。
    """
    questions = []
    for animal, sound in zip(ANIMALS, SOUNDS):
        for plural in (False, True):
            verbs = [verb_form(s, plural) for s in SOUNDS]
            questions.append(("叫声", ["the", noun_form(animal, plural)], verb_form(sound, plural), verbs))
        questions.append(("复数", ["one", animal, "and", "two"], noun_form(animal, True), NOUNS))
    for word in ADJECTIVES:
        questions.append(("反义词", ["the", "opposite", "of", word, "is"], OPPOSITE[word], ADJECTIVES))
    for noun in NOUNS:
        for n, number in enumerate(NUMBERS, start=1):
            questions.append(("数数", [noun] * n + ["is"], number, NUMBERS))
    return questions


def first_sentence(words):
    """到第一个 "." 为止。"""
    return words[: words.index(".")] if "." in words else words


def main():
    for name in ("COUNT_DOCUMENTS", "TEST_DOCUMENTS", "N_STORIES", "N_QUESTIONS", "WINDOW"):
        check_int(name, globals()[name], 1)
    check_number("SMOOTHING", SMOOTHING, 0, open_low=True)
    check_each("CURVE", check_ascending("CURVE", CURVE, 3), check_int, 1, BASE_STEPS)
    check_seeds(COUNT_SEED=COUNT_SEED, TEST_SEED=TEST_SEED, SAMPLE_SEED=SAMPLE_SEED)

    title("演示 1：预训练 —— 损失一路降，先后越过一元、二元模型")
    base, vocab = load_base()
    unigram, bigram = ngram_bits(
        pretraining_corpus(COUNT_DOCUMENTS, COUNT_SEED), pretraining_corpus(TEST_DOCUMENTS, TEST_SEED)
    )
    final = document_bits(base, vocab, pretraining_corpus(TEST_DOCUMENTS, TEST_SEED))
    uniform = math.log2(len(vocab))
    curve = {}
    for step in CURVE:
        curve[step] = mean(base.losses[max(0, step - WINDOW) : step]) / math.log(2)
    rows = [[f"GPT，第 {step} 步（训练中）", f"{bits:.2f}"] for step, bits in curve.items()]
    rows += [["GPT，训练完，新文档", f"{final:.2f}"], ["均匀乱猜，log2 词表", f"{uniform:.2f}"]]
    rows += [["一元模型（unigram），新文档", f"{unigram:.2f}"], ["二元模型（bigram），新文档", f"{bigram:.2f}"]]
    print_table(["模型", "每词 bit"], rows)
    late = curve[CURVE[-1]]
    fast, slow = curve[CURVE[0]] - curve[CURVE[1]], curve[CURVE[1]] - late
    print("观察：")
    observe(
        f"刚开始与乱猜差不多（{curve[CURVE[0]]:.2f} 与 {uniform:.2f}）；不久就到了二元模型的水平，"
        f"训练完是 {final:.2f}，比二元模型又省 {bigram - final:.2f} bit：它用上了更远的词。",
        abs(curve[CURVE[0]] - uniform) < 0.3 and final < bigram - 0.4 and bigram < unigram - 1,
    )
    observe(
        f"新文档上的 {final:.2f} 与训练中的 {late:.2f} 差不多：语料够多，没有死记硬背。损失前快后慢："
        f"前 {CURVE[1]} 步降了 {fast:.2f} bit，其余 {CURVE[-1] - CURVE[1]} 步降了 {slow:.2f}。",
        abs(final - late) < 0.15 and fast / CURVE[1] > 5 * slow / (CURVE[-1] - CURVE[1]),
    )

    title("演示 2：它会写句子，也知道常识")
    rng = random.Random(SAMPLE_SEED)
    starts = [["the", rng.choice(NOUNS)] for _ in range(N_STORIES)]
    gen = generator(SAMPLE_SEED)
    sentences = [first_sentence(s + more) for s, more in zip(starts, generate(base, vocab, starts, gen=gen))]
    parsed = [parse(words) for words in sentences]
    valid = mean(sentence is not None and sentence.agrees for sentence in parsed)
    for words in sentences[:3]:
        print(f"  续写：{' '.join(words)}")
    questions = fact_questions()
    probs = next_word_probs(base, vocab, [context for _, context, _, _ in questions])
    rows, all_right, all_share = [], [], []
    for kind in dict.fromkeys(q[0] for q in questions):
        right, share, chance = [], [], []
        for (name, _, answer, candidates), p in zip(questions, probs):
            if name == kind:
                among = {w: p[vocab.ids[w]].item() for w in candidates}
                right.append(max(among, key=among.get) == answer)
                share.append(among[answer] / math.fsum(among.values()))
                chance.append(1 / len(candidates))
        all_right.append(mean(right))
        all_share.append(mean(share))
        context = next(" ".join(c) for name, c, _, _ in questions if name == kind)
        rows.append([kind, f"{context} __", f"{mean(right):.2f}", f"{mean(share):.2f}", f"{mean(chance):.2f}"])
    print()
    print_table(["常识", "填空的一例", "排第一的对", "正确答案的概率", "乱猜"], rows)
    print("  （概率只在候选的词里算，例如 8 种叫声）")
    print("观察：")
    observe(f"以 the 加名词开头续写，{valid:.1%} 是通顺而且单复数一致的句子。", valid > 0.9)
    first_right = "排第一的都对" if min(all_right) == 1 else f"排第一的至少有 {min(all_right):.1%} 是对的"
    observe(
        f"四种常识它都知道：候选里{first_right}，给正确答案的概率最差的一种是 {min(all_share):.2f}。",
        min(all_right) > 0.85 and min(all_share) > 0.75,
    )

    title("演示 3：向它提问 —— 它写出更多的题目")
    examples = [make_example(rng, rng.choice(TASKS)) for _ in range(N_QUESTIONS)]
    rows, more_questions, answered = [], {}, {}
    for kind in ("对话提示", "习题的写法"):
        prompts = [e.prompt if kind == "对话提示" else [*e.prompt[1:-1], "."] for e in examples]
        replies = generate(base, vocab, prompts, gen=generator(SAMPLE_SEED))
        answered[kind] = mean(reply[: len(e.response)] == e.response for e, reply in zip(examples, replies))
        more_questions[kind] = mean(":" in reply for reply in replies)
        rows.append([kind, f"{answered[kind]:.3f}", f"{more_questions[kind]:.3f}"])
        for prompt, reply in zip(prompts[:3:2], replies[:3:2]):
            print(f"  {kind}：{' '.join(prompt)}")
            print(textwrap.fill(f"它写：{' '.join(reply)}", 70, initial_indent="    ", subsequent_indent="      "))
    print()
    print_table(["提示", "以正确答案开头", "又写出别的题目"], rows)
    print("观察：")
    observe(
        f"对话提示下，{more_questions['对话提示']:.1%} 的续写里又出现了题目，以正确答案开头的只有 "
        f"{answered['对话提示']:.1%}；照习题的写法问，也一样（{more_questions['习题的写法']:.1%} 与 "
        f"{answered['习题的写法']:.1%}）。语料里题目后面跟的就是下一道题，它学得很好。",
        min(more_questions.values()) > 0.7 and max(answered.values()) < 0.1,
    )
    observe(
        f"所以不是不知道，是没人教过它“{ASSISTANT} 后面该回答”：同样的常识换成填空，"
        f"{first_right}。",
        min(all_right) > 5 * max(answered.values()) and min(all_right) > 0.5,
    )
    observe("Ouyang et al.（2022）的博客举过同样的例子：请 GPT-3 向六岁的孩子解释登月，它列出更多这样的请求。")


if __name__ == "__main__":
    run_script(main)

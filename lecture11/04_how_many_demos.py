"""
================================================================================
第 11 讲 · 04：几条示范够？ —— 格式来得快，内容来得慢，没教的事实看任务
================================================================================
对应讲义：lectures/lecture11_instruction_tuning.md 第 5 节
（Zhou et al. 2023, LIMA；Wei et al. 2021, FLAN；Wang et al. 2022, Self-Instruct）

【问题】指令微调要多少条示范？教会的是格式，还是内容？换一种没见过的说法，模型还懂吗？

【这里的设定】从同一个预训练模型出发，用 n 条示范微调，步数一样（N_STEPS），只有 n 不同：
n 小的时候同一批示范反复看。考题用训练过的说法和留出的（held out）说法各一套，贪心作答。
留出的说法不在示范里出现；预训练的习题里见过（只有题目，没有答案）。
演示 2 的示范里没有整句，只有"单复数、反义词、叫声"，还有照抄一个词（repeat : oink → oink，PARROT）：
不教的几种动物、那对反义词只在照抄里说，它们的事实一条也不教。预训练时见过这些事实。
再拿一个没有预训练过的模型（随机权重）做同样的微调，看功劳是谁的。
简化：LIMA 的 1000 条示范是人精心挑的，这里的示范质量都一样；真实模型的"知识"也远不止这几条。

【公式】格式 = 答的是不是这类东西（反义词题答了一个形容词）；内容 = 答对没有。内容对，格式必然对。

运行时间：约 25 秒，需要 torch。
"""
import math
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from chat_lab import (
    ADJECTIVES, ANIMALS, GPT, NOUNS, SFT_BATCH, SFT_EPOCHS, SFT_EXAMPLES, SOUNDS, TASKS, TEMPLATES, Example,
    check_choice, check_each, check_int, check_number, check_seeds, encode_example, finetune, grade, load_base,
    load_chat_sft, make_example, make_prompt, mean, noun_form, observe, print_table, run_script, sft_examples, title,
    verb_form,
)
from farm import N_TRAIN_TEMPLATES

DEMO_COUNTS = (30, 100, 300, 1000, 3000)  # 演示 1：示范的条数
N_STEPS = 150  # 演示 1：每次微调走多少步（每步 SFT_BATCH 条）
SEEDS = (70, 71)  # 演示 1：每个 n 重复几次，换示范也换次序
ENOUGH = 0.7  # 演示 1：格式、内容各要多少条示范才到这个比例
N_TEST, TEST_SEED = 40, 72  # 每种任务、每套说法考多少题
FACT_TASKS = ("plural", "singular", "opposite", "sound")  # 演示 2：答案是常识的四种任务
PARROT = 0.2  # 演示 2：照抄一个词的份额；其余是 FACT_TASKS 平分
HIDDEN_ANIMALS, HIDDEN_ADJECTIVES = ("pig", "mouse"), ("old", "young")  # 演示 2：不教的事实
FACT_EXAMPLES = 3000  # 演示 2：示范的条数（拿掉不教的之前）
FACT_STEPS = 250  # 演示 2：走多少步
FACT_SEEDS = (73, 74)  # 演示 2：重复几次，换示范也换次序
SCRATCH_SEED = 76  # 演示 2：没有预训练的模型的初始化
N_FACT_TEST = 80  # 演示 2：每种任务考多少题


def tune(model, vocab, examples, n_steps, seed):
    """在 examples 上正好走 n_steps 步，返回新模型：不够就从头再用，用不完的不用。"""
    check_int("微调用的示范条数", len(examples), 1)
    n_rows = n_steps * SFT_BATCH
    sequences = [encode_example(vocab, e.prompt, e.response) for e in examples]
    sequences = (sequences * math.ceil(n_rows / len(sequences)))[:n_rows]
    return finetune(model, vocab, sequences, epochs=1, seed=seed, log=False)


def form_and_content(graded):
    """(格式, 内容) 两个比例。"""
    return mean(form for _, form, _ in graded), mean(right for _, _, right in graded)


def is_hidden(example):
    """这道题问的是不是不教的那几种动物、那对反义词。"""
    words = {noun_form(animal, plural) for animal in HIDDEN_ANIMALS for plural in (False, True)}
    return example.task in FACT_TASKS and not words.union(HIDDEN_ADJECTIVES).isdisjoint(example.words)


def parrot_example(rng):
    """照抄一个词：四种任务的答案里，每个词都可能轮到。词说得出口，事实一点也不教。"""
    word = rng.choice([*NOUNS, *ADJECTIVES, *(verb_form(sound, plural) for sound in SOUNDS for plural in (0, 1))])
    return Example("repeat", make_prompt(rng.choice(TEMPLATES["repeat"][:N_TRAIN_TEMPLATES]), [word]), [word], [word])


def fact_examples(seed):
    """演示 2 的示范：FACT_TASKS 与照抄一个词，问到不教的事实就拿掉。"""
    rng = random.Random(seed)
    examples = [
        parrot_example(rng) if rng.random() < PARROT else make_example(rng, rng.choice(FACT_TASKS))
        for _ in range(FACT_EXAMPLES)
    ]
    return [example for example in examples if not is_hidden(example)]


def by_task(graded):
    """全部考题的判分（TASKS 依次各 N_TEST 题）→ 每种任务的 (格式, 内容)。"""
    return {task: form_and_content(graded[i * N_TEST : (i + 1) * N_TEST]) for i, task in enumerate(TASKS)}


def reach(curve, j):
    """第 j 列（0 格式，1 内容）要几条示范才到 ENOUGH：在相邻两档之间按 log n 插值。一直没到，或头一档就到了，是 0。"""
    for a, b in zip(DEMO_COUNTS, DEMO_COUNTS[1:]):
        low, high = curve[a][j], curve[b][j]
        if low < ENOUGH <= high:
            return round(a * (b / a) ** ((ENOUGH - low) / (high - low)))
    return 0


def main():
    check_each("DEMO_COUNTS", DEMO_COUNTS, check_int, 1, at_least=4)
    check_each("SEEDS", SEEDS, check_int)
    check_each("FACT_SEEDS", FACT_SEEDS, check_int)
    check_seeds(TEST_SEED=TEST_SEED, SCRATCH_SEED=SCRATCH_SEED)
    for name in ("N_STEPS", "N_TEST", "N_FACT_TEST", "FACT_EXAMPLES", "FACT_STEPS"):
        check_int(name, globals()[name], 1)
    check_number("PARROT", PARROT, 0, 0.9)
    check_number("ENOUGH", ENOUGH, 0, 1)
    check_each("FACT_TASKS", FACT_TASKS, check_choice, ("plural", "singular", "opposite", "sound"), at_least=4)
    check_each("HIDDEN_ANIMALS", HIDDEN_ANIMALS, check_choice, ANIMALS)
    check_each("HIDDEN_ADJECTIVES", HIDDEN_ADJECTIVES, check_choice, ADJECTIVES)

    title(f"演示 1：n 条示范，各微调 {N_STEPS} 步，{len(SEEDS)} 次的平均")
    (base, vocab), (sft, _) = load_base(), load_chat_sft()
    rng = random.Random(TEST_SEED)
    known = [make_example(rng, task) for task in TASKS for _ in range(N_TEST)]
    held_out = [make_example(rng, task, held_out=True) for task in TASKS for _ in range(N_TEST)]
    curve, rows, last = {}, [], []
    for n in DEMO_COUNTS:
        runs = []
        for seed in SEEDS:
            model = tune(base, vocab, sft_examples(n, seed), N_STEPS, seed)
            graded = grade(model, vocab, known), grade(model, vocab, held_out)
            runs.append((*form_and_content(graded[0]), *form_and_content(graded[1])))
            last = last + [graded] if n == DEMO_COUNTS[-1] else []
        curve[n] = [mean(column) for column in zip(*runs)]
        rows.append([n, N_STEPS, *(f"{x:.2f}" for x in curve[n])])
    last.append((grade(sft, vocab, known), grade(sft, vocab, held_out)))
    full = (*form_and_content(last[-1][0]), *form_and_content(last[-1][1]))
    full_steps = SFT_EPOCHS * math.ceil(SFT_EXAMPLES / SFT_BATCH)
    rows.append([SFT_EXAMPLES, full_steps, *(f"{x:.2f}" for x in full)])
    print_table(["示范数 n", "步数", "格式", "内容", "留出的说法：格式", "留出的说法：内容"], rows)
    few, middle, many = DEMO_COUNTS[0], DEMO_COUNTS[2], DEMO_COUNTS[-1]
    print("观察：")
    needed = [reach(curve, j) for j in (0, 1)]
    form, content = (f"约要 {n} 条示范" if n else "不在这些条数之间" for n in needed)
    observe(
        f"格式先到：格式到 {ENOUGH} {form}，内容{content}。{few} 条时，格式已有 {curve[few][0]:.2f}，内容只有 "
        f"{curve[few][1]:.2f}。",
        needed[0] > 0 and needed[1] > 2 * needed[0],
    )
    early, late = curve[middle][1] - curve[few][1], curve[many][1] - curve[DEMO_COUNTS[3]][1]
    observe(
        f"同样的步数，示范的收益递减：从 {few} 条到 {middle} 条，内容涨了 {early:.2f}；从 {DEMO_COUNTS[3]} 条到 {many} "
        f"条，只涨 {late:.2f}。再往上，步数也得加：{SFT_EXAMPLES} 条、{full_steps} 步是 {full[1]:.2f}。",
        early > 0.2 and early > 3 * late and full[1] > curve[many][1],
    )
    observe(
        "LIMA（Zhou et al. 2023）用 1000 条精选示范微调 65B 的 LLaMA，与 GPT-4 相比有 43% 的回答持平或更好，"
        "由此提出“表面对齐假说”（superficial alignment hypothesis）：知识在预训练里，微调只教格式。下面就来查这句话。"
    )

    title(f"演示 2：示范里没有的事实 —— 不教 {'、'.join(HIDDEN_ANIMALS)} 与 {'/'.join(HIDDEN_ADJECTIVES)}")
    tests = {task: [make_example(rng, task) for _ in range(N_FACT_TEST)] for task in FACT_TASKS}
    scratch, scores = GPT(len(vocab), SCRATCH_SEED), {}
    for seed in FACT_SEEDS:
        shown = fact_examples(seed)
        for name, start in (("有", base), ("无", scratch)):
            model = tune(start, vocab, shown, FACT_STEPS, seed)
            for task, examples in tests.items():
                for hidden in (False, True):
                    part = [example for example in examples if is_hidden(example) == hidden]
                    if not part:
                        raise ValueError(f"N_FACT_TEST 应当大一些，收到的是 {N_FACT_TEST}：{task} 有一类事实没有考到")
                    scores.setdefault((name, task, hidden), []).append(form_and_content(grade(model, vocab, part)))
    cell = {key: [mean(column) for column in zip(*runs)] for key, runs in scores.items()}
    rows = [
        [task, *(f"{cell[name, task, hidden][1]:.2f}" for name in ("有", "无") for hidden in (False, True)),
         f"{cell['有', task, True][0]:.2f}"]
        for task in FACT_TASKS
    ]
    print_table(["任务", "教过的", "没教的", "无预训练：教过的", "无预训练：没教的", "没教的：格式"], rows)
    print("观察：")
    sound, bare = ([cell[name, "sound", hidden][1] for hidden in (False, True)] for name in ("有", "无"))
    observe(
        f"没教的叫声照样答得出（{sound[1]:.2f}）。没有预训练的模型把教过的学到 {bare[0]:.2f}，没教的只有 "
        f"{bare[1]:.2f}：这份知识是从预训练里带来的。",
        sound[1] > 0.6 and bare[1] < 0.2 and min(sound[0], bare[0]) > 0.9,
    )
    (form, singular), taught = cell["有", "singular", True], cell["有", "singular", False][1]
    observe(
        f"没教的单数却答不出（{singular:.2f}），教过的有 {taught:.2f}。格式倒是对的（{form:.2f}）：它学会的是"
        "“总要答一个名词”，答不出也照样答一个。",
        singular < 0.4 * taught and taught > 0.85 and form > 0.8,
    )
    plural, opposite = (cell["有", task, True][1] for task in ("plural", "opposite"))
    observe(f"没教的复数（{plural:.2f}）、反义词（{opposite:.2f}）换个预训练的种子就大变，不作结论。")
    observe(
        "所以这个小模型只支持“表面对齐”的一半：格式一学就会；知识都在权重里，换成一问一答，有的搬得过来，"
        "有的搬不过来。为什么，这里没有查。"
    )

    title("演示 3：换个说法还懂吗 —— 见过的说法 / 留出的说法，逐个任务")
    seen, held = ([by_task(pair[j]) for pair in last] for j in (0, 1))
    rows, drop, level = [], {}, {}
    for task in TASKS:
        rights = [(a[task][1], b[task][1]) for a, b in zip(seen, held)]
        level[task], new = (mean(column) for column in zip(*rights))
        drop[task] = level[task] - new
        rows.append([task, *(f"{a:.2f} / {b:.2f}" for a, b in [*rights, (level[task], new)]), f"{drop[task]:+.2f}"])
    names = [f"{many} 条，第 {j} 次" for j in range(1, len(SEEDS) + 1)]
    print_table(["任务", *names, f"{SFT_EXAMPLES} 条", "平均", "差"], rows)
    print("观察：")
    before, worst = mean(level.values()), max(TASKS, key=drop.get)
    after = before - mean(drop.values())
    observe(f"换了说法，内容平均从 {before:.2f} 到 {after:.2f}：大半还懂。", after > 0.6 * before)
    observe(
        f"掉得最多的是 {worst}：{level[worst]:.2f} 掉到 {level[worst] - drop[worst]:.2f}。换个种子，可能是别的任务，"
        "也可能掉光：四种说法太少，“说法不同，意思相同”学得不牢。"
    )
    observe(
        f"留出的说法分低，不都是因为换了说法：repeat 见过的说法也只有 {level['repeat']:.2f}，是任务还没学会。",
        level["repeat"] < 0.7 and drop["repeat"] < 0.15,
    )
    observe(
        "FLAN（Wei et al. 2021）用了 60 多个任务的指令，在没见过的任务类型上胜过零样本的 GPT-3（25 个数据集里的 "
        "20 个），而且任务越多越好：那是换任务，比这里的换说法难得多。"
    )


if __name__ == "__main__":
    run_script(main)

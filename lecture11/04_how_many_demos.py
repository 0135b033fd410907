"""
================================================================================
第 11 讲 · 04：几条示范够？ —— 格式来得快，内容来得慢，没教过的事实看运气
================================================================================
对应讲义：lectures/lecture11_instruction_tuning.md 第 5 节
（Zhou et al. 2023, LIMA；Wei et al. 2021, FLAN；Wang et al. 2022, Self-Instruct）

【问题】指令微调要多少条示范？教会的是格式，还是内容？换一种没见过的说法，模型还懂吗？

【这里的设定】从同一个预训练模型出发，用 n 条示范微调，步数都一样（N_STEPS），只有 n 不同：
n 小的时候同一批示范反复看。考题用训练过的说法和留出的（held out）说法各一套，贪心作答。
演示 2 把几种动物、一对反义词从"单复数、反义词、叫声"的示范里拿掉：预训练时见过它们，示范里没有。
再拿一个没有预训练过的模型（随机权重）做同样的微调，看功劳是谁的。
简化：LIMA 的 1000 条示范是人精心挑的，这里的示范质量都一样；真实模型的"知识"也远不止这几条。

【公式】格式 = 答的是不是这类东西（反义词题答了一个形容词）；内容 = 答对没有。内容对，格式必然对。

运行时间：约 20 秒，需要 torch。
"""
import math
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from chat_lab import (
    GPT, SFT_EXAMPLES, TASKS, check_int, encode_example, finetune, grade, load_base, load_chat_sft, make_example,
    mean, noun_form, observe, print_table, run_script, sft_examples, title,
)

SIZES = (30, 100, 300, 1000, 3000)  # 示范的条数
N_STEPS = 150  # 每次微调走多少步（每步 32 条）
SEEDS = (70, 71)  # 每个 n 重复几次，换示范也换次序
N_TEST, TEST_SEED = 40, 72  # 每种任务、每套说法考多少题
FACT_TASKS = ("plural", "singular", "opposite", "sound")  # 演示 2：答案是常识的四种任务
HIDDEN_ANIMALS, HIDDEN_ADJECTIVES = ("pig", "mouse"), ("old", "young")  # 演示 2：从示范里拿掉的
FACT_EXAMPLES = 3000  # 演示 2：示范的条数（拿掉之前）
FACT_STEPS = 170  # 演示 2：走多少步
N_FACT_TEST = 80  # 演示 2：每种任务考多少题
SCRATCH_SEED = 73  # 没有预训练的模型的初始化


def tune(model, vocab, examples, n_steps, seed):
    """在 examples 上走大约 n_steps 步（凑成整数轮），返回新模型。"""
    check_int("微调用的示范条数", len(examples), 1)
    epochs = max(1, round(n_steps / math.ceil(len(examples) / 32)))
    sequences = [encode_example(vocab, e.prompt, e.response) for e in examples]
    return finetune(model, vocab, sequences, epochs, seed=seed, log=False)


def form_and_content(graded):
    """(格式, 内容) 两个比例。"""
    return mean(form for _, form, _ in graded), mean(right for _, _, right in graded)


def is_hidden(example):
    """这道题问的是不是拿掉的那几种动物、那对反义词。"""
    words = {noun_form(animal, plural) for animal in HIDDEN_ANIMALS for plural in (False, True)}
    return example.task in FACT_TASKS and not words.union(HIDDEN_ADJECTIVES).isdisjoint(example.words)


def spread(values):
    """"平均（最小～最大）"。"""
    return f"{mean(values):.2f}（{min(values):.2f}～{max(values):.2f}）"


def main():
    check_int("SIZES 的长度", len(SIZES), 4)
    check_int("SEEDS 的长度", len(SEEDS), 1)
    for n in SIZES:
        check_int("SIZES 里的条数", n, 1)
    for name in ("N_STEPS", "FACT_STEPS", "N_TEST", "N_FACT_TEST"):
        check_int(name, globals()[name], 1)
    title(f"演示 1：n 条示范，各微调约 {N_STEPS} 步，{len(SEEDS)} 次的平均")
    (base, vocab), (sft, _) = load_base(), load_chat_sft()
    rng = random.Random(TEST_SEED)
    known = [make_example(rng, task) for task in TASKS for _ in range(N_TEST)]
    held_out = [make_example(rng, task, held_out=True) for task in TASKS for _ in range(N_TEST)]
    curve, rows, last_held = {}, [], []
    for n in SIZES:
        runs = []
        for seed in SEEDS:
            model = tune(base, vocab, sft_examples(n, seed), N_STEPS, seed)
            graded = grade(model, vocab, held_out)
            runs.append((*form_and_content(grade(model, vocab, known)), *form_and_content(graded)))
            last_held = last_held + [graded] if n == SIZES[-1] else []
        curve[n] = [mean(column) for column in zip(*runs)]
        rows.append([n, *(f"{x:.2f}" for x in curve[n])])
    held_sft = grade(sft, vocab, held_out)
    full = (*form_and_content(grade(sft, vocab, known)), *form_and_content(held_sft))
    rows.append([f"{SFT_EXAMPLES}（3 轮，步数更多）", *(f"{x:.2f}" for x in full)])
    print_table(["示范数 n", "格式", "内容", "留出的说法 格式", "留出的说法 内容"], rows)
    few, middle, many = SIZES[0], SIZES[2], SIZES[-1]
    gaps = [curve[n][0] - curve[n][1] for n in SIZES]
    print("观察：")
    observe(
        f"格式先到：{few} 条示范，格式已有 {curve[few][0]:.2f}，内容只有 {curve[few][1]:.2f}；{middle} 条，格式 "
        f"{curve[middle][0]:.2f}，内容 {curve[middle][1]:.2f}；{many} 条，差距从 {gaps[0]:.2f} 缩到 {gaps[-1]:.2f}。",
        gaps[0] > 0.1 and gaps[-1] < gaps[0] and curve[middle][0] > 0.75,
    )
    early, late = curve[middle][1] - curve[few][1], curve[many][1] - curve[SIZES[3]][1]
    observe(
        f"收益递减：从 {few} 条到 {middle} 条，内容涨了 {early:.2f}；从 {SIZES[3]} 条到 {many} 条，只涨 {late:.2f}。",
        early > 0.2 and early > 3 * late,
    )
    observe(
        "LIMA（Zhou et al. 2023）用 1,000 条精选示范微调 65B 的 LLaMA，与 GPT-4 相比有 43% 的回答持平或更好，"
        "由此提出“表面对齐假说”（superficial alignment hypothesis）：知识在预训练里，微调只教格式。下面就来查这句话。"
    )

    title(f"演示 2：示范里没有的事实 —— 拿掉 {'、'.join(HIDDEN_ANIMALS)} 与 {'/'.join(HIDDEN_ADJECTIVES)}")
    tests = {task: [make_example(rng, task) for _ in range(N_FACT_TEST)] for task in FACT_TASKS}
    scratch = GPT(len(vocab), SCRATCH_SEED)
    scores = {}
    for seed in SEEDS:
        shown = [example for example in sft_examples(FACT_EXAMPLES, seed) if not is_hidden(example)]
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
    print_table(["任务", "教过的", "没教的", "无预训练 教过的", "无预训练 没教的", "没教的 格式"], rows)
    print("观察：")
    sound, bare = cell["有", "sound", True][1], cell["无", "sound", True][1]
    observe(
        f"没教过的叫声也答得对（{sound:.2f}），没有预训练就不行（{bare:.2f}）：这份知识是从预训练里带来的。"
        "sound : the pigs → oink 与语料里的 the pigs oink 一个样子，接得上。",
        sound > 0.5 and sound > bare + 0.3,
    )
    singular, form = cell["有", "singular", True][1], cell["有", "singular", True][0]
    taught = cell["有", "singular", False][1]
    observe(
        f"没教过的单数却答不出（{singular:.2f}），教过的有 {taught:.2f}。格式倒是对的（{form:.2f}）："
        "它知道该答一个名词，就编一个。语料里只有 one pig and two pigs 这个方向，反过来问就取不出来。",
        singular < 0.5 * taught and taught > 0.8 and form > 0.6,
    )
    observe(
        "所以这个小模型只支持“表面对齐”的一半：格式一学就会；知识搬不搬得过来，要看问法像不像预训练时的样子。"
        f"plural（{cell['有', 'plural', True][1]:.2f}）与 opposite（{cell['有', 'opposite', True][1]:.2f}）"
        "换个种子就大变，不作结论。"
    )

    title("演示 3：换个说法还懂吗 —— 留出的说法，逐个任务")
    rows, chosen, widest = [], [*last_held, held_sft], (-1.0, "", 0.0, 0.0)
    for i, task in enumerate(TASKS):
        rights = [form_and_content(graded[i * N_TEST : (i + 1) * N_TEST])[1] for graded in chosen]
        rows.append([task, *(f"{right:.2f}" for right in rights), spread(rights)])
        widest = max(widest, (max(rights[:-1]) - min(rights[:-1]), task, min(rights[:-1]), max(rights[:-1])))
    names = [f"{SIZES[-1]} 条，第 {j} 次" for j in range(1, len(SEEDS) + 1)]
    print_table(["任务", *names, f"{SFT_EXAMPLES} 条", "平均（最小～最大）"], rows)
    print("观察：")
    describe, resume = (mean(right for g in chosen for _, _, right in g[i * N_TEST : (i + 1) * N_TEST]) for i in (0, 8))
    observe(
        f"describe（{describe:.2f}）与 continue（{resume:.2f}）换了说法也懂：看输入的样子就猜得到该写句子。",
        min(describe, resume) > 0.75,
    )
    observe(
        f"其余的任务像抽奖：同样 {SIZES[-1]} 条，只换一批示范，{widest[1]} 就从 {widest[2]:.2f} 到 {widest[3]:.2f}。"
        "四种说法太少，不足以教会“说法不同，意思相同”。FLAN（Wei et al. 2021）用了 60 多个任务的指令，才在没见过的"
        "任务类型上胜过零样本的 GPT-3（25 个里的 20 个），而且任务越多越好。"
    )


if __name__ == "__main__":
    run_script(main)

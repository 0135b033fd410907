"""
================================================================================
第 11 讲 · 03：指令微调 —— 损失只算回答，一个词也不能算漏
================================================================================
对应讲义：lectures/lecture11_instruction_tuning.md 第 4 节
（Ouyang et al. 2022, InstructGPT；Shi et al. 2024, "Instruction Tuning With Loss Over Instructions"）

【问题】怎样让会续写的模型学会回答？损失该算在哪些词上？算错一个词会怎样？

【这里的设定】示范是 <s> 提示 回答 </s>。掩码（mask）是 1 的词才算损失：回答的每个词，和最后的 </s>。
演示 2 用 load_chat_sft 的模型（1 万条示范，3 遍）；演示 3 的四次对照从同一个预训练模型出发，
用同样的 N_EXAMPLES 条示范、同样的步数，只有掩码不同。
简化：真实的对话有很多轮，每一轮助手的话都算损失；这里只有一轮。

【公式】L = -Σ_t m_t log π(w_t | w_1 … w_{t-1}) / Σ_t m_t
w 是整条序列：<s>、提示 x、回答 y 连同 </s>；m_t 是掩码。一个小批里所有算损失的词一起平均。

运行时间：约 10 秒，需要 torch。
"""
import random
import sys
import textwrap
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from chat_lab import (
    SFT_EPOCHS, TASKS, UNSTOPPED, check_choice, check_int, check_seeds, encode_example, finetune, grade, load_base,
    load_chat_sft, make_example, mean, observe, pad_batch, print_table, run_script, sft_examples, title, token_logprobs,
    torch,
)

SHOWN_TASK, SHOWN_SEED = "where", 61  # 演示 1：拿哪一种任务的一条示范来看
N_TEST, TEST_SEED = 60, 62  # 每种任务考多少题
N_EXAMPLES, EXAMPLES_SEED = 3000, 63  # 演示 3：示范的条数
EPOCHS = 2  # 演示 3：训练几遍
N_LOSS = 500  # 演示 3：损失在头多少条示范上量


def only_response(ids, mask):
    """标准的做法：回答与 </s>。"""
    return mask


def prompt_too(ids, mask):
    """提示也算损失：除了 <s>，每个词都算。"""
    return [0] + [1] * (len(mask) - 1)


def without_end(ids, mask):
    """漏了 </s>：例如把它当成填充的词，一起掩掉了。"""
    return mask[:-1] + [0]


def without_first(ids, mask):
    """漏了回答的第一个词：掩码整体晚了一格。"""
    first = mask.index(1)
    return mask[:first] + [0] + mask[first + 1 :]


def word_losses(model, vocab, ids):
    """每个词的 -log π（nat），第一个词没有。"""
    batch, _ = pad_batch([(ids, [])], vocab.pad_id)
    return (-token_logprobs(model, batch)[0]).tolist()


def masked_loss(model, vocab, sequences):
    """掩码是 1 的词平均的 -log π（nat）。"""
    ids, mask = pad_batch(sequences, vocab.pad_id)
    with torch.no_grad():
        return (-(token_logprobs(model, ids) * mask[:, 1:]).sum() / mask[:, 1:].sum()).item()


def report(graded, examples):
    """【返回】(格式, 内容, 停下来, 第一个词对) 四个比例。开放的题没有唯一的第一个词，不算在内。"""
    closed = [(r, e) for (r, _, _), e in zip(graded, examples) if e.task not in ("describe", "continue")]
    first = [response[:1] == example.response[:1] for response, example in closed]
    return (
        mean(form for _, form, _ in graded), mean(right for _, _, right in graded),
        mean(r[-1:] != [UNSTOPPED] for r, _, _ in graded), mean(first),
    )


def main():
    for name in ("N_TEST", "N_EXAMPLES", "EPOCHS", "N_LOSS"):
        check_int(name, globals()[name], 1)
    check_choice("SHOWN_TASK", SHOWN_TASK, TASKS)
    check_seeds(SHOWN_SEED=SHOWN_SEED, TEST_SEED=TEST_SEED, EXAMPLES_SEED=EXAMPLES_SEED)

    title("演示 1：一条示范，逐词看掩码与损失")
    (base, vocab), (sft, _) = load_base(), load_chat_sft()
    example = make_example(random.Random(SHOWN_SEED), SHOWN_TASK)
    ids, mask = encode_example(vocab, example.prompt, example.response)
    before, after = word_losses(base, vocab, ids), word_losses(sft, vocab, ids)
    rows = [
        [vocab.words[i], m, *(("—", "—") if t == 0 else (f"{before[t - 1]:.2f}", f"{after[t - 1]:.2f}"))]
        for t, (i, m) in enumerate(zip(ids, mask))
    ]
    print_table(["词", "掩码", "-log π 预训练", "-log π 微调后"], rows)
    counted = [t - 1 for t, m in enumerate(mask) if m]
    loss_before, loss_after = mean(before[t] for t in counted), mean(after[t] for t in counted)
    print("观察：")
    observe(
        f"算损失的只有 {len(counted)} 个词（回答和 </s>），损失从 {loss_before:.2f} 降到 {loss_after:.2f}。"
        "提示那几行不算损失：用户会问什么，不用模型来猜。",
        loss_after < 0.3 * loss_before,
    )

    title("演示 2：十种任务，微调前后（训练过的说法）")
    rng = random.Random(TEST_SEED)
    examples = [make_example(rng, task) for task in TASKS for _ in range(N_TEST)]
    graded_base, graded_sft = grade(base, vocab, examples), grade(sft, vocab, examples)
    rows, right = [], {}
    for i, task in enumerate(TASKS):
        part = slice(i * N_TEST, (i + 1) * N_TEST)
        scores = [mean(g[j] for g in graded[part]) for graded in (graded_base, graded_sft) for j in (1, 2)]
        right[task] = scores[3]
        rows.append([task, *(f"{x:.2f}" for x in scores)])
    print_table(["任务", "预训练：格式", "预训练：内容", "微调后：格式", "微调后：内容"], rows)
    easy = [task for task in TASKS if task != "repeat"]
    base_right, lowest = mean(g[2] for g in graded_base), min(right[task] for task in easy)
    print("观察：")
    observe(
        f"预训练模型答对 {base_right:.1%}；微调后，除了 repeat，其余九种最低 {lowest:.0%}。"
        "同一个结构、同样多的参数，变的只是训练最后那一小段。",
        base_right < 0.05 and lowest > 0.85,
    )
    observe(
        f"repeat 最难（{right['repeat']:.2f}）：别的任务，答案只有几种，或者怎么写都行；它要一字不差照抄任意几个词，"
        f"{SFT_EPOCHS} 遍还没有学会。",
        right["repeat"] < lowest,
    )

    title(f"演示 3：掩码错一点会怎样 —— {N_EXAMPLES} 条示范，{EPOCHS} 遍，只有掩码不同")
    sequences = [encode_example(vocab, e.prompt, e.response) for e in sft_examples(N_EXAMPLES, EXAMPLES_SEED)]
    masks = {
        "只算回答": only_response, "提示也算": prompt_too, "漏了 </s>": without_end, "漏了第一个词": without_first,
    }
    rows, losses, results, shown = [], [], [], []
    for name, change in masks.items():
        masked = [(i, change(i, m)) for i, m in sequences]
        model = finetune(base, vocab, masked, EPOCHS, name=f"微调（{name}）")
        graded = grade(model, vocab, examples)
        losses.append([masked_loss(m, vocab, masked[:N_LOSS]) for m in (base, model)])
        results.append(report(graded, examples))
        rows.append([name, *(f"{x:.2f}" for x in (*losses[-1], *results[-1]))])
        shown.append((name, graded[N_TEST][0]))
    print_table(["掩码", "损失：起", "损失：末", "格式", "内容", "停下来", "第一个词对"], rows)
    print(f"\n  同一道题：{' '.join(examples[N_TEST].prompt)}")
    for name, response in shown:
        text = f"{name}：{' '.join(response) or '（什么也没写）'}"
        print(textwrap.fill(text, 70, initial_indent="    ", subsequent_indent="      "))
    good, unmasked, endless, headless = results
    print("观察：")
    observe(
        f"</s> 不算损失，模型就学不会停：停下来的只有 {endless[2]:.2f}（标准做法 {good[2]:.2f}）。"
        f"第一个词照样对（{endless[3]:.2f}），后面没完没了，格式只剩 {endless[0]:.2f}。",
        endless[2] < 0.3 and good[2] > 0.95 and endless[3] > 0.5 and endless[0] < 0.3,
    )
    observe(
        f"第一个词不算损失，模型就不知道怎样开口：第一个词对的只有 {headless[3]:.2f}，内容 {headless[1]:.2f}。"
        f"漏掉的词不在损失里，损失照样从 {losses[3][0]:.2f} 降到 {losses[3][1]:.2f}。",
        headless[3] < 0.2 and headless[1] < 0.3 < good[1]
        and all(end < 0.5 * start for start, end in losses[2:]),
    )
    observe(
        f"提示也算损失：格式 {unmasked[0]:.2f}，内容 {unmasked[1]:.2f}（只算回答是 {good[0]:.2f}、{good[1]:.2f}），"
        f"照样停得下来（{unmasked[2]:.2f}）。步数这么少，一部分力气花在了猜题目上。",
        unmasked[2] > 0.9 and unmasked[1] < good[1] - 0.02,
    )
    observe(
        "这一条别当成定律：Shi et al.（2024）在 21 个基准的许多上看到，提示也算损失反而更好，提示长、回答短、"
        "示范少的时候尤其如此。掩掉提示是习惯，不是定理；漏掉回答里的词才是错。"
    )


if __name__ == "__main__":
    run_script(main)

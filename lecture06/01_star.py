"""
================================================================================
第 6 讲 · 01：STaR —— 用自己答对的过程训练自己
================================================================================
对应讲义：lectures/lecture06_scaling_rl.md 第 2 节（Zelikman et al. 2022, STaR）

【问题】没有人写推理过程，只有题目和答案：模型能靠自己答对的那些过程变强吗？转到哪里会停？

【这里的设定】一轮 STaR 三步：
    采样：每道训练题作答一次；
    过滤：验证器（verifier）只核对最后的答案，对的过程留下；
    微调：永远**从基座模型开始**，用留下的过程做 SFT；新模型进入下一轮。
三种跑法，只差一处：
    STaR           就是上面三步；
    + 合理化       没通过的题，告诉模型答案再作答一次（rationalization），通过的也留下；
    粗糙验证器     只核对答案的个位数。
每轮微调只训练 SFT_EPOCHS 遍（epoch），离数据的水平还差一截；演示 3 换几种遍数，看停下来有多少是它造成的，
另跑一次不回到基座、接着上一轮的模型训练的。
简化：真实的 STaR 先用几个手写的例子引出过程，这里的模型天生就一步一步写；"看着答案"在这里
是把每一步 "correct" 的 logit 提高 HINT_BONUS。训练数据里从来没有提示，只有过程。

【公式】STaR 近似地在做策略梯度，奖励是 1（答案对）或 0：
    ∑ E[ 1(答案对) · log π(过程) 的梯度 ]
答错的过程权重是 0：它既不被模仿，也不被压低。

运行时间：约 2 秒，只用标准库。
"""
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from trainable_llm import (
    HARD_CONTEXTS, TEMPERATURE, TrainableLLM, check_counts, check_int, check_number, check_seeds, check_setting,
    context_report, evaluate, make_problem_set, mean, observe, print_table, run_script, sft, step_records, title,
)

BASE_SIZE = 1e9  # 基座模型的参数量
HINT_BONUS = 1.5  # 看着答案作答时，每一步 "correct" 的 logit 提高多少
ITERATIONS = 6  # STaR 转几轮
SFT_EPOCHS = 30  # 每轮从基座训练几遍
MORE_EPOCHS = (30, 100, 300)  # 演示 3 比较的遍数，从小到大
N_TRAIN, N_TEST = 300, 200  # 训练题与测试题的数量
MIN_STEPS, MAX_STEPS = 3, 8  # 每道题的步数范围
TRAIN_SEED, TEST_SEED = 140, 141  # 两个题集的随机种子
RUN_SEED = 142  # 采样与评测的随机种子，三种跑法各从它开始


class Hinted(TrainableLLM):
    """看着答案作答的模型：每一步 "correct" 的 logit 提高 HINT_BONUS，参数和没有提示时相同。"""

    def step_logits(self, op, a, b, step_index):
        logits = super().step_logits(op, a, b, step_index)
        return [logits[0] + HINT_BONUS, *logits[1:]]


def verify(problem, sample, coarse):
    """
    核对最后的答案；coarse=True 时只核对绝对值的个位。过程一概不看。

    【例子】正确答案 564：564 两种都通过；-34 只通过粗糙的那种。
    """
    if coarse:
        return abs(sample.answer) % 10 == abs(problem.answer()) % 10
    return sample.correct


def star(base_size, train, test, rng, rationalize=False, coarse=False, epochs=SFT_EPOCHS, restart=True):
    """
    【思路】每轮都从基座微调：坏过程不会留在参数里，模型也不会越走越远。restart=False 时接着上一轮的模型。
    【参数】train、test：题目的列表；rng：采样与评测共用的随机数发生器；epochs：每轮的遍数。
    【返回】每轮一个 dict（第 0 轮是没有训练的基座）：iter 轮次，test_pass1 测试集 pass@1，n_data 留下的
    过程数，n_wrong_kept 其中答案其实不对的，right_steps 留下的步骤里做对的比例，n_hard 其中最难语境的步数，contexts
    四种语境的 P(correct)。
    """
    model = TrainableLLM(base_size)
    data = []
    history = []
    for iteration in range(ITERATIONS + 1):
        if iteration:
            data = collect(model, train, rng, rationalize, coarse)
            start = TrainableLLM(base_size) if restart else model
            model = sft(start, data, epochs)
        steps = [record for pair in data for record in step_records(*pair)]
        history.append({
            "iter": iteration,
            "test_pass1": evaluate(model, test, rng)[1],
            "n_data": len(data),
            "n_wrong_kept": sum(not sample.correct for _, sample in data),
            "right_steps": mean([action == 0 for _, action in steps] or [0.0]),
            "n_hard": sum(key == list(HARD_CONTEXTS.values())[-1] for key, _ in steps),
            "contexts": context_report(model),
        })
    return history


def collect(model, train, rng, rationalize, coarse):
    """采样并过滤一轮，返回 [(problem, sample)]。合理化用的是同一个模型，只多了提示。"""
    hinted = Hinted(model.size, model.delta)
    data = []
    for problem in train:
        sample = model.generate(problem, rng, TEMPERATURE)
        passed = verify(problem, sample, coarse)
        if not passed and rationalize:
            sample = hinted.generate(problem, rng, TEMPERATURE)
            passed = verify(problem, sample, coarse)
        if passed:
            data.append((problem, sample))
    return data


def main():
    check_setting(BASE_SIZE, N_TRAIN, N_TEST, MIN_STEPS, MAX_STEPS)
    check_int("ITERATIONS", ITERATIONS, 1)
    check_number("HINT_BONUS", HINT_BONUS, 0)
    check_int("SFT_EPOCHS", SFT_EPOCHS, 0, 3000)
    check_counts("MORE_EPOCHS", MORE_EPOCHS, 1, 3000)
    check_seeds(TRAIN_SEED=TRAIN_SEED, TEST_SEED=TEST_SEED, RUN_SEED=RUN_SEED)

    title("演示 1：三种跑法，每轮之后的测试集 pass@1")
    print(f"  每格：pass@1（留下几条过程 / 其中几条答案不对），训练题 {N_TRAIN} 道")
    train = make_problem_set(random.Random(TRAIN_SEED), N_TRAIN, MIN_STEPS, MAX_STEPS)
    test = make_problem_set(random.Random(TEST_SEED), N_TEST, MIN_STEPS, MAX_STEPS)
    runs = {
        "STaR": star(BASE_SIZE, train, test, random.Random(RUN_SEED)),
        "+ 合理化": star(BASE_SIZE, train, test, random.Random(RUN_SEED), rationalize=True),
        "粗糙验证器": star(BASE_SIZE, train, test, random.Random(RUN_SEED), coarse=True),
    }
    rows = [
        [str(i), *(f"{h[i]['test_pass1']:.3f}（{h[i]['n_data']} / {h[i]['n_wrong_kept']}）" for h in runs.values())]
        for i in range(ITERATIONS + 1)
    ]
    print_table(["轮次", *runs], rows)

    plain, hinted, coarse = runs.values()
    score = {name: [h["test_pass1"] for h in history] for name, history in runs.items()}
    kept = {name: [h["n_data"] for h in history] for name, history in runs.items()}
    half = (ITERATIONS + 1) // 2
    early = score["STaR"][half] - score["STaR"][0]
    late = score["STaR"][-1] - score["STaR"][half]
    print("观察：")
    observe(
        f"飞轮转起来了：STaR 从 {score['STaR'][0]:.3f} 升到第 {half} 轮的 {score['STaR'][half]:.3f}。"
        "没有一个人写过推理过程。",
        score["STaR"][half] > 2 * score["STaR"][0],
    )
    observe(
        f"然后停住了：前 {half} 轮涨 {early:.3f}，后 {ITERATIONS - half} 轮只有 {late:+.3f}。"
        f"最后一轮 {N_TRAIN} 道题里只有 {kept['STaR'][-1]} 道留下了过程，剩下的题没有教会它任何东西。"
        "为什么停在这里，见演示 3。",
        abs(late) < 0.25 * early and kept["STaR"][-1] < 0.75 * N_TRAIN,
    )
    observe(
        f"合理化让难题也有了数据：第 1 轮留下的过程从 {kept['STaR'][1]} 条变成 {kept['+ 合理化'][1]} 条，"
        f"其中最难的语境从 {plain[1]['n_hard']} 步变成 {hinted[1]['n_hard']} 步；每一轮的 pass@1 都不低于 STaR。",
        kept["+ 合理化"][1] > 2 * kept["STaR"][1] and hinted[1]["n_hard"] > 2 * plain[1]["n_hard"]
        and all(a >= b for a, b in zip(score["+ 合理化"], score["STaR"])),
    )
    n_data, n_wrong = sum(kept["粗糙验证器"]), sum(h["n_wrong_kept"] for h in coarse)
    observe(
        f"粗糙的验证器留下的过程里 {n_wrong}/{n_data} 条答案不对（超过一半），pass@1 最高只到 "
        f"{max(score['粗糙验证器']):.3f}，到不了精确核对的 {score['STaR'][-1]:.3f}：SFT 把错的也当范文。",
        n_wrong > 0.5 * n_data and max(score["粗糙验证器"]) < 0.75 * score["STaR"][-1],
    )

    title("演示 2：学会了什么 —— 四种语境的 P(correct)，训练前 → 训练后")
    rows = [
        [name, *(f"{h[0]['contexts'][name]:.3f} → {h[-1]['contexts'][name]:.3f}" for h in runs.values())]
        for name in HARD_CONTEXTS
    ]
    print_table(["语境", *runs], rows)

    easiest, *_, hardest = HARD_CONTEXTS
    before = plain[0]["contexts"]
    after = {name: history[-1]["contexts"] for name, history in runs.items()}
    two_digits = {name: mean(list(contexts.values())[-2:]) for name, contexts in after.items()}
    gains = {name: mean(p - before[context] for context, p in after[name].items()) for name in after}
    print("观察：")
    observe(
        f"STaR 把会的练熟了，不会的还差得远：“{easiest}”到了 {after['STaR'][easiest]:.3f}，两种两位数乘法平均只到 "
        f"{two_digits['STaR']:.3f}（被乘数 ≥ 100 的从 {before[hardest]:.3f} 到 {after['STaR'][hardest]:.3f}）："
        "含这种步骤的题很少做对，留下的过程里就很少有它，同样的遍数里它走得最少。",
        after["STaR"][easiest] > 0.85 and two_digits["STaR"] < 0.6,
    )
    observe(
        f"合理化补的正是这里：两种两位数乘法平均到了 {two_digits['+ 合理化']:.3f}，"
        "而最容易的语境两种跑法差不多。",
        two_digits["+ 合理化"] > two_digits["STaR"] + 0.05
        and abs(after["+ 合理化"][easiest] - after["STaR"][easiest]) < 0.1,
    )
    observe(
        f"四种语境平均涨多少：粗糙验证器 {gains['粗糙验证器']:.3f}，STaR {gains['STaR']:.3f}，"
        f"合理化 {gains['+ 合理化']:.3f}。粗糙的那种在最难的语境里只到 {after['粗糙验证器'][hardest]:.3f}，"
        "不到合理化的六成：bug 也会碰巧对上个位，于是被留下、被模仿。",
        gains["粗糙验证器"] < gains["STaR"] < gains["+ 合理化"]
        and after["粗糙验证器"][hardest] < 0.6 * after["+ 合理化"][hardest],
    )
    observe(
        "Zelikman et al.（2022）：GPT-J 6B 在 CommonsenseQA 上 68.8%（STaR）与 72.5%（加合理化），"
        "在 GSM8K 上却几乎没有差别（10.1% 与 10.7%）。提示有没有用，要看难题上的提示能不能换来像样的过程。"
    )

    title("演示 3：停在哪里 —— 每轮从基座训练几遍")
    print("  每对：STaR / + 合理化；“对的步骤”取 STaR 最后一轮的数据；“接着”：不回到基座")
    longer = {
        epochs: [star(BASE_SIZE, train, test, random.Random(RUN_SEED), hint, epochs=epochs) for hint in (False, True)]
        for epochs in MORE_EPOCHS
    }
    name = f"{MORE_EPOCHS[0]}，接着"  # 唯一不从基座开始的一行
    longer[name] = [
        star(BASE_SIZE, train, test, random.Random(RUN_SEED), hint, epochs=MORE_EPOCHS[0], restart=False)
        for hint in (False, True)
    ]
    rows, middle = [], list(HARD_CONTEXTS)[1]
    for epochs, pair in longer.items():
        cells = [" / ".join(f"{h[i]['test_pass1']:.3f}" for h in pair) for i in (1, -1)]
        hard = " / ".join(f"{h[-1]['contexts'][hardest]:.3f}" for h in pair)
        last = pair[0][-1]
        rows.append([epochs, *cells, f"{last['right_steps']:.3f}", f"{last['contexts'][middle]:.3f}", hard])
    print_table(["遍数", "第 1 轮 pass@1", "最后一轮 pass@1", "对的步骤", middle, "最难的语境"], rows)
    few, many = longer[MORE_EPOCHS[0]], longer[MORE_EPOCHS[-1]]
    short, long = few[0][-1], many[0][-1]
    first_gap, last_gap = (many[1][i]["test_pass1"] - many[0][i]["test_pass1"] for i in (1, -1))
    print("观察：")
    observe(
        f"停得这么低，先是因为没练够：训练 {MORE_EPOCHS[0]} 遍，最后的数据里 {short['right_steps']:.1%} 是对的步骤，"
        f"“{middle}”却只学到 {short['contexts'][middle]:.3f}。改成 {MORE_EPOCHS[-1]} 遍，同一个飞轮停在 "
        f"{long['test_pass1']:.3f}，不是 {short['test_pass1']:.3f}。",
        short["right_steps"] > 0.95 and short["contexts"][middle] < short["right_steps"] - 0.1
        and long["test_pass1"] > short["test_pass1"] + 0.3,
    )
    observe(
        f"难题少有数据，决定的是先后：练够了，第 1 轮合理化仍领先 {first_gap:.3f}，最后只差 {last_gap:+.3f}，"
        f"最难的语境 STaR 也到了 {long['contexts'][hardest]:.3f}。练不够的时候，先后才变成了高低。",
        first_gap > 0.1 and abs(last_gap) < 0.3 * first_gap and long["contexts"][hardest] > 0.85,
    )
    on = [h["test_pass1"] for h in longer[name][0]]
    observe(
        f"不回到基座、接着上一轮的模型，同样每轮 {MORE_EPOCHS[0]} 遍，没有停：{'、'.join(f'{x:.2f}' for x in on[1:])}。"
        "步子累积下去，几轮合起来就等于练够了。",
        on[-1] > short["test_pass1"] + 0.2 and on[-1] > on[len(on) // 2],
    )


if __name__ == "__main__":
    run_script(main)

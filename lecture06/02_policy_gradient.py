"""
================================================================================
第 6 讲 · 02：策略梯度 —— REINFORCE、基线、RLOO 与 GRPO，差别只在优势
================================================================================
对应讲义：lectures/lecture06_scaling_rl.md 第 3、4 节
（Williams 1992；Ahmadian et al. 2024, RLOO；Shao et al. 2024, DeepSeekMath）

【问题】答错的过程也有用吗？REINFORCE、RLOO、GRPO 到底差在哪里？

【这里的设定】每一步训练抽 BATCH 道题，每题采样 GROUP 次，答案对奖励 r = 1，错 r = 0；然后更新一次参数。
简化：每批只更新一次，所以重要性比率恒为 1，不需要 PPO 的 clip（03 才需要）；没有 KL 惩罚；
梯度不除以过程的长度（GRPO 原文除以，05 讲为什么会出问题）。

【公式】梯度 = 1/(BATCH·GROUP) · ∑(样本) A · ∑(步骤) log π(做法) 的梯度
四种方法只差优势 A（advantage）怎么算，G 就是 GROUP：
    sft_correct         A = r                    只模仿答对的，答错的不管
    reinforce_baseline  A = r - b                b 是以往奖励的滑动平均
    rloo                A = r - 同组其余 G-1 个样本的平均
    grpo                A = (r - 组平均) / (组标准差 + EPSILON)
标准差是总体的（除以 G，ddof 0），论文的公式没有说明；TRL、verl 用样本标准差（除以 G-1，ddof 1）。

运行时间：约 1.5 秒，只用标准库。
"""
import math
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from trainable_llm import (
    HARD_CONTEXTS, TEMPERATURE, TrainableLLM, add_grad, apply_grads, check_choice, check_each, check_int,
    check_number, check_seeds, check_setting, context_report, entropy_of, evaluate, make_problem_set, mean, observe,
    print_table, run_script, step_records, title,
)

METHODS = ("sft_correct", "reinforce_baseline", "rloo", "grpo")  # 四种优势
BASE_SIZE = 1e9  # 基座模型的参数量
GROUP = 8  # 每道题采样几次，公式里的 G
BATCH = 16  # 每步训练抽几道题
STEPS = 60  # 训练多少步
LR = 2.0  # 学习率，四种方法相同
LR_FACTOR = 4  # 演示 1 另跑一次 RLOO，学习率乘这么多
EPSILON = 1e-6  # GRPO 的分母加上它，免得除以 0
BASELINE_DECAY = 0.9  # 滑动平均的基线每步保留多少旧值
EVAL_EVERY = 15  # 每隔几步在测试集上评测一次
N_TRAIN, N_TEST, MIN_STEPS, MAX_STEPS = 300, 200, 3, 8  # 训练题、测试题的数量；每道题步数的范围
TRAIN_SET_SEED, TEST_SET_SEED = 150, 151  # 两个题集的随机种子
TRAIN_SEED = 152  # 训练的随机种子，每次训练各从它开始
COMPARE_SEED, ADVANTAGE_SEED = 153, 154  # 演示 2 评测的随机种子；量训练开始时 |A| 的随机种子
N_ADVANTAGE = 100  # 用前多少道训练题量 |A|
TEMPERATURES = (1.0, 0.7, 0.4)  # 演示 2：基座模型的三种采样温度
N_SAMPLES, N_ENTROPY = 16, 60  # 演示 2：每题采样几次，也是 pass@k 最大的 k；熵在前多少道测试题上量


def advantages(method, rewards, state):
    """
    一组奖励 → 一组优势，等长的列表。

    【参数】rewards：同一道题 G 个样本的奖励；state["baseline"]：滑动平均的基线，还没有时用这一组的平均。
    【边界】rewards 为空，rloo 少于两个样本，method 不认识：ValueError。G = 1 时 grpo 的优势是 0：什么也学不到。
    【例子】3 个 1、5 个 0：grpo 是 +1.2910 / -0.7746，rloo 是 +0.7143 / -0.4286
    """
    check_choice("method", method, METHODS)
    n = len(rewards)
    if n < (2 if method == "rloo" else 1):
        raise ValueError(f"{method} 每组至少要 {2 if method == 'rloo' else 1} 个样本（GROUP），收到的是 {n}")
    average = mean(rewards)
    if method == "sft_correct":
        return [float(r) for r in rewards]
    if method == "reinforce_baseline":
        baseline = state.get("baseline")
        return [r - (average if baseline is None else baseline) for r in rewards]
    if method == "rloo":
        total = sum(rewards)
        return [r - (total - r) / (n - 1) for r in rewards]
    std = math.sqrt(mean((r - average) ** 2 for r in rewards))
    return [(r - average) / (std + EPSILON) for r in rewards]


def train(method, train_set, test_set, seed, lr=LR):
    """
    用一种优势做策略梯度，返回 (model, curve)：curve 是 [(步数, 测试集 pass@1)]，从第 0 步（没有训练）开始。

    【边界】BATCH 大于训练集，STEPS < 0，lr < 0：ValueError。
    """
    check_int("BATCH", BATCH, 1, len(train_set))
    check_int("GROUP", GROUP, 2 if method == "rloo" else 1)
    check_int("STEPS", STEPS, 0)
    check_int("EVAL_EVERY", EVAL_EVERY, 1)
    check_number("lr", lr, 0)
    check_number("BASELINE_DECAY", BASELINE_DECAY, 0, 1)
    rng, model, state = random.Random(seed), TrainableLLM(BASE_SIZE), {}
    curve = [(0, evaluate(model, test_set, rng)[1])]
    for step in range(1, STEPS + 1):
        grads, probs, batch_rewards = {}, {}, []  # 一批之内参数不变，每种语境的概率只算一次
        for problem in rng.sample(train_set, BATCH):
            samples = [model.generate(problem, rng, TEMPERATURE) for _ in range(GROUP)]
            rewards = [1.0 if sample.correct else 0.0 for sample in samples]
            batch_rewards.extend(rewards)
            for sample, advantage in zip(samples, advantages(method, rewards, state)):
                if advantage:  # 优势为 0 的样本不贡献梯度
                    accumulate(grads, model, problem, sample, advantage / (BATCH * GROUP), probs)
        apply_grads(model, grads, lr)
        update_baseline(state, mean(batch_rewards))
        if step % EVAL_EVERY == 0:
            curve.append((step, evaluate(model, test_set, rng)[1]))
    return model, curve


def accumulate(grads, model, problem, sample, weight, probs):
    """把一个样本的梯度加进 grads：它的每一步都用同一个优势（结果对了，每一步都算有功）。"""
    for key, action in step_records(problem, sample):
        if key not in probs:
            probs[key] = model.context_probs(key)
        add_grad(grads, key, action, probs[key], weight)


def update_baseline(state, batch_mean):
    """基线在更新参数之后才动：用的是上一步的基线，与这一步抽到什么无关，梯度才无偏（第一步除外：用组平均）。"""
    old = state.get("baseline")
    state["baseline"] = batch_mean if old is None else BASELINE_DECAY * old + (1 - BASELINE_DECAY) * batch_mean


def initial_advantages(problems, rng):
    """训练开始时各种优势的大小：{method: (平均 |A|, 答错的样本的平均 A)}。此时的基线取全部奖励的平均。"""
    model = TrainableLLM(BASE_SIZE)
    groups = [
        [1.0 if model.generate(problem, rng, TEMPERATURE).correct else 0.0 for _ in range(GROUP)]
        for problem in problems
    ]
    state = {"baseline": mean(r for rewards in groups for r in rewards)}
    sizes = {}
    for method in METHODS:
        pairs = [(r, a) for rewards in groups for r, a in zip(rewards, advantages(method, rewards, state))]
        sizes[method] = mean(abs(a) for _, a in pairs), mean([a for r, a in pairs if r == 0] or [0.0])
    return sizes


def main():
    check_setting(BASE_SIZE, N_TRAIN, N_TEST, MIN_STEPS, MAX_STEPS)
    for name, low in (("GROUP", 2), ("N_ADVANTAGE", 1), ("N_SAMPLES", 2), ("N_ENTROPY", 1)):
        check_int(name, globals()[name], low)
    check_number("LR", LR, 0)
    check_number("LR_FACTOR", LR_FACTOR, 0)
    check_number("EPSILON", EPSILON, 0, open_low=True)
    check_seeds(TRAIN_SET_SEED=TRAIN_SET_SEED, TEST_SET_SEED=TEST_SET_SEED, TRAIN_SEED=TRAIN_SEED,
                COMPARE_SEED=COMPARE_SEED, ADVANTAGE_SEED=ADVANTAGE_SEED)
    check_each("TEMPERATURES", TEMPERATURES, check_number, 0, at_least=3)
    if TEMPERATURES[0] != TEMPERATURE or sorted({*TEMPERATURES})[::-1] != [*TEMPERATURES]:
        raise ValueError(f"TEMPERATURES 应当至少三个，从 {TEMPERATURE} 开始，越来越低，收到的是 {TEMPERATURES!r}")
    if sorted(METHODS) != ["grpo", "reinforce_baseline", "rloo", "sft_correct"]:
        raise ValueError(f"METHODS 应当是四种优势各一次，次序随意，收到的是 {METHODS!r}")

    title(f"演示 1：四种优势，测试集 pass@1（每步 {BATCH} 题 × {GROUP} 个样本，学习率 {LR:g}）")
    train_set = make_problem_set(random.Random(TRAIN_SET_SEED), N_TRAIN, MIN_STEPS, MAX_STEPS)
    test_set = make_problem_set(random.Random(TEST_SET_SEED), N_TEST, MIN_STEPS, MAX_STEPS)
    curves, models = {}, {}
    for method in METHODS:
        models[method], curves[method] = train(method, train_set, test_set, TRAIN_SEED)
    fast_name = f"rloo {LR_FACTOR:g}×LR"
    _, curves[fast_name] = train("rloo", train_set, test_set, TRAIN_SEED, lr=LR * LR_FACTOR)
    steps = [step for step, _ in curves["grpo"]]
    rows = [[step, *(f"{curve[i][1]:.3f}" for curve in curves.values())] for i, step in enumerate(steps)]
    print_table(["步数", *curves], rows)
    sizes = initial_advantages(train_set[:N_ADVANTAGE], random.Random(ADVANTAGE_SEED))
    print()
    rows = [
        ["所有样本的平均 |A|", *(f"{sizes[m][0]:.3f}" for m in METHODS)],
        ["答错的样本的平均 A", *(f"{sizes[m][1]:.3f}" for m in METHODS)],
    ]
    print_table(["训练开始时", *METHODS], rows)

    final = {name: curve[-1][1] for name, curve in curves.items()}
    early = {name: curve[min(1, len(curve) - 1)] for name, curve in curves.items()}
    slowest, ratio = min(final[m] for m in METHODS), sizes["grpo"][0] / max(sizes["rloo"][0], 1e-9)
    print("观察：")
    observe(
        f"四种都学会了：{curves['grpo'][-1][0]} 步之后 pass@1 从 {curves['grpo'][0][1]:.3f} 到 {slowest:.3f} 以上。"
        "没有人示范过程，只有一个 0/1 的奖励。",
        slowest > 0.7,
    )
    observe(
        f"同样的学习率，grpo 最快：第 {early['grpo'][0]} 步它在 {early['grpo'][1]:.3f}，"
        f"rloo 在 {early['rloo'][1]:.3f}。除以标准差之后，它的平均 |A| 是 rloo 的 {ratio:.1f} 倍。",
        all(early["grpo"][1] > early[m][1] + 0.05 for m in METHODS if m != "grpo") and ratio > 1.5,
    )
    observe(
        f"快的主要原因是步子大：rloo 的学习率乘 {LR_FACTOR:g}，第 {early[fast_name][0]} 步就到了 "
        f"{early[fast_name][1]:.3f}，不输给 grpo。（乘 {ratio:.1f} 才是同样大的步子。）先把学习率各自调好，再比方法。",
        early[fast_name][1] > early["grpo"][1] and final[fast_name] > final["grpo"] - 0.03,
    )
    apart = max(max(row) - min(row) for row in zip(*([p for _, p in curves[m]] for m in METHODS if m != "grpo")))
    observe(
        f"另外三种一路上最多差 {apart:.3f}：减去基线不改变梯度的期望，差的只是噪声。sft_correct 从不压低答错的，"
        f"最后是 {final['sft_correct']:.3f}，rloo 是 {final['rloo']:.3f}：这里答错的样本没有让学习更快。",
        apart < 0.1 and max(sizes[m][1] for m in METHODS if m != "sft_correct") < -0.02,
    )

    title("演示 2：RL 与低温采样 —— 是学会了，还是只把分布磨尖了")
    base, trained = TrainableLLM(BASE_SIZE), models["grpo"]
    rng = random.Random(COMPARE_SEED)
    results, entropies, rows = {}, {}, []
    settings = [(f"基座 T = {t}", base, t) for t in TEMPERATURES] + [("GRPO T = 1.0", trained, 1.0)]
    for name, model, temperature in settings:
        results[name] = evaluate(model, test_set, rng, N_SAMPLES, (1, N_SAMPLES), temperature)
        if temperature == TEMPERATURE:
            entropies[name] = entropy_of(model, test_set[:N_ENTROPY], rng)
        shown = f"{entropies[name]:.3f}" if name in entropies else "—"
        rows.append([name, f"{results[name][1]:.3f}", f"{results[name][N_SAMPLES]:.3f}", shown])
    print_table(["模型", "pass@1", f"pass@{N_SAMPLES}", "熵（nat）"], rows)
    print()
    before, after = context_report(base), context_report(trained)
    print_table(
        ["P(correct)", "训练前", "GRPO 后"], [[c, f"{before[c]:.3f}", f"{after[c]:.3f}"] for c in HARD_CONTEXTS]
    )

    hot, *_, mild, cold, rl = results.values()
    hardest = list(HARD_CONTEXTS)[-1]
    print("观察：")
    observe(
        f"降温也能提高 pass@1（{hot[1]:.3f} → {mild[1]:.3f} → {cold[1]:.3f}），但 pass@{N_SAMPLES} 跟不上："
        f"最后一次降温只变了 {cold[N_SAMPLES] - mild[N_SAMPLES]:+.3f}。bug 领先的语境里，越冷越是每次都错。",
        cold[1] > 1.5 * hot[1] and cold[N_SAMPLES] - mild[N_SAMPLES] < 0.5 * (cold[1] - mild[1]),
    )
    observe(
        f"RL 改的是 logit 的次序：“{hardest}”从 {before[hardest]:.3f} 到 {after[hardest]:.3f}，"
        f"pass@1 到了 {rl[1]:.3f}，远高于任何温度的基座。",
        after[hardest] > 0.8 and rl[1] > cold[1] + 0.3,
    )
    observe(
        f"代价是熵：{entropies[f'基座 T = {TEMPERATURES[0]}']:.3f} → {entropies['GRPO T = 1.0']:.3f}，"
        "模型几乎不再尝试别的做法。",
        entropies["GRPO T = 1.0"] < 0.25 * entropies[f"基座 T = {TEMPERATURES[0]}"],
    )
    observe(
        f"这里 pass@{N_SAMPLES} 也升了（{hot[N_SAMPLES]:.3f} → {rl[N_SAMPLES]:.3f}），真实的模型往往不升：DeepSeekMath "
        "里 RL 之后多数投票升、pass@k 不升（Shao et al. 2024），Yue et al.（2025）看到 k 大时基座反超。",
        rl[N_SAMPLES] > hot[N_SAMPLES] + 0.1,
    )
    observe(
        "原因在世界里：每步只有一种对的做法，同一语境的题共用参数，做对一题就帮到所有同类的题。"
        "没有哪道题的正确做法恰好是别的题的 bug；06 会造出这样的题。"
    )


if __name__ == "__main__":
    run_script(main)

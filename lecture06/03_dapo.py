"""
================================================================================
第 6 讲 · 03：DAPO —— 把浪费掉的样本找回来，别让熵塌掉
================================================================================
对应讲义：lectures/lecture06_scaling_rl.md 第 5 节（Yu et al. 2025, DAPO）

【问题】GRPO 有三处小毛病，一次只改一处，各换来什么、各要付什么？

【这里的设定】从 02 的 GRPO 出发，补上真实系统里有的两样：每批样本更新 UPDATES 次，所以要用 PPO 的 clip；
损失先在一个样本的步骤上平均（1/|y|，|y| 是步数）。然后一次打开一个改动：
    动态采样（dynamic sampling）  一组全对或全错，优势就全是 0（死组）；丢掉再抽，直到攒够 BATCH 个
        活组（有对有错）。演示 3 的对照“只丢不补”：丢掉以后不再抽，只是分母里没有了死组；
    clip-higher                   clip 的上沿从 1.2 放到 1.28，下沿 0.8 不动；
    token 级损失                  在整批的全部步骤上平均，不再先在每个样本里平均。
简化：过长惩罚（overlong shaping）只在讲义里讲，这里的过程没有长短可学；clip 逐步骤，不是逐 token。
表里的 pass@1 与熵是精确值：每一步都对的概率（碰巧答对的不算）、正确的路上每一步的熵。

【公式】目标 min(ρA, clip(ρ, 1-ε_low, 1+ε_high)·A)，ρ = π_θ(做法) / π_old(做法) 是重要性比率；
A > 0 且 ρ > 1+ε_high，或 A < 0 且 ρ < 1-ε_low 时，梯度是 0；其余时候是 A·ρ·(onehot - probs)。
P(活组) = 1 - p^G - (1-p)^G，p 是这道题的正确率，G 是 GROUP。

运行时间：约 3 秒，只用标准库。
"""
import math
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from trainable_llm import (
    HARD_CONTEXTS, TEMPERATURE, TrainableLLM, add_grad, apply_grads, check_each, check_int, check_number, check_seeds,
    check_setting, exact_scores, grpo_advantages, make_problem_set, mean, observe, path_probs, print_table,
    run_script, step_records, title, true_contexts, value_at,
)

BASE_SIZE = 1e9  # 基座模型的参数量
GROUP, BATCH = 8, 16  # 每道题采样几次，公式里的 G；每批几组
STEPS, SHOW_EVERY = 24, 8  # 训练多少批；演示 1、2 每几批显示一行
UPDATES = 4  # 每批样本更新几次；1 次时 ρ 恒为 1，clip 不起作用
LR = 10.0  # 学习率
EPS_LOW, EPS_HIGH, EPS_HIGHER = 0.2, 0.2, 0.28  # clip 的下沿、通常的上沿、clip-higher 的上沿
MAX_REFILL = 8  # 动态采样最多抽 MAX_REFILL·BATCH 组，攒不够就用已有的
N_TRAIN, N_TEST, MIN_STEPS, MAX_STEPS = 300, 200, 3, 8  # 训练题、测试题的数量；每道题步数的范围
TRAIN_SET_SEED, TEST_SET_SEED, MIXED_SEED = 160, 161, 165  # 两个题集、演示 2 的随机种子
TRAIN_SEEDS = (162, 163, 164)  # 训练的随机种子；演示 1、2 用第一个，演示 3、4 取各次的平均
N_MIXED, N_P, N_GROUPS = 60, 64, 4  # 演示 2：多少道题，每题用几个样本估计 p，再抽几组
TARGETS = (0.5, 0.7, 0.8, 0.9)  # 演示 3：到达这些 pass@1 各用了几批、多少样本
CLIP_STEPS, CLIP_BATCH = 14, 64  # 演示 4 的批数与每批组数：组多一些，差别才不被抽样的噪声盖住
LEVELS = (0.4, 0.5, 0.6, 0.7, 0.8)  # 演示 4：在这些 pass@1 处比较熵
RARE_P, COMMON_P = 0.01, 0.9  # 演示 4：一个少见的做法和一个常见的做法
KEEP, DROP, REFILL = "留着", "只丢不补", "丢了再抽"  # 怎样处理死组；第三种是动态采样
RECIPES = {  # 每种配方：(怎样处理死组, clip 的上沿, 是否 token 级损失)；五种都要有
    "GRPO": (KEEP, EPS_HIGH, False), "+ 动态采样": (REFILL, EPS_HIGH, False),
    "+ clip-higher": (KEEP, EPS_HIGHER, False), "+ token 级损失": (KEEP, EPS_HIGH, True),
    "DAPO（全开）": (REFILL, EPS_HIGHER, True),
}


def p_mixed(p, group):
    """一组 group 个样本是活组（有对有错）的概率，p 是一个样本答对的概率。【例子】p_mixed(0.01, 8) = 0.077"""
    return 1 - p**group - (1 - p) ** group


def is_clipped(rho, advantage, eps_low, eps_high):
    """目标在这里是平的吗（梯度为 0）：变好的只算到边界，变坏的照单全收。"""
    return rho > 1 + eps_high if advantage > 0 else rho < 1 - eps_low


def draw_groups(model, train_set, rng, dead, batch):
    """采 batch 组：[(problem, samples, advantages)]，以及抽过的每组答对几个。动态采样到上限还攒不够，有几组算几组。"""
    groups, n_correct, most = [], [], (MAX_REFILL if dead == REFILL else 1) * batch
    while len(groups) < batch and len(n_correct) < most:
        for problem in rng.sample(train_set, batch):
            samples = [model.generate(problem, rng, TEMPERATURE) for _ in range(GROUP)]
            rewards = [1.0 if sample.correct else 0.0 for sample in samples]
            n_correct.append(round(sum(rewards)))
            if dead == KEEP or 0 < n_correct[-1] < GROUP:
                groups.append((problem, samples, grpo_advantages(rewards)))
            if len(groups) == batch:
                break
    return groups, n_correct


def total_weights(groups, token_level):
    """
    一批里每种决定的总权重 {(语境, 做法, A > 0): 优势 / 分母 之和}。ρ 只取决于语境和做法，clip 还看 A 的正负，
    所以可以先加起来。分母：样本级是样本数 × 自己的步数，长过程里的一步更轻；token 级一律是全批的总步数。
    """
    n_samples = sum(len(samples) for _, samples, _ in groups)
    n_tokens = sum(problem.n_steps * len(samples) for problem, samples, _ in groups)
    weights = {}
    for problem, samples, advantages in groups:
        divisor = n_tokens if token_level else n_samples * problem.n_steps
        for sample, advantage in zip(samples, advantages):
            if advantage:
                for key, action in step_records(problem, sample):
                    item = (key, action, advantage > 0)
                    weights[item] = weights.get(item, 0.0) + advantage / divisor
    return weights


def update(model, weights, eps_high):
    """同一批样本更新 UPDATES 次；ρ 的分母 π_old 是采样那一刻的策略。"""
    old = {key: model.context_probs(key) for key, _, _ in weights}
    for _ in range(UPDATES):
        grads = {}
        for (key, action, _), weight in weights.items():
            probs = model.context_probs(key)
            rho = probs[action] / old[key][action]
            if not is_clipped(rho, weight, EPS_LOW, eps_high):
                add_grad(grads, key, action, probs, weight * rho)
        apply_grads(model, grads, LR)


def train(recipe, train_set, paths, seed, steps=STEPS, batch=BATCH):
    """
    返回每批之后的状态（第 0 项没有训练），每项一个 dict：step 批数，pass1，entropy 熵，hard、easy 最难与最易语境的
    P(correct)，drawn 累计样本数，wrong、right 这一批抽过的组里全错、全对的比例，model 那时的模型。recipe 见 RECIPES。
    """
    dead, eps_high, token_level = recipe
    rng, (easiest, *_, hardest) = random.Random(seed), HARD_CONTEXTS.values()
    model, history, drawn, n_correct = TrainableLLM(BASE_SIZE), [], 0, []
    for step in range(steps + 1):
        if step:
            groups, n_correct = draw_groups(model, train_set, rng, dead, batch)
            update(model, total_weights(groups, token_level), eps_high)
            drawn += GROUP * len(n_correct)
        n, (pass1, h) = max(1, len(n_correct)), exact_scores(model, paths)
        history.append({
            "step": step, "pass1": pass1, "entropy": h, "hard": model.p_correct(hardest), "drawn": drawn,
            "wrong": n_correct.count(0) / n, "right": n_correct.count(GROUP) / n, "easy": model.p_correct(easiest),
            "model": model.copy(),
        })
    return history


def mixed_share(model, problems, rng):
    """活组的比例，三种算法：(平均的 p 代入公式, 每题的 p 代入公式再平均, 真的抽组，数出来)。"""
    def n_right(problem, n):
        return sum(model.generate(problem, rng, TEMPERATURE).correct for _ in range(n))
    ps = [n_right(problem, N_P) / N_P for problem in problems]
    measured = mean(0 < n_right(problem, GROUP) < GROUP for problem in problems for _ in range(N_GROUPS))
    return p_mixed(mean(ps), GROUP), mean(p_mixed(p, GROUP) for p in ps), measured


def main():
    check_setting(BASE_SIZE, N_TRAIN, N_TEST, MIN_STEPS, MAX_STEPS, GROUP, BATCH)
    counts = ("STEPS", "CLIP_STEPS", "UPDATES", "MAX_REFILL", "N_MIXED", "N_P", "N_GROUPS")
    for name, high in {**dict.fromkeys(counts), "SHOW_EVERY": STEPS, "CLIP_BATCH": N_TRAIN}.items():
        check_int(name, globals()[name], 1, high)
    for name in ("LR", "EPS_LOW", "EPS_HIGH", "EPS_HIGHER"):
        check_number(name, globals()[name], 0)
    for name, values in (("RARE_P、COMMON_P", (RARE_P, COMMON_P)), ("TARGETS", TARGETS), ("LEVELS", LEVELS)):
        check_each(name, values, check_number, 0, 1)
    check_each("TRAIN_SEEDS", TRAIN_SEEDS, check_int)
    check_seeds(TRAIN_SET_SEED=TRAIN_SET_SEED, TEST_SET_SEED=TEST_SET_SEED, MIXED_SEED=MIXED_SEED)

    title(f"演示 1：一次打开一个改动（每批 {BATCH} 组 × {GROUP} 个样本，更新 {UPDATES} 次）")
    train_set = make_problem_set(random.Random(TRAIN_SET_SEED), N_TRAIN, MIN_STEPS, MAX_STEPS)
    paths = true_contexts(make_problem_set(random.Random(TEST_SET_SEED), N_TEST, MIN_STEPS, MAX_STEPS))
    runs = {name: train(RECIPES[name], train_set, paths, TRAIN_SEEDS[0]) for name in RECIPES}
    rows, dead, shown = [], {}, range(SHOW_EVERY, STEPS + 1, SHOW_EVERY)
    for name, history in runs.items():
        first, last = history[1:SHOW_EVERY + 1], history[-SHOW_EVERY:]
        dead[name] = mean(h["wrong"] for h in first), mean(h["right"] for h in last)
        rows.append([name, *(f"{history[i]['pass1']:.3f}" for i in shown), f"{history[-1]['entropy']:.3f}",
                     *(f"{x:.2f}" for x in dead[name]), history[-1]["drawn"]])
    print(f"  前几列是那一批之后的 pass@1；全错的组取头 {SHOW_EVERY} 批的比例，全对的组取末 {SHOW_EVERY} 批的")
    print_table(["配方", *(f"{i} 批" for i in shown), "最后的熵", "全错的组", "全对的组", "样本数"], rows)
    (plain, _, _, token, _), (dead_wrong, dead_right) = runs.values(), dead["GRPO"]
    first = plain[1:SHOW_EVERY + 1]
    print("观察：")
    observe(
        f"死组先是全错的，后是全对的：GRPO 头 {SHOW_EVERY} 批里全错的占 {dead_wrong:.2f}，末 {SHOW_EVERY} 批里全对的占 "
        f"{dead_right:.2f}。模型越好，白采的样本越多，每批真正在教的组越少。",
        dead_wrong > 0.15 and dead_right > 0.3 and dead_right > 3 * mean(h["right"] for h in first),
    )
    alive = [(x.n_steps, p_mixed(math.prod(path_probs(plain[0]["model"], x)), GROUP)) for x in train_set]
    few, many = (mean([p for n, p in alive if n == length] or [0.0]) for length in (MAX_STEPS, MIN_STEPS))
    long_share = mean(problem.n_steps == MAX_STEPS for problem in train_set)
    long_tokens = long_share * MAX_STEPS / mean(problem.n_steps for problem in train_set)
    start, slower = mean(h["pass1"] for h in first), mean(h["pass1"] for h in token[1:SHOW_EVERY + 1])
    observe(
        f"{MAX_STEPS} 步的过程占样本的 {long_share:.2f}，样本级平均里分到同样的权重，token 级分到 {long_tokens:.2f}。"
        f"终点差不多，开头 token 级略慢（头 {SHOW_EVERY} 批平均 {start:.3f}，{slower:.3f}）：起初 {MAX_STEPS} 步的题"
        f"只有 {few:.2f} 是活组，{MIN_STEPS} 步的有 {many:.2f}，教得动的偏偏是短题。",
        long_tokens > 1.1 * long_share and abs(plain[-1]["pass1"] - token[-1]["pass1"]) < 0.05 and slower < start
        and few < 0.5 * many,
    )

    title(f"演示 2：活组占多少 —— 公式 1 - p^{GROUP} - (1-p)^{GROUP} 与测得")
    rng, steps = random.Random(MIXED_SEED), range(0, STEPS + 1, SHOW_EVERY)
    shares = [mixed_share(plain[i]["model"], train_set[:N_MIXED], rng) for i in steps]
    headers = ["GRPO 训练到第几批", "平均的 p 代入公式", "每题的 p 代入再平均", "测得"]
    print_table(headers, [[i, *(f"{x:.3f}" for x in share)] for i, share in zip(steps, shares)])
    print("观察：")
    observe(
        f"每题用自己的 p，公式与测得最多差 {max(abs(b - c) for _, b, c in shares):.3f}；先把 p 平均再代入，处处高估，"
        f"最多高 {max(a - b for a, b, _ in shares):.3f}：题目有难有易，两头的题几乎总是死组。",
        all(abs(b - c) < 0.12 and a > b for a, b, c in shares) and max(a - b for a, b, _ in shares) > 0.06,
    )

    title("演示 3：按批数算，还是按样本算 —— 到达同一个 pass@1 的花费（批数，样本数）")
    sides = [[train((x, EPS_HIGH, False), train_set, paths, s) for s in TRAIN_SEEDS] for x in (KEEP, DROP, REFILL)]
    batches, drawn = ([[mean(value_at(h, "pass1", x, key) for h in side) for side in sides] for x in TARGETS]
                      for key in ("step", "drawn"))
    rows = [[x, *(f"{a:.1f}，{b:.0f}" for a, b in zip(*pair))] for x, *pair in zip(TARGETS, batches, drawn)]
    print_table(["pass@1", "GRPO", DROP, "动态采样"], rows)
    (grpo_n, drop_n, dyn_n), (grpo_s, drop_s, dyn_s) = (list(map(mean, zip(*table))) for table in (batches, drawn))
    print("观察：")
    observe(
        f"动态采样省的是更新，不是样本：批数平均 {grpo_n:.1f} → {dyn_n:.1f}，样本 {grpo_s:.0f} → {dyn_s:.0f}。",
        dyn_n < grpo_n and dyn_s > grpo_s,
    )
    observe(
        f"大半的好处来自分母变小，不用多采：只丢不补就到了 {drop_n:.1f} 批，样本比 GRPO 还少（{drop_s:.0f}）。"
        f"补抽只换来剩下的一小截，样本却多了 {dyn_s - drop_s:.0f} 个。",
        drop_n < grpo_n - 0.5 * (grpo_n - dyn_n) and drop_s < grpo_s,
    )

    title(f"演示 4：clip-higher —— 同样的 pass@1，剩下多少熵（每批 {CLIP_BATCH} 组；列名里的数是上沿）")
    entropies, hards, easies = [], [], []  # 每种上沿一列，每个 LEVELS 一项
    for eps in (EPS_HIGH, EPS_HIGHER, float("inf")):
        histories = [train((KEEP, eps, False), train_set, paths, s, CLIP_STEPS, CLIP_BATCH) for s in TRAIN_SEEDS]
        for columns, key in ((entropies, "entropy"), (hards, "hard"), (easies, "easy")):
            columns.append([mean(value_at(h, "pass1", x, key) for h in histories) for x in LEVELS])
    names = (f"{1 + EPS_HIGH:g}", f"{1 + EPS_HIGHER:g}", "无")
    rows = [[x, *(f"{column[i]:.3f}" for column in entropies + hards)] for i, x in enumerate(LEVELS)]
    print_table(["pass@1", *(f"{label} {name}" for label in ("熵", "最难语境") for name in names)], rows)
    low, high, free, hard_low, hard_high, hard_free, *easy = map(mean, entropies + hards + easies)
    print("观察：")
    observe(
        f"同样的 pass@1，上沿越宽，剩下的熵越多：平均 {low:.3f} → {high:.3f} → {free:.3f}。方向与论文相同，幅度小得多："
        "这里每步只有一种对的做法，熵和正确率几乎绑在一起。",
        1.003 * low < high < free,
    )
    observe(
        f"上沿拦住的是难的那一头：最难语境的 P(correct) 平均 {hard_low:.3f} → {hard_high:.3f} → {hard_free:.3f}。"
        f"欠下的由容易的补（“{next(iter(HARD_CONTEXTS))}”{' → '.join(f'{p:.3f}' for p in easy)}）：练得更尖，熵就低。",
        hard_low < hard_high < hard_free and easy[0] > easy[1] > easy[2],
    )
    observe(
        f"概率 {RARE_P:g} 的做法过了 {RARE_P * (1 + EPS_HIGH):.4g} 就没有梯度，{COMMON_P:g} 的要过 "
        f"{COMMON_P * (1 + EPS_HIGH):.4g} 才没有，永远到不了：同一个比率，只管住了少见的做法。",
        RARE_P * (1 + EPS_HIGH) < 1 < COMMON_P * (1 + EPS_HIGH),
    )


if __name__ == "__main__":
    run_script(main)

"""
================================================================================
第 2 讲 · 03：验证器与 best-of-N —— 挑得越狠越好吗？
================================================================================
对应讲义：lectures/lecture02_test_time_scaling.md 第 4 节
（Cobbe et al. 2021, "Training Verifiers"；Snell et al. 2024）

【问题】请一个验证器（verifier）给 N 份作答打分，交分数最高的那份（best-of-N）。N 越大越好吗？

【这里的设定】两个结果验证器（ORM，只给整份作答一个分数）：
    有噪声的   答案对 1 分、错 0 分，再加噪声 N(0, NOISE^2)：看得不清，但不偏心；
    有盲点的   认不出 bug，还嫌它比对的更顺眼：一步 bug 得 BUG_CREDIT 分（略大于 1）。
同一份作答的噪声是固定的，问再多次也没有新信息。旁边是多数投票、加权投票（同一个答案的分数加起来）、
以及完美的验证器（就是覆盖率）；演示 1 最后一列是对照，每份作答的噪声各抽一份。
题目 4～5 步，所以答案对的概率有精确值。
简化：真的验证器是训练出来的，盲点来自训练数据；这里的盲点是写进去的，为的是看清楚它怎样被放大。

【公式】best-of-N   y = argmax_{i ≤ N} v(x, y_i)
        加权投票    answer = argmax_a Σ_i max(0, v(x, y_i)) · [a_i = a]
        覆盖率      c(N) = E[1 - (1 - p)^N]
        AUC         P(对的一份分数更高)，对的、错的各随便取一份：验证器平均有多准
x 是题目，y_i 是第 i 份作答，a_i 是它的答案，v 是验证器的分数，p 是单次答对的概率。

运行时间：约 2.5 秒，只用标准库。
"""
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from tts_tools import (
    ORM, ToyLLM, answer_law, auc, best_of_n, check_ascending, check_counts, check_int, check_number, check_seeds,
    coverage, majority_vote, make_problem_set, mean, observe, print_table, run_script, sample_traces, title,
    weighted_vote,
)

SIZE = 1e9  # 模型的参数量
N_PROBLEMS = 80  # 题数
MIN_STEPS, MAX_STEPS = 4, 5  # 每题的步数在这个范围里
LONGEST = 6  # MAX_STEPS 的上限：再长，精确的答案分布就算得太慢
SET_SEED = 25  # 出题的随机种子
NS = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # N 取这些值，从小到大；每题采样 max(NS) 份，切成段来平均
SAMPLE_SEED = 26  # 作答的随机种子
NOISE = 0.6  # 有噪声的验证器：噪声的标准差
BUG_CREDIT = 1.05  # 有盲点的验证器：一步 bug 得几分（对的一步是 1 分）
BLIND_NOISE = 0.1  # 有盲点的验证器：噪声的标准差，比上面那个小得多
ORM_SEED = 27  # 验证器的种子
FRESH_SEED = 28  # 演示 1 最后一列的种子：同样大的噪声，每份作答另抽一份
CREDITS = (0.0, 0.5, 0.8, 1.0, 1.05)  # 演示 3：BUG_CREDIT 从看得出到更喜欢


def segments(n, total):
    """把 total 份作答切成每段 n 份：每段的下标范围。"""
    return [slice(i, i + n) for i in range(0, total - n + 1, n)]


def accuracy(problems, pools, choose, n):
    """
    N = n 时的正确率，对题目和段取平均。

    【参数】choose(题目的下标, 段) 返回这一段里交出的答案。
    """
    return mean(
        choose(j, part) == problem.answer()
        for j, problem in enumerate(problems) for part in segments(n, len(pools[j]))
    )


def choosers(pools, scores):
    """一个验证器的两种用法：{"取最高分": 函数, "加权投票": 函数}；函数的参数同 accuracy 的 choose。"""
    return {
        "取最高分": lambda j, part: best_of_n(pools[j][part], scores[j][part]).answer,
        "加权投票": lambda j, part: weighted_vote([s.answer for s in pools[j][part]], scores[j][part]),
    }


def score_all(verifier, problems, pools):
    """每份作答的分数，形状与 pools 相同。"""
    return [[verifier.score(problem, s.values) for s in pool] for problem, pool in zip(problems, pools)]


def mean_auc(pools, scores):
    """每道有对有错的题上，验证器的 AUC，再对题目取平均。"""
    pairs = [(line, [s.correct for s in pool]) for line, pool in zip(scores, pools)]
    values = [auc(line, labels) for line, labels in pairs if len(set(labels)) == 2]
    if not values:
        raise ValueError(f"SIZE = {SIZE:g}、N_PROBLEMS = {N_PROBLEMS} 时没有一道题有对有错：换一个规模，或多出些题")
    return mean(values)


def print_curves(columns):
    """columns：{列名: 与 NS 等长的数}。"""
    print_table(["N", *columns], [[n, *(f"{column[i]:.3f}" for column in columns.values())] for i, n in enumerate(NS)])


def main():
    biggest = check_counts("NS", NS, high=4096)[-1]
    check_number("SIZE", SIZE, 0, 1e15, open_low=True)
    check_int("N_PROBLEMS", N_PROBLEMS, 1, 1000)
    check_int("MIN_STEPS", MIN_STEPS, 1, check_int("LONGEST", LONGEST, 1, 7))
    check_int("MAX_STEPS", MAX_STEPS, MIN_STEPS, LONGEST)
    for name, value in (("NOISE", NOISE), ("BLIND_NOISE", BLIND_NOISE), ("BUG_CREDIT", BUG_CREDIT)):
        check_number(name, value, 0, 1000)
    for credit in check_ascending("CREDITS", CREDITS):
        check_number("CREDITS 里的数", credit, 0, 1000)
    check_seeds(SET_SEED=SET_SEED, SAMPLE_SEED=SAMPLE_SEED, ORM_SEED=ORM_SEED, FRESH_SEED=FRESH_SEED)

    title(f"演示 1：有噪声的验证器（标准差 {NOISE}）—— 正确率随 N 变化")
    model = ToyLLM(SIZE)
    problems = make_problem_set(random.Random(SET_SEED), N_PROBLEMS, MIN_STEPS, MAX_STEPS)
    rng = random.Random(SAMPLE_SEED)
    pools = [sample_traces(model, problem, biggest, rng) for problem in problems]
    ps = [min(1.0, answer_law(model, problem).get(problem.answer(), 0.0)) for problem in problems]
    exact = [mean(coverage(p, n) for p in ps) for n in NS]
    oracle = [mean(any(s.correct for s in pool[part]) for pool in pools for part in segments(n, biggest)) for n in NS]
    votes = [
        accuracy(problems, pools, lambda j, part: majority_vote([s.answer for s in pools[j][part]]), n) for n in NS
    ]
    scores = score_all(ORM(NOISE, seed=ORM_SEED), problems, pools)
    noisy = {
        name: [accuracy(problems, pools, choose, n) for n in NS] for name, choose in choosers(pools, scores).items()
    }
    noisy_auc, rng = mean_auc(pools, scores), random.Random(FRESH_SEED)
    fresh = choosers(pools, [[s.correct + rng.gauss(0, NOISE) for s in pool] for pool in pools])["取最高分"]
    columns = {"覆盖率（精确）": exact, "完美的验证器": oracle, "多数投票": votes, **noisy}
    columns["噪声各自独立"] = free = [accuracy(problems, pools, fresh, n) for n in NS]
    print_curves(columns)
    top, weighted = noisy["取最高分"], noisy["加权投票"]
    gap = max(abs(a - b) for a, b in zip(exact, oracle))
    print("观察：")
    observe(f"完美的验证器就是覆盖率：采样值与精确值最多差 {gap:.3f}。", gap < 0.05)
    observe(
        f"有噪声的验证器爬得很远：取最高分 {top[0]:.3f} → {top[-1]:.3f}，但离完美的验证器（{oracle[-1]:.3f}）还远。",
        top[-1] > 2.5 * top[0] and top[-1] < oracle[-1] - 0.1,
    )
    observe(
        f"分数加在票上更好：N = {biggest} 时加权投票 {weighted[-1]:.3f}，取最高分 {top[-1]:.3f}，"
        f"多数投票 {votes[-1]:.3f}。",
        weighted[-1] > top[-1] and weighted[-1] > votes[-1] + 0.05,
    )
    observe(
        f"最后一列：同样取最高分，每份作答的噪声各自独立，就有 {free[-1]:.3f}。相同的作答共用一份固定的噪声时，"
        "对的写法只有几种，只抽到几份噪声；错的写法有上百种，总有一份特别大。",
        free[-1] > top[-1] + 0.1,
    )
    error = 0.5 / len(problems) ** 0.5
    observe(f"N = {biggest} 时每题只有一段，一格是 {len(problems)} 个 0 或 1 的平均，标准误最多 {error:.3f}。")

    title(f"演示 2：有盲点的验证器 —— bug 得 {BUG_CREDIT} 分，噪声只有 {BLIND_NOISE}")
    scores = score_all(ORM(BLIND_NOISE, BUG_CREDIT, seed=ORM_SEED), problems, pools)
    blind = {
        name: [accuracy(problems, pools, choose, n) for n in NS] for name, choose in choosers(pools, scores).items()
    }
    top_blind, weighted_blind = blind["取最高分"], blind["加权投票"]
    bugs = [
        mean(
            "bug" in best_of_n(pool[part], line[part]).procs
            for pool, line in zip(pools, scores) for part in segments(n, biggest)
        )
        for n in NS
    ]
    print_curves({"覆盖率（精确）": exact, "多数投票": votes, **blind, "交出的作答里有 bug": bugs})
    peak = max(range(len(NS)), key=top_blind.__getitem__)
    blind_auc = mean_auc(pools, scores)
    print(f"  平均准确率（AUC）：这个验证器 {blind_auc:.3f}，演示 1 的 {noisy_auc:.3f}")
    print("观察：")
    observe(
        f"先升后降：N = {NS[peak]} 时最高（{top_blind[peak]:.3f}），N = {biggest} 时只有 {top_blind[-1]:.3f}，"
        f"比随便交一个（{top_blind[0]:.3f}）还差；这时覆盖率是 {exact[-1]:.3f}。",
        0 < peak and NS[peak] <= 8 and top_blind[-1] < 0.6 * top_blind[0] and exact[-1] > 0.85,
    )
    observe(
        f"挑得越狠，挑中的越是验证器的盲点：交出的作答里有 bug 的，从 {bugs[0]:.2f} 到 {bugs[-1]:.2f}。"
        "这就是过度优化（overoptimization）。",
        bugs[-1] > bugs[0] + 0.15,
    )
    observe(
        f"它噪声小得多，平均却更不准：AUC 是 {blind_auc:.3f}，有噪声的那个是 {noisy_auc:.3f}。"
        "错处全是 bug 的作答有许多，都骗得过它。",
        0.5 < blind_auc < noisy_auc - 0.05,
    )
    worst = min(weighted[-1] - votes[-1], weighted_blind[-1] - votes[-1])
    observe(
        f"加权投票最稳：两个验证器下，它与多数投票的差最坏是 {worst:+.3f}；取最高分在有盲点时低 "
        f"{votes[-1] - top_blind[-1]:.3f}。",
        worst > -0.05 and top_blind[-1] < votes[-1] - 0.1,
    )

    title(f"演示 3：盲点要多大才致命 —— N = {biggest}，噪声 {BLIND_NOISE}")
    ends = []
    for credit in CREDITS:
        scores = score_all(ORM(BLIND_NOISE, credit, seed=ORM_SEED), problems, pools)
        ends.append([accuracy(problems, pools, choose, biggest) for choose in choosers(pools, scores).values()])
    print_table(
        ["一步 bug 的得分", "取最高分", "加权投票"],
        [[f"{credit:g}", *(f"{x:.3f}" for x in end)] for credit, end in zip(CREDITS, ends)],
    )
    print("观察：")
    mild = CREDITS[1]
    observe(
        f"bug 只得 {mild:g} 分：{ends[1][0]:.3f}，几乎没有损失（{ends[0][0]:.3f}）；"
        f"得 {CREDITS[-1]:g} 分：{ends[-1][0]:.3f}。要命的不是给错半分，而是错的排到了对的前面。",
        ends[1][0] > ends[0][0] - 0.03 and ends[-1][0] < 0.3 * ends[1][0],
    )
    observe(
        f"最稳不等于最好：bug 得 {mild:g} 分时，加权投票（{ends[1][1]:.3f}）不如取最高分。它只给 bug 打了折，"
        "而 bug 的票多。",
        ends[1][1] < ends[1][0] - 0.1,
    )
    observe(
        "Cobbe et al.（2021）在 GSM8K 上也看到：候选多到约 400 个以后，正确率开始下降，"
        "因为搜索找到了骗过验证器的解。他们的 6B 模型加验证器，略胜微调过的 175B。"
    )


if __name__ == "__main__":
    run_script(main)

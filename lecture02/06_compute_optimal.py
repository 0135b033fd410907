"""
================================================================================
第 2 讲 · 06：怎样分配算力 —— 每题一样多，还是按难度给？
================================================================================
对应讲义：lectures/lecture02_test_time_scaling.md 第 7 节
（Snell et al. 2024, "Scaling LLM Test-Time Compute Optimally"）

【问题】(a) 采样的总数固定，怎样分给各题，覆盖率最高？(b) 算力固定，小模型搜索还是大模型答一次？

【这里的设定】(a) 有完美的验证器，成绩是覆盖率，全部是精确值。五种分法：
    平均        每题一样多；
    真难度分档  按真实的 p 分成几档，同一档一样多，一档一档地加，每次加给平均收益最大的一档；
    猜难度分档  先每题采样 PROBE 份，由 PRM 的分数猜难度，再同样地分。PROBE 份算在总数里；
                每一档的 p 取自另一组题（校准集），这组题的 p 从没看过；
    逐题贪心    每次加给 p(1-p)^k 最大的那道题：要知道每一题的 p，是事先分好的分法里最好的；
    做对就停    不用知道 p：大家轮流采样，采一份验一份，做对的停手。用掉的份数按期望算。
(b) 小模型采样 K 份，由 PRM 挑一份（best-of-N）；大模型是它的 RATIO 倍，只答一次。数过程全对的比例。
简化：打分不计费；(b) 的 PRM 没有漏洞，但也只用来挑，不用来搜（束搜索见 04，难题上会好得多）。

【公式】边际收益   c(k+1) - c(k) = p(1-p)^k，逐题递减，所以贪心就是最优
        做对就停   k 轮里一题期望用掉 (1 - (1-p)^k) / p 份；取 k 使各题的平均正好是预算
        顶平均几倍 平均分配要多少样本才追上 ÷ 实际用的样本
        等算力     K = M + 3 · (M - 1) / R，R = D_inf / D_pre（训练也算进来；Snell et al. 2024）
k 是一题已有的样本数，M 是大模型的倍数，D_inf 与 D_pre 是推理与预训练的 token 数。

运行时间：约 3 秒，只用标准库。
"""
import heapq
import math
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from tts_tools import (
    PRM, ToyLLM, best_of_n, check_ascending, check_counts, check_int, check_number, check_seeds, coverage,
    first_reaching, make_problem_set, mean, observe, paired_gain, path_probs, print_table, run_script, sample_traces,
    title,
)

SIZE = 1e9  # 小模型的参数量
N_PROBLEMS = 200  # 演示 1：题数；校准集也是这么多
MIN_STEPS, MAX_STEPS = 1, 12  # 每题的步数在这个范围里
SET_SEED = 50  # 出题的随机种子
CALIBRATION_SEED = 51  # 校准集的随机种子
N_BINS = 5  # 分几档难度
BUDGETS = (8, 16, 32, 64, 128)  # 平均每题几份样本，从少到多
PROBE = 4  # 猜难度先用掉每题几份
PROBE_SEED = 52  # 猜难度的样本的随机种子
NOISE = 0.2  # PRM 每一步的噪声（标准差）
BUG_CREDIT = 0.3  # PRM 给一步 bug 的分
PRM_SEED = 53  # PRM 的种子
RATIO = 14  # 演示 3：大模型是小模型的几倍（Snell et al. 2024 约 14 倍）
RS = (0.16, 0.79, 22)  # 演示 3：R = D_inf / D_pre 的三种取值，从小到大，也取自那篇论文
N_DUEL = 400  # 演示 3：题数
DEEP_EVERY = 4  # 演示 3：K 最大的一列太慢，按难度排好后每这么多题用一题
DUEL_SEED = 54  # 演示 3：出题与作答的随机种子


def success_probs(model, problems):
    """每道题过程全对的概率 p。"""
    return [math.prod(path_probs(model, problem)) for problem in problems]


def split_bins(keys, n_bins):
    """按 keys 从大到小排好，平均切成 n_bins 档，返回每一档的下标：([0.1, 0.9, 0.5], 3) → [[1], [2], [0]]。"""
    order = sorted(range(len(keys)), key=lambda i: -keys[i])
    return [order[len(order) * b // n_bins : len(order) * (b + 1) // n_bins] for b in range(n_bins)]


def greedy(groups, total, start=0):
    """
    把样本一份一份地分给边际收益最大的组，直到分完。

    【参数】groups：每组的 p 的列表（组里每题给得一样多）；start：每题已有的份数，算在总份数 total 里。
    【返回】每组每题的份数。
    """
    def gain(ps, k):
        return mean(p * (1 - p) ** k for p in ps)  # 平均到一份的收益，随 k 递减，所以贪心最优

    counts, left = [start] * len(groups), total - start * sum(map(len, groups))
    heap = sorted((-gain(ps, start), j) for j, ps in enumerate(groups))
    while heap:
        _, j = heapq.heappop(heap)
        if len(groups[j]) <= left:  # 剩下的不够这一组每题再一份：这一组到此为止，留给更小的组
            left -= len(groups[j])
            counts[j] += 1
            heapq.heappush(heap, (-gain(groups[j], counts[j]), j))
    return counts


def guess_difficulty(model, problems, rng, prm):
    """
    每题采样 PROBE 份，由 PRM 的步分猜 log p：越大越容易。

    第 i 步的 p 猜成 (这些样本在第 i 步的分数之和 + 2) / (PROBE + 3)，再把各步的对数加起来。
    加 2 与加 3 是平滑：先当作见过 3 次、对了 2 次，免得几份样本全错就猜成 0；题目越长，猜得越难。
    """
    guesses = []
    for problem in problems:
        scores = [prm.step_scores(problem, s.values) for s in sample_traces(model, problem, PROBE, rng)]
        right = [math.fsum(min(1.0, score) for score in column) for column in zip(*scores)]
        guesses.append(math.fsum(math.log((x + 2) / (PROBE + 3)) for x in right))
    return guesses


def uniform_needed(ps, goal):
    """平均分配时，每题要多少份（可以是小数）覆盖率才到 goal。覆盖率随 k 单调上升，用二分法。"""
    return first_reaching(lambda k: mean(coverage(p, k) for p in ps), goal)


def stop_when_right(ps, budget):
    """做对就停：轮流采样的轮数 k，使一题期望用掉的 (1 - (1-p)^k) / p 份平均是 budget。"""
    return first_reaching(lambda k: mean(coverage(p, k) / p for p in ps), budget)


def equal_flops_samples(ratio, r):
    """大模型答一次的算力（含预训练），够小模型采样几份：K = M + 3(M - 1)/R，取整。"""
    return round(ratio + 3 * (ratio - 1) / r)


def main():
    check_int("PROBE", PROBE, 1, check_counts("BUDGETS", BUDGETS, high=2000)[0])
    check_int("DEEP_EVERY", DEEP_EVERY, 1, check_int("N_DUEL", N_DUEL, 3, 5000))
    check_int("N_BINS", N_BINS, 3, min(check_int("N_PROBLEMS", N_PROBLEMS, 3, 2000), N_DUEL))
    check_int("MAX_STEPS", MAX_STEPS, check_int("MIN_STEPS", MIN_STEPS, 1, 30), 30)
    check_int("RATIO", RATIO, 2, 1000)
    check_ascending("RS", RS, low=0.05)
    ks = [equal_flops_samples(RATIO, r) for r in reversed(RS)]
    check_counts(f"RATIO = {RATIO}、RS = {RS} 算出的 K", ks, high=5000)
    check_number("SIZE", SIZE, 1e6, 1e15)
    for name, value in (("NOISE", NOISE), ("BUG_CREDIT", BUG_CREDIT)):
        check_number(name, value, 0, 1000)
    check_seeds(SET_SEED=SET_SEED, CALIBRATION_SEED=CALIBRATION_SEED, PROBE_SEED=PROBE_SEED, PRM_SEED=PRM_SEED)
    check_int("DUEL_SEED", DUEL_SEED)

    title(f"演示 1：{N_PROBLEMS} 题，总样本数固定 —— 五种分法的覆盖率（精确值）")
    print("  括号里：平均分配要用几倍的样本才追得上")
    model = ToyLLM(SIZE)
    problems = make_problem_set(random.Random(SET_SEED), N_PROBLEMS, MIN_STEPS, MAX_STEPS)
    known = make_problem_set(random.Random(CALIBRATION_SEED), N_PROBLEMS, MIN_STEPS, MAX_STEPS)
    ps, known_ps = success_probs(model, problems), success_probs(model, known)
    prm, rng = PRM(NOISE, BUG_CREDIT, seed=PRM_SEED), random.Random(PROBE_SEED)
    true_bins = split_bins(ps, N_BINS)
    guess_bins = split_bins(guess_difficulty(model, problems, rng, prm), N_BINS)
    known_bins = split_bins(guess_difficulty(model, known, rng, prm), N_BINS)

    def score(bins, counts):
        """bins 里每题的份数是 counts 时的覆盖率。"""
        return mean(coverage(ps[i], k) for members, k in zip(bins, counts) for i in members)

    singles, results, best_counts = [[i] for i in range(N_PROBLEMS)], {}, {}
    for budget in BUDGETS:
        total = budget * N_PROBLEMS
        best_counts[budget] = greedy([[p] for p in ps], total)
        results[budget] = {
            "平均": score(singles, [budget] * N_PROBLEMS),
            "真难度分档": score(true_bins, greedy([[ps[i] for i in b] for b in true_bins], total)),
            "猜难度分档": score(guess_bins, greedy([[known_ps[i] for i in b] for b in known_bins], total, PROBE)),
            "逐题贪心": score(singles, best_counts[budget]),
            "做对就停": score(singles, [stop_when_right(ps, budget)] * N_PROBLEMS),
        }
    saved = {b: {name: uniform_needed(ps, value) / b for name, value in line.items()} for b, line in results.items()}
    rows = [[f"每题 {b}", *(f"{x:.3f} ({saved[b][s]:.2f})" for s, x in line.items())] for b, line in results.items()]
    print_table(["预算", *results[BUDGETS[0]]], rows)
    chosen = BUDGETS[len(BUDGETS) // 2]
    line, factor = results[chosen], saved[chosen]
    print("观察：")
    observe(
        f"每题 {chosen} 份的预算，平均分配要用到 {factor['逐题贪心']:.2f} 倍的样本才追得上逐题贪心；知道真难度，"
        f"只分 {N_BINS} 档就拿到大部分好处（{factor['真难度分档']:.2f} 倍）。",
        factor["逐题贪心"] > 1.2 and factor["真难度分档"] - 1 > 0.5 * (factor["逐题贪心"] - 1),
    )
    observe(
        f"难度靠猜，顶 {factor['猜难度分档']:.2f} 倍：只拿回一部分。一来会猜错，二来每题先花掉 {PROBE} 份，"
        "最难的题本来一份也不该给。",
        1.03 < factor["猜难度分档"] < factor["真难度分档"],
    )
    observe(
        f"“贪心最优”只说事先分好、不看结果的分法。采一份验一份、做对就停，不知道任何一题的 p，却到 "
        f"{line['做对就停']:.3f}（顶 {factor['做对就停']:.2f} 倍）。",
        line["做对就停"] > line["逐题贪心"] + 0.01,
    )
    observe(
        "Snell et al.（2024）按难度选方法，最多顶 4 倍（16 份对 64 份、64 份对 256 份）。他们换的是方法，这里只换份数。"
    )

    title(f"演示 2：样本给了谁 —— 逐题贪心，按真实难度排成 {N_BINS} 档，每题几份")
    given = {b: [mean(best_counts[b][i] for i in members) for members in true_bins] for b in BUDGETS}
    rows = [["p 的平均", *(f"{mean(ps[i] for i in members):.3f}" for members in true_bins)]]
    rows += [[f"每题 {b}", *(f"{x:.1f}" for x in line)] for b, line in given.items()]
    print_table(["预算", *(f"第 {b + 1} 档" for b in range(N_BINS))], rows)
    few, many = given[BUDGETS[0]], given[BUDGETS[-1]]
    spot = max(range(N_BINS), key=given[chosen].__getitem__)
    print("观察：")
    observe(
        f"预算 {chosen} 时拿得最多的是第 {spot + 1} 档（每题 {given[chosen][spot]:.1f} 份），不是最难的第 {N_BINS} 档"
        f"（{given[chosen][-1]:.1f} 份），也不是最易的第 1 档（{given[chosen][0]:.1f} 份）。",
        0 < spot < N_BINS - 1 and given[chosen][-1] < 0.7 * given[chosen][spot],
    )
    observe(
        f"预算越大，样本越往难处走：最多的一档从第 {few.index(max(few)) + 1} 档到第 {many.index(max(many)) + 1} 档。",
        few.index(max(few)) < many.index(max(many)),
    )

    large = ToyLLM(SIZE * RATIO)
    title(f"演示 3：等算力 —— {model.name} 采样 K 份由 PRM 挑，还是 {large.name} 答一次（全对的比例）")
    print("  " + "，".join(f"R = {r:g} 时 K = {k}" for k, r in zip(ks, reversed(RS))))
    print("  K 的几列：小模型比大模型高多少；差在两个标准误以内记“平”")
    rng = random.Random(DUEL_SEED)
    duel = make_problem_set(rng, N_DUEL, MIN_STEPS, MAX_STEPS)
    small_ps, large_ps = success_probs(model, duel), success_probs(large, duel)
    bins = split_bins(small_ps, N_BINS)
    deep = {i for members in bins for i in members[::DEEP_EVERY]}
    gains = {k: {} for k in ks}  # gains[k][题目的下标] = 小模型全对的比例 - 大模型全对的概率
    for i, problem in enumerate(duel):
        here = [k for k in ks if k < ks[-1] or i in deep]
        samples = sample_traces(model, problem, max(here), rng)
        scores = [prm.score(problem, s.values) for s in samples]
        for k in here:
            parts = [slice(j, j + k) for j in range(0, len(samples) - k + 1, k)]
            gains[k][i] = mean(best_of_n(samples[part], scores[part]).sound for part in parts) - large_ps[i]
    rows, duels = [], []
    for b, members in enumerate(bins):
        tiny, once = mean(small_ps[i] for i in members), mean(large_ps[i] for i in members)
        duels.append([paired_gain([gains[k][i] for i in members if i in gains[k]]) for k in ks])
        cells = (f"{gain:+.3f} {who}" for gain, who in duels[-1])
        rows.append([f"第 {b + 1} 档", f"{tiny:.3f}", f"{once:.3f}", *cells])
    headers = [f"{model.name} 单次（精确）", f"{large.name} 单次（精确）", *(f"K = {k}" for k in ks)]
    print_table(["难度", *headers], rows)
    print("观察：")
    ceiling = mean(coverage(small_ps[i], ks[0]) for i in members)
    observe(
        f"K = {ks[0]} 时胜负随难度翻转：第 1、2 档小模型高 {duels[0][0][0]:.3f} 和 {duels[1][0][0]:.3f}；"
        f"最难的第 {N_BINS} 档，{ks[0]} 份的覆盖率只有 {ceiling:.3f}（精确），挑得再准也不如大模型单次的 {once:.3f}。",
        duels[0][0][1] == duels[1][0][1] == "小" and ceiling < once,
    )
    (few, _), (many, _) = duels[-1][:2]
    observe(
        f"预训练也算进来，推理越少，小模型能采样的越多：K = {ks[0]} → {ks[1]}，最难一档从 {few:+.3f} 到 {many:+.3f}。",
        many > few + 0.03,
    )
    observe(
        "Snell et al.（2024）：对容易和中等的题、或 R 小的时候，测试时算力胜过大约 14 倍的模型；"
        "对难题、或 R 大的时候，预训练划算。"
    )


if __name__ == "__main__":
    run_script(main)

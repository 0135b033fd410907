"""
================================================================================
第 2 讲 · 04：过程奖励与束搜索 —— 边写边挑，什么时候反而更糟？
================================================================================
对应讲义：lectures/lecture02_test_time_scaling.md 第 5 节
（Lightman et al. 2023, "Let's Verify Step by Step"；Snell et al. 2024）

【问题】过程验证器（PRM）给没写完的前缀打分，所以可以一步一挑（束搜索，beam search）。
同样多的步数，它比独立写 N 份、做完再挑好吗？

【这里的设定】束搜索每步共写 N 个候选，留下 PRM 分数最高的 KEEP 个前缀，每个前缀接着写 N / KEEP 个；
独立的一边写 N 份。两边最后都用加权投票选答案（Snell 等人叫 weighted best-of-N），都用 Meter 数步数，
一步不差。题目按 P(过程全对) 分成易、中、难；正确率数的是最后的答案对不对。
演示 2 的 PRM 有一个罕见的漏洞：写下的值是凑整的错值（整十数，离正确值不超过 2）时，它给 HACK_CREDIT
分（对的一步是 1 分）。这一味是故意加进去的：没有它，这里的束搜索处处更好，论文里的下降不会出现。
简化：PRM 的噪声、盲点和漏洞都是写进去的；真的漏洞要等搜索把它翻出来才知道。

【公式】前缀的分数   v(y_1..y_i) = v_1 · v_2 · … · v_i
        选答案       argmax_a Σ v(y) · [y 的答案 = a]
        步数         两边都是 N × 题目的步数
v_i 是 PRM 给第 i 步的分数，y 是一份作答。

运行时间：约 2.5 秒，只用标准库。
"""
import math
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from tts_tools import (
    CARELESS_OFFSETS, PRM, Meter, ToyLLM, apply_bug, apply_op, auc, beam_search, best_of_n, check_counts, check_int,
    check_levels, check_number, check_seeds, is_rounded, make_problem, mean, observe, path_probs, print_table,
    run_script, sample_traces, title, weighted_vote,
)

SIZE = 1e9  # 模型的参数量
MIN_STEPS, MAX_STEPS = 4, 8  # 每题的步数在这个范围里
LEVELS = {"易": (0.2, 1.0), "中": (0.03, 0.1), "难": (0.0005, 0.01)}  # P(过程全对) 落在哪一段
PER_LEVEL = 60  # 每个难度出多少道题
MAX_DRAWS = 20000  # 最多出多少道题来凑够各个难度
SET_SEED = 30  # 出题的随机种子
NS = (4, 16, 64)  # 每步写多少个候选，从少到多；独立的一边就是写多少份
KEEP = 4  # 束宽：每步留下几个前缀（Snell et al. 2024 也用 4）
NOISE = 0.2  # PRM 每一步的噪声（标准差）
BUG_CREDIT = 0.3  # PRM 给一步 bug 的分：有点认不清，但不偏爱
HACK_CREDIT = 1.3  # 演示 2：PRM 给凑整的错步的分，比对的还高
PRM_SEED = 31  # PRM 的种子
SAMPLE_SEED = 32  # 作答的随机种子


def make_levels(model, rng):
    """
    每个难度 PER_LEVEL 道题：{"易": [题], …}。不断出题，按 P(过程全对) 归类，直到凑够。

    【边界】出了 MAX_DRAWS 道还凑不够：ValueError。
    """
    levels = {name: [] for name in LEVELS}
    for _ in range(MAX_DRAWS):
        problem = make_problem(rng, rng.randint(MIN_STEPS, MAX_STEPS))
        p = math.prod(path_probs(model, problem))
        for name, (low, high) in LEVELS.items():
            if low <= p < high and len(levels[name]) < PER_LEVEL:
                levels[name].append(problem)
                break
        if all(len(found) == PER_LEVEL for found in levels.values()):
            return levels
    raise ValueError(
        f"出了 MAX_DRAWS = {MAX_DRAWS} 道题还凑不够每个难度 {PER_LEVEL} 道：换 LEVELS 的范围、规模或步数"
    )


def uses_hack(problem, sample):
    """这份作答里有没有凑整的错步。"""
    inputs = (problem.start, *sample.values)
    return any(
        is_rounded(written, apply_op(step.op, before, step.operand))
        for step, before, written in zip(problem.steps, inputs, sample.values)
    )


def hack_odds(model, problem):
    """沿着正确的路，每一步写出凑整错值的概率（精确值）：手滑的偏移里有几种凑得成，加上 bug 恰好凑整的。"""
    odds = []
    for i, (step, x) in enumerate(zip(problem.steps, (problem.start, *problem.true_values))):
        _, p_bug, p_careless = model.step_probs(step.op, x, step.operand, i)
        right = apply_op(step.op, x, step.operand)
        slips = mean(is_rounded(right + d, right) for d in CARELESS_OFFSETS)
        odds.append(p_careless * slips + p_bug * is_rounded(apply_bug(step.op, x, step.operand), right))
    return odds


def judge(problem, samples, prm):
    """
    从 samples 里选答案。

    【返回】(加权投票选对没有, 取最高分选对没有, 选中的作答有没有凑整, 凑整的作答占总票数的比例)。
    """
    scores = [prm.score(problem, sample.values) for sample in samples]
    answer = weighted_vote([sample.answer for sample in samples], scores)
    group = [i for i, sample in enumerate(samples) if sample.answer == answer]
    voted = best_of_n([samples[i] for i in group], [scores[i] for i in group])
    hacked = math.fsum(score for sample, score in zip(samples, scores) if uses_hack(problem, sample))
    correct = answer == problem.answer(), best_of_n(samples, scores).correct
    return *correct, uses_hack(problem, voted), hacked / math.fsum(scores)


def search(model, levels, prm, meter):
    """每题做一次束搜索：{(难度, N): 每题的 N 份作答}。"""
    found = {}
    for level, problems in levels.items():
        for n in NS:
            rng = random.Random(f"{SAMPLE_SEED}|{level}|{n}")
            found[level, n] = [beam_search(model, problem, prm, n, KEEP, rng, meter=meter) for problem in problems]
    return found


def summary(levels, pools, prm):
    """judge 的四项对题目取平均：{(难度, N): [四个数]}。"""
    return {
        (level, n): [mean(column) for column in zip(*(judge(*pair, prm) for pair in zip(levels[level], pool)))]
        for (level, n), pool in pools.items()
    }


def main():
    check_int("KEEP", KEEP, 1)
    for n in check_counts("NS", NS, high=4096, at_least=3):
        if n % KEEP:
            raise ValueError(f"NS 里的 N 应当是 KEEP = {KEEP} 的倍数，收到的是 {n}")
    check_levels("LEVELS", LEVELS, 0, 1)
    check_number("SIZE", SIZE, 0, 1e15, open_low=True)
    check_int("PER_LEVEL", PER_LEVEL, 1, 1000)
    check_int("MAX_DRAWS", MAX_DRAWS, 1, 10**6)
    check_int("MAX_STEPS", MAX_STEPS, check_int("MIN_STEPS", MIN_STEPS, 1, 30), 30)
    check_number("NOISE", NOISE, 0, 1000)
    check_number("BUG_CREDIT", BUG_CREDIT, 0, 1000)
    check_number("HACK_CREDIT", HACK_CREDIT, 0, 1000, open_low=True)
    check_seeds(SET_SEED=SET_SEED, PRM_SEED=PRM_SEED, SAMPLE_SEED=SAMPLE_SEED)

    title(f"演示 1：PRM 没有漏洞（噪声 {NOISE}，束宽 {KEEP}）—— 同样的步数，正确率")
    print("  P(过程全对)：" + "，".join(f"{name} {low:g}～{high:g}" for name, (low, high) in LEVELS.items())
          + f"；每个难度 {PER_LEVEL} 题")
    model = ToyLLM(SIZE)
    levels = make_levels(model, random.Random(SET_SEED))
    pass1 = {name: mean(math.prod(path_probs(model, p)) for p in problems) for name, problems in levels.items()}
    prm, plain_meter, beam_meter = PRM(NOISE, BUG_CREDIT, seed=PRM_SEED), Meter(), Meter()
    pools = {}
    for level, problems in levels.items():
        for n in NS:
            rng = random.Random(f"{SAMPLE_SEED}|{level}|{n}")
            pools[level, n] = [sample_traces(model, problem, n, rng, meter=plain_meter) for problem in problems]
    plain, beam = summary(levels, pools, prm), summary(levels, search(model, levels, prm, beam_meter), prm)
    rows = [
        [f"{level} N = {n}", f"{pass1[level]:.3f}", f"{plain[level, n][0]:.3f}", f"{beam[level, n][0]:.3f}"]
        for level, n in pools
    ]
    print_table(["难度与 N", "单次全对（精确）", "独立＋投票", "束搜索＋投票"], rows)
    few, mid, many = NS[0], NS[-2], NS[-1]
    print("观察：")
    observe(
        f"步数是数出来的：独立的一边写了 {plain_meter.steps} 步，束搜索 {beam_meter.steps} 步。",
        plain_meter.steps == beam_meter.steps,
    )
    observe(
        f"难题上搜索赢得多：N = {mid} 时束搜索 {beam['难', mid][0]:.3f}，独立 {plain['难', mid][0]:.3f}。"
        "坏的前缀早早淘汰，步数都花在还有希望的前缀上。",
        beam["难", mid][0] > plain["难", mid][0] + 0.3,
    )
    gain_easy, gain_hard = (beam[level, mid][0] - plain[level, mid][0] for level in ("易", "难"))
    observe(
        f"易题上差得少：N = {mid} 时相差 {gain_easy:+.3f}（难题 {gain_hard:+.3f}）。",
        abs(gain_easy) < 0.2 and gain_hard > gain_easy + 0.2,
    )
    observe(
        f"一格是 {PER_LEVEL} 个 0 或 1 的平均，标准误最多 {0.5 / PER_LEVEL ** 0.5:.3f}：只差一两个标准误，分不出高低。"
        + (f"N = KEEP = {few} 时没有可挑的，束搜索就是独立作答，两列只差抽样的噪声。" if few == KEEP else "")
    )

    title(f"演示 2：PRM 有一个罕见的漏洞 —— 凑整的错步得 {HACK_CREDIT} 分")
    leaky = PRM(NOISE, BUG_CREDIT, HACK_CREDIT, seed=PRM_SEED)
    odds = {name: [p for problem in problems for p in hack_odds(model, problem)] for name, problems in levels.items()}
    print("  一步写出凑整的概率：" + "，".join(f"{name} {mean(ps):.3f}" for name, ps in odds.items())
          + f"；凑得成整的步占 {mean(p > 0 for ps in odds.values() for p in ps):.0%}")
    plain, beam = summary(levels, pools, leaky), summary(levels, search(model, levels, leaky, Meter()), leaky)
    rows = []
    for key in pools:
        cells = (plain[key][0], beam[key][0], plain[key][2], beam[key][2], plain[key][1])
        rows.append([f"{key[0]} N = {key[1]}", *(f"{x:.3f}" for x in cells)])
    print_table(["难度与 N", "独立＋投票", "束搜索＋投票", "独立：凑整", "束搜索：凑整", "独立取最高分"], rows)
    top = max(NS, key=lambda n: beam["易", n][0])
    print("观察：")
    observe(
        f"易题上，束搜索 N = {top} 时 {beam['易', top][0]:.3f}，N = {many} 时掉到 {beam['易', many][0]:.3f}："
        f"最后的票里，凑整的作答从 {beam['易', few][3]:.2f} 占到 {beam['易', many][3]:.2f}。",
        top < many and beam["易", many][0] < beam["易", top][0] - 0.15
        and beam["易", many][3] > beam["易", few][3] + 0.15,
    )
    observe(
        f"独立写 N 份再投票没有跟着掉：{plain['易', mid][0]:.3f} → {plain['易', many][0]:.3f}。凑整的作答也在里面，"
        f"但它占的票不随 N 涨（{plain['易', few][3]:.2f} → {plain['易', many][3]:.2f}），比不过正确答案。",
        plain["易", many][0] > plain["易", mid][0] - 0.04 and plain["易", many][0] > beam["易", many][0] + 0.15
        and plain["易", many][3] < plain["易", few][3] + 0.05,
    )
    observe(
        f"护住它的是投票：同样的作答改取最高分，N = {many} 时只有 {plain['易', many][1]:.3f}。",
        plain["易", many][1] < plain["易", many][0] - 0.15,
    )
    observe(
        f"难题上搜索仍然赢：N = {mid} 时 {beam['难', mid][0]:.3f} 对 {plain['难', mid][0]:.3f}。"
        "独立写本来就几乎写不出对的，有漏洞的向导也比没有好。",
        beam["难", mid][0] > plain["难", mid][0] + 0.1,
    )
    judged = [  # (题目, 作答, 对错)：有对有错的题，才说得上谁排在前面
        (problem, pool, [sample.correct for sample in pool])
        for level in levels for problem, pool in zip(levels[level], pools[level, many])
    ]
    honest_auc, leaky_auc = (
        mean(auc([v.score(x, s.values) for s in pool], marks) for x, pool, marks in judged if len(set(marks)) == 2)
        for v in (prm, leaky)
    )
    observe(
        f"平均准确率看不出这个漏洞：独立写的作答上，AUC 没有漏洞时 {honest_auc:.3f}，有漏洞时 {leaky_auc:.3f}。",
        honest_auc - leaky_auc < 0.03,
    )
    observe(
        "Snell et al.（2024，PaLM 2-S*，MATH）：预算小时束搜索赢，预算大时低于 best-of-N；容易的两档里，"
        "束搜索随预算下降，第 3、4 档一直有帮助，第 5 档什么都没用。"
    )
    before, after = (mean(beam[level, n][0] for level in ("中", "难")) for n in (mid, many))
    observe(
        f"与论文不同的一点：中等题和难题合起来也掉了，N = {mid} 时 {before:.3f}，N = {many} 时 {after:.3f}。",
        before - after > 0.05,
    )


if __name__ == "__main__":
    run_script(main)

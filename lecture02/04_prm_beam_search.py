"""
================================================================================
第 2 讲 · 04：过程奖励与束搜索 —— 边写边挑，什么时候反而更糟？
================================================================================
对应讲义：lectures/lecture02_test_time_scaling.md 第 5 节
（Lightman et al. 2023, "Let's Verify Step by Step"；Snell et al. 2024）

【问题】过程验证器（PRM）给没写完的前缀打分，所以可以一步一挑（束搜索，beam search）。
同样多的步数，它比做完再挑（best-of-N）好吗？

【这里的设定】每步共写 N 个候选，留下 PRM 分数最高的 KEEP 个前缀，每个前缀接着写 N / KEEP 个；
最后一步的 N 份作答用加权投票选答案。best-of-N 是独立写 N 份，选法相同。两边用 Meter 数步数，
一步不差。题目按 P(过程全对) 分成易、中、难；正确率数的是最后的答案对不对。
演示 2 的 PRM 有一个罕见的漏洞：写下的值是凑整的错值（整十数，离正确值不超过 2）时，它给 HACK_CREDIT
分（对的一步是 1 分）。这一味是故意加进去的：没有它，这里的束搜索处处更好，论文里的下降不会出现。
简化：PRM 的噪声、盲点和漏洞都是写进去的；真的漏洞要等搜索把它翻出来才知道。

【公式】前缀的分数   score(y_1..y_i) = r_1 · r_2 · … · r_i
        选答案       argmax_a Σ score(y) · [y 的答案 = a]
        步数         两边都是 N × 题目的步数
r_i 是 PRM 给第 i 步的分数，y 是一份作答。

运行时间：约 2 秒，只用标准库。
"""
import math
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from tts_tools import (
    PRM, Meter, ToyLLM, apply_op, beam_search, best_of_n, check_int, check_number, is_rounded, make_problem, mean,
    observe, path_probs, print_table, run_script, sample_traces, title, weighted_vote,
)

SIZE = 1e9  # 模型的参数量
MIN_STEPS, MAX_STEPS = 4, 8  # 每题的步数在这个范围里
LEVELS = {"易": (0.2, 1.0), "中": (0.03, 0.1), "难": (0.0005, 0.01)}  # P(过程全对) 落在哪一段
PER_LEVEL = 40  # 每个难度出多少道题
MAX_DRAWS = 20000  # 最多出多少道题来凑够各个难度
SET_SEED = 30  # 出题的随机种子
NS = (4, 16, 64)  # 每步写多少个候选，从少到多；best-of-N 就是写多少份
KEEP = 4  # 束的宽度：每步留下几个前缀（Snell et al. 2024 也用 4）
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


def solve(method, model, problem, prm, n, rng, meter):
    """
    用 best-of-N 或束搜索做一题。

    【返回】(加权投票选对没有, 取最高分选对没有, 选中的作答有没有凑整)。
    """
    if method == "束搜索":
        samples = beam_search(model, problem, prm, n, KEEP, rng, meter=meter)
    else:
        samples = sample_traces(model, problem, n, rng, meter=meter)
    scores = [prm.score(problem, sample.values) for sample in samples]
    answer = weighted_vote([sample.answer for sample in samples], scores)
    group = [i for i, sample in enumerate(samples) if sample.answer == answer]
    voted = best_of_n([samples[i] for i in group], [scores[i] for i in group])
    return answer == problem.answer(), best_of_n(samples, scores).correct, uses_hack(problem, voted)


def compare(model, levels, prm):
    """
    【返回】(结果, 步数)：结果[难度][N][方法] = [加权投票的正确率, 取最高分的正确率, 凑整的比例]；
    步数[方法] 是数出来的总步数。
    """
    meters = {"best-of-N": Meter(), "束搜索": Meter()}
    table = {}
    for level, problems in levels.items():
        table[level] = {n: {} for n in NS}
        for n in NS:
            for method, meter in meters.items():
                rng = random.Random(f"{SAMPLE_SEED}|{level}|{n}")
                outcomes = [solve(method, model, problem, prm, n, rng, meter) for problem in problems]
                table[level][n][method] = [mean(column) for column in zip(*outcomes)]
    return table, {method: meter.steps for method, meter in meters.items()}


def main():
    check_int("KEEP", KEEP, 1)
    for n in NS:
        check_int("NS 里的 N", n, 1)
        if n % KEEP:
            raise ValueError(f"NS 里的 N 应当是 KEEP = {KEEP} 的倍数，收到的是 {n}")
    check_int("NS 的个数", len(NS), 3)
    check_int("PER_LEVEL", PER_LEVEL, 1)
    check_int("MAX_DRAWS", MAX_DRAWS, 1)
    check_int("MIN_STEPS", MIN_STEPS, 1, MAX_STEPS)
    check_number("HACK_CREDIT", HACK_CREDIT, 0, open_low=True)

    title(f"演示 1：PRM 没有漏洞（噪声 {NOISE}，束宽 {KEEP}）—— 同样的步数，正确率")
    model = ToyLLM(SIZE)
    levels = make_levels(model, random.Random(SET_SEED))
    pass1 = {name: mean(math.prod(path_probs(model, p)) for p in problems) for name, problems in levels.items()}
    honest, steps = compare(model, levels, PRM(NOISE, BUG_CREDIT, seed=PRM_SEED))
    methods = ("best-of-N", "束搜索")
    rows = [
        [f"{level} N = {n}", f"{pass1[level]:.3f}", *(f"{honest[level][n][m][0]:.3f}" for m in methods)]
        for level in levels for n in NS
    ]
    print_table(["难度与 N", "全对一次（精确）", *methods], rows)
    few, mid, many = NS[0], NS[-2], NS[-1]
    easy, hard = honest["易"], honest["难"]
    print("观察：")
    observe(
        f"步数是数出来的：best-of-N 写了 {steps['best-of-N']} 步，束搜索 {steps['束搜索']} 步。",
        steps["best-of-N"] == steps["束搜索"],
    )
    observe(
        f"难题上搜索赢得多：N = {mid} 时束搜索 {hard[mid]['束搜索'][0]:.3f}，"
        f"best-of-N {hard[mid]['best-of-N'][0]:.3f}。坏的前缀早早淘汰，步数都花在还有希望的前缀上。",
        hard[mid]["束搜索"][0] > hard[mid]["best-of-N"][0] + 0.3,
    )
    gain_easy, gain_hard = (group[mid]["束搜索"][0] - group[mid]["best-of-N"][0] for group in (easy, hard))
    observe(
        f"易题上两者差不多：N = {mid} 时相差 {gain_easy:+.3f}（难题 {gain_hard:+.3f}）。",
        abs(gain_easy) < 0.2 and gain_hard > gain_easy + 0.2,
    )
    observe(
        f"N = KEEP = {few} 时没有可挑的，束搜索就是独立作答，两列只差抽样的噪声。"
        if few == KEEP else f"N 与 KEEP 之比是每步挑得多狠，这里最小是 {few // KEEP}。"
    )

    title(f"演示 2：PRM 有一个罕见的漏洞 —— 凑整的错步得 {HACK_CREDIT} 分")
    hacked, _ = compare(model, levels, PRM(NOISE, BUG_CREDIT, HACK_CREDIT, seed=PRM_SEED))
    rows = []
    for level in levels:
        for n in NS:
            bon, beam = (hacked[level][n][m] for m in methods)
            rows.append([f"{level} N = {n}", *(f"{x:.3f}" for x in (bon[0], beam[0], bon[2], beam[2], bon[1]))])
    print_table(["难度与 N", *methods, "前者选中凑整", "后者选中凑整", "前者改取最高分"], rows)
    easy, middle, hard = hacked.values()
    top = max(NS, key=lambda n: easy[n]["束搜索"][0])
    print("观察：")
    observe(
        f"易题上，束搜索 N = {top} 时 {easy[top]['束搜索'][0]:.3f}，N = {many} 时掉到 {easy[many]['束搜索'][0]:.3f}："
        "候选越多，越容易碰上那个罕见的凑整步；它多半排到前面，占住名额，后面的步渐渐都从它接着写。",
        top < many and easy[many]["束搜索"][0] < easy[top]["束搜索"][0] - 0.15,
    )
    bon_easy = [easy[n]["best-of-N"][0] for n in NS]
    observe(
        f"best-of-N 没有掉：{bon_easy[0]:.3f} → {bon_easy[-1]:.3f}。凑整的作答也在里面，但它占的份额不随 N 变，"
        "票加起来比不过正确答案。",
        bon_easy[-1] > bon_easy[-2] - 0.05 and bon_easy[-1] > easy[many]["束搜索"][0] + 0.15,
    )
    observe(
        f"护住它的是投票：同样的作答改取最高分，N = {many} 时只有 {easy[many]['best-of-N'][1]:.3f}。",
        easy[many]["best-of-N"][1] < bon_easy[-1] - 0.15,
    )
    observe(
        f"难题上搜索仍然赢：N = {mid} 时 {hard[mid]['束搜索'][0]:.3f} 对 {hard[mid]['best-of-N'][0]:.3f}。"
        "best-of-N 本来就几乎写不出对的，有漏洞的向导也比没有好。",
        hard[mid]["束搜索"][0] > hard[mid]["best-of-N"][0] + 0.1,
    )
    observe(
        "Snell et al.（2024，PaLM 2-S*，MATH）：预算小时束搜索赢，预算大时低于 best-of-N；容易的两档里，"
        "束搜索随预算下降，第 3、4 档一直有帮助，第 5 档什么都没用。"
    )
    observe(
        f"与论文不同的一点：这里中等题和难题到 N = {many} 也掉了（{middle[mid]['束搜索'][0]:.3f} → "
        f"{middle[many]['束搜索'][0]:.3f}，{hard[mid]['束搜索'][0]:.3f} → {hard[many]['束搜索'][0]:.3f}）。"
        "我们的漏洞每一步都开着，题越长，凑整的机会越多。",
        min(level[mid]["束搜索"][0] - level[many]["束搜索"][0] for level in (middle, hard)) > 0.02,
    )


if __name__ == "__main__":
    run_script(main)

"""
================================================================================
第 1 讲 · 02：思维链 —— 把中间步骤写出来，值多少，贵多少
================================================================================
对应讲义：lectures/lecture01_scaling_and_cot.md 第 3 节（Wei et al. 2022a；Kojima et al. 2022）

【问题】让模型一步一步写（思维链，chain of thought, CoT），什么样的题、多大的模型得益最多？

【这里的设定】同一个模型，两种答法：
    直接答    cot=False：只写最后的答案，中间结果全靠"心算"，越往后越难；
    思维链    cot=True ：每一步的值都写在纸上，后面的步骤不因为位置靠后而变难。
"心算"的难处写成一条公式：第 i 步（从 1 数）的 logit(correct) 再减 NO_COT_PENALTY · (i - 1)。
正确率是每一步都做对的概率，用 path_probs 精确算出，不采样。价钱有两种算法：多写几个值；
多花多少算力（值的个数 × 参数量：写一个值要把全部参数用一遍）。
简化：真模型的思维链会写错格式、会编造步骤，所以 Wei et al.（2022a）里的小模型写了反而更差；
这里的思维链只有好处没有坏处，看不到那种反效果。

【公式】p(y|x) = Σ_r p(r|x) · p(y|x,r)：x 是题目，r 是思维链（推理过程，rationale），y 是答案。
和式里只留每一步都对的那一条 r，得到 P(sound) = p_1 · p_2 · … · p_n ≤ p(y|x)：
别的 r 也可能错了又错、碰巧答对，这里不算。两种答法只差在 p_i。

运行时间：约 0.5 秒，只用标准库。
"""
import math
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from toy_llm import (
    NO_COT_PENALTY, ToyLLM, check_ascending, check_counts, check_int, check_number, check_seeds, make_problem_set, mean,
    observe, path_probs, print_table, run_script, title,
)

SIZE = 1e11  # 演示 1、3 用的模型的参数量
STEPS = (1, 2, 3, 4, 6, 8, 12, 16)  # 演示 1 的题目步数，从短到长
SIZES = (1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14)  # 演示 2 的模型的参数量；最后两个比今天的都大，为了看到峰的另一边
LONG = 8  # 演示 2、3 的题目步数
PEAK_STEPS = (2, 4, 8)  # 演示 2 的末尾：这几种步数的题，增益最大的是哪个规模
MAX_STEPS = 30  # 题目最多几步：再长，直接答的概率小到浮点数装不下
N_PROBLEMS = 200  # 每种步数出多少道题
SEED = 20  # 出题的随机种子


def accuracy(size, cot, problems):
    """每一步都做对的概率，在 problems 上取平均（精确值）。"""
    model = ToyLLM(size, cot=cot)
    return mean(math.prod(path_probs(model, problem)) for problem in problems)


def accuracy_by_position(size, cot, problems):
    """第 1、2、…步各自做对的概率（前面都做对时），在等长的 problems 上取平均。"""
    model = ToyLLM(size, cot=cot)
    return [mean(column) for column in zip(*(path_probs(model, problem) for problem in problems))]


def extra_values(n_steps, gain):
    """每多做对一道题，思维链要多写多少个值；没有增益时是无穷大。"""
    return (n_steps - 1) / gain if gain > 0 else math.inf


def has_one_peak(xs):
    """先一路升、再一路降，最高的一个不在头尾。"""
    top = xs.index(max(xs))
    up, down = xs[: top + 1], xs[top:]
    return min(len(up), len(down)) > 1 and up == sorted(set(up)) and down == sorted(set(down), reverse=True)


def in_words(x):
    """一个数的三位有效数字，大数用万、亿、万亿；无穷大写成 "-"。"""
    if not math.isfinite(x):
        return "-"
    unit, name = next(((u, name) for u, name in ((1e12, " 万亿"), (1e8, " 亿"), (1e4, " 万")) if x >= u), (1, ""))
    x /= unit
    return (f"{x:.0f}" if 100 <= x < 1e4 else f"{x:.3g}") + name


def main():
    check_int("MAX_STEPS", MAX_STEPS, 2)
    check_int("LONG", LONG, 2, MAX_STEPS)
    check_counts("STEPS", STEPS, 1, MAX_STEPS)
    check_counts("PEAK_STEPS", PEAK_STEPS, 1, MAX_STEPS)
    check_number("SIZE", SIZE, 0, open_low=True)
    for size in check_ascending("SIZES", SIZES):
        check_number("SIZES 里的规模", size, 0, open_low=True)
    check_int("N_PROBLEMS", N_PROBLEMS, 1)
    check_seeds(SEED=SEED)
    name = ToyLLM(SIZE).name

    title(f"演示 1：题目越长，倍数越大，增益先升后降 —— {name} 的模型")
    rows, gains, ratios = [], [], []
    for n in STEPS:
        problems = make_problem_set(random.Random(SEED), N_PROBLEMS, n, n)
        direct, cot = accuracy(SIZE, False, problems), accuracy(SIZE, True, problems)
        gains.append(cot - direct)
        ratios.append(cot / direct)
        rows.append([f"{n} 步", f"{direct:.3f}", f"{cot:.3f}", f"{gains[-1]:+.3f}", in_words(ratios[-1]), f"1 / {n}"])
    print_table(["题目", "直接答", "思维链", "增益", "倍数", "写几个值（直接 / 思维链）"], rows)
    print("观察：")
    observe(
        f"{STEPS[0]} 步的题没有“中间步骤”，两种答法一样（增益 {gains[0]:.3f}）。",
        gains[0] == 0,
    )
    observe(
        f"步数越多，倍数越大：{STEPS[1]} 步时 {in_words(ratios[1])}，{STEPS[-1]} 步时 {in_words(ratios[-1])}。",
        all(a < b for a, b in zip(ratios, ratios[1:])),
    )
    top = gains.index(max(gains))
    observe(
        f"增益先升后降：{STEPS[1]} 步是 {gains[1]:+.2f}，{STEPS[top]} 步最高（{gains[top]:+.2f}），{STEPS[-1]} 步回到 "
        f"{gains[-1]:+.2f}。题太短，不写也对；题太长，写了也错。",
        has_one_peak(gains),
    )

    title(f"演示 2：模型越大，增益也先升后降 —— {LONG} 步的题")
    problems = make_problem_set(random.Random(SEED), N_PROBLEMS, LONG, LONG)
    directs, cots = ([accuracy(size, cot, problems) for size in SIZES] for cot in (False, True))
    gains = [cot - direct for direct, cot in zip(directs, cots)]
    ratios = [cot / direct for direct, cot in zip(directs, cots)]
    values = [extra_values(LONG, gain) for gain in gains]
    written = [f"{n:.0f}" if n < math.inf else "-" for n in values]
    costs = [n * size for n, size in zip(values, SIZES)]
    cheapest = min(costs)
    dearer = [cost / cheapest if cost < math.inf else cost for cost in costs]
    names = [ToyLLM(size).name for size in SIZES]
    rows = [
        [names[i], f"{directs[i]:.4f}", f"{cots[i]:.4f}", f"{gains[i]:+.4f}", in_words(ratios[i]),
         written[i], in_words(dearer[i])]
        for i in range(len(SIZES))
    ]
    print_table(["规模", "直接答", "思维链", "增益", "倍数", "多对一题多写的值", "多花的算力"], rows)
    print("  算力 = 多写的值 × 参数量，最省的那个规模算 1")
    top, best = gains.index(max(gains)), costs.index(cheapest)
    print("观察：")
    observe(
        f"增益在 {names[top]} 最大（{gains[top]:+.2f}），两头都小。"
        f"{names[0]} 写了也错（直接答 {directs[0]:.4f}，思维链 {cots[0]:.4f}）；"
        f"{names[-1]} 不写也能对一大半（{directs[-1]:.2f}），增益回到 {gains[-1]:+.2f}。",
        has_one_peak(gains) and cots[0] < 0.01 and directs[-1] > 0.5,
    )
    observe(
        f"倍数没有峰，模型越大倍数越小：{names[0]} 是 {in_words(ratios[0])}，{names[-1]} 只有 {in_words(ratios[-1])}。"
        "小模型的每一步都太弱，乘上再大的倍数也还是接近 0。",
        all(a > b for a, b in zip(ratios, ratios[1:])),
    )
    peaks = []
    for n in PEAK_STEPS:
        problems_n = make_problem_set(random.Random(SEED), N_PROBLEMS, n, n)
        peaks.append(max(SIZES, key=lambda size: accuracy(size, True, problems_n) - accuracy(size, False, problems_n)))
    places = "，".join(f"{n} 步在 {ToyLLM(size).name}" for n, size in zip(PEAK_STEPS, peaks))
    observe(
        f"峰在哪里，看题目多长：{places}。题目出得越长，受益最多的模型越大。",
        all(a < b for a, b in zip(peaks, peaks[1:])),
    )
    observe(
        f"思维链要付钱。每多对一题，{names[0]} 多写 {written[0]} 个值，{names[top]} 只多写 "
        f"{written[top]} 个；可是大模型写一个值更贵。按算力算，{names[best]} 最省，{names[0]} 是它的 "
        f"{in_words(dearer[0])} 倍，{names[top]} 是 {in_words(dearer[top])} 倍：写得多，不等于花得多。",
        values[0] > 100 * values[top] and 2 < dearer[0] < dearer[top],
    )
    observe(
        "Wei et al.（2022a）：PaLM-540B 在 GSM8K 上从 17.9 到 56.9；小模型没有增益，甚至更差，"
        "因为写出来的步骤流畅却是错的。"
        "Kojima et al.（2022）：不给例子，只加一句触发语，GSM8K 也从 10.4 到 40.7。"
    )

    title(f"演示 3：分数丢在哪一步 —— {name} 的模型，{LONG} 步题的每一步")
    direct = accuracy_by_position(SIZE, False, problems)
    cot = accuracy_by_position(SIZE, True, problems)
    rows = [
        [f"第 {i + 1} 步", f"{direct[i]:.3f}", f"{cot[i]:.3f}", f"{NO_COT_PENALTY * i:.1f}"] for i in range(LONG)
    ]
    print_table(["步骤", "直接答", "思维链", "logit 减去"], rows)
    print("观察：")
    observe(
        f"直接答的每一步都比前一步差，从 {direct[0]:.2f} 掉到 {direct[-1]:.2f}；"
        f"思维链的每一步都在 {min(cot):.2f} 和 {max(cot):.2f} 之间，起伏只随题目的难易，不到直接答下降的 1/10。",
        all(a > b for a, b in zip(direct, direct[1:])) and max(cot) - min(cot) < 0.1 * (direct[0] - direct[-1]),
    )
    observe(
        f"三种做法里抽一种，是不是每步至少有 1/3 做对？不是：直接答的第 {LONG} 步只有 {direct[-1]:.3f}。"
        "1/3 是三个 logit 相等时的值，logit(correct) 可以比另外两个低得多。",
        direct[-1] < 1 / 3,
    )


if __name__ == "__main__":
    run_script(main)

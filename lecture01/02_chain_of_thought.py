"""
================================================================================
第 1 讲 · 02：思维链 —— 把中间步骤写出来，值多少，贵多少
================================================================================
对应讲义：lectures/lecture01_scaling_and_cot.md 第 3 节（Wei et al. 2022；Kojima et al. 2022）

【问题】让模型一步一步写（思维链，chain of thought, CoT），什么样的题、多大的模型得益最多？

【这里的设定】同一个模型，两种答法：
    直接答    cot=False：只写最后的答案，中间结果全靠"心算"，越往后越难；
    思维链    cot=True ：每一步的值都写在纸上，后面的步骤不因为位置靠后而变难。
"心算"的难处写成一条公式：第 i 步（从 1 数）的 logit(correct) 再减 NO_COT_PENALTY · (i - 1)。
正确率是每一步都做对的概率，用 path_probs 精确算出，不采样；价钱是写下的值的个数。
简化：真模型的思维链会写错格式、会编造步骤，所以 Wei et al. 里的小模型写了反而更差；
这里的思维链只有好处没有坏处，看不到那种反效果。

【公式】p(y|x) = Σ_r p(r|x) · p(y|x,r)：x 是题目，r 是思维链（推理过程，rationale），y 是答案。
在这个世界里正确的 r 只有一条，于是 P(全对) = p_1 · p_2 · … · p_n，两种答法只差在 p_i。

运行时间：约 0.5 秒，只用标准库。
"""
import math
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from toy_llm import (
    NO_COT_PENALTY, ToyLLM, check_ascending, check_int, make_problem_set, mean, observe, path_probs, print_table,
    run_script, title,
)

SIZE = 1e11  # 演示 1、3 用的模型的参数量
STEPS = (1, 2, 3, 4, 6, 8)  # 演示 1 的题目步数
SIZES = (1e8, 1e9, 1e10, 1e11, 1e12)  # 演示 2 的模型的参数量，从小到大
LONG = 8  # 演示 2、3 的题目步数
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


def price(n_steps, gain):
    """每多做对一道题，思维链要多写多少个值；没有增益时是 "-"。"""
    return f"{(n_steps - 1) / gain:.0f}" if gain > 0 else "-"


def main():
    check_int("LONG", LONG, 2, MAX_STEPS)
    check_ascending("SIZES", SIZES)
    check_int("STEPS 里最大的数", check_ascending("STEPS", STEPS)[-1], 1, MAX_STEPS)
    name = ToyLLM(SIZE).name

    title(f"演示 1：题目越长，思维链越值 —— {name} 的模型")
    rows, gains, ratios = [], [], []
    for n in STEPS:
        problems = make_problem_set(random.Random(SEED), N_PROBLEMS, n, n)
        direct, cot = accuracy(SIZE, False, problems), accuracy(SIZE, True, problems)
        gains.append(cot - direct)
        ratios.append(cot / direct)
        rows.append([f"{n} 步", f"{direct:.3f}", f"{cot:.3f}", f"{gains[-1]:+.3f}", f"{ratios[-1]:.3g}", f"1 / {n}"])
    print_table(["题目", "直接答", "思维链", "增益", "倍数", "写几个值（直接 / 思维链）"], rows)
    print("观察：")
    observe(
        f"{STEPS[0]} 步的题没有“中间步骤”，两种答法一样（增益 {gains[0]:.3f}）。",
        gains[0] == 0,
    )
    observe(
        f"步数越多，倍数越大：{STEPS[1]} 步时是 {ratios[1]:.3g} 倍，{STEPS[-1]} 步时是 {ratios[-1]:.3g} 倍。",
        all(a < b for a, b in zip(ratios, ratios[1:])),
    )
    observe(
        f"绝对的增益也在涨：从 {STEPS[1]} 步的 {gains[1]:+.2f} 到 {STEPS[-1]} 步的 {gains[-1]:+.2f}。",
        gains[-1] == max(gains) and gains[-1] > 3 * gains[1],
    )

    title(f"演示 2：模型越大，（绝对的）增益越大 —— {LONG} 步的题")
    problems = make_problem_set(random.Random(SEED), N_PROBLEMS, LONG, LONG)
    rows, cots, gains, ratios = [], [], [], []
    for size in SIZES:
        direct, cot = accuracy(size, False, problems), accuracy(size, True, problems)
        cots.append(cot)
        gains.append(cot - direct)
        ratios.append(cot / direct)
        cells = [f"{direct:.4f}", f"{cot:.4f}", f"{gains[-1]:+.4f}", f"{ratios[-1]:.3g}", price(LONG, gains[-1])]
        rows.append([ToyLLM(size).name, *cells])
    print_table(["规模", "直接答", "思维链", "增益", "倍数", "每多对一题多写的值"], rows)
    small, large = ToyLLM(SIZES[0]).name, ToyLLM(SIZES[-1]).name
    print("观察：")
    observe(
        f"{small} 两种答法都接近 0（思维链 {cots[0]:.4f}）；{large} 的增益是 {gains[-1]:.2f}，最大。",
        cots[0] < 0.01 and gains[-1] == max(gains) > 0.3,
    )
    observe(
        f"可是按倍数算正好相反，模型越大倍数越小：{small} 是 {ratios[0]:.3g} 倍，{large} 只有 {ratios[-1]:.3g} 倍。"
        "小模型的每一步都太弱，乘上再大的倍数也还是接近 0。",
        all(a > b for a, b in zip(ratios, ratios[1:])),
    )
    observe(
        f"思维链要付钱：{LONG} 步的题每答一次多写 {LONG - 1} 个值。每多对一题，"
        f"{large} 多写 {price(LONG, gains[-1])} 个值，{small} 要多写 {price(LONG, gains[0])} 个，贵 100 倍以上。",
        gains[-1] > 100 * gains[0],
    )
    observe(
        "Wei et al.（2022）：PaLM-540B 在 GSM8K 上从 17.9 到 56.9；小模型没有增益，甚至更差，"
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
        f"思维链的每一步都在 {min(cot):.2f} 左右或更高，不因为位置靠后而变差。",
        all(a > b for a, b in zip(direct, direct[1:])) and abs(cot[-1] - cot[0]) < 0.05,
    )
    observe(
        f"三种做法里抽一种，不等于“至少有 1/3 做对”：直接答的第 {LONG} 步只有 {direct[-1]:.3f}。"
        "1/3 是三个 logit 相等时的值，logit(correct) 可以比另外两个低得多；温度升到无穷大才会回到 1/3。",
        direct[-1] < 1 / 3,
    )


if __name__ == "__main__":
    run_script(main)

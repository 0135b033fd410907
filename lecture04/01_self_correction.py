"""
================================================================================
第 4 讲 · 01：自我修正 —— 没有新信息，再想一遍有用吗？
================================================================================
对应讲义：lectures/lecture04_feedback_tools_code.md 第 2 节
（Huang et al. 2023；Madaan et al. 2023, Self-Refine；Shinn et al. 2023, Reflexion）

【问题】让模型"请再检查一遍"，正确率会升吗？报告里的提升从哪里来？

【这里的设定】模型先答一遍，再修正几轮。每一轮由批评者（critic）说"对"或"错"，说错就从头再答：
    重做      每一轮都再答，以新的答案为准；
    逼问      不看对错，有 PRESS 的机会说"一定有错"：可以写回原答案，或必须换一个**不同的**；
    标准答案  答案错了才说错（oracle）：对了就停；
    验证器    第 2 讲的 ORM，分数低于 CUT 就说错。噪声越大，批评越不准。
简化：批评只有"对"或"错"，没有内容；真的模型还会看着旧答案改，这里不看（必须换时除外）。
"对"指答案对（Sample.correct），碰巧的也算。

【公式】A 是正确率；h 是对的被改错的比例（改错率），f 是错的被改对的比例（改对率）：
    A' = A·(1 - h) + (1 - A)·f        重做：h = 1 - A，f = A（单独一道题），A' = A：不动点
有批评者时，错的有 a1 的机会被说"错"，对的有 a0 的机会也被说"错"。h0、f0 是被说"错"**以后**的改错率、
改对率：h = a0·h0，f = a1·f0，增益 (1 - A)·a1·f0 - A·a0·h0；重做时，单独一道题是 p(1 - p)·(a1 - a0)。
两边一样准（a1 = a，a0 = 1 - a）时，A' > A 当且仅当 a 超过保本准确率
    a* = A·h0 / (A·h0 + (1 - A)·f0)        重做：a* = 1/2；必须换：高得多

运行时间：约 1 秒，只用标准库。
"""
import random
import sys
from pathlib import Path

LECTURE = Path(__file__).resolve().parent
sys.path[:0] = [str(LECTURE), str(LECTURE.parent / "lecture02")]
from tts_tools import (
    ORM, ToyLLM, check_ascending, check_int, check_number, check_seeds, fmt_size, majority_vote, make_problem_set, mean,
    observe, pass_at_k, print_table, run_script, title,
)

SIZES = (1e9, 1e10, 1e11)  # 演示 1、2：模型的参数量
MODEL_SIZE = 1e10  # 演示 3、4：模型的参数量
TEMPERATURE = 0.7  # 采样温度
N_PROBLEMS = 200  # 多少道题
MIN_STEPS, MAX_STEPS = 3, 8  # 题目最少、最多几步
REPEATS = 10  # 每道题重复几遍
ROUNDS = 3  # 修正几轮
PRESS = 0.3  # 逼问：一轮里被告知"一定有错"的概率（1 就是每轮都逼）
MAX_REDRAWS = 50  # 必须换：最多重抽这么多次，还是同一个答案就算了
NOISES = (0.0, 0.3, 0.6, 1.2, 5.0)  # 演示 4：验证器噪声的标准差
CUT = 0.5  # 验证器的分数低于它就说"错"（对的答案平均 1 分，错的平均 0 分）
SET_SEED = 400  # 出题的随机种子
SAMPLE_SEED = 401  # 作答的随机种子
CRITIC_SEED = 402  # 验证器噪声的种子


def redo(model, problem, old, rng):
    """重做：从头再答，不看旧答案。"""
    return model.generate(problem, rng, TEMPERATURE)


def forced_change(model, problem, old, rng):
    """
    必须换一个不同的答案：一直抽到不同为止（抽了 MAX_REDRAWS 次还一样，就留着旧的）。

    【简化】重抽多少次都只记一次调用：旧答案若真是错的，等于免费排除了一个错的答案。
    """
    for _ in range(MAX_REDRAWS):
        new = model.generate(problem, rng, TEMPERATURE)
        if new.answer != old.answer:
            return new
    return old


def correct_rounds(model, problems, rng, says_wrong, revise=redo, rounds=ROUNDS):
    """
    先答一遍，再修正 rounds 轮。

    【参数】says_wrong(problem, sample) → bool：批评者说"错"吗；revise：说错以后怎样再答。
    【返回】[(正确率, 对→错的次数, 错→对的次数, 已用的调用次数)]，第 0 项是修正之前。
    """
    now = [(p, model.generate(p, rng, TEMPERATURE)) for p in problems for _ in range(REPEATS)]
    calls = len(now)
    log = [(mean(s.correct for _, s in now), 0, 0, calls)]
    for _ in range(rounds):
        broken = mended = 0
        for j, (problem, old) in enumerate(now):
            if says_wrong(problem, old):
                new = revise(model, problem, old, rng)
                broken += old.correct and not new.correct
                mended += new.correct and not old.correct
                calls += 1
                now[j] = (problem, new)
        log.append((mean(s.correct for _, s in now), broken, mended, calls))
    return log


def break_even(accuracy, h0, f0):
    """
    保本准确率 a*：批评者比它准，修正才有赚。

    【参数】accuracy：A；h0、f0：被说"错"以后的改错率、改对率。
    【边界】A·h0 与 (1-A)·f0 都是 0（怎么改都不变）时没有定义：ValueError。
    """
    loss, gain = accuracy * h0, (1 - accuracy) * f0
    if loss + gain == 0:
        raise ValueError("h0 与 f0 应当至少有一个起作用，收到的是改不坏、也改不好的情形：TEMPERATURE 太低时会这样")
    return loss / (loss + gain)


def rate(flags):
    """真的比例；一个也没有时算 0。"""
    flags = list(flags)
    return mean(flags) if flags else 0.0


def show_rounds(rows):
    print_table(["模型", "方式", *(f"第 {t} 轮" for t in range(ROUNDS + 1)), "对→错", "错→对"], rows)
    print(f"  （对→错、错→对是 {ROUNDS} 轮的合计；每一轮有 {N_PROBLEMS * REPEATS} 份作答）")


def row_of(name, how, log):
    return [name, how, *(f"{acc:.3f}" for acc, *_ in log), sum(r[1] for r in log), sum(r[2] for r in log)]


def main():
    check_ascending("SIZES", SIZES, low=1)
    check_ascending("NOISES", NOISES, low=0)
    check_number("MODEL_SIZE", MODEL_SIZE, 0, open_low=True)
    for name in ("REPEATS", "ROUNDS", "MAX_REDRAWS", "N_PROBLEMS", "MIN_STEPS"):
        check_int(name, globals()[name], 1)
    check_int("MAX_STEPS", MAX_STEPS, MIN_STEPS)
    check_number("PRESS", PRESS, 0, 1)
    check_number("CUT", CUT)
    check_number("TEMPERATURE", TEMPERATURE, 0, open_low=True)
    check_seeds(SET_SEED=SET_SEED, SAMPLE_SEED=SAMPLE_SEED, CRITIC_SEED=CRITIC_SEED)

    title("演示 1：再检查一遍 —— 没有新信息，重做是不动点")
    problems = make_problem_set(random.Random(SET_SEED), N_PROBLEMS, MIN_STEPS, MAX_STEPS)
    rng = random.Random(SAMPLE_SEED)
    models = [ToyLLM(size) for size in SIZES]
    plain = [correct_rounds(model, problems, rng, lambda p, s: True) for model in models]
    show_rounds([row_of(model.name, "重做", log) for model, log in zip(models, plain)])
    print("观察：")
    broken, mended = (sum(r[i] for log in plain for r in log) for i in (1, 2))
    observe(
        f"正确率原地不动。三个模型一共改错 {broken} 个、改对 {mended} 个：一边修好，一边弄坏，两边一样多。",
        abs(broken - mended) < 0.1 * (broken + mended)
        and all(abs(acc - log[0][0]) < 0.05 for log in plain for acc, *_ in log),
    )
    observe(
        "Huang et al.（2023）让模型自己检查两轮，没有外部信号：GSM8K 上 GPT-3.5 从 75.9 到 75.1、74.7，GPT-4 从 "
        "95.5 到 91.5、89.0。独立重做不会下降；演示 2 是一种会下降的改法。"
    )

    title(f"演示 2：“一定有错，再想想” —— 每轮有 {PRESS:.0%} 的机会被逼问")
    asked, pressed = (
        [correct_rounds(m, problems, rng, lambda p, s: rng.random() < PRESS, revise) for m in models]
        for revise in (redo, forced_change)
    )
    rows = []
    for model, *logs in zip(models, asked, pressed):
        rows += [row_of(model.name, how, log) for how, log in zip(("逼问，可以写回", "逼问，必须换"), logs)]
    show_rounds(rows)
    best, changes = pressed[-1], [log[-1][0] - log[0][0] for log in pressed]
    print("观察：")
    observe(
        f"必须换：最大的模型从 {best[0][0]:.3f} 掉到 {best[-1][0]:.3f}。它多半本来就对，只能换成错的。",
        best[-1][0] < best[0][0] - 0.1,
    )
    observe(
        f"越强的模型越吃亏：{fmt_size(SIZES[0])} 只变了 {changes[0]:+.3f}，{fmt_size(SIZES[-1])} 变了 "
        f"{changes[-1]:+.3f}，中间的也按次序排。本来就错的答案，换一个并不亏。",
        all(a > b for a, b in zip(changes, changes[1:])) and changes[-1] < changes[0] - 0.1,
    )
    observe(
        f"同样的逼问，只要可以写回，就不动：{fmt_size(SIZES[-1])} 从 {asked[-1][0][0]:.3f} 到 {asked[-1][-1][0]:.3f}。"
        "让成绩下降的不是问，是不许写回。",
        all(abs(log[-1][0] - log[0][0]) < 0.04 for log in asked),
    )

    title("演示 3：标准答案说“停” —— 这样的提升就是 pass@k 换了个名字")
    model = ToyLLM(MODEL_SIZE)
    oracle = correct_rounds(model, problems, rng, lambda p, s: not s.correct)
    n = 10 * (ROUNDS + 1)
    pools = [(p, [model.generate(p, rng, TEMPERATURE) for _ in range(n)]) for p in problems]
    counts = [sum(s.correct for s in pool) for _, pool in pools]
    coverage = [mean(pass_at_k(n, c, k) for c in counts) for k in range(1, ROUNDS + 2)]
    votes = []
    for k in range(1, ROUNDS + 2):
        groups = [(p, pool[i : i + k]) for p, pool in pools for i in range(0, n - k + 1, k)]
        votes.append(mean(majority_vote([s.answer for s in group]) == p.answer() for p, group in groups))
    rows = [
        [f"第 {t} 轮", f"{acc:.3f}", f"{calls / oracle[0][3]:.2f}", t + 1, f"{coverage[t]:.3f}", f"{votes[t]:.3f}"]
        for t, (acc, _, _, calls) in enumerate(oracle)
    ]
    print_table(["修正", "正确率", "平均调用", "最多调用 k", "独立采样 pass@k", "k 票多数"], rows)
    print("观察：")
    observe(
        f"修正 {ROUNDS} 轮：{oracle[0][0]:.3f} → {oracle[-1][0]:.3f}。独立采样的 pass@{ROUNDS + 1} 是 "
        f"{coverage[-1]:.3f}：每一轮都对得上。功劳全在标准答案，不在反思。",
        all(abs(acc - coverage[t]) < 0.05 for t, (acc, *_) in enumerate(oracle)) and oracle[-1][0] > oracle[0][0] + 0.1,
    )
    observe(
        f"不许看标准答案，同样最多 {ROUNDS + 1} 次调用，多数投票有 {votes[-1]:.3f}：比修正的 {oracle[-1][0]:.3f} 低，"
        f"比只答一次的 {coverage[0]:.3f} 高。这才是公平的对手。",
        coverage[0] + 0.01 < votes[-1] < oracle[-1][0] - 0.03,
    )
    observe("Huang et al.（2023）：GPT-3.5 在 GSM8K 上用标准答案决定何时停，75.9 → 84.3；更早的报告用了这样的标签。")

    title("演示 4：验证器当批评者 —— 多准才够用")
    spread = mean(c * (n - c) / (n * (n - 1)) for c in counts)  # 每道题 p(1-p) 的无偏估计，再平均
    # 每份作答先配好一次重做（借同一题的上一份作答）、一次必须换；各档噪声用同一批，差别只在批评者
    trios = [(pool[i], pool[i - 1], forced_change(model, p, pool[i], rng)) for p, pool in pools for i in range(n)]
    right = [old.correct for old, _, _ in trios]
    A = mean(right)
    h0 = rate(not forced.correct for old, _, forced in trios if old.correct)
    f0 = rate(forced.correct for old, _, forced in trios if not old.correct)
    line = break_even(A, h0, f0)
    rows, results = [], []
    for noise in NOISES:
        critic = ORM(noise, seed=CRITIC_SEED)
        flags = [critic.score(p, s.values) < CUT for p, pool in pools for s in pool]  # 说"错"
        accuracy = mean(r != flag for r, flag in zip(right, flags))
        a1, a0 = (rate(flag for r, flag in zip(right, flags) if r == kind) for kind in (False, True))
        gains = [mean(flag * (trio[j].correct - trio[0].correct) for trio, flag in zip(trios, flags)) for j in (1, 2)]
        results.append((accuracy, spread * (a1 - a0), gains[0], (1 - A) * a1 * f0 - A * a0 * h0, gains[1]))
        rows.append([f"{noise:g}", f"{accuracy:.3f}", *(f"{x:+.3f}" for x in results[-1][1:])])
    print_table(["验证器的噪声", "准确率", "重做：公式", "重做：测得", "必须换：公式", "必须换：测得"], rows)
    print(f"  （平均 p(1-p) = {spread:.3f}；A = {A:.3f}；必须换：h0 = {h0:.3f}，f0 = {f0:.3f}，a* = {line:.3f}）")
    print("观察：")
    ranked = sorted(results)  # 从不准到准
    low, high = ranked[0], ranked[-1]
    observe(
        f"重做：增益 = 平均 p(1-p)（{spread:.3f}）×（错的被说错的比例 - 对的被说错的比例），保本准确率是 1/2。越准赚得"
        f"越多：准确率 {low[0]:.2f} 时 {low[2]:+.3f}，{high[0]:.2f} 时 {high[2]:+.3f}。",
        all(a[2] < b[2] for a, b in zip(ranked, ranked[1:])) and high[2] > 0.1
        and all(abs(r[1] - r[2]) < 0.03 and abs(r[3] - r[4]) < 0.03 for r in results),
    )
    observe(
        f"必须换答案：保本准确率升到 {line:.2f}（测出来的 h0、f0 代进公式）。准确率 {high[0]:.2f} 时 "
        f"{high[4]:+.3f}，{low[0]:.2f} 时 {low[4]:+.3f}：批评者不够准，不如不改。",
        line > 0.55 and all(r[4] * (r[0] - line) > 0 for r in results if abs(r[0] - line) > 0.08)
        and high[4] > 0 > low[4],
    )
    observe(
        "Self-Refine（Madaan et al. 2023）七个任务平均涨约 20 个百分点，数学却只有 92.9 → 93.1（GPT-4）：算错了它看不"
        "出来。Reflexion（Shinn et al. 2023）在 50 道难题上：不反思 60，没有测试只反思 52，有测试又反思 68。"
    )


if __name__ == "__main__":
    run_script(main)

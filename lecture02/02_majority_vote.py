"""
================================================================================
第 2 讲 · 02：多数投票 —— 票越多越准吗？
================================================================================
对应讲义：lectures/lecture02_test_time_scaling.md 第 3 节
（Wang et al. 2022, "Self-Consistency"；Brown et al. 2024）

【问题】没有验证器，就让 k 次作答投票，票数最多的答案当作最后的答案。k 越大越好吗？

【这里的设定】题目短（3～5 步），所以最终答案的分布可以精确算出来（answer_law）。按它的众数
（mode，概率最大的答案）把题分成两组：对组的众数是正确答案，错组的众数是错答案。两组各自投票。
"答对"指最后的答案对（Sample.correct）：投票只看得见答案。
平票时取最先达到最高票数的答案（majority_vote）。
简化：真的任务里答案的分布不知道，也就不知道一道题属于哪一组，这正是投票的难处。

【公式】投票     answer = argmax_a Σ_i [a_i = a]
        三票     P(3 票对) - P(1 票对) = p · ( p(1-p) - S )，S = Σ q_a²，a 取遍错答案
        极限     k → ∞ 时，众数对的题走到 1，众数错的题走到 0
p 是正确答案的概率，q_a 是错答案 a 的概率。S 是两份作答都错、而且错成同一个答案的概率：错误越分散，S 越小。

运行时间：约 1.5 秒，只用标准库。
"""
import math
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from tts_tools import (
    ToyLLM, answer_law, check_counts, check_int, check_number, check_seeds, coverage, majority_vote, make_problem_set,
    mean, observe, print_table, run_script, sample_index, sample_traces, title,
)

SIZE = 3e9  # 模型的参数量
N_PROBLEMS = 150  # 题数
MIN_STEPS, MAX_STEPS = 3, 5  # 每题的步数在这个范围里
LONGEST = 6  # MAX_STEPS 的上限：再长，精确的答案分布就算得太慢
SET_SEED = 22  # 出题的随机种子
KS = (1, 3, 5, 11, 25, 51, 101)  # 几票，从少到多
TOP = 5  # 演示 1：打印概率最大的几个答案
POOL = 303  # 每题采样多少份作答，切成 POOL / k 次投票来平均
SAMPLE_SEED = 23  # 作答的随机种子
P_RIGHT = 0.35  # 演示 3：正确答案的概率
P_BUG = 0.45  # 演示 3：共同的错答案的概率，其余的散在 N_RIVALS 个答案上
N_RIVALS = 13  # 演示 3：分散的错答案有几个
N_VOTES = 1500  # 演示 3：每个 k 投多少次
VOTE_SEED = 24  # 演示 3：投票的随机种子


def three_votes(law, truth):
    """三票投对的精确概率：p + p·(p(1-p) - S)。三票各不相同时第一票赢。"""
    p = law.get(truth, 0.0)
    collide = math.fsum(q * q for answer, q in law.items() if answer != truth)
    return p + p * (p * (1 - p) - collide)


def vote_accuracy(pool, truth, k):
    """把 pool（答案的列表）切成每段 k 个，各投一次票，返回投对的比例。"""
    return mean(majority_vote(pool[i : i + k]) == truth for i in range(0, len(pool) - k + 1, k))


def split_by_mode(problems, laws):
    """按众数分组：{"对组": [(题目, 分布, 众数)], "错组": …}。有一组是空的就 ValueError。"""
    groups = {"对组": [], "错组": []}
    for problem, law in zip(problems, laws):
        mode = max(law, key=law.get)
        groups["对组" if mode == problem.answer() else "错组"].append((problem, law, mode))
    if not all(groups.values()):
        raise ValueError(f"SIZE = {SIZE:g}、N_PROBLEMS = {N_PROBLEMS} 时所有题都在同一组：换一个规模，或多出些题")
    return groups


def is_shared_bug(sample):
    """这份作答的错处是不是全部来自固定的错误规则（没有手滑）。"""
    return not sample.sound and "careless" not in sample.procs


def draw_answers(law, n, rng):
    """从 {答案: 概率} 里独立抽 n 个答案。"""
    answers, probs = list(law), list(law.values())
    return [answers[sample_index(probs, rng)] for _ in range(n)]


def main():
    check_counts("KS", KS, high=10000)
    check_number("SIZE", SIZE, 0, 1e15, open_low=True)
    check_int("N_PROBLEMS", N_PROBLEMS, 1, 2000)
    check_int("MIN_STEPS", MIN_STEPS, 1, check_int("LONGEST", LONGEST, 1, 7))
    check_int("MAX_STEPS", MAX_STEPS, MIN_STEPS, LONGEST)
    check_int("TOP", TOP, 1, 50)
    check_int("POOL", POOL, KS[-1], 10000)
    check_number("P_RIGHT", P_RIGHT, 0, 1)
    check_number("P_BUG", P_BUG, 0, 1 - P_RIGHT)
    check_int("N_RIVALS", N_RIVALS, 1, 1000)
    check_int("N_VOTES", N_VOTES, 1, 100000)
    check_seeds(SET_SEED=SET_SEED, SAMPLE_SEED=SAMPLE_SEED, VOTE_SEED=VOTE_SEED)
    if 3 not in KS:
        raise ValueError(f"KS 里应当有 3（三票有精确值可以对照），收到的是 {KS!r}")
    model = ToyLLM(SIZE)

    title("演示 1：一道题的答案分布 —— 正确答案不是众数")
    problems = make_problem_set(random.Random(SET_SEED), N_PROBLEMS, MIN_STEPS, MAX_STEPS)
    laws = [answer_law(model, problem) for problem in problems]
    groups = split_by_mode(problems, laws)
    problem, law, _ = max(groups["错组"], key=lambda item: item[1].get(item[0].answer(), 0.0))
    print(f"  {problem}；正确答案 {problem.answer()}")
    ranked = sorted(law.items(), key=lambda item: -item[1])[:TOP]
    rows = [[answer, f"{q:.3f}", "是" if answer == problem.answer() else "不是"] for answer, q in ranked]
    print_table(["答案", "概率", "是不是正确答案"], rows)

    rng = random.Random(SAMPLE_SEED)
    pools, blame = {name: [] for name in groups}, []
    for name, items in groups.items():
        for problem, _, mode in items:
            samples = sample_traces(model, problem, POOL, rng)
            pools[name].append([s.answer for s in samples])
            if name == "错组":
                blame += [is_shared_bug(s) for s in samples if s.answer == mode]
    print("观察：")
    observe(
        f"{len(problems)} 题里 {len(groups['错组'])} 题的众数是错的。交出这些众数的作答，"
        f"有 {mean(blame):.0%} 的错处全部来自 bug：手滑各滑各的，bug 却人人一样。",
        mean(blame) > 0.8,
    )

    title(f"演示 2：票数与正确率 —— {model.name} 模型（投票是采样值，覆盖率是精确值）")
    share = len(groups["对组"]) / len(problems)
    limits = {"对组": 1.0, "错组": 0.0, "全部": share}
    votes = {
        name: [mean(vote_accuracy(pool, item[0].answer(), k) for pool, item in zip(pools[name], items)) for k in KS]
        for name, items in groups.items()
    }
    votes["全部"] = [share * a + (1 - share) * b for a, b in zip(votes["对组"], votes["错组"])]
    groups["全部"] = groups["对组"] + groups["错组"]
    cover = {
        name: [mean(coverage(min(1.0, law.get(p.answer(), 0.0)), k) for p, law, _ in items) for k in KS]
        for name, items in groups.items()
    }
    rows = []
    for i, k in enumerate(KS):
        rows.append([f"{k} 票", *(f"{table[name][i]:.3f}" for name in limits for table in (votes, cover))])
    rows.append(["k → ∞", *(f"{x:.3f}" for limit in limits.values() for x in (limit, 1.0))])
    exact = {name: mean(three_votes(law, p.answer()) for p, law, _ in items) for name, items in groups.items()}
    rows.append(["3 票 精确", *(text for name in limits for text in (f"{exact[name]:.3f}", "—"))])
    print_table(["票数", *(name + what for name in limits for what in ("投票", "覆盖"))], rows)
    good, bad, total = votes["对组"], votes["错组"], votes["全部"]
    peak = max(range(len(KS)), key=bad.__getitem__)
    print("观察：")
    observe(
        f"对组：{good[0]:.3f} → {good[-1]:.3f}，票越多越准，虽然单次正确率不到一半。",
        good[0] < 0.5 and good[-1] > 0.85 and all(b > a - 0.01 for a, b in zip(good, good[1:])),
    )
    observe(
        f"错组：先升后降，{bad[0]:.3f} → {bad[peak]:.3f}（{KS[peak]} 票）→ {bad[-1]:.3f}（{KS[-1]} 票），"
        "极限是 0。票少的时候看不出投票有害。",
        0 < peak < len(KS) - 1 and bad[peak] > 1.1 * bad[0] and bad[-1] < 0.85 * bad[peak],
    )
    gap = max(abs(exact[name] - votes[name][KS.index(3)]) for name in limits)
    observe(f"三票的精确值与采样值最多差 {gap:.3f}：采样没有走样。", gap < 0.02)
    observe(
        f"全部题目：投票停在 {total[-1]:.3f}（极限 {share:.3f}），覆盖率却已是 {cover['全部'][-1]:.3f}。"
        "对的答案写出来了，票却选不中它：这就是生成与验证的差距（generation-verification gap）。",
        cover["全部"][-1] - total[-1] > 0.15 and abs(total[-1] - share) < 0.05,
    )

    title(f"演示 3：只换错误的形状 —— 单次正确率都是 {P_RIGHT}")
    spread = {f"错 {i}": (1 - P_RIGHT) / N_RIVALS for i in range(N_RIVALS)}
    shared = {"bug": P_BUG, **{f"错 {i}": (1 - P_RIGHT - P_BUG) / N_RIVALS for i in range(N_RIVALS)}}
    shapes = {"错误分散": {"对": P_RIGHT, **spread}, "一个共同的 bug": {"对": P_RIGHT, **shared}}
    rng = random.Random(VOTE_SEED)
    curves = {
        name: [mean(majority_vote(draw_answers(law, k, rng)) == "对" for _ in range(N_VOTES)) for k in KS]
        for name, law in shapes.items()
    }
    rows = [[f"{name} 采样", *(f"{x:.3f}" for x in curve)] for name, curve in curves.items()]
    for name, law in shapes.items():
        known = {1: law["对"], 3: three_votes(law, "对")}
        rows.append([f"{name} 精确", *(f"{known[k]:.3f}" if k in known else "—" for k in KS)])
    print_table(["错误的形状", *(f"{k} 票" for k in KS)], rows)
    scattered, one = curves["错误分散"], curves["一个共同的 bug"]
    print("观察：")
    observe(
        f"错误分散：{scattered[0]:.3f} → {scattered[-1]:.3f}。正确答案只占 {P_RIGHT:.0%}，也能赢："
        "没有一个错答案比它多。",
        scattered[-1] > 0.95,
    )
    observe(
        f"有一个更常见的 bug：{KS[-1]} 票时只剩 {one[-1]:.3f}，比一票（{one[0]:.3f}）还差。",
        one[-1] < 0.6 * one[0],
    )
    observe(
        "Wang et al.（2022）：40 个样本投票，PaLM-540B 在 GSM8K 上 56.5 → 74.4；UL2-20B 只有 4.1 → 7.3。"
        "Brown et al.（2024）：Llama-3-8B-Instruct 在 MATH 上从 100 个样本到 10000 个，覆盖率 82.9% → 98.44%，"
        "最好的选择办法只从 40.50% 到 41.41%。"
    )


if __name__ == "__main__":
    run_script(main)

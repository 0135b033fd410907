"""
================================================================================
第 6 讲 · 06：能力边界 —— RL 扩展了能力，还是只让它更常做对？
================================================================================
对应讲义：lectures/lecture06_scaling_rl.md 第 8 节（Yue et al. 2025；Shao et al. 2024, DeepSeekMath）

【问题】RL 之后 pass@1 高了许多。给基座模型足够多的次数，它会不会反而解出更多的题？

【这里的设定】在 02 的世界里，RL 之后每个 k 的 pass@k 都更高，两条曲线不相交。要看到论文里的交叉，
只需再造进去两件事：
    少数题   MINORITY 这么多的题，正确做法恰好是别的题里的 bug：题目说明要用那条"错误规则"算；
    共用     两类题共用一张参数表；少数题另有一张自己的表，两张相加。
**没有**造进去的：少数题看得出来，自己的表也足够表达正确做法。学不到它，不是因为装不下。
输的也不必是少数：各占一半，输的仍是它们，因为想要的做法起步弱（练习）。
对照组"分开"：两类题各用各的表，其余相同（"共用"时少数题的梯度加到两张表上，等于步子大一倍，仍学不会）。
一次作答算对，是指每一步都用了这道题想要的做法。
训练是 02 的 GRPO（每组 GROUP 个样本，优势 =（奖励 - 组平均）/ 组内标准差）。
简化：真的模型里"共用"处处都在，也没有标明哪些题是少数；少数题的比例在这里是随手定的。

【公式】p 是一题的正确率：沿正确的路，把每一步用对做法的概率乘起来，是精确值。pass@k = 1 - (1-p)^k。

运行时间：约 3 秒，只用标准库。
"""
import math
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from trainable_llm import (
    PROCEDURES, TEMPERATURE, TrainableLLM, add_grpo_group, apply_bug, apply_op, check_counts, check_each, check_int,
    check_number, check_seeds, check_setting, make_problem_set, mean, observe, pass_at_k, print_table, run_script,
    title,
)

BASE_SIZE = 3e8  # 基座模型的参数量
MINORITY = 0.1  # 少数题所占的比例
N_TRAIN, N_TEST = 400, 60  # 训练题与测试题的数量
MIN_STEPS, MAX_STEPS = 3, 4  # 每道题的步数范围
TRAIN_SET_SEED, TEST_SET_SEED = 170, 171  # 两个题集的随机种子
GROUP = 8  # GRPO 每道题的样本数 G
BATCH = 16  # 每步几道题
REPORT = (0, 5, 10, 20, 40, 100, 300)  # 在这些步记一行；最后一个就是训练的步数
LR = 2.0  # 学习率
RUN_SEED = 172  # 训练的随机种子，共用与分开各从它开始
KS = (1, 4, 16, 64, 256, 1024)  # 画 pass@k 曲线的 k；最大的 k 也是采样核对时每题的样本数
SAMPLE_SEED = 173  # 演示 2 采样核对的随机种子

WANTED = {"多数": "correct", "少数": "bug"}  # 每类题想要的做法
TABLES = {  # 每类题用哪几张参数表；用到的表相加
    "共用": {"多数": ("共用表",), "少数": ("共用表", "少数专用")},
    "分开": {"多数": ("多数专用",), "少数": ("少数专用",)},
}


class Policy:
    """几张参数表，每类题把自己的几张相加。view(kind) 是这类题面前的模型，一个普通的 TrainableLLM。"""

    def __init__(self, uses):
        self.uses = uses
        self.tables = {name: TrainableLLM(BASE_SIZE) for names in uses.values() for name in names}

    def view(self, kind):
        delta = {}
        for name in self.uses[kind]:
            for key, offsets in self.tables[name].delta.items():
                delta[key] = [x + y for x, y in zip(delta.get(key, (0.0, 0.0, 0.0)), offsets)]
        return TrainableLLM(BASE_SIZE, delta)

    def update(self, grads, lr):
        """【推导】logit 是几张表之和，对每张表的导数都等于对 logit 的导数：同一个梯度加到每张表上。"""
        for kind, by_context in grads.items():
            for name in self.uses[kind]:
                for key, g in by_context.items():
                    offsets = self.tables[name].delta.setdefault(key, [0.0] * len(g))
                    for i, value in enumerate(g):
                        offsets[i] += lr * value


def make_tasks(rng, n):
    """n 道题，前 MINORITY 这么多是少数题：[(problem, kind)]。"""
    problems = make_problem_set(rng, n, MIN_STEPS, MAX_STEPS)
    n_minority = round(MINORITY * n)
    return [(problem, "少数" if i < n_minority else "多数") for i, problem in enumerate(problems)]


def solved(sample, kind):
    """每一步都用了这类题想要的做法吗？"""
    return all(proc == WANTED[kind] for proc in sample.procs)


def success_prob(model, problem, kind):
    """一次作答就做对的概率 p（精确值）：沿着这类题的正确的路，把每一步的概率乘起来。"""
    wanted, right_rule = PROCEDURES.index(WANTED[kind]), apply_op if WANTED[kind] == "correct" else apply_bug
    p, x = 1.0, problem.start
    for i, step in enumerate(problem.steps):
        p *= model.step_probs(step.op, x, step.operand, i, TEMPERATURE)[wanted]
        x = right_rule(step.op, x, step.operand)
    return p


def pass_k(p, k):
    """1 - (1-p)^k；用 log1p 和 expm1，p 很小时也不丢位数。"""
    return 1.0 if p >= 1 else -math.expm1(k * math.log1p(-p))


def mixed(p, n):
    """一组 n 个样本里有对也有错的概率：只有这样的组才给出梯度。"""
    return 1 - p**n - (1 - p) ** n


def success_probs(policy, tasks):
    """每道题的正确率：[(p, kind)]。"""
    views = {kind: policy.view(kind) for kind in WANTED}
    return [(success_prob(views[kind], problem, kind), kind) for problem, kind in tasks]


def train(uses, train_set, test_set, rng):
    """GRPO 训练，返回 (策略, {步: success_probs(测试题)})；第 0 步是基座模型。"""
    policy, curve = Policy(uses), {}
    for step in range(max(REPORT) + 1):
        if step in REPORT:
            curve[step] = success_probs(policy, test_set)
        views = {kind: policy.view(kind) for kind in WANTED}
        grads = {kind: {} for kind in WANTED}
        for problem, kind in rng.sample(train_set, BATCH):
            samples = [views[kind].generate(problem, rng, TEMPERATURE) for _ in range(GROUP)]
            rewards = [int(solved(sample, kind)) for sample in samples]
            add_grpo_group(grads[kind], views[kind], problem, samples, rewards, BATCH * GROUP)
        policy.update(grads, LR)
    return policy, curve


def coverage(probs, k, kind=None):
    """pass@k 在测试题上的平均；kind 给出时只看这一类。"""
    return mean(pass_k(p, k) for p, its_kind in probs if kind in (None, its_kind))


def measured_coverage(policy, tasks, rng, n, ks):
    """真的采样：每题 n 个，用无偏估计算 pass@k。"""
    counts = []
    for problem, kind in tasks:
        view = policy.view(kind)
        counts.append(sum(solved(view.generate(problem, rng, TEMPERATURE), kind) for _ in range(n)))
    return {k: mean(pass_at_k(n, c, k) for c in counts) for k in ks}


def check_constants():
    check_setting(BASE_SIZE, N_TRAIN, N_TEST, MIN_STEPS, MAX_STEPS)
    check_int("GROUP", GROUP, 2, 5000)
    check_int("BATCH", BATCH, 1, min(5000, N_TRAIN))
    check_counts("KS", KS, 1, 5000, at_least=1)
    check_each("REPORT", REPORT, check_int, 0, 5000)
    if min(REPORT) != 0 or max(REPORT) == 0:
        raise ValueError(f"REPORT 应当从 0 开始，此外至少还有一步，收到的是 {REPORT!r}")
    check_seeds(TRAIN_SET_SEED=TRAIN_SET_SEED, TEST_SET_SEED=TEST_SET_SEED, RUN_SEED=RUN_SEED, SAMPLE_SEED=SAMPLE_SEED)
    check_number("LR", LR, 0, 100)
    check_number("MINORITY", MINORITY, 0, 1)
    if not all(0 < round(MINORITY * n) < n for n in (N_TRAIN, N_TEST)):
        raise ValueError(f"MINORITY 应当让训练题和测试题里两类都至少有一道，收到的是 {MINORITY}")


def curve_table(curve):
    """训练曲线的表，每行一个步数；返回 {步: 少数题的活组占多少}。"""
    rows, alive = [], {}
    for step, probs in curve.items():
        alive[step] = mean(mixed(p, GROUP) for p, kind in probs if kind == "少数")
        rows.append([step, *(f"{coverage(probs, k):.3f}" for k in (1, KS[-1])),
                     *(f"{coverage(probs, 1, kind):.4f}" for kind in WANTED), f"{alive[step]:.3f}"])
    print_table(["步", "pass@1", f"pass@{KS[-1]}", "多数 pass@1", "少数 pass@1", "少数的活组"], rows)
    return alive


def main():
    check_constants()
    title(f"演示 1：共用参数，少数题占 {MINORITY:.0%} —— 越练越窄")
    train_set = make_tasks(random.Random(TRAIN_SET_SEED), N_TRAIN)
    test_set = make_tasks(random.Random(TEST_SET_SEED), N_TEST)
    shared, curve = train(TABLES["共用"], train_set, test_set, random.Random(RUN_SEED))
    alive = curve_table(curve)
    first, last, k_max = min(curve), max(curve), KS[-1]
    base, narrow = curve[first], curve[last]
    majority = 1 - round(MINORITY * N_TEST) / N_TEST
    print("观察：")
    observe(
        f"pass@1 从 {coverage(base, 1):.3f} 升到 {coverage(narrow, 1):.3f}；同一次训练里，pass@{k_max} 从 "
        f"{coverage(base, k_max):.3f} 落到 {coverage(narrow, k_max):.3f}，正好剩下多数题的比例。",
        coverage(narrow, 1) > 4 * coverage(base, 1)
        and coverage(narrow, k_max) < coverage(base, k_max) - 0.03
        and abs(coverage(narrow, k_max) - majority) < 0.02,
    )
    observe(
        f"少数题的活组（有对有错、能给出梯度）本来就少：{alive[first]:.3f}；多数题把共用的表推向另一边，"
        f"最后只剩 {alive[last]:.3f}。全错的组优势全是 0，不再教任何东西，于是再也回不来。",
        0.01 < alive[first] < 0.3 and alive[last] < 0.001,
    )

    title("演示 2：pass@k 曲线 —— 在哪个 k 交叉？")
    separate, separate_curve = train(TABLES["分开"], train_set, test_set, random.Random(RUN_SEED))
    wide = separate_curve[last]
    rng = random.Random(SAMPLE_SEED)
    sampled = [measured_coverage(policy, test_set, rng, k_max, KS) for policy in (Policy(TABLES["共用"]), shared)]
    exact = {k: [coverage(probs, k) for probs in (base, narrow, wide)] for k in KS}
    rows = [[k, *(f"{x:.3f}" for x in exact[k]), *(f"{one[k]:.3f}" for one in sampled)] for k in KS]
    print_table(["k", "基座", "RL（共用）", "RL（分开）", "基座，采样", "RL（共用），采样"], rows)
    crossing = next((k for k in range(1, k_max + 1) if coverage(base, k) > coverage(narrow, k)), None)
    only_base, only_rl = (
        [kind for (p, kind), (q, _) in zip(one, other) if pass_k(p, k_max) >= 0.5 > pass_k(q, k_max)]
        for one, other in ((base, narrow), (narrow, base))
    )
    worst = max(abs(one[k] - exact[k][i]) for i, one in enumerate(sampled) for k in KS)
    print("观察：")
    observe(
        f"k = 1 时 RL（共用）高出 {coverage(narrow, 1) - coverage(base, 1):.3f}；基座一路追，"
        f"{f'从 k = {crossing} 起反超' if crossing else '始终没有追上'}。这就是 Yue et al.（2025）报告的形状："
        "RL 把答案提到前面来，没有把新的答案带进来。",
        crossing is not None and coverage(narrow, 1) > coverage(base, 1) + 0.5,
    )
    observe(
        f"试 {k_max} 次，RL 解得出、基座解不出（机会不到一半）的题有 {len(only_rl)} 道；反过来有 {len(only_base)} 道，"
        "全是少数题。RL 解出的题几乎是基座解出的一个子集。",
        len(only_rl) <= 0.05 * N_TEST and len(only_base) > 2 * len(only_rl) and set(only_base) == {"少数"},
    )
    observe(f"每题真的采 {k_max} 个样本、用无偏估计，与精确值最多差 {worst:.3f}。", worst < 0.03)

    title("演示 3：对照 —— 两类题的参数分开，其余不变")
    alive = curve_table(separate_curve)
    print("观察：")
    observe(
        f"交叉消失了：每一个 k 上 RL（分开）都不低于基座，pass@{k_max} 停在 {coverage(wide, k_max):.3f}。",
        all(exact[k][2] > exact[k][0] - 1e-3 for k in KS) and coverage(wide, k_max) > 0.99,
    )
    observe(
        f"少数题起步同样难（活组 {alive[first]:.3f}），没有人往反方向推，就慢慢学会了：pass@1 到 "
        f"{coverage(wide, 1, '少数'):.2f}；共用时是 {coverage(narrow, 1, '少数'):.4f}。",
        coverage(wide, 1, "少数") > 0.3 and coverage(narrow, 1, "少数") < 0.001,
    )
    observe(
        "造进去的是“少数题”和“共用”；跑出来的是“活组消失”。少数题有自己的表，也看得出是少数，它仍然被放弃了。"
        "真实模型里交叉的原因是不是这一个，这个 toy 不能证明。"
    )


if __name__ == "__main__":
    run_script(main)

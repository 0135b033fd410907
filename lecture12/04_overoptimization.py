"""
================================================================================
第 12 讲 · 04：奖励过度优化 —— 分数一直在涨，人早就不满意了
================================================================================
对应讲义：lectures/lecture12_rlhf.md 第 5 节
（Gao et al. 2022；Stiennon et al. 2020；Singhal et al. 2023）

【问题】RM 分数能推多高？推过头的时候，策略到底在写什么？

【这里的设定】用 PPO 优化 RM，一路量 RM 分数和 r*。r* 在真实世界里看不见；这里看得见，
所以看得到两条曲线在哪里分手。RM 的盲点在第 11 讲 07 里量过：主语换错、动词写反，它平均起来像乱猜。
简化：Gao et al. 用一个大 RM 充当"真的"奖励（gold），这里的 r* 是写下来的规则；
他们的 RM 大得多，这里二十步就走完。

【公式】d = √KL(π || π_ref)，G 是 r* 比起点涨了多少。Gao et al. 给出两种不同的形状：
    best-of-N   G = d·(a - b·d)
    RL          G = d·(a - b·log d)
a、b 是拟合的系数（论文里写作 α、β，与 KL 惩罚的 β 无关）。

运行时间：约 20 秒，需要 torch。
"""
import copy
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from rlhf_lab import (
    FAULTS, PREFERENCE_SEEDS, RM_K, check_each, check_int, check_number, check_seeds, frozen_copy, human_reward,
    load_models, mean, observe, parse, print_table, ranked_answers, rm_reward, rollout_stats, run_script, setup_torch,
    split_polite, title, train_pg, train_reward_model,
)

BETAS = (0.0, 0.1, 0.3)  # 演示 1、2：KL 惩罚的系数，第一个最小（0 是没有惩罚）
STEPS = 20  # PPO 走多少步
EVERY = 4  # 每几步量一次
BATCH = 64  # 每一步采样多少条
LR = 6e-4  # 学习率（Adam）
TRAIN_SEED = 1  # PPO 的随机种子
EVAL_PROMPTS = 200  # 每次测量用多少道随机的题
EVAL_SEED = 77  # 测量的随机种子
RM_SIZES = (50, 200)  # 演示 3：只用这么多道题的偏好数据训练的 RM
RM_STEPS = 12  # 演示 3：拿它们当奖励，PPO 走多少步
N_SHOWN = 2  # 演示 4：每个策略给看几条回答


def optimise(sft, ref, rm, vocab, beta, steps=None):
    """PPO 优化 rm，走 steps 步（默认 STEPS），返回曲线 [(步数, rollout_stats)]，第一项是起点。"""
    policy, curve = copy.deepcopy(sft), []

    def measure(step):
        curve.append((step, rollout_stats(policy, ref, rm, vocab, EVAL_PROMPTS, EVAL_SEED)))

    measure(0)
    train_pg(policy, ref, vocab, rm_reward(rm, vocab), steps or STEPS, beta, "ppo", batch=BATCH, lr=LR, seed=TRAIN_SEED,
             callback=measure, every=EVERY)
    return curve


def peak_of(curve):
    """(步数, r*)：曲线上 r* 最高的那一点。"""
    return max(((step, stats["true"]) for step, stats in curve), key=lambda point: point[1])


def fit(curve, shape):
    """
    最小二乘拟合 G = d·(a - b·shape(d))，返回 (a, b, 均方根误差)。两个未知数，解 2×2 的方程。

    d 太小的点（起点附近）不用：d = 0 处 G 与公式都是 0，什么也没说。
    """
    points = [(math.sqrt(max(0.0, s["kl"])), s["true"] - curve[0][1]["true"]) for _, s in curve[1:]]
    points = [(d, gain) for d, gain in points if d > 0.1]
    if len(points) < 3:
        raise ValueError(f"STEPS / EVERY 应当大一些：拟合至少要 3 个离开起点的点，收到的是 {len(points)} 个")
    xs = [(d, -d * shape(d)) for d, _ in points]
    aa, ab, bb = (math.fsum(x[i] * x[j] for x in xs) for i, j in ((0, 0), (0, 1), (1, 1)))
    ay, by = (math.fsum(x[i] * gain for x, (_, gain) in zip(xs, points)) for i in (0, 1))
    det = aa * bb - ab * ab
    a, b = (ay * bb - by * ab) / det, (by * aa - ay * ab) / det
    errors = [(gain - a * x[0] - b * x[1]) ** 2 for x, (_, gain) in zip(xs, points)]
    return a, b, math.sqrt(mean(errors))


def habits(stats):
    """一批回答的毛病与习惯：四种不合格各占多少；读得通的回答里，主语平均几个形容词、有地点的占多少。"""
    read = [p for p in (parse(split_polite(answer)[1]) for _, answer in stats["answers"]) if p]
    return {**stats["faults"], "主语的形容词": mean(len(p.adjectives) for p in read) if read else 0.0,
            "有地点": mean(p.has_place for p in read) if read else 0.0}


def true_at_kl(curve, kl):
    """曲线上 KL 第一次到 kl 时的 r*（两点之间按直线算）；一直没到时是最后一点。"""
    for (_, a), (_, b) in zip(curve, curve[1:]):
        if a["kl"] <= kl <= b["kl"]:
            share = (kl - a["kl"]) / max(b["kl"] - a["kl"], 1e-9)
            return a["true"] + share * (b["true"] - a["true"])
    return curve[-1][1]["true"]


def main():
    check_int("STEPS", STEPS, 4)
    check_int("EVERY（STEPS 里至少量四次）", EVERY, 1, STEPS // 4)
    check_int("BATCH", BATCH, 2)
    check_int("EVAL_PROMPTS", EVAL_PROMPTS, 4)
    check_int("N_SHOWN", N_SHOWN, 1, 4)
    check_int("RM_STEPS", RM_STEPS, EVERY, STEPS)
    check_number("LR", LR, 0, 0.01, open_low=True)
    check_each("BETAS", BETAS, check_number, 0, at_least=2)
    check_each("RM_SIZES", RM_SIZES, check_int, 1)
    check_seeds(TRAIN_SEED=TRAIN_SEED, EVAL_SEED=EVAL_SEED)
    setup_torch()

    name_free = f"β = {BETAS[0]:g}"
    title(f"演示 1：{name_free}，RM 分数与 r* 在哪里分手")
    sft, rm, vocab = load_models()
    ref = frozen_copy(sft)
    curves = {beta: optimise(sft, ref, rm, vocab, beta) for beta in BETAS}
    free, tight = curves[BETAS[0]], curves[BETAS[-1]]
    columns = ("kl", "rm", "true", "valid")
    rows = [[str(step), *(f"{round(stats[key], 2) + 0.0:.2f}" for key in columns)] for step, stats in free]
    print_table(["步", "KL", "RM", "r*", "合格"], rows)
    peak = peak_of(free)
    start, end = free[0][1], free[-1][1]
    at_peak = dict(free)[peak[0]]
    print("观察：")
    observe(
        f"RM 分数从 {start['rm']:.2f} 升到 {end['rm']:.2f}，到最后还在涨（r* 到顶的时候是 {at_peak['rm']:.2f}）。",
        end["rm"] > at_peak["rm"] > start["rm"] and end["rm"] > free[-2][1]["rm"],
    )
    observe(
        f"r* 在第 {peak[0]} 步就到顶（{peak[1]:.2f}；每 {EVERY} 步才量一次），最后是 {end['true']:.2f}，"
        f"比起点的 {start['true']:.2f} 还低：合格的只剩 {end['valid']:.2f}。",
        peak[1] > start["true"] + 0.3 and end["true"] < start["true"],
    )

    title(f"演示 2：KL 惩罚有用吗（都走 {STEPS} 步）")
    rows = []
    for beta in BETAS:
        step, best = peak_of(curves[beta])
        last = curves[beta][-1][1]
        rows.append([f"{beta:g}", *(f"{last[key]:.2f}" for key in columns), f"{best:.2f}",
                     str(step), f"{true_at_kl(free, last['kl']):.2f}"])
    print_table(["β", "KL", "RM", "r*", "合格", "最高的 r*", "在第几步", f"{name_free} 同 KL 的 r*"], rows)
    rl, bon = fit(free, math.log), fit(free, lambda d: d)
    print("观察：")
    observe(
        f"β = {BETAS[-1]:g} 走完 {STEPS} 步，KL 只有 {tight[-1][1]['kl']:.1f}，r* 是 {tight[-1][1]['true']:.2f}，"
        f"还没有塌；{name_free} 走到 KL {end['kl']:.1f}，r* 是 {end['true']:.2f}。",
        tight[-1][1]["kl"] < 0.5 * end["kl"] and tight[-1][1]["true"] > start["true"] + 0.3
        and end["true"] < start["true"],
    )
    pairs = [(beta, curves[beta][-1][1]) for beta in BETAS[1:]]
    observe(
        "Gao et al.（2022）说 KL 惩罚只像早停：同样的 KL 上，有没有惩罚，r* 差不多（也说这一条可能随超参数变）。这里："
        + "；".join(f"β = {beta:g} 是 {s['true']:.2f}，{name_free} 是 {true_at_kl(free, s['kl']):.2f}"
                   for beta, s in pairs)
        + "。换几个训练种子，多数时候惩罚重的高，也有一样的，所以不当结论。"
    )
    observe(
        "Gao et al. 的两个公式拟合这条曲线，误差差不多（"
        + "；".join(f"{name}：a = {a:.2f}，b = {b:.2f}，误差 {error:.2f}" for name, (a, b, error) in (
            ("RL", rl), ("best-of-N", bon)))
        + "），点太少，分不出谁对。"
    )
    observe("两个公式都给出向下弯的曲线：拟合的 b 都是正的。", rl[1] > 0 and bon[1] > 0)

    title(f"演示 3：RM 的训练数据少一些（{name_free}）")
    rankings = ranked_answers(sft, vocab, max(RM_SIZES), RM_K, *PREFERENCE_SEEDS)
    by_size = {}
    for size in sorted(RM_SIZES):
        small = train_reward_model(sft, vocab, rankings[:size], log=False).requires_grad_(False)
        by_size[f"{size} 道题"] = optimise(sft, ref, small, vocab, BETAS[0], RM_STEPS)
    by_size["第 11 讲的 RM"] = [(step, stats) for step, stats in free if step <= RM_STEPS]
    rows = []
    for name, curve in by_size.items():
        step, best = peak_of(curve[1:])
        rows.append([name, f"{best:.2f}", str(step), f"{mean(s['true'] for _, s in curve[1:]):.2f}",
                     f"{curve[-1][1]['true']:.2f}", f"{curve[-1][1]['valid']:.2f}", f"{curve[-1][1]['kl']:.1f}"])
    ends = [curve[-1][1]["true"] for curve in by_size.values()]
    print_table(["RM 的偏好数据", "训练后最高的 r*", "在第几步", "一路平均的 r*", "最后的 r*", "合格", "KL"], rows)
    print("观察：")
    observe(
        f"同样走 {RM_STEPS} 步，数据少的 RM 塌得更深：最后的 r* 是 "
        + "、".join(f"{row[4]}（{row[0]}）" for row in rows[:-1]) + f"，{rows[-1][0]} 是 {rows[-1][4]}。",
        max(ends[:-1]) < ends[-1] - 0.1,
    )

    title("演示 4：推过头的策略在写什么")
    shown = {"起点": start, f"β = {BETAS[-1]:g}": tight[-1][1], name_free: end}
    rows = [[name, subject, " ".join(answer)[:56]] for name, stats in shown.items()
            for subject, answer in stats["answers"][:N_SHOWN]]
    print_table(["策略", "题", "回答（太长的截断）"], rows)
    wrong = [" → ".join((subject, " ".join(answer))) for subject, answer in end["answers"]
             if human_reward(subject, answer) == FAULTS["别的动物"]]
    print(f"  {name_free} 写错动物的一条：{wrong[0] if wrong else '没有'}\n")
    kinds = {name: habits(stats) for name, stats in shown.items()}
    before, after = kinds["起点"], kinds[name_free]
    print_table([f"{EVAL_PROMPTS} 条回答里", *kinds],
                [[key, *(f"{kind[key]:.2f}" for kind in kinds.values())] for key in before])
    print("观察：")
    observe(
        f"{name_free} 的策略堆形容词、加地点：主语的形容词从 {before['主语的形容词']:.1f} 个到 "
        f"{after['主语的形容词']:.1f} 个，有地点的从 {before['有地点']:.0%} 到 {after['有地点']:.0%}。",
        after["主语的形容词"] > 1.5 * before["主语的形容词"] and after["有地点"] > before["有地点"] + 0.3,
    )
    sins = [name for name in FAULTS if after[name] > before[name] + 0.03]
    observe(
        "不合格的也多起来：" + "，".join(f"{name} {before[name]:.2f} → {after[name]:.2f}" for name in FAULTS)
        + "。它去的正是 RM 看不见的地方（第 11 讲 07）。",
        len(sins) >= 2 and math.fsum(after[name] - before[name] for name in FAULTS) > 0.2,
    )
    observe(
        "Singhal et al.（2023）在真实的 RLHF 里量过：只用“回答有多长”当奖励，几乎赶得上真的 RM（WebGPT 上胜率 56% "
        "对 58%）；PPO 把长度从 100 推到 230 个 token。"
    )


if __name__ == "__main__":
    run_script(main)

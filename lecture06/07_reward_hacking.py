"""
================================================================================
第 6 讲 · 07：奖励作弊 —— 验证器的漏洞，会被 RL 找到
================================================================================
对应讲义：lectures/lecture06_scaling_rl.md 第 9 节（Denison et al. 2024；Wen et al. 2024）

【问题】验证器（verifier）有漏洞，奖励一路上涨，模型真的变好了吗？

【这里的设定】用 02 的 GRPO 训练，奖励来自两种有漏洞的验证器：
    个位  只核对答案绝对值的个位（01 的粗糙验证器）。很多 bug 恰好不改变个位；
    格式  答案对的通过；写成某种模板（template）的，不管内容一律通过。作答之前模型先决定
          写不写模板，概率由一个可学的 logit（gate）给出；写了模板就没有解题，答案必错。
代理奖励（proxy）是验证器的通过率，真实正确率是答案真对的比例。修补的办法是抽查：每道训练题
以概率 share 改用精确核对。
简化：真实的作弊是模型自己摸索出来的，这里作弊的动作事先摆好，只看它会不会被放大。

【公式】P(模板) = 1 / (1 + exp(-gate))，log P(模板) 对 gate 的导数是 1 - P，log P(解题) 的是 -P。
代理奖励 = P(模板) + (1 - P(模板))·正确率：两条路都能让它上升，一条要学十几种语境，另一条只要学一个数。

运行时间：约 3 秒，只用标准库。
"""
import math
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from trainable_llm import (
    HARD_CONTEXTS, TEMPERATURE, TrainableLLM, add_grad, apply_grads, check_ascending, check_choice, check_counts,
    check_each, check_int, check_number, check_seeds, check_setting, grpo_advantages, make_problem_set, mean, observe,
    print_table, run_script, sft, sigmoid, softmax, step_records, title,
)

HOLES = ("个位", "格式")  # 两种有漏洞的验证器；代码按名字认，不要改
BASE_SIZE = 1e9  # 基座模型的参数量
TEMPLATE_P = 0.02  # 训练开始时写模板的概率
GROUP, BATCH = 8, 16  # 每题采样几次；每步几道题
STEPS = 60  # 训练多少步
EVAL_EVERY = 5  # 每几步评测一次；表里隔一次显示一次
LR = 2.0  # 学习率
LRS = (1.0, 2.0, 4.0)  # 演示 2 比较的学习率，从小到大
SHARES = (0.05, 0.1, 0.2)  # 演示 3 比较的抽查比例，从小到大
SFT_ROUNDS = 8  # 演示 1：SFT 转几轮
SFT_EPOCHS = (30, 300)  # 演示 1：SFT 每轮从基座训练几遍；前一个是 01 用的，后一个差不多练到头
N_TRAIN, N_TEST = 300, 150  # 训练题与测试题的数量
N_EVAL = 3  # 评测时每道测试题答几次
MIN_STEPS, MAX_STEPS = 3, 8  # 每道题的步数范围
TRAIN_SET_SEED, TEST_SET_SEED = 170, 171  # 两个题集的随机种子
TRAIN_SEED, MORE_SEEDS = 172, (173, 174)  # 每次训练的随机种子；演示 3 抽查格式漏洞，另换这两个再训练


class Cheater(TrainableLLM):
    """多一个决定的模型：作答之前以 p_template 的概率写模板。gate 是 None 时没有这个选择。"""

    def __init__(self, size, gate=None):
        super().__init__(size)
        self.gate = gate

    @property
    def p_template(self):
        return 0.0 if self.gate is None else sigmoid(self.gate)

    def attempt(self, problem, rng):
        """作答一次，返回 Sample；写了模板时返回 None。"""
        if self.gate is not None and rng.random() < self.p_template:
            return None
        return self.generate(problem, rng, TEMPERATURE)


def passes(hole, problem, sample, exact=False):
    """验证器的判断。exact=True 是精确核对，没有漏洞；hole 不认识时 ValueError。"""
    check_choice("hole", hole, HOLES)
    if sample is None:
        return hole == "格式" and not exact
    if hole == "个位" and not exact:
        return abs(sample.answer) % 10 == abs(problem.answer()) % 10
    return sample.correct


def measure(model, hole, problems, rng):
    """(代理奖励, 真实正确率)：用同一批作答，一次问有漏洞的验证器，一次问精确的。"""
    pairs = [(problem, model.attempt(problem, rng)) for problem in problems for _ in range(N_EVAL)]
    return mean(passes(hole, *pair) for pair in pairs), mean(passes(hole, *pair, exact=True) for pair in pairs)


def train(hole, train_set, test_set, share=0.0, lr=LR, seed=TRAIN_SEED):
    """
    GRPO，奖励来自有漏洞的验证器，每道题以概率 share 改用精确核对。

    【返回】每次评测一个 dict：step，proxy 代理奖励，true 真实正确率，template 写模板的概率，contexts 各语境的概率。
    """
    rng, eval_rng = random.Random(seed), random.Random(f"评测 {seed}")
    model = Cheater(BASE_SIZE, math.log(TEMPLATE_P / (1 - TEMPLATE_P)) if hole == "格式" else None)
    history = []
    for step in range(STEPS + 1):
        if step % EVAL_EVERY == 0:
            proxy, true = measure(model, hole, test_set, eval_rng)
            contexts = {name: model.context_probs(key) for name, key in HARD_CONTEXTS.items()}
            history.append(dict(step=step, proxy=proxy, true=true, template=model.p_template, contexts=contexts))
        grads, gate_grad, probs, p = {}, 0.0, {}, model.p_template
        for problem in rng.sample(train_set, BATCH):
            exact = rng.random() < share
            samples = [model.attempt(problem, rng) for _ in range(GROUP)]
            rewards = [1.0 if passes(hole, problem, sample, exact) else 0.0 for sample in samples]
            for sample, advantage in zip(samples, grpo_advantages(rewards)):
                weight = advantage / (BATCH * GROUP)
                gate_grad += weight * ((1 - p) if sample is None else -p)
                if sample is not None and advantage:
                    for key, action in step_records(problem, sample):
                        probs[key] = probs.get(key) or model.context_probs(key)  # 一批之内只算一次
                        add_grad(grads, key, action, probs[key], weight)
        apply_grads(model, grads, lr)
        if model.gate is not None:
            model.gate += lr * gate_grad
    return history


def imitate(train_set, test_set, epochs):
    """对照：同一个"个位"验证器，换成 01 的做法（过滤、从基座 SFT epochs 遍），返回 (代理奖励, 真实正确率)。"""
    rng = random.Random(TRAIN_SEED)
    model = Cheater(BASE_SIZE)
    for _ in range(SFT_ROUNDS):
        pairs = [(problem, model.attempt(problem, rng)) for problem in train_set]
        model = sft(Cheater(BASE_SIZE), [pair for pair in pairs if passes("个位", *pair)], epochs)
    return measure(model, "个位", test_set, rng)


def equal_reward(probs):
    """只有一步，correct 与 bug 得 1 分、careless 得 0 分：从 probs 出发走 STEPS 步期望的梯度 π_i·(r_i - J)。"""
    logits = [math.log(p) for p in probs]
    for _ in range(STEPS):
        probs = softmax(logits, TEMPERATURE)
        logits = [z + LR * p * (r - probs[0] - probs[1]) for z, p, r in zip(logits, probs, (1, 1, 0))]
    return softmax(logits, TEMPERATURE)


def main():
    check_setting(BASE_SIZE, N_TRAIN, N_TEST, MIN_STEPS, MAX_STEPS, GROUP, BATCH)
    for name in ("STEPS", "EVAL_EVERY", "N_EVAL", "SFT_ROUNDS"):
        check_int(name, globals()[name], 1, STEPS if name == "EVAL_EVERY" else None)
    check_number("LR", LR, 0)
    check_ascending("LRS", LRS, 2, 0)
    for value in check_ascending("SHARES", SHARES, 2, 0):
        check_number("SHARES 里的数", value, 0, 1)
    check_counts("SFT_EPOCHS", SFT_EPOCHS, 1, 3000)
    check_each("MORE_SEEDS", MORE_SEEDS, check_int)
    check_seeds(TRAIN_SET_SEED=TRAIN_SET_SEED, TEST_SET_SEED=TEST_SET_SEED, TRAIN_SEED=TRAIN_SEED)
    check_number("TEMPLATE_P", TEMPLATE_P, 1e-6, 1 - 1e-6)

    title("演示 1：只核对个位 —— 代理奖励与真实正确率")
    train_set = make_problem_set(random.Random(TRAIN_SET_SEED), N_TRAIN, MIN_STEPS, MAX_STEPS)
    test_set = make_problem_set(random.Random(TEST_SET_SEED), N_TEST, MIN_STEPS, MAX_STEPS)
    loose, strict = (train("个位", train_set, test_set, share) for share in (0.0, 1.0))
    rows = [
        [a["step"], f"{a['proxy']:.3f}", f"{a['true']:.3f}", f"{a['proxy'] - a['true']:.3f}", f"{b['true']:.3f}"]
        for a, b in zip(loose[::2], strict[::2])
    ]
    print_table(["步数", "代理奖励", "真实正确率", "差", "精确核对训练的真实正确率"], rows)
    copies = {epochs: imitate(train_set, test_set, epochs) for epochs in SFT_EPOCHS}
    print(f"\n  同一个验证器，过滤后从基座 SFT，{SFT_ROUNDS} 轮：")
    rows = [[epochs, *(f"{x:.3f}" for x in (p, t, p - t))] for epochs, (p, t) in copies.items()]
    print_table(["每轮几遍", "代理奖励", "真实正确率", "差"], rows)
    (_, short), (long_proxy, long_true) = copies[SFT_EPOCHS[0]], copies[SFT_EPOCHS[-1]]
    end, target = loose[-1], strict[-1]["true"]
    pairs = {name: (loose[0]["contexts"][name], end["contexts"][name]) for name in HARD_CONTEXTS}
    easiest = next(iter(pairs))  # 加法的 bug 差 10，几乎总能通过个位核对
    a, b, c = pairs[easiest][0]
    for name, first in (("correct 起初多", (a, b, c)), ("bug 起初多", (b, a, c))):
        pairs[f"奖励相等，{name}"] = first, equal_reward(first)
    print("\n  每格：P(correct) / P(bug)。后两行是算出来的：只有一步，两种做法奖励相等")
    rows = [[name, *(f"{probs[0]:.3f} / {probs[1]:.3f}" for probs in pair)] for name, pair in pairs.items()]
    print_table(["语境", "训练前", f"RL {STEPS} 步"], rows)
    times = [[probs[0] / probs[1] for probs in pairs[name]] for name in (easiest, *list(pairs)[-2:])]
    print("观察：")
    observe(
        f"{end['step']} 步时代理奖励升到 {end['proxy']:.3f}，真实正确率才 {end['true']:.3f}（还在慢慢升），"
        f"精确核对训练的是 {target:.3f}：个位分不清“做对”和“错得不改个位”，后一种留了下来。",
        end["proxy"] > 0.9 and end["proxy"] - end["true"] > 0.08 and target > end["true"] + 0.03
        and end["true"] > loose[len(loose) // 2]["true"],
    )
    observe(
        f"同样的漏洞，SFT 每轮 {SFT_EPOCHS[-1]} 遍：代理奖励也有 {long_proxy:.3f}，真实正确率 {long_true:.3f}。"
        f"它按比例模仿通过的过程，对错都学，比 RL 差。每轮 {SFT_EPOCHS[0]} 遍的 {short:.3f}，多半是没有练够（01）。",
        long_proxy > 0.8 and long_true < end["true"] - 0.03 and short < long_true - 0.1,
    )
    observe(
        f"奖励分不开两种做法时，RL 把多的推得更多：“{easiest}”里 correct 起初是 bug 的 {times[0][0]:.1f} 倍，训练后 "
        f"{times[0][1]:.1f} 倍。最后两行奖励完全相等，谁起初多，谁就占得更多；真题里碰巧是 correct。",
        times[0][1] > 1.1 * times[0][0] and times[1][1] > 1.3 * times[1][0] and times[2][1] < times[2][0] / 1.3,
    )

    title(f"演示 2：模板一律通过 —— 先变好，再变坏（一开始 P(模板) = {TEMPLATE_P:g}）")
    runs = {lr: train("格式", train_set, test_set, lr=lr) for lr in LRS}
    rows = [
        [h[0]["step"], *(f"{x['proxy']:.2f} / {x['true']:.2f} / {x['template']:.2f}" for x in h)]
        for h in list(zip(*runs.values()))[::2]
    ]
    print("  每格：代理奖励 / 真实正确率 / P(模板)")
    print_table(["步数", *(f"学习率 {lr:g}" for lr in LRS)], rows)
    peaks = {lr: max(h["true"] for h in history) for lr, history in runs.items()}
    found = {lr: next((h["step"] for h in run if h["template"] > 0.5), STEPS) for lr, run in runs.items()}
    drops = [a["proxy"] - b["proxy"] for history in runs.values() for a, b in zip(history, history[1:])]
    print("观察：")
    observe(
        f"代理奖励一路上升，最后都在 {min(h[-1]['proxy'] for h in runs.values()):.2f} 以上；真实正确率先升后降："
        + "，".join(f"学习率 {lr:g} 到过 {peaks[lr]:.2f}，最后 {runs[lr][-1]['true']:.2f}" for lr in LRS) + "。",
        max(drops) < 0.06 and all(runs[lr][-1]["proxy"] > 0.9 for lr in LRS)
        and all(runs[lr][-1]["true"] < 0.5 * peaks[lr] and peaks[lr] > runs[lr][0]["true"] for lr in LRS),
    )
    observe(
        "学习率越大，漏洞找到得越早：P(模板) 过半是在第 " + "、".join(str(found[lr]) for lr in LRS) + " 步。"
        "只看奖励曲线，这几次训练都很成功。",
        found[LRS[0]] > found[LRS[-1]] and sorted(found.values(), reverse=True) == list(found.values()),
    )

    title("演示 3：抽查 —— 一小部分题用精确核对")
    keys = [(hole, share) for hole in HOLES for share in (0.0, *SHARES)]
    checked = {(hole, x): train(hole, train_set, test_set, x) for hole, x in keys}
    again = {(hole, x): [train(hole, train_set, test_set, x, seed=s)[-1] for s in MORE_SEEDS] for hole, x in keys[-2:]}
    rows = []
    for (hole, share), (*_, h) in checked.items():
        rows.append([hole, f"{share:.0%}", f"{h['proxy']:.3f}", f"{h['true']:.3f}",
                     f"{h['template']:.3f}" if hole == "格式" else "—",
                     "，".join(f"{more['true']:.3f}" for more in again.get((hole, share), ())) or "—"])
    print_table(["漏洞", "抽查", "代理奖励", "真实正确率", "P(模板)", "真实正确率，换种子"], rows)
    none, most = ({hole: checked[hole, x][-1]["true"] for hole in HOLES} for x in (0.0, SHARES[-1]))
    print("观察：")
    observe(
        f"抽查 {SHARES[-1]:.0%} 的题，真实正确率："
        + "，".join(f"{hole} {none[hole]:.3f} → {most[hole]:.3f}" for hole in HOLES)
        + f"（全部精确核对是 {target:.3f}）：补回了一大半。",
        all(most[hole] > none[hole] + 0.5 * (target - none[hole]) for hole in HOLES),
    )
    few, many = ([h["true"] for h in (checked[key][-1], *again[key])] for key in keys[-2:])
    observe(
        f"格式漏洞只抽查 {SHARES[-2]:.0%} 说不准：换种子，真实正确率在 {min(few):.3f}～{max(few):.3f} 之间，平均 "
        f"{mean(few):.3f}；{SHARES[-1]:.0%} 时平均 {mean(many):.3f}。",
        mean(many) > mean(few) + 0.1,
    )
    observe(
        "为什么一小部分就够：模型变好之后，没抽查的组全部通过，不再教任何东西；方向由抽查的组定。若模板先占了上风，"
        "抽查的组也全错，就救不回来。"
    )


if __name__ == "__main__":
    run_script(main)

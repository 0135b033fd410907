"""
================================================================================
第 6 讲 · 07：奖励作弊 —— verifier 的漏洞，会被 RL 找到
================================================================================
对应讲义：lectures/lecture06_scaling_rl.md 第 9 节
（Denison et al. 2024；Wen et al. 2024；01 的粗糙 verifier）

【问题】verifier 有漏洞，奖励一路上涨，模型真的变好了吗？

【这里的设定】用 02 的 GRPO 训练，奖励来自两种有漏洞的 verifier：
    个位  只核对答案绝对值的个位（01 的粗糙 verifier）。很多 bug 恰好不改变个位；
    格式  答案对的通过；写成某种模板（template）的，不管内容一律通过。作答之前模型先决定
          写不写模板，概率由一个可学的 logit（gate）给出；写了模板就没有解题，答案必错。
代理奖励（proxy）是 verifier 的通过率，真实正确率是答案真对的比例。修补的办法是抽查：每道训练题
以概率 share 改用精确核对。
简化：真实的作弊是模型自己摸索出来的，这里作弊的动作事先摆好，只看它会不会被放大。

【公式】P(模板) = 1 / (1 + exp(-gate))，log P(模板) 对 gate 的导数是 1 - P，log P(解题) 的是 -P。
代理奖励 = P(模板) + (1 - P(模板))·正确率：两条路都能让它上升，一条要学十几种语境，另一条只要学一个数。

运行时间：约 2.5 秒，只用标准库。
"""
import math
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from trainable_llm import (
    TEMPERATURE, TrainableLLM, add_grad, apply_grads, check_ascending, check_choice, check_int, check_number,
    grpo_advantages, make_problem_set, mean, observe, print_table, run_script, sft, step_records, title,
)

HOLES = ("个位", "格式")  # 两种有漏洞的 verifier
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
TRAIN_SEED = 172  # 训练的随机种子，每次训练各从它开始


class Cheater(TrainableLLM):
    """多一个决定的模型：作答之前以 p_template 的概率写模板。gate 是 None 时没有这个选择。"""

    def __init__(self, size, gate=None):
        super().__init__(size)
        self.gate = gate

    @property
    def p_template(self):
        return 0.0 if self.gate is None else 1 / (1 + math.exp(min(700.0, -self.gate)))  # 再小就溢出了

    def attempt(self, problem, rng):
        """作答一次，返回 Sample；写了模板时返回 None。"""
        if self.gate is not None and rng.random() < self.p_template:
            return None
        return self.generate(problem, rng, TEMPERATURE)


def passes(hole, problem, sample, exact=False):
    """verifier 的判断。exact=True 是精确核对，没有漏洞；hole 不认识时 ValueError。"""
    check_choice("hole", hole, HOLES)
    if sample is None:
        return hole == "格式" and not exact
    if hole == "个位" and not exact:
        return abs(sample.answer) % 10 == abs(problem.answer()) % 10
    return sample.correct


def measure(model, hole, problems, rng):
    """(代理奖励, 真实正确率)：用同一批作答，一次问有漏洞的 verifier，一次问精确的。"""
    pairs = [(problem, model.attempt(problem, rng)) for problem in problems for _ in range(N_EVAL)]
    return mean(passes(hole, *pair) for pair in pairs), mean(passes(hole, *pair, exact=True) for pair in pairs)


def train(hole, train_set, test_set, share=0.0, lr=None):
    """
    GRPO，奖励来自有漏洞的 verifier，每道题以概率 share 改用精确核对。

    【返回】每次评测一个 dict：step，proxy 代理奖励，true 真实正确率，template 写模板的概率。
    """
    lr = LR if lr is None else lr
    rng, eval_rng = random.Random(TRAIN_SEED), random.Random(f"评测 {TRAIN_SEED}")
    model = Cheater(BASE_SIZE, math.log(TEMPLATE_P / (1 - TEMPLATE_P)) if hole == "格式" else None)
    history = []
    for step in range(STEPS + 1):
        if step % EVAL_EVERY == 0:
            proxy, true = measure(model, hole, test_set, eval_rng)
            history.append({"step": step, "proxy": proxy, "true": true, "template": model.p_template})
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
                        if key not in probs:
                            probs[key] = model.context_probs(key)
                        add_grad(grads, key, action, probs[key], weight)
        apply_grads(model, grads, lr)
        if model.gate is not None:
            model.gate += lr * gate_grad
    return history


def imitate(train_set, test_set, epochs):
    """对照：同一个"个位" verifier，换成 01 的做法（过滤、从基座 SFT epochs 遍），返回 (代理奖励, 真实正确率)。"""
    rng = random.Random(TRAIN_SEED)
    model = Cheater(BASE_SIZE)
    for _ in range(SFT_ROUNDS):
        pairs = [(problem, model.attempt(problem, rng)) for problem in train_set]
        model = sft(Cheater(BASE_SIZE), [pair for pair in pairs if passes("个位", *pair)], epochs)
    return measure(model, "个位", test_set, rng)


def first_step(history, holds):
    """第一次满足 holds 的步数；一直没有时是最后一步。"""
    return next((h["step"] for h in history if holds(h)), history[-1]["step"])


def main():
    for name in ("STEPS", "EVAL_EVERY", "N_EVAL", "SFT_ROUNDS"):
        check_int(name, globals()[name], 1, STEPS if name == "EVAL_EVERY" else None)
    check_int("GROUP", GROUP, 2)
    check_int("BATCH", BATCH, 1, N_TRAIN)
    check_number("LR", LR, 0)
    check_ascending("LRS", LRS, 2, 0)
    for value in check_ascending("SHARES", SHARES, 1, 0):
        check_number("SHARES 里的数", value, 0, 1)
    for value in check_ascending("SFT_EPOCHS", SFT_EPOCHS):
        check_int("SFT_EPOCHS 里的数", value, 1, 3000)
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
    print(f"\n  同一个 verifier，过滤后从基座 SFT，{SFT_ROUNDS} 轮：")
    rows = [[epochs, *(f"{x:.3f}" for x in (p, t, p - t))] for epochs, (p, t) in copies.items()]
    print_table(["每轮几遍", "代理奖励", "真实正确率", "差"], rows)
    (_, short), (long_proxy, long_true) = copies[SFT_EPOCHS[0]], copies[SFT_EPOCHS[-1]]
    end, target = loose[-1], strict[-1]["true"]
    print("观察：")
    observe(
        f"{end['step']} 步时代理奖励升到 {end['proxy']:.3f}，真实正确率才 {end['true']:.3f}（还在慢慢升），"
        f"精确核对训练的是 {target:.3f}：个位分不清“做对”和“错得不改个位”，两种都被放大。",
        end["proxy"] > 0.9 and end["proxy"] - end["true"] > 0.08 and target > end["true"] + 0.03
        and end["true"] > loose[len(loose) // 2]["true"],
    )
    observe(
        f"同样的漏洞，SFT 每轮 {SFT_EPOCHS[-1]} 遍：代理奖励也有 {long_proxy:.3f}，真实正确率 {long_true:.3f}。"
        f"它按比例模仿通过的过程，对错都学，比 RL 差。每轮只练 {SFT_EPOCHS[0]} 遍的 {short:.3f}，多半是没有练够"
        "（01 的演示 3）。",
        long_proxy > 0.8 and long_true < end["true"] - 0.03 and short < long_true - 0.1,
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
    found = {lr: first_step(history, lambda h: h["template"] > 0.5) for lr, history in runs.items()}
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
    checked = {("个位", 0.0): loose, ("格式", 0.0): runs.get(LR) or train("格式", train_set, test_set)}
    for hole in HOLES:
        checked.update({(hole, share): train(hole, train_set, test_set, share) for share in SHARES})
    rows = []
    for hole in HOLES:
        for share in (0.0, *SHARES):
            h = checked[hole, share][-1]
            template = f"{h['template']:.3f}" if hole == "格式" else "—"
            rows.append([hole, f"{share:.0%}", f"{h['proxy']:.3f}", f"{h['true']:.3f}", template])
    print_table(["漏洞", "抽查", "代理奖励", "真实正确率", "P(模板)"], rows)
    most = {hole: checked[hole, SHARES[-1]][-1]["true"] for hole in HOLES}
    none = {hole: checked[hole, 0.0][-1]["true"] for hole in HOLES}
    print("观察：")
    observe(
        f"抽查 {SHARES[-1]:.0%} 的题，真实正确率："
        + "，".join(f"{hole} {none[hole]:.3f} → {most[hole]:.3f}" for hole in HOLES)
        + f"（全部精确核对是 {target:.3f}）：补回了一大半。",
        all(most[hole] > none[hole] + 0.5 * (target - none[hole]) for hole in HOLES),
    )
    observe(
        "为什么一小部分就够：模型变好之后，没抽查的组全部通过，优势是 0，不再教任何东西；只有抽查的组还有对有错，"
        "方向由它们定。抽查来不及生效之前模板就占了上风的话，这么少的抽查就救不回来。"
    )
    observe(
        "真实的例子：Denison et al.（2024）里，经过一串可钻空子的任务训练的模型，32,768 次里有 45 次去改自己的奖励；"
        "Wen et al.（2024）里，RLHF 让人更常认可答案，正确率却几乎没有变。"
    )


if __name__ == "__main__":
    run_script(main)

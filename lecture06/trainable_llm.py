"""
================================================================================
第 6 讲 · 工具箱：可以训练的 toy LLM —— 给每种语境配三个可学的数
================================================================================
对应讲义：lectures/lecture06_scaling_rl.md 第 1 节

【这里的设定】
第 1 讲的模型不会学习。这里给它参数：每一种**语境**（context）有三个偏移 delta，加在
三种做法（correct、bug、careless）的 logit 上。语境 = (运算, 难度)：

    47 × 12  →  ("mul", 1.5)        472 × 12  →  ("mul", 2.2)

    logits(语境) = ToyLLM 的 logits + delta[语境]
    π(做法 | 语境) = softmax(logits)

于是"训练语言模型"在这里就是调十几组三个数。训练只用一个公式，softmax 的对数梯度：

    log π(a) 对 logits 的梯度 = onehot(a) - probs

a 是抽中的做法，probs 是三种做法的概率，onehot(a) 在 a 处是 1、别处是 0。

【简化】真的模型里参数是所有 token 共用的；这里同一语境的步骤共用参数，不同语境互不影响。
所以这里没有遗忘，也没有举一反三。

本文件供第 6 讲各脚本使用。直接运行它，看未训练的 1B 模型。运行时间：约 0.1 秒，只用标准库。
"""
import math
import random
import sys
from functools import lru_cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "lecture01"))
from toy_llm import (
    ALPHA, BETA, LOGIT_BUG, LOGIT_CARELESS, PROCEDURES, REF_SIZE, ToyLLM, apply_bug, apply_op, bar, check_ascending,
    check_choice, check_counts, check_each, check_int, check_number, check_seeds, make_problem_set, mean, observe,
    pad, pass_at_k, path_probs, print_table, run_script, sample_index, sigmoid, softmax, step_hardness, title,
)

__all__ = [  # 前半是从第 1 讲借来的：各脚本只从本文件导入
    "PROCEDURES", "apply_bug", "apply_op", "check_ascending", "check_choice", "check_counts", "check_each",
    "check_int", "check_number", "check_seeds", "make_problem_set", "mean", "observe", "pass_at_k", "path_probs",
    "print_table", "run_script", "sample_index", "sigmoid", "softmax", "title",
    "HARD_CONTEXTS", "TEMPERATURE", "TrainableLLM", "add_grad", "add_grpo_group", "apply_grads", "check_setting",
    "context_key", "context_report", "entropy", "entropy_of", "evaluate", "exact_scores", "grpo_advantages",
    "probs_for", "sft", "step_records", "true_contexts", "value_at",
]

TEMPERATURE = 1.0  # 第 6 讲训练和评测的温度；公式里的梯度只在温度 1 时成立
HARD_CONTEXTS = {  # 四种有名字的语境，从易到难
    "加法，无进位": ("add", 0.0),
    "乘一位数": ("mul", 0.0),
    "乘两位数": ("mul", 1.5),
    "乘两位数、被乘数 ≥ 100": ("mul", 2.2),
}
N_ACTIONS = len(PROCEDURES)
ACTION_INDEX = {proc: i for i, proc in enumerate(PROCEDURES)}


def check_setting(base_size, n_train, n_test, min_steps, max_steps, group=2, batch=1):
    """检查各脚本都有的常数 BASE_SIZE、N_TRAIN、N_TEST、MIN_STEPS、MAX_STEPS（GROUP、BATCH 有的有）：ValueError。"""
    check_number("BASE_SIZE", base_size, 0, open_low=True)
    for name, count in (("N_TRAIN", n_train), ("N_TEST", n_test), ("MIN_STEPS", min_steps)):
        check_int(name, count, 1)
    check_int("MAX_STEPS", max_steps, min_steps)
    check_int("GROUP", group, 2)
    check_int("BATCH", batch, 1, n_train)


# ==============================================================================
# 一、语境与模型
# ==============================================================================
def context_key(op, a, b):
    """这一步属于哪种语境：(op, 难度保留一位小数)。【例子】context_key("mul", 472, 12) = ("mul", 2.2)"""
    return _rounded(op, step_hardness(op, a, b))


@lru_cache(maxsize=1 << 10)  # 只缓存"舍入"：难度的常数改了，键也跟着变
def _rounded(op, hardness):
    return op, round(hardness, 1)


class TrainableLLM(ToyLLM):
    """
    有参数的 ToyLLM：delta = {语境: [三个偏移]}，没有出现的语境是三个 0。总是写草稿（cot）。

    构造时复制 delta，所以两个模型不会共用参数。
    """

    def __init__(self, size, delta=None, name=None):
        super().__init__(size, cot=True, name=name)
        self.delta = {key: list(offsets) for key, offsets in (delta or {}).items()}
        for key, offsets in self.delta.items():
            if len(offsets) != N_ACTIONS:
                raise ValueError(f"delta 的每一项应当有 {N_ACTIONS} 个数，{key} 处收到的是 {offsets!r}")

    def copy(self, name=None):
        """一个独立的副本：训练它不会动到原来的模型。name 不给时沿用原名。"""
        return type(self)(self.size, self.delta, self.name if name is None else name)

    def step_logits(self, op, a, b, step_index):
        """第 1 讲的三个 logit，加上这种语境的偏移。"""
        return self._logits(op, step_hardness(op, a, b))

    def _logits(self, op, hardness):
        """公式写在这一处：采样和"由语境直接算"用的是同一个（测试核对它与 ToyLLM 一致）。"""
        correct = ALPHA[op] + BETA * math.log10(self.size / REF_SIZE) - hardness
        offsets = self.delta.get(_rounded(op, hardness))
        if offsets is None:
            return [correct, LOGIT_BUG, LOGIT_CARELESS]
        return [correct + offsets[0], LOGIT_BUG + offsets[1], LOGIT_CARELESS + offsets[2]]

    def context_probs(self, key):
        """一种语境里三种做法的概率（温度 1），由公式直接算出，不需要具体的题目。"""
        op, hardness = key
        check_choice("语境的运算", op, ALPHA)
        return softmax(self._logits(op, hardness), TEMPERATURE)

    def p_correct(self, key):
        """一种语境里做对的概率（精确值）。"""
        return self.context_probs(key)[0]


# ==============================================================================
# 二、梯度：softmax 的 log π 只有一个公式
# ==============================================================================
def step_records(problem, sample):
    """
    一次作答里模型做过的每个决定：[(语境, 做法的下标)]，长度 n_steps。

    每一步的输入是前面**写下**的值，不是正确值：模型是在自己的错误之上继续写的。
    """
    inputs = (problem.start, *sample.values)
    return [
        (context_key(step.op, x, step.operand), ACTION_INDEX[proc])
        for step, x, proc in zip(problem.steps, inputs, sample.procs)
    ]


def probs_for(model, problem, sample):
    """作答里每一步三种做法的概率，长度 n_steps 的列表。"""
    inputs = (problem.start, *sample.values)
    return [
        model.step_probs(step.op, x, step.operand, i, TEMPERATURE)
        for i, (step, x) in enumerate(zip(problem.steps, inputs))
    ]


def add_grad(grads, key, action, probs, weight):
    """
    把一个决定的梯度累加进 grads：grads[key] += weight · (onehot(action) - probs)。

    【推导】log π(a) = z_a - log Σ exp(z_j)，对 z_i 求导得 1[i = a] - π(i)。
    【参数】grads：{语境: [三个数]}，就地修改；action：做法的下标；weight：优势，或 SFT 里的 1。
    """
    g = grads.get(key)
    if g is None:
        g = grads[key] = [0.0] * N_ACTIONS
    for i, p in enumerate(probs):
        g[i] -= weight * p
    g[action] += weight


def apply_grads(model, grads, lr):
    """梯度**上升**一步：delta += lr · 梯度（我们在最大化奖励或似然，不是最小化损失）。"""
    for key, g in grads.items():
        offsets = model.delta.setdefault(key, [0.0] * N_ACTIONS)
        for i, value in enumerate(g):
            offsets[i] += lr * value


def sft(model, data, epochs=30, lr=2.0):
    """
    监督微调（supervised fine-tuning，SFT）：提高 data 里每个决定的 log π。就地修改 model 并返回它。

    【思路】全批量的梯度上升：所有样本、所有步骤的梯度相加，除以总步数。同一语境的概率相同，
    所以先数清每种语境里各做法出现几次，再算梯度，不必逐步重复。
    【参数】data：[(problem, sample)]；epochs：遍数 ≥ 0；lr：学习率 ≥ 0。
    【边界】data 为空：没有东西可学，原样返回。遍数不多时还没有学到数据的水平（01 的演示 3）。
    """
    check_int("epochs", epochs, 0)
    check_number("lr", lr, 0)
    counts = {}
    for problem, sample in data:
        for key, action in step_records(problem, sample):
            counts.setdefault(key, [0] * N_ACTIONS)[action] += 1
    total = sum(sum(row) for row in counts.values())
    for _ in range(epochs):
        grads = {}
        for key, row in counts.items():
            grads[key] = [(count - sum(row) * p) / total for count, p in zip(row, model.context_probs(key))]
        apply_grads(model, grads, lr)
    return model


def grpo_advantages(rewards, epsilon=1e-6):
    """GRPO 的优势 (r - 组平均) / (组标准差 + epsilon)，标准差是总体的（ddof 0）；02 里有它的来历。"""
    average = mean(rewards)
    std = math.sqrt(mean((r - average) ** 2 for r in rewards))
    return [(r - average) / (std + epsilon) for r in rewards]


def add_grpo_group(grads, model, problem, samples, rewards, n_samples):
    """
    把一道题的一组样本的 GRPO 梯度累加进 grads；06、08 用它，02 里是摊开来写的。

    【参数】model：求梯度用的模型；samples、rewards：这一组的作答和奖励；n_samples：一批的总样本数，梯度除以它。
    【边界】全对或全错的组优势全是 0，grads 不变。
    """
    for sample, advantage in zip(samples, grpo_advantages(rewards)):
        if advantage:
            for (key, action), probs in zip(step_records(problem, sample), probs_for(model, problem, sample)):
                add_grad(grads, key, action, probs, advantage / n_samples)


# ==============================================================================
# 三、评测
# ==============================================================================
def evaluate(model, problems, rng, n=4, ks=(1,), temperature=TEMPERATURE):
    """
    在 problems 上采样评测，每题 n 个样本，返回 {k: pass@k 的平均}（"对"指最后的答案对）。

    【参数】ks：要算的 k；temperature：采样的温度，02 用它看降温能换来什么。
    【边界】problems 为空，n < 1，或 ks 里有 k > n：ValueError。
    """
    check_int("n", n, 1)
    if not problems:
        raise ValueError("problems 应当至少有一道题，收到的是空的")
    counts = [sum(model.generate(problem, rng, temperature).correct for _ in range(n)) for problem in problems]
    return {k: mean(pass_at_k(n, c, k) for c in counts) for k in ks}


def entropy(probs):
    """一个分布的熵（entropy），单位 nat：-Σ p log p。全部概率在一种做法上时是 0。"""
    return -math.fsum(p * math.log(p) for p in probs if p > 0)


def entropy_of(model, problems, rng, n=2):
    """
    策略的平均熵：让模型每题自己作答 n 次，沿途每一步的熵取平均。
    熵是模型还剩多少"别的可能"：它到 0，再多的采样也只是重复同一个答案。
    """
    check_int("n", n, 1)
    values = []
    for problem in problems:
        for _ in range(n):
            values.extend(entropy(p) for p in probs_for(model, problem, model.generate(problem, rng, TEMPERATURE)))
    return mean(values)


def true_contexts(problems):
    """每道题沿着正确的路经过的语境：[[语境, …], …]。"""
    return [
        [context_key(step.op, x, step.operand) for step, x in zip(p.steps, (p.start, *p.true_values))] for p in problems
    ]


def exact_scores(model, paths):
    """
    不采样的评测：(每一步都对的概率, 沿途每一步的熵)，在各题上取平均，都是精确值。

    【参数】paths：true_contexts 的结果。
    【简化】与 evaluate、entropy_of 差一点：碰巧答对的不算，走错之后的步骤也不算。
    """
    probs = {key: model.context_probs(key) for key in {key for path in paths for key in path}}
    entropies = {key: entropy(p) for key, p in probs.items()}
    return mean(math.prod(probs[key][0] for key in path) for path in paths), mean(
        entropies[key] for path in paths for key in path
    )


def context_report(model):
    """四种有名字的语境里做对的概率：{名字: P(correct)}，精确值。"""
    return {name: model.p_correct(key) for name, key in HARD_CONTEXTS.items()}


def value_at(history, x_key, x, y_key):
    """沿训练过程线性插值：x_key 首次到达 x 时 y_key 的值；没有到达时是最后的值。"""
    for a, b in zip(history, history[1:]):
        if b[x_key] >= x > a[x_key]:
            return a[y_key] + (b[y_key] - a[y_key]) * (x - a[x_key]) / (b[x_key] - a[x_key])
    return history[-1][y_key]


# ==============================================================================
# 直接运行：未训练的 1B 模型
# ==============================================================================
TOUR_SIZE = 1e9
TOUR_PROBLEMS = 100
TOUR_STEPS = (3, 8)
TOUR_SET_SEED = 0
TOUR_SAMPLE_SEED = 1


def main():
    title("演示 1：没有训练过的模型，四种语境里做对的概率")
    model = TrainableLLM(TOUR_SIZE)
    rows = [[name, f"{pad(bar(p), 20)} {p:.3f}"] for name, p in context_report(model).items()]
    print_table(["语境", "P(correct)"], rows)
    problems = make_problem_set(random.Random(TOUR_SET_SEED), TOUR_PROBLEMS, *TOUR_STEPS)
    score = evaluate(model, problems, random.Random(TOUR_SAMPLE_SEED))[1]
    print(f"\n  {TOUR_PROBLEMS} 道 {TOUR_STEPS[0]}～{TOUR_STEPS[1]} 步的题，{model.name} 模型的 pass@1：{score:.3f}")


if __name__ == "__main__":
    run_script(main)

"""
================================================================================
第 2 讲 · 工具箱：测试时扩展 —— 投票、验证器、搜索、记账
================================================================================
对应讲义：lectures/lecture02_test_time_scaling.md 第 1 节

测试时扩展（test-time scaling）：模型不再训练，答题时多花算力。这里是它的四样工具：

    投票      majority_vote、weighted_vote：同一个答案的票加在一起；
    验证器    ORM 给整份作答打分，PRM 给每一步打分（verifier，打分的模型）；
    搜索      best_of_n 做完再挑，beam_search 一步一挑；
    记账      Meter 数生成了多少步；FLOPs = 2 × 参数量 × 步数。

【简化】真的验证器是训练出来的神经网络，错误来自训练。这里直接规定它看什么、漏什么，再加噪声。
噪声由（种子、题目、作答）这串文字决定：同一份作答问两次，分数一样，问再多次也没有新信息。
真的验证器要花算力；这里打分不计费，只数模型生成的步数。

第 2、4 讲的脚本只从这里导入；toy world 的零件从 lecture01/toy_llm.py 转手出去。
运行时间：工具箱不单独运行，只用标准库。
"""
import itertools
import math
import random
import sys
from collections import defaultdict
from functools import lru_cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "lecture01"))
from toy_llm import (
    CARELESS_OFFSETS, OP_SIGNS, PROCEDURES, Problem, Sample, Step, ToyLLM, apply_bug, apply_op, bar, check_ascending,
    check_choice, check_counts, check_each, check_int, check_number, check_seeds, check_step, extend_trace, fmt_size,
    make_problem, make_problem_set, mean, observe, pad, pass_at_k, path_probs, print_table, run_script, sample_index,
    sigmoid, softmax, step_hardness, title,
)

__all__ = [
    # 从 toy_llm 转手出去的
    "CARELESS_OFFSETS", "OP_SIGNS", "PROCEDURES", "Problem", "Sample", "Step", "ToyLLM", "apply_bug", "apply_op",
    "bar", "check_ascending", "check_choice", "check_counts", "check_each", "check_int", "check_number",
    "check_seeds", "check_step", "extend_trace", "fmt_size", "make_problem", "make_problem_set", "mean", "observe",
    "pad", "pass_at_k", "path_probs", "print_table", "run_script", "sample_index", "sigmoid", "softmax",
    "step_hardness", "title",
    # 测试时扩展的工具
    "ORM", "PRM", "Meter", "answer_law", "auc", "beam_search", "best_of_n", "check_levels",
    "coverage", "first_reaching", "flops", "is_rounded", "majority_vote", "paired_gain", "sample_traces",
    "weighted_vote",
]


# ==============================================================================
# 零、检查脚本顶部的常数：易、中、难三段难度（其余的检查在 toy_llm 里）
# ==============================================================================
def check_levels(name, levels, low, high):
    """检查 levels 是 {"易": (从, 到), "中": …, "难": …}，每一段都在 [low, high] 里；返回它。"""
    if not isinstance(levels, dict) or list(levels) != ["易", "中", "难"]:
        raise ValueError(f"{name} 应当依次有易、中、难三段，收到的是 {levels!r}")
    for level, span in levels.items():
        if not isinstance(span, (tuple, list)) or len(span) != 2:
            raise ValueError(f"{name} 的“{level}”应当是（从, 到）两个数，收到的是 {span!r}")
        start = check_number(f"{name} 的“{level}”的下端", span[0], low)
        check_number(f"{name} 的“{level}”的上端", span[1], start, high)
    return levels


# ==============================================================================
# 一、采样与记账
# ==============================================================================
class Meter:
    """计步器：steps 是到现在为止生成的步数。每写下一步记 1，打分不记。"""

    def __init__(self):
        self.steps = 0


def flops(size, steps):
    """
    生成 steps 步的算力：2 × 参数量 × 步数（前向一次，每个参数一乘一加；一步当作一个 token）。
    """
    check_number("size", size, 0, 1e30, open_low=True)
    return 2 * size * check_number("steps", steps, 0, 1e30)


def sample_traces(model, problem, n, rng, temperature=1.0, meter=None):
    """独立作答 n（≥ 1）次，返回 Sample 的列表；给了 meter 就把步数记上。"""
    check_int("n", n, 1)
    samples = [model.generate(problem, rng, temperature) for _ in range(n)]
    if meter is not None:
        meter.steps += sum(len(sample.values) for sample in samples)
    return samples


def coverage(p, k):
    """
    覆盖率（coverage，也就是 pass@k 的真值）：单次正确率是 p 时，k 次里至少答对一次的概率
    1 - (1 - p)^k。写成 -expm1(k·log1p(-p))，p 很小、k 很大时也不丢精度。
    """
    check_number("p", p, 0, 1)
    check_number("k", k, 0)
    if p == 1:
        return 1.0 if k > 0 else 0.0
    return -math.expm1(k * math.log1p(-p))


def answer_law(model, problem):
    """
    最终答案的精确分布 {答案: 概率}。

    【思路】一步一步往前推：现在的值是 x 的概率是 w，下一步有三种做法、六种手滑，把 w 分给它们。
    两条路走到同一个值就并在一起，所以"错误互相抵消、碰巧答对"也算在内：law[problem.answer()]
    就是 Sample.correct 的概率。步数每多 1，可能的值多 2～4 倍，6 步以上就很慢。
    """
    law = {problem.start: 1.0}
    for i, step in enumerate(problem.steps):
        after = {}
        for x, w in law.items():
            p_correct, p_bug, p_careless = model.step_probs(step.op, x, step.operand, i)
            right = apply_op(step.op, x, step.operand)
            branches = [(right, p_correct), (apply_bug(step.op, x, step.operand), p_bug)]
            branches += [(right + d, p_careless / len(CARELESS_OFFSETS)) for d in CARELESS_OFFSETS]
            for value, p in branches:
                after[value] = after.get(value, 0.0) + w * p
        law = after
    return law


def first_reaching(rise, goal, limit=1e12):
    """上升的函数 rise 最先到 goal 的地方：先倍增，再二分；到 limit 还不到就返回它附近。"""
    low, high = 0.0, 1.0
    while rise(high) < goal and high < limit:
        high *= 2
    for _ in range(30):  # 相对误差约 1e-9
        middle = (low + high) / 2
        low, high = (middle, high) if rise(middle) < goal else (low, middle)
    return high


def paired_gain(gains):
    """
    逐题的差 gains：(平均, 谁赢)。平均在两个标准误以内是“平”（不到两题时也是），否则正的是“小”，负的是“大”。
    """
    gain, n = mean(gains), len(gains)
    error = math.sqrt(math.fsum((x - gain) ** 2 for x in gains) / max(1, n - 1) / n)
    return gain, "平" if n < 2 or abs(gain) <= 2 * error else "小" if gain > 0 else "大"


# ==============================================================================
# 二、投票
# ==============================================================================
def majority_vote(answers):
    """
    多数投票（self-consistency，Wang et al. 2022）：返回出现最多的答案。

    【平票】几个答案同为最多时，取**最先达到**最高票数的那个：A B B A 里，B 在第 3 个就有了 2 票。
    没有平票时，结果与答案的顺序无关。
    【边界】answers 是空的：ValueError。
    """
    return weighted_vote(answers, [1] * len(answers))


def weighted_vote(answers, weights):
    """
    加权投票：同一个答案的权重加在一起，返回总权重最大的答案。权重通常是验证器的分数。

    负的权重按 0 算；权重全是 0 时退回多数投票。总权重用 fsum 相加，所以与顺序无关；
    平票时取最先达到最高总权重的那个，也就是它最后一张有效票投得最早。
    【边界】answers 是空的、两者不等长、权重是 NaN、无穷或绝对值超过 1e300：ValueError。
    """
    if not answers:
        raise ValueError("answers 应当至少有一个候选答案，收到的是空的")
    if len(answers) != len(weights):
        raise ValueError(f"weights 应当与 answers 等长（{len(answers)}），收到的长度是 {len(weights)}")
    if not (max(map(abs, weights)) <= 1e300 and all(map(math.isfinite, weights))):  # 再大，加起来会溢出
        raise ValueError(f"weights 应当都是有限的数，绝对值 ≤ 1e300，收到的是 {weights!r}")
    if max(weights) <= 0:
        weights = [1] * len(answers)
    ballots, last = defaultdict(list), {}
    for i, (answer, weight) in enumerate(zip(answers, weights)):
        if weight > 0:
            ballots[answer].append(weight)
            last[answer] = i
    totals = {answer: math.fsum(ws) for answer, ws in ballots.items()}
    top = max(totals.values())
    return min((answer for answer in totals if totals[answer] == top), key=last.get)


def best_of_n(samples, scores):
    """
    best-of-N：返回分数最高的那份作答（同分取最先的）。

    【边界】samples 是空的、两者不等长、分数里有 NaN：ValueError。
    """
    if not samples:
        raise ValueError("samples 应当至少有一份作答，收到的是空的")
    if len(samples) != len(scores):
        raise ValueError(f"scores 应当与 samples 等长（{len(samples)}），收到的长度是 {len(scores)}")
    if any(map(math.isnan, scores)):
        raise ValueError(f"scores 应当都能比大小，收到的里面有 NaN：{scores!r}")
    return samples[max(range(len(samples)), key=scores.__getitem__)]


# ==============================================================================
# 三、验证器
# ==============================================================================
@lru_cache(maxsize=1 << 16)  # 种子相同、只差噪声大小或得分的验证器，抽到的是同一份噪声，不必再抽
def _unit_noise(text):
    """标准正态的一个数，由 text 决定。"""
    return random.Random(text).gauss(0, 1)


class _Verifier:
    """
    ORM 与 PRM 共用的部分：怎样看一步，怎样取噪声。

    noise       噪声的标准差（≥ 0）；0 就是没有噪声。
    bug_credit  一步 bug 得几分。0：认得出来；1：看不出来，当成对的；大于 1：比对的还喜欢。
    hack_credit 一步"凑整"得几分：写下的是错的整十数，而正确值离它不超过 2。默认 0：不偏爱。
    seed        两个种子不同的验证器，噪声互不相干。

    写对得 1 分，手滑得 0 分。它只看写下的值，不看模型心里用的是哪种做法：手滑 ±10 若恰好与 bug
    写下的值相同，它也分不出来。
    """

    def __init__(self, noise, bug_credit=0.0, hack_credit=0.0, seed=0):
        self.noise = check_number("noise", noise, 0)
        self.bug_credit = check_number("bug_credit", bug_credit, 0)
        self.hack_credit = check_number("hack_credit", hack_credit, 0)
        self.seed = seed
        self._books = {}  # 每道题一本账：(题目, 题目的文字, {值的前缀: 分数})。同样的作答会问很多遍，噪声只取一次

    def credit(self, step, before, written):
        """一步的得分（没有噪声）：before 是上一步写下的值，written 是这一步写下的值。"""
        right = apply_op(step.op, before, step.operand)
        if written == right:
            return 1.0
        if self.hack_credit and is_rounded(written, right):
            return self.hack_credit
        return self.bug_credit if written == apply_bug(step.op, before, step.operand) else 0.0

    def _noise_of(self, text, values):
        """噪声只由这串文字决定，与询问的次序、次数和 PYTHONHASHSEED 都无关。"""
        if self.noise == 0:
            return 0.0
        return self.noise * _unit_noise(f"{type(self).__name__}|{self.seed}|{text}|{values}")

    def score(self, problem, values):
        """给作答 values（写下的值，列表或元组）打分；同样的输入永远是同样的分数。"""
        if not 0 < len(values) <= problem.n_steps:
            raise ValueError(f"values 应当有 1 到 {problem.n_steps} 个值，收到的是 {len(values)} 个")
        if id(problem) not in self._books:
            self._books[id(problem)] = (problem, str(problem), {})  # 账里留着题目本身，它的 id 就不会被别的题用走
        _, text, scores = self._books[id(problem)]
        key = tuple(values)
        if key not in scores:
            scores[key] = self._score(problem, text, key)
        return scores[key]


def is_rounded(written, right):
    """写下的是不是"凑整"的错值：整十数，不等于正确值，但相差不超过 2。"""
    return written % 10 == 0 and 0 < abs(written - right) <= 2


class ORM(_Verifier):
    """
    结果验证器（outcome reward model）：只给**做完的**作答一个分数。

    答案对：1 分。答案错：各步得分的乘积，所以 bug_credit = 0 时是 0 分；bug_credit > 0 时，
    错处全是 bug 的作答看上去也像对的。再加一份噪声 N(0, noise^2)。
    两个错误抵消、碰巧答对的作答，它也给 1 分：它看的是结果。
    """

    def _score(self, problem, text, values):
        if len(values) < problem.n_steps:
            raise ValueError(f"ORM 只给做完的作答打分：values 应当有 {problem.n_steps} 个值，收到的是 {len(values)} 个")
        quality = 1.0
        if values[-1] != problem.answer():
            inputs = (problem.start, *values)
            quality = math.prod(self.credit(*step) for step in zip(problem.steps, inputs, values))
        return quality + self._noise_of(text, values)


class PRM(_Verifier):
    """
    过程验证器（process reward model）：给每一步打分，所以没做完的前缀也有分数。

    一步的分数 = 得分 + N(0, noise^2)，小于 FLOOR 的按 FLOOR 算；前缀的分数是各步分数的乘积。
    """

    FLOOR = 0.01  # 一步的最低分：乘积里不留 0，才分得出坏与更坏

    def _score(self, problem, text, values):
        before = values[-2] if len(values) > 1 else problem.start
        credit = self.credit(problem.steps[len(values) - 1], before, values[-1])
        last = max(self.FLOOR, credit + self._noise_of(text, values))
        return last * (self.score(problem, values[:-1]) if len(values) > 1 else 1.0)

    def step_scores(self, problem, values):
        """每一步的分数，长度 len(values) 的列表；它们的乘积就是 score。"""
        prefixes = [1.0, *(self.score(problem, values[: i + 1]) for i in range(len(values)))]
        return [after / before for before, after in zip(prefixes, prefixes[1:])]


def auc(scores, labels):
    """
    平均准确率的一种：随便取一份对的、一份错的，对的那份分数更高的概率（并列算一半；ROC 曲线下的面积）。

    【参数】scores 是分数，labels 与它等长，真就是对的。
    【边界】只有对的或只有错的：ValueError。
    """
    n_right = sum(map(bool, labels))
    if not 0 < n_right < len(labels) or len(scores) != len(labels):
        raise ValueError(f"labels 应当与 scores 等长，有对有错，收到的是 {len(labels)} 份里 {n_right} 份对")
    below, wins = 0, 0.0
    ranked = sorted(zip(scores, map(bool, labels)))
    for _, tied in itertools.groupby(ranked, key=lambda pair: pair[0]):
        group = [label for _, label in tied]
        right = sum(group)
        wrong = len(group) - right
        wins += right * (below + wrong / 2)
        below += wrong
    return wins / (n_right * (len(labels) - n_right))


# ==============================================================================
# 四、搜索
# ==============================================================================
def beam_search(model, problem, prm, n, keep, rng, temperature=1.0, meter=None):
    """
    束搜索（beam search）：每一步共写 n 个候选，PRM 打分，留下最好的 keep 个前缀，
    每个前缀接着写 n / keep 个。最后一步不再淘汰，返回 n 份做完的作答（Sample 的列表）。

    生成的步数正好是 n × n_steps，与独立作答 n 次相同。n = keep 时没有选择的余地，就是独立作答。
    【边界】n 不是 keep 的倍数，或题目一步也没有：ValueError。
    """
    check_int("problem 的步数", problem.n_steps, 1)
    check_int("n", n, 1)
    check_int("keep", keep, 1, n)
    if n % keep:
        raise ValueError(f"n 应当是 keep 的倍数，收到的是 n = {n}、keep = {keep}")
    beam = [((), ())] * keep
    for i in range(1, problem.n_steps + 1):
        head = Problem(problem.start, problem.steps[:i])  # 题目的前 i 步：在它上面接着写，只会写一步
        grown = [
            extend_trace(model, head, values, procs, rng, temperature)
            for values, procs in beam for _ in range(n // keep)
        ]
        if meter is not None:
            meter.steps += len(grown)
        if i < problem.n_steps:
            grown.sort(key=lambda sample: -prm.score(problem, sample.values))  # 稳定排序：同分的先来先留
            beam = [(sample.values, sample.procs) for sample in grown[:keep]]
    return grown

"""
================================================================================
第 1 讲 · 工具箱：toy world —— 一个会算错的"小语言模型"
================================================================================
对应讲义：lectures/lecture01_scaling_and_cot.md 第 1 节

【这里的设定】
一道题是一串加、减、乘："从 47 开始，× 12，- 85，……"。"模型"每一步写下一个值。
写之前，它先用 softmax 从三种做法（procedure）里抽一种：

    correct   做对；
    bug       套用一条固定的错误规则（学生真会犯的那种错，每次错得一样）；
    careless  手滑：在正确值上加一个小偏移（每次错得不一样）。

三个 logit 里只有第一个会变：模型越大越高，步骤越难越低。

    logit(correct) = ALPHA[op] + BETA · log10(size / REF_SIZE) - step_hardness(op, a, b)
    logit(bug)     = LOGIT_BUG
    logit(careless)= LOGIT_CARELESS
    P(做法) = softmax(logit / T)

op 是运算，a 是上一步写下的值，b 是题目给的数，size 是参数量，T 是温度（temperature）。

【简化】真的语言模型逐 token 生成，这里一步只有三种做法；真模型的规模、难度、温度
之间的关系要靠测量，这里是写下来的公式。好处是：每一步做对的概率都有精确值可以对照。

本文件是第 1、2、4、6 讲共用的：世界的规则、pass@k、以及打印表格和"观察"的小工具。
直接运行它，会把这个世界走一遍。运行时间：约 0.1 秒，只用标准库。
"""
import math
import os
import random
import re
import sys
import unicodedata
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

# ---- 世界的常数：后面各讲的数字都由它们决定，改了就不能再和讲义里的表比较 ----
REF_SIZE = 1e9  # 参照规模（参数量）：ALPHA 是这个规模的模型的 logit
PROCEDURES = ("correct", "bug", "careless")  # 三种做法，下标就是 softmax 的下标
ALPHA = {"add": 1.8, "sub": 1.6, "mul": 0.56}  # 1B 模型、难度 0 时 "correct" 的 logit
BETA = 1.0  # 规模每乘 10，"correct" 的 logit 加多少
LOGIT_BUG = 0.0  # "bug" 的 logit
LOGIT_CARELESS = -0.3  # "careless" 的 logit
CARELESS_OFFSETS = (-10, -2, -1, 1, 2, 10)  # 手滑时加在正确值上的偏移，六选一
NO_COT_PENALTY = 0.5  # 不写中间步骤（cot=False）时，第 i 步（从 1 数）的 logit 再减 0.5·(i-1)

# ---- 难度的常数 ----
CARRY_HARDNESS = 0.3  # 每一次进位或借位
MUL_TWO_DIGITS = 1.5  # 乘数 ≥ 10
MUL_BIG_LEFT = 0.7  # 被乘数 ≥ 100

# ---- 出题的常数 ----
P_MUL = 0.2  # 一步是乘法的概率；其余的加、减各半
P_TWO_DIGITS = 0.5  # 乘法里乘数是两位数的概率
MAX_VALUE = 99999  # 乘积超过它就换成减法或加法
MAX_OPERAND = 499  # 加数、减数的上限

OP_SIGNS = {"add": "+", "sub": "-", "mul": "×"}
WIDTH = 80  # 终端的显示宽度，全角字符占 2


# ==============================================================================
# 一、检查参数：坏的输入在进门时就说清楚
# ==============================================================================
def check_int(name, value, low=None, high=None):
    """检查 value 是 [low, high] 里的整数，返回它；否则 ValueError，说出名字、收到的值和允许的范围。"""
    ok = isinstance(value, int) and not isinstance(value, bool)
    if not ok or (low is not None and value < low) or (high is not None and value > high):
        raise ValueError(f"{name} 应当是整数{_range_text(low, high)}，收到的是 {value!r}")
    return value


def check_number(name, value, low=None, high=None, open_low=False):
    """检查 value 是 [low, high] 里的有限实数（open_low=True 时不含 low），返回它；否则 ValueError。"""
    # 与最大的浮点数比：NaN、无穷大、大到变不成浮点数的整数，都通不过
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if ok and low is not None:
        ok = value > low if open_low else value >= low
    if not ok or (high is not None and value > high):
        raise ValueError(f"{name} 应当是有限的数{_range_text(low, high, open_low)}，收到的是 {value!r}")
    return value


def check_ascending(name, values, at_least=2, low=None):
    """检查 values 至少有 at_least 个有限的数（给了 low 时都 ≥ low）、从小到大、不重复，返回它；否则 ValueError。"""
    if not isinstance(values, (tuple, list)) or len(values) < at_least:
        raise ValueError(f"{name} 应当是至少有 {at_least} 个数的元组，收到的是 {values!r}")
    for value in values:
        check_number(f"{name} 里的数", value, low)
    if any(a >= b for a, b in zip(values, values[1:])):
        raise ValueError(f"{name} 应当从小到大、不重复，收到的是 {values!r}")
    return values


def check_counts(name, values, low=1, high=10**6, at_least=2):
    """检查 values 是至少 at_least 个整数，都在 [low, high] 里，从小到大、不重复；返回它。"""
    for value in check_ascending(name, values, at_least):
        check_int(f"{name} 里的数", value, low, high)
    return values


def check_each(name, values, check, *limits, at_least=1):
    """检查 values 是至少 at_least 项的元组或列表，每一项都通过 check(名字, 项, *limits)；返回它。"""
    if not isinstance(values, (tuple, list)) or len(values) < at_least:
        raise ValueError(f"{name} 应当是至少有 {at_least} 项的元组，收到的是 {values!r}")
    for value in values:
        check(f"{name} 的每一项", value, *limits)
    return values


def check_seeds(**seeds):
    """检查每个种子都是整数：check_seeds(SET_SEED=SET_SEED, …)。用 None 当种子，每次的结果都不同。"""
    for name, seed in seeds.items():
        check_int(name, seed)


def check_choice(name, value, allowed):
    """检查 value 是 allowed 里的一个，返回它；否则 ValueError，列出允许的值。"""
    if value not in allowed:
        raise ValueError(f"{name} 应当是 {'、'.join(map(str, allowed))} 之一，收到的是 {value!r}")
    return value


def check_step(name, step):
    """检查 step 是（运算, a, b）：运算是 add、sub、mul 之一，a、b 是整数；返回它。"""
    if not isinstance(step, (tuple, list)) or len(step) != 3:
        raise ValueError(f"{name} 应当是（运算, a, b）三项，收到的是 {step!r}")
    check_choice(f"{name} 的运算", step[0], tuple(OP_SIGNS))
    for part, value in zip("ab", step[1:]):
        check_int(f"{name} 的 {part}", value)
    return step


def _range_text(low, high, open_low=False):
    """"，≥ 1"、"，≤ 8"、"，≥ 1 且 ≤ 8"：错误信息里的范围。"""
    parts = []
    if low is not None:
        parts.append(f"{'>' if open_low else '≥'} {low}")
    if high is not None:
        parts.append(f"≤ {high}")
    return "，" + " 且 ".join(parts) if parts else ""


# ==============================================================================
# 二、算术：正确的结果、难度、固定的错误规则
# ==============================================================================
def apply_op(op, a, b):
    """正确的结果 a op b。op 不认识时 ValueError。"""
    if op == "add":
        return a + b
    if op == "sub":
        return a - b
    if op == "mul":
        return a * b
    raise _unknown_op(op)


def _unknown_op(op):
    return ValueError(f"op 应当是 {'、'.join(OP_SIGNS)} 之一，收到的是 {op!r}")


def step_hardness(op, a, b):
    """
    这一步有多难（≥ 0，从 "correct" 的 logit 里减去）。只看 |a|、|b|。

    add：CARRY_HARDNESS × 竖式里进位的次数（连锁的进位也算）；
    sub：CARRY_HARDNESS × 竖式 |a| - |b| 里借位的次数；
    mul：|b| ≥ 10 时 MUL_TWO_DIGITS，|a| ≥ 100 时再加 MUL_BIG_LEFT。

    【例子】step_hardness("add", 47, 85) = 0.6（7+5 进位，4+8+1 又进位）
    【边界】op 不认识时 ValueError。
    """
    a, b = abs(a), abs(b)
    if op == "add":
        return CARRY_HARDNESS * _count_carries(a, b)
    if op == "sub":
        return CARRY_HARDNESS * _count_borrows(a, b)
    if op == "mul":
        return (MUL_TWO_DIGITS if b >= 10 else 0.0) + (MUL_BIG_LEFT if a >= 100 else 0.0)
    raise _unknown_op(op)


@lru_cache(maxsize=1 << 16)  # 训练里同一步会问成千上万次；只缓存次数，改难度的常数不会拿到旧值
def _count_carries(a, b):
    carries = carry = 0
    while a or b:
        carry = 1 if a % 10 + b % 10 + carry >= 10 else 0
        carries += carry
        a, b = a // 10, b // 10
    return carries


@lru_cache(maxsize=1 << 16)
def _count_borrows(a, b):
    """|a| 的数字用完就停（0 没有数字，所以 0 - b 的难度是 0）；大小不够减时也不交换。"""
    borrows = borrow = 0
    while a and (b or borrow):
        borrow = 1 if a % 10 - borrow < b % 10 else 0
        borrows += borrow
        a, b = a // 10, b // 10
    return borrows


def apply_bug(op, a, b):
    """
    固定的错误规则：同一步每次错得一样，而且从不碰巧等于正确结果。

    add "进位出错"：个位有进位时少 10，没有进位时多 10；
    sub "每一位都用大数减小数"（smaller-from-larger，Brown & Burton 1978）：逐位取 |a|、|b| 之差的
        绝对值；碰巧对了就再减 10；
    mul 乘数 ≥ 10 "第二行忘记左移"：a × 个位 + a × 其余位；
        乘数是一位数 "忘记进位"：|a| 的每一位 × b 只留个位，保留 a 的符号；碰巧对了就再加 10。

    【例子】apply_bug("mul", 47, 12) = 47×2 + 47×1 = 141（正确的是 564）
    【边界】op 不认识时 ValueError。
    """
    right = apply_op(op, a, b)
    if op == "add":
        return right - 10 if abs(a) % 10 + abs(b) % 10 >= 10 else right + 10
    if op == "sub":
        wrong = _digitwise(abs(a), abs(b), lambda x, y: abs(x - y))
        return wrong if wrong != right else right - 10
    if b >= 10:
        wrong = a * (b % 10) + a * (b // 10)
    else:
        wrong = _digitwise(abs(a), 0, lambda x, _: x * b % 10) * (-1 if a < 0 else 1)
    return wrong if wrong != right else right + 10


def _digitwise(a, b, combine):
    """逐位合并两个非负整数（缺的位是 0），combine(a 的一位, b 的一位) 给出结果的一位。"""
    result, place = 0, 1
    while a or b:
        result += combine(a % 10, b % 10) * place
        a, b, place = a // 10, b // 10, place * 10
    return result


# ==============================================================================
# 三、题目与一次作答
# ==============================================================================
@dataclass(frozen=True)
class Step:
    """一步运算：op 是 "add"、"sub" 或 "mul"，operand 是 ≥ 1 的整数。"""

    op: str
    operand: int

    def __post_init__(self):
        check_choice("op", self.op, OP_SIGNS)
        check_int("operand", self.operand, 1)

    def __str__(self):
        return f"{OP_SIGNS[self.op]} {self.operand}"


@dataclass(frozen=True)
class Problem:
    """一道题：从 start 开始，依次做 steps（Step 的元组）。print 出来是"从 47 开始，× 12，- 85"。"""

    start: int
    steps: tuple

    def __post_init__(self):
        object.__setattr__(self, "steps", tuple(self.steps))

    @property
    def n_steps(self):
        return len(self.steps)

    @cached_property
    def true_values(self):
        """每一步的正确值，长度 n_steps 的元组。"""
        values, x = [], self.start
        for step in self.steps:
            x = apply_op(step.op, x, step.operand)
            values.append(x)
        return tuple(values)

    def answer(self):
        """正确答案：最后一步的正确值（没有步骤时就是 start）。"""
        return self.true_values[-1] if self.steps else self.start

    def __str__(self):
        return "，".join([f"从 {self.start} 开始", *map(str, self.steps)])


class Sample(NamedTuple):
    """
    模型的一次作答（attempt，也叫 trace、rollout）。前三项都是长度 n_steps 的列表。

    values    每一步写下的值；
    procs     每一步用的做法（PROCEDURES 里的名字）；
    local_ok  这一步写下的值，相对于**前面写下的值**是否算对（前面错了，这一步仍可以是对的）；
    answer    最后写下的值；
    correct   answer 是否等于正确答案。
    """

    values: list
    procs: list
    local_ok: list
    answer: int
    correct: bool

    @property
    def sound(self):
        """过程是否每一步都对。sound 必然 correct；反过来不一定：两个错误可能互相抵消。"""
        return all(self.local_ok)


def make_problem(rng, n_steps):
    """
    出一道 n_steps（≥ 1）步的题。真实值一直在 1 到约 10 万之间。抽取的顺序是固定的，
    所以同一个种子永远得到同一道题。
    """
    check_int("n_steps", n_steps, 1)
    start = x = rng.randint(10, 50)
    steps = []
    for _ in range(n_steps):
        r = rng.random()
        op = "sub"
        if r < P_MUL:
            op = "mul"
        elif r < P_MUL + (1 - P_MUL) / 2:
            op = "add"
        if op == "mul":
            k = rng.randint(11, 49) if rng.random() < P_TWO_DIGITS else rng.randint(2, 9)
            if x * k > MAX_VALUE:
                op = "sub" if x > MAX_VALUE // 2 else "add"
        if op == "sub":
            if x < 2:
                op = "add"
            else:
                k = rng.randint(1, min(MAX_OPERAND, x - 1)) if x > 2 else 1
        if op == "add":
            k = rng.randint(1, MAX_OPERAND)
        steps.append(Step(op, k))
        x = apply_op(op, x, k)
    return Problem(start, tuple(steps))


def make_problem_set(rng, n_problems, min_steps, max_steps):
    """
    n_problems（≥ 1）道题的列表，每题的步数在 [min_steps, max_steps] 里均匀抽取。

    【边界】n_problems < 1、min_steps < 1、min_steps > max_steps：ValueError。
    """
    check_int("n_problems", n_problems, 1)
    check_int("min_steps", min_steps, 1)
    check_int("max_steps", max_steps, 1)
    if min_steps > max_steps:
        raise ValueError(f"min_steps 应当 ≤ max_steps，收到的是 {min_steps} > {max_steps}")
    return [make_problem(rng, rng.randint(min_steps, max_steps)) for _ in range(n_problems)]


# ==============================================================================
# 四、模型
# ==============================================================================
def sigmoid(x):
    """σ(x) = 1 / (1 + e^-x)，x 是任何有限的数。x 为负时换一种写法：exp 的指数总不为正，不会溢出。"""
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def softmax(logits, temperature=1.0):
    """
    softmax(logits / temperature)，返回和为 1 的元组。

    先减去最大值（不会溢出），再除以 fsum（与相加的顺序无关）。温度 0 是贪心（greedy）：
    全部概率给第一个最大的 logit。

    【边界】temperature 为负或 NaN：ValueError。
    """
    return _softmax(tuple(logits), temperature)


@lru_cache(maxsize=1 << 14)  # 键就是全部输入，所以改了模型、常数或温度都不会拿到旧值
def _softmax(logits, temperature):
    if not temperature >= 0:
        raise ValueError(f"temperature 应当 ≥ 0（0 是贪心），收到的是 {temperature!r}")
    top = max(logits)
    if temperature == 0:
        first = logits.index(top)
        return tuple(1.0 if i == first else 0.0 for i in range(len(logits)))
    weights = [math.exp((z - top) / temperature) for z in logits]
    total = math.fsum(weights)
    return tuple(w / total for w in weights)


def sample_index(probs, rng):
    """
    按概率 probs 抽一个下标，只用一个 rng.random()：第一个让累计和超过 u 的下标。
    舍入使累计和到不了 u 时，返回最后一个概率为正的下标。
    """
    u = rng.random()
    total = 0.0
    for i, p in enumerate(probs):
        total += p
        if total > u:
            return i
    return max(i for i, p in enumerate(probs) if p > 0)


class ToyLLM:
    """
    toy world 里的"语言模型"。

    size 是参数量（> 0）；cot=False 表示没有草稿纸，越靠后的步骤越难；name 默认是 fmt_size(size)。
    子类只要改写 step_logits，概率、采样、作答都会跟着变。
    """

    def __init__(self, size, cot=True, name=None):
        self.size = check_number("size", size, 0, open_low=True)
        self.cot = cot
        self.name = fmt_size(size) if name is None else name

    def step_logits(self, op, a, b, step_index):
        """第 i 步 a op b 的三个 logit，顺序同 PROCEDURES。i 从 1 数，step_index = i - 1。"""
        if op not in ALPHA:
            raise _unknown_op(op)
        correct = ALPHA[op] + BETA * math.log10(self.size / REF_SIZE) - step_hardness(op, a, b)
        if not self.cot:
            correct -= NO_COT_PENALTY * step_index
        return [correct, LOGIT_BUG, LOGIT_CARELESS]

    def step_probs(self, op, a, b, step_index, temperature=1.0):
        """三种做法的概率（和为 1 的元组）。"""
        return _softmax(tuple(self.step_logits(op, a, b, step_index)), temperature)

    def generate(self, problem, rng, temperature=1.0):
        """从头作答一次，返回 Sample。"""
        return extend_trace(self, problem, (), (), rng, temperature)


def extend_trace(model, problem, values, procs, rng, temperature=1.0):
    """
    保留已经写好的前缀（values 与 procs，等长），把题做完，返回 Sample。

    每个剩下的步骤抽一次 sample_index；抽到 careless 时再抽一次偏移。前缀的 local_ok 也会算出来。
    【边界】前缀比题目长，或 values 与 procs 不等长：ValueError。
    """
    steps = problem.steps
    if len(values) != len(procs) or len(values) > len(steps):
        raise ValueError(
            f"values 与 procs 应当等长，且不超过题目的 {len(steps)} 步，收到的长度是 {len(values)} 和 {len(procs)}"
        )
    values, procs, local_ok = list(values), list(procs), []
    x = problem.start
    for step, written in zip(steps, values):
        local_ok.append(written == apply_op(step.op, x, step.operand))
        x = written
    for i in range(len(values), len(steps)):
        op, b = steps[i].op, steps[i].operand
        right = apply_op(op, x, b)
        proc = PROCEDURES[sample_index(model.step_probs(op, x, b, i, temperature), rng)]
        if proc == "bug":
            x = apply_bug(op, x, b)
        elif proc == "careless":
            x = right + CARELESS_OFFSETS[rng.randrange(len(CARELESS_OFFSETS))]
        else:
            x = right
        values.append(x)
        procs.append(proc)
        local_ok.append(x == right)
    return Sample(values, procs, local_ok, x, x == problem.answer())


# ==============================================================================
# 五、指标
# ==============================================================================
def path_probs(model, problem, temperature=1.0):
    """
    沿着正确的路（前面每一步都写对）每一步做对的概率，长度 n_steps 的列表，是精确值。

    它们的乘积 math.prod(path_probs(...)) 就是"过程每一步都对"（Sample.sound）的概率。
    "答案对"（Sample.correct）的概率还要大一点：两个错误可能互相抵消。
    """
    inputs = (problem.start, *problem.true_values)
    return [
        model.step_probs(step.op, x, step.operand, i, temperature)[0]
        for i, (step, x) in enumerate(zip(problem.steps, inputs))
    ]


def mean(xs):
    """
    平均数。用 fsum 相加：普通的 sum 在 Python 3.12 前后舍入不同，表格的末位会跟着变。

    【边界】空的 xs：ValueError。
    """
    xs = list(xs)
    if not xs:
        raise ValueError("xs 应当至少有一个数，收到的是空的")
    return math.fsum(xs) / len(xs)


def pass_at_k(n, c, k):
    """
    pass@k 的无偏估计 1 - C(n-c, k) / C(n, k)（Chen et al. 2021）：n 个样本里 c 个答对时，
    随机取出 k 个、至少有一个对的概率。

    【例子】pass_at_k(10, 3, 5) = 0.9167
    【边界】要求 0 ≤ c ≤ n 且 0 ≤ k ≤ n，否则 ValueError：k > n 没有答案，不是 1。
    """
    check_int("n", n, 0)
    check_int("c", c, 0, n)
    check_int("k", k, 0, n)
    subsets = math.comb(n, k)
    return (subsets - math.comb(n - c, k)) / subsets  # 整数相减再除一次：没有舍入误差的积累


# ==============================================================================
# 六、打印：按显示宽度对齐的表格，和会自己检查的"观察"
# ==============================================================================
def display_width(text):
    """终端里的显示宽度：全角字符 2，组合符号 0，其余 1。"""
    return sum(
        0 if unicodedata.combining(ch) else 2 if unicodedata.east_asian_width(ch) in "WF" else 1 for ch in text
    )


def pad(text, width, align="left"):
    """用空格把 text 补到显示宽度 width（已经够宽时原样返回）。align 是 "left" 或 "right"。"""
    check_choice("align", align, ("left", "right"))
    text = str(text)
    blanks = " " * (width - display_width(text))
    return text + blanks if align == "left" else blanks + text


def bar(x, width=20):
    """长度与 x 成正比的横条：x = 1 是 width 个 █；x 截到 [0, 1]。"""
    return "█" * round(min(1.0, max(0.0, x)) * width)


def fmt_size(size):
    """参数量的简写，三位有效数字：350000000 → "350M"，1e9 → "1B"，1.5e12 → "1.5T"。"""
    size = float(f"{size:.3g}")  # 先舍入再选单位，999.9M 才会写成 1B
    for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if size >= unit:
            return f"{size / unit:.4g}{name}"
    return f"{size:g}"


def title(text):
    """两条横线之间的标题。"""
    print("\n" + "=" * WIDTH + f"\n{text}\n" + "=" * WIDTH)


def print_table(headers, rows, indent=2):
    """
    打印一张表：第一列左对齐，其余右对齐，列与列之间至少两个空格。

    headers 是列名的列表；rows 里每一行与它等长，格子不是字符串时用 str()。
    """
    lines = [[str(cell) for cell in row] for row in [headers, *rows]]
    if any(len(line) != len(headers) for line in lines):
        raise ValueError(f"rows 的每一行应当有 {len(headers)} 格，与 headers 相同")
    widths = [max(display_width(line[j]) for line in lines) for j in range(len(headers))]
    for i, line in enumerate(lines):
        cells = [pad(cell, widths[j], "left" if j == 0 else "right") for j, cell in enumerate(line)]
        print(" " * indent + "  ".join(cells).rstrip())
        if i == 0:
            print(" " * indent + "-" * (sum(widths) + 2 * (len(widths) - 1)))


def observe(text, holds=None):
    """
    打印一条观察；给出 holds 时它是一条会被检查的结论。

    holds 为真：  √ text
    holds 为假：  × 这一次没有出现：text（不报错，脚本继续：改了常数，正好看出哪条结论不牢）
    不给 holds：  · text（论文的结果，或解释）
    """
    mark = "· " if holds is None else "√ " if holds else "× 这一次没有出现："
    first, *rest = _wrap(mark + text, WIDTH - 4)
    print("  " + first)
    for line in rest:
        print("    " + line)


_NO_LINE_START = "，。；：、！？）】》”’%"  # 这些符号不放在行首


def _wrap(text, width):
    """按显示宽度折行：连着的半角字符（数字、英文）不拆开，句读不放行首。"""
    lines, line = [], ""
    for token in re.findall(rf"[!-~]+[{_NO_LINE_START}]*|.[{_NO_LINE_START}]*", text):
        if line and display_width(line + token.rstrip()) > width:
            lines.append(line.rstrip())
            line = ""
        if line or token.strip():
            line += token
    return [*lines, line.rstrip()]


def run_script(main):
    """
    运行脚本的 main()，把终端的毛病挡在外面：

    控制台显示不了的字符换成 "?"（GBK、ASCII 的终端只丢符号，不崩溃）；逐行输出（课堂上一行行看）；
    Ctrl-C 安静地退出（130）；输出接到 head 之类提前关闭的管道时也安静地退出。
    """
    if hasattr(sys.stdout, "reconfigure"):  # Jupyter、pytest 里的 stdout 没有这个方法，也用不着
        sys.stdout.reconfigure(errors="replace", line_buffering=True)
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


# ==============================================================================
# 直接运行：把这个世界走一遍
# ==============================================================================
TOUR_STEPS = (("add", 47, 85), ("sub", 132, 85), ("mul", 47, 6), ("mul", 47, 12), ("mul", 472, 12))
TOUR_SIZES = (1e8, 1e9, 1e10, 1e11)
TOUR_SEED = 2
TOUR_PROBLEM_STEPS = 4


def main():
    title("演示 1：三种做法 —— 同一步，做对、套错规则、手滑各写下什么")
    rows = []
    for op, a, b in TOUR_STEPS:
        right = apply_op(op, a, b)
        slips = "、".join(str(right + d) for d in CARELESS_OFFSETS)
        rows.append([f"{a} {OP_SIGNS[op]} {b}", f"{step_hardness(op, a, b):.1f}", right, apply_bug(op, a, b), slips])
    print_table(["步骤", "难度", "correct", "bug", "careless（六选一）"], rows)

    title("演示 2：做对一步的概率 P(correct) —— 随规模升；同一种运算里随难度降")
    models = [ToyLLM(size) for size in TOUR_SIZES]
    rows = [
        [f"{a} {OP_SIGNS[op]} {b}", *(f"{model.step_probs(op, a, b, 0)[0]:.3f}" for model in models)]
        for op, a, b in TOUR_STEPS
    ]
    print_table(["步骤", *(model.name for model in models)], rows)

    title("演示 3：一道题，同一个模型答两次")
    rng = random.Random(TOUR_SEED)
    problem = make_problem(rng, TOUR_PROBLEM_STEPS)
    print(f"  {problem}；正确答案 {problem.answer()}")
    for trial in (1, 2):
        sample = ToyLLM(REF_SIZE).generate(problem, rng)
        print(f"\n  第 {trial} 次（{fmt_size(REF_SIZE)}）：答案 {sample.answer}，{'对' if sample.correct else '错'}")
        rows = zip(problem.steps, sample.values, sample.procs, ("√" if ok else "×" for ok in sample.local_ok))
        print_table(["步骤", "写下的值", "做法", "这一步"], rows, indent=4)


if __name__ == "__main__":
    run_script(main)

"""
讲义里的图：每张图都从脚本自己的函数算出来，写成 lectures/figures/名字.svg。

python3 course.py notes 会重画；测试核对它们没有过期。同样的数据画出同样的字节：坐标留两位小数，没有日期，
没有随机的编号。字仍是字（不是轮廓），用读者自己的字体显示；底色是不透明的白，深色模式下也读得清。
"""
import importlib.util
import io
import logging
import math
import random
import re
import warnings
from functools import cache
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "lectures" / "figures"
FONTS = "system-ui, 'PingFang SC', 'Microsoft YaHei', 'Noto Sans CJK SC', sans-serif"
INK, GRID = "#24292f", "#d8dee4"
SHARES = (0, 0.2, 0.4, 0.6, 0.8, 1.0)  # 比例的刻度
# 颜色、线型、记号一起变：黑白打印、色觉不同的读者也分得开。颜色在白底上的对比度都在 4.5 以上
STYLES = (
    {"color": "#0b5cad", "linestyle": "-", "marker": "o"},
    {"color": "#b3400a", "linestyle": "--", "marker": "s"},
    {"color": "#1a7340", "linestyle": "-.", "marker": "^"},
    {"color": "#7a3e9d", "linestyle": ":", "marker": "D"},
    {"color": "#5c6670", "linestyle": (0, (5, 1, 1, 1)), "marker": "v"},
)
TORCH_TOLERANCE = 12  # 点；坐标系高 239 点
SETTINGS = {
    "svg.fonttype": "none", "svg.hashsalt": "course", "path.simplify": False, "font.family": "DejaVu Sans",
    "font.size": 11, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK,
    "ytick.color": INK,
}


# ==============================================================================
# 画图的小工具
# ==============================================================================
@cache
def script(path):
    """把一个编号脚本装成模块（不运行它的 main）。"""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def geometric(low, high, n):
    """从 low 到 high，在对数刻度上等距的 n 个数。"""
    return [low * (high / low) ** (i / (n - 1)) for i in range(n)]


def axes(figure, x, y, x_ticks, y_ticks, x_names=None, x_log=False, y_log=False, x_end=None):
    """一个坐标系：轴名（带单位）、刻度；范围从第一个刻度到最后一个（x 轴给了 x_end 就到 x_end）。"""
    ax = figure.add_axes((0.11, 0.15, 0.66, 0.79))
    if x_log:
        ax.set_xscale("log")
    if y_log:
        ax.set_yscale("log")
    ax.minorticks_off()
    ax.set_xticks(x_ticks, x_names or [f"{tick:g}" for tick in x_ticks])
    ax.set_yticks(y_ticks, [f"{tick:g}" for tick in y_ticks])
    ax.set(xlabel=x, ylabel=y, xlim=(x_ticks[0], x_end or x_ticks[-1]), ylim=(y_ticks[0], y_ticks[-1]))
    ax.grid(color=GRID, linewidth=0.8)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def line(ax, xs, ys, name, style, shift=0, markers=False):
    """一条线，名字写在它的右端；shift（点）把名字上移或下移，免得叠在一起。"""
    look = dict(STYLES[style], marker=STYLES[style]["marker"] if markers else "", markersize=4.5, linewidth=2)
    ax.plot(xs, ys, clip_on=False, **look)
    ax.annotate(name, (xs[-1], ys[-1]), xytext=(8, shift), textcoords="offset points", va="center",
                color=look["color"], annotation_clip=False)


def draw(name):
    """画一张图，返回 SVG 的全文。"""
    with matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # 中文由读者的字体来画
        logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
        figure = Figure(figsize=(8, 4.2), facecolor="white")
        FIGURES[name](figure)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", out.getvalue())
    text = re.sub(r"'DejaVu Sans'[^;\"]*", FONTS, text)
    return "\n".join(row.rstrip() for row in text.splitlines()) + "\n"


def path_of(name):
    return FOLDER / f"{name}.svg"


def same_figure(path, old, new):
    """
    两次画的是不是同一张图。第 1、2、4、6 讲要求逐字节相同；用 torch 的两讲在别的机器上末位会变，
    所以坐标允许差 TORCH_TOLERANCE 点，别的都要相同。
    """
    if old == new or not path.stem.startswith(("lecture11", "lecture12")):
        return old == new
    number = re.compile(r"-?\d+(?:\.\d+)?")
    pairs = zip(map(float, number.findall(old)), map(float, number.findall(new)))
    same_text = number.sub("", old) == number.sub("", new)
    return same_text and all(abs(a - b) <= TORCH_TOLERANCE for a, b in pairs)


# ==============================================================================
# 第 1、2、4、6 讲
# ==============================================================================
def lecture01_emergence(figure):
    s = script("lecture01/01_scaling.py")
    sizes = geometric(s.SIZES[0], s.SIZES[-1], 26)
    models = [s.ToyLLM(size) for size in sizes]
    rng = random.Random(s.SET_SEED)
    sets = {n: s.make_problem_set(rng, s.N_PROBLEMS, n, n) for n in s.STEPS}
    ax = axes(figure, "模型的参数量（个，对数刻度）", "概率", s.SIZES, SHARES,
              [s.fmt_size(size) for size in s.SIZES], x_log=True)
    line(ax, sizes, [s.step_stats(m, sets[s.STEPS[-1]])[1] for m in models], "每一步做对", 0, shift=4)
    for style, n in enumerate(s.STEPS[1:], 1):
        line(ax, sizes, [s.exact_match(m, sets[n]) for m in models], f"{n} 步全对", style, shift=-2)


def lecture01_temperature(figure):
    s = script("lecture01/03_temperature.py")
    model = s.ToyLLM(s.SIZE)
    problems = s.make_problem_set(random.Random(s.SET_SEED), s.N_PROBLEMS, s.N_STEPS, s.N_STEPS)
    ts = [i / 20 for i in range(round(20 * s.TEMPERATURES[-1]) + 1)]
    probs = [s.solve_probs(model, problems, t) for t in ts]
    ax = axes(figure, "采样的温度 T", "至少对一次的概率", (0, 0.5, 1, 1.5, 2, 2.5, 3), SHARES)
    for style, k in enumerate(s.KS):
        ys = [s.pass_at(p, k) for p in probs]
        line(ax, ts, ys, f"pass@{k}", style, shift=8 * (style - 1))
        best = max(range(len(ts)), key=ys.__getitem__)
        ax.plot([ts[best]], [ys[best]], marker="o", color=STYLES[style]["color"])
        ax.annotate(f"最好的 T = {ts[best]:g}", (ts[best], ys[best]), xytext=(10, 8) if best else (12, -40),
                    textcoords="offset points", color=STYLES[style]["color"])


def lecture02_power_law(figure):
    s = script("lecture02/01_repeated_sampling.py")
    problems = s.make_problem_set(random.Random(s.SET_SEED), s.N_PROBLEMS, s.MIN_STEPS, s.MAX_STEPS)
    probs = s.success_probs(s.SIZES[0], problems)
    easy = [p for p in probs if p >= s.EASY_FLOOR]
    ks = geometric(1, 3000, 60)
    ax = axes(figure, "每题答几次 k（对数刻度）", "-log 覆盖率（nat，对数刻度）", (1, 10, 100, 1000),
              (0.01, 0.1, 1, 10), x_log=True, y_log=True, x_end=ks[-1])
    for style, (name, group) in enumerate({"全部题目": probs, "没有难题": easy, "一道题": [min(easy)]}.items()):
        points = [(k, s.neg_log_coverage(group, k)) for k in ks]
        points = [(k, loss) for k, loss in points if loss > 0.01]
        line(ax, *zip(*points), name, style, shift=-4)


def lecture02_best_of_n(figure):
    s = script("lecture02/03_verifier_best_of_n.py")
    model, rng = s.ToyLLM(s.SIZE), random.Random(s.SAMPLE_SEED)
    problems = s.make_problem_set(random.Random(s.SET_SEED), s.N_PROBLEMS, s.MIN_STEPS, s.MAX_STEPS)
    pools = [s.sample_traces(model, problem, s.NS[-1], rng) for problem in problems]
    ax = axes(figure, "每题写几份作答 N（对数刻度）", "正确率", s.NS, SHARES, x_log=True)
    verifiers = {
        "完美的验证器": s.ORM(0.0, seed=s.ORM_SEED), "有噪声的验证器": s.ORM(s.NOISE, seed=s.ORM_SEED),
        "有盲点的验证器": s.ORM(s.BLIND_NOISE, s.BUG_CREDIT, seed=s.ORM_SEED),
    }
    for style, (name, verifier) in enumerate(verifiers.items()):
        choose = s.choosers(pools, s.score_all(verifier, problems, pools))["取最高分"]
        line(ax, s.NS, [s.accuracy(problems, pools, choose, n) for n in s.NS], name, style, markers=True)


def lecture04_self_correction(figure):
    s = script("lecture04/01_self_correction.py")
    problems = s.make_problem_set(random.Random(s.SET_SEED), s.N_PROBLEMS, s.MIN_STEPS, s.MAX_STEPS)
    rng, model = random.Random(s.SAMPLE_SEED), s.ToyLLM(s.SIZES[-1])
    critics = {
        "标准答案说“停”": (lambda p, sample: not sample.correct, s.redo),
        "每次都重做": (lambda p, sample: True, s.redo),
        "逼问，必须换": (lambda p, sample: rng.random() < s.PRESS, s.forced_change),
    }
    ax = axes(figure, "修正了几轮", "正确率", range(s.ROUNDS + 1), (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0))
    for style, (name, (says_wrong, revise)) in enumerate(critics.items()):
        log = s.correct_rounds(model, problems, rng, says_wrong, revise)
        line(ax, range(s.ROUNDS + 1), [accuracy for accuracy, *_ in log], name, style, markers=True)


def lecture04_rlef(figure):
    s = script("lecture04/02_rlef.py")
    model = s.ToyLLM(s.MODEL_SIZE)
    problems = s.make_problem_set(random.Random(s.TRAIN_SET_SEED), s.N_PROBLEMS, s.MIN_STEPS, s.MAX_STEPS)
    ax = axes(figure, "训练了几遍", "σ(θ)：修的概率", range(0, s.EPOCHS + 1, 5), SHARES)
    runs = (("真的反馈", "true", s.TRAIN_SEED), ("随机的反馈", "random", s.RANDOM_TRAIN_SEED))
    for style, (name, feedback, seed) in enumerate(runs):
        _, log = s.train(model, problems, random.Random(seed), feedback)
        epochs, ps, _ = zip((0, s.sigmoid(s.THETA0), 0), *log)
        line(ax, epochs, ps, name, style, markers=True)


def lecture06_learning_curves(figure):
    s = script("lecture06/02_policy_gradient.py")
    train_set = s.make_problem_set(random.Random(s.TRAIN_SET_SEED), s.N_TRAIN, s.MIN_STEPS, s.MAX_STEPS)
    test_set = s.make_problem_set(random.Random(s.TEST_SET_SEED), s.N_TEST, s.MIN_STEPS, s.MAX_STEPS)
    ax = axes(figure, "训练步数", "测试集 pass@1", (0, 15, 30, 45, s.STEPS), SHARES)
    runs = [(method, method, s.LR) for method in s.METHODS] + [("rloo，学习率 × 4", "rloo", s.LR * s.LR_FACTOR)]
    for style, (name, method, lr) in enumerate(runs):
        _, curve = s.train(method, train_set, test_set, s.TRAIN_SEED, lr)
        line(ax, *zip(*curve), name, style, shift=(6, -7, -20, -2, 8)[style], markers=True)


def lecture06_boundary(figure):
    s = script("lecture06/06_capability_boundary.py")
    train_set = s.make_tasks(random.Random(s.TRAIN_SET_SEED), s.N_TRAIN)
    test_set = s.make_tasks(random.Random(s.TEST_SET_SEED), s.N_TEST)
    curves = {}
    for name, uses in s.TABLES.items():
        curve = s.train(uses, train_set, test_set, random.Random(s.RUN_SEED))[1]
        curves["基座"], curves[f"RL（{name}）"] = curve[0], curve[max(curve)]
    ks = geometric(1, s.KS[-1], 61)
    ax = axes(figure, "每题试几次 k（对数刻度）", "pass@k", s.KS, SHARES, x_log=True)
    for style, (name, probs) in enumerate(curves.items()):
        line(ax, ks, [s.coverage(probs, k) for k in ks], name, style, shift=(-6, 0, 9)[style])


def lecture06_reward_hacking(figure):
    s = script("lecture06/07_reward_hacking.py")
    train_set = s.make_problem_set(random.Random(s.TRAIN_SET_SEED), s.N_TRAIN, s.MIN_STEPS, s.MAX_STEPS)
    test_set = s.make_problem_set(random.Random(s.TEST_SET_SEED), s.N_TEST, s.MIN_STEPS, s.MAX_STEPS)
    history = s.train("格式", train_set, test_set)
    ax = axes(figure, "训练步数", "比例", (0, 10, 20, 30, 40, 50, s.STEPS), SHARES)
    names = {"proxy": "代理奖励", "true": "真实正确率", "template": "写模板的概率"}
    for style, (key, name) in enumerate(names.items()):
        ys = [h[key] for h in history]
        line(ax, [h["step"] for h in history], ys, name, style, shift=(8, 0, -8)[style], markers=True)


# ==============================================================================
# 第 11、12 讲（要 torch；模型从缓存里读，没有就先训练）
# ==============================================================================
def lecture11_pretraining(figure):
    s = script("lecture11/01_pretrain.py")
    base, vocab = s.load_base()
    unigram, bigram = s.ngram_bits(
        s.pretraining_corpus(s.COUNT_DOCUMENTS, s.COUNT_SEED), s.pretraining_corpus(s.TEST_DOCUMENTS, s.TEST_SEED)
    )
    steps = sorted({round(step) for step in geometric(1, len(base.losses), 60)})
    bits = [s.mean(base.losses[max(0, step - s.WINDOW) : step]) / math.log(2) for step in steps]
    ax = axes(figure, "训练步数（对数刻度）", "损失（bit / 词）", (1, 10, 100, 1000), range(9), x_log=True,
              x_end=len(base.losses))
    line(ax, steps, bits, "GPT", 0)
    levels = {"二元模型": bigram, "一元模型": unigram, "均匀乱猜": math.log2(len(vocab))}
    for style, (name, level) in enumerate(levels.items(), 1):
        line(ax, (1, len(base.losses)), (level, level), name, style)


def lecture11_agreement(figure):
    s = script("lecture11/05_preference_data.py")
    rng = random.Random(s.PAIR_SEED)
    by_subject = {}
    for subject, response in s.human_answers(rng, s.N_ANSWERS):
        by_subject.setdefault(subject, []).append(s.human_reward(subject, response))
    subjects = sorted(by_subject)
    gaps = [a - b for a, b in (rng.choices(by_subject[rng.choice(subjects)], k=2) for _ in range(s.N_PAIRS))]
    noises = geometric(s.NOISES[0], s.NOISES[-1], 31)
    pairs = [s.agreement_and_ceiling([s.sigmoid(gap / noise) for gap in gaps]) for noise in noises]
    y_ticks = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    ax = axes(figure, "标注员的噪声（r* 的单位，对数刻度）", "比例", s.NOISES, y_ticks, x_log=True)
    for style, name in ((0, "猜对标签的天花板"), (1, "两个标注员一致")):
        line(ax, noises, [pair[1 - style] for pair in pairs], name, style)


def lecture12_reward_kl(figure):
    s, bon = script("lecture12/01_optimal_policy.py"), script("lecture12/03_best_of_n.py")
    s.setup_torch()
    sft, rm, vocab = s.load_models()
    tables = [
        s.scored_support(sft, rm, vocab, subject, s.N_SAMPLES, s.SUPPORT_SEED + i)
        for i, subject in enumerate(s.SUBJECTS)
    ]
    s.BETAS = geometric(s.BETAS[0], s.BETAS[-1], 25)  # 曲线画得细一些
    ax = axes(figure, "KL(π || π_ref)（nat）", "各题的平均", range(0, 17, 4), (-1, 0, 1, 2, 3, 4))
    by_rm, by_true = s.sweep(tables, "rm"), s.sweep(tables, "true")
    few = [bon.bon_stats(tables, "rm", n) for n in bon.NS]
    for style, (name, curve, key, shift) in enumerate((
        ("用 RM 优化：RM 分数", by_rm, "rm", 6), ("用 RM 优化：真值 r*", by_rm, "true", 0),
        ("用 r* 优化：真值 r*", by_true, "true", 0), (f"best-of-{bon.NS[-1]}：真值 r*", few, "true", -10),
    )):
        line(ax, [stats["kl"] for stats in curve], [stats[key] for stats in curve], name, style, shift)


def lecture12_overoptimization(figure):
    s = script("lecture12/04_overoptimization.py")
    s.setup_torch()
    sft, rm, vocab = s.load_models()
    curve = [stats for _, stats in s.optimise(sft, s.frozen_copy(sft), rm, vocab, s.BETAS[0])]
    ax = axes(figure, "KL(π || π_ref)（nat）", "各题的平均", range(0, 13, 3), range(-2, 4))
    for style, (key, name) in enumerate({"rm": "RM 分数", "true": "真值 r*"}.items()):
        line(ax, [stats["kl"] for stats in curve], [stats[key] for stats in curve], name, style, markers=True)


FIGURES = {
    draw_one.__name__: draw_one
    for draw_one in (
        lecture01_emergence, lecture01_temperature, lecture02_power_law, lecture02_best_of_n, lecture04_self_correction,
        lecture04_rlef, lecture06_learning_curves, lecture06_boundary, lecture06_reward_hacking, lecture11_pretraining,
        lecture11_agreement, lecture12_reward_kl, lecture12_overoptimization,
    )
}

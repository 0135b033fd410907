"""
================================================================================
第 2 讲 · 05：修改还是重来 —— 16 次调用，写 16 份，还是把一份改 15 遍？
================================================================================
对应讲义：lectures/lecture02_test_time_scaling.md 第 6 节
（Snell et al. 2024 第 6 节；Huang et al. 2023）

【问题】16 次调用可以并行写 16 份（1×16），也可以写一份、再改 15 次（16×1）。哪种分法好？

【这里的设定】一条链：先写一份；以后每次看着上一稿，找自查最先不满意的那一步，保留它前面的，从它开始
重写；没有不满意的就停手，剩余的调用不用了。顺序 × 并行 = 每条链最多几次调用 × 几条链。
演示 1 另有一组“停手后另起”：一条链停了就另起一条，直到用满 16 次，这才是同样的调用次数。
量两样：覆盖（写过的稿子里有没有一份过程全对）和最后一稿（每条链最后那份全对的比例）。
自查是一个 PRM，它有一味是故意加进去的：模型认不出自己在**乘两位数**上的 bug，算成对的。
所以难度按乘两位数的步数分：没有的是易，一步是中，两步以上是难。没有这一味，顺序在难题上也总是赢，
论文里"难题要留一些并行"就不会出现。演示 2 换成随便指一步的自查，看没有信息的修改值多少。
简化：Snell et al. 的修改模型是训练出来的，这里重写用的是同一个模型；自查与重写只算一次调用。

【公式】覆盖（1×16）的精确值 = E[1 - (1 - p)^16]，p = P(过程全对)
        链够长时，一条链停在过程全对上的概率是 Π r_i，m 条链的覆盖是 1 - (1 - Π r_i)^m：
        乘两位数的步 r_i = p_i / (p_i + b_i)，其余的步 r_i = 1；p_i、b_i 是做对、bug 的概率（自查没有噪声时）
        不动点：随便指一步 i，留下前 i - 1 步，其余重写，新稿与旧稿同分布，所以 P(新稿全对) = p

运行时间：约 3 秒，只用标准库。
"""
import math
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from tts_tools import (
    PRM, ToyLLM, apply_bug, check_counts, check_int, check_levels, check_number, check_seeds, coverage, extend_trace,
    make_problem, mean, observe, path_probs, print_table, run_script, title,
)

SIZE = 5e9  # 模型的参数量
N_STEPS = 8  # 每题的步数
LEVELS = {"易": (0, 0), "中": (1, 1), "难": (2, N_STEPS)}  # 每个难度有几步乘两位数（从几到几）
PER_LEVEL = 60  # 每个难度出多少道题
MAX_DRAWS = 20000  # 最多出多少道题来凑够各个难度
SET_SEED = 40  # 出题的随机种子
BUDGET = 16  # 每题一共几次调用
SPLITS = (1, 2, 4, 8, 16)  # 每条链最多几次调用；链的条数是 BUDGET 除以它
REPEATS = 6  # 演示 1：每题重复几次，取平均
BLIND_REPEATS = 3  # 演示 2：每题重复几次，取平均
SAMPLE_SEED = 41  # 作答的随机种子
NOISE = 0.0  # 自查给每一步的噪声（标准差）；0 时才与公式相同
BUG_CREDIT = 0.2  # 自查给看得出来的 bug 的分
BLIND_CREDIT = 1.0  # 自查给乘两位数的 bug 的分：1 就是看不出来
DISLIKE = 0.5  # 一步的分数低于它，自查就不满意
CHECK_SEED = 42  # 自查的种子


class OwnCheck(PRM):
    """模型的自查：一个 PRM，但认不出自己在乘两位数上的 bug（它自己就是这么算的）。"""

    def credit(self, step, before, written):
        if is_hard(step) and written == apply_bug(step.op, before, step.operand):
            return BLIND_CREDIT
        return super().credit(step, before, written)

    def first_bad(self, problem, sample, rng):
        """最先不满意的那一步的下标；都满意时是 None。"""
        for i in range(problem.n_steps):  # 前缀分数之比就是这一步的分数；后面的步不必再看
            before = self.score(problem, sample.values[:i]) if i else 1.0
            if self.score(problem, sample.values[: i + 1]) / before < DISLIKE:
                return i
        return None


class RandomCheck:
    """没有信息的自查：每次都随便指一步，从不满意。"""

    def first_bad(self, problem, sample, rng):
        return rng.randrange(problem.n_steps)


def is_hard(step):
    """这一步是不是乘两位数。"""
    return step.op == "mul" and step.operand >= 10


def make_levels(rng):
    """每个难度 PER_LEVEL 道题：{"易": [题], …}；出了 MAX_DRAWS 道还凑不够时 ValueError。"""
    levels = {name: [] for name in LEVELS}
    for _ in range(MAX_DRAWS):
        problem = make_problem(rng, N_STEPS)
        n_hard = sum(map(is_hard, problem.steps))
        for name, (low, high) in LEVELS.items():
            if low <= n_hard <= high and len(levels[name]) < PER_LEVEL:
                levels[name].append(problem)
                break
        if all(len(found) == PER_LEVEL for found in levels.values()):
            return levels
    raise ValueError(f"出了 MAX_DRAWS = {MAX_DRAWS} 道题还凑不够每个难度 PER_LEVEL = {PER_LEVEL} 道：换 LEVELS 或步数")


def revise_chain(model, problem, check, max_calls, rng):
    """一条链写过的所有稿子（Sample 的列表，1 到 max_calls 份）；最后一稿是它的答卷。"""
    drafts = [model.generate(problem, rng)]
    while len(drafts) < max_calls:
        last = drafts[-1]
        i = check.first_bad(problem, last, rng)
        if i is None:
            break
        drafts.append(extend_trace(model, problem, last.values[:i], last.procs[:i], rng))
    return drafts


def stop_right(model, problem):
    """Π r_i：够长的一条链停在过程全对上的概率（自查没有噪声，只看不见乘两位数的 bug）。"""
    r = 1.0
    for i, (step, x) in enumerate(zip(problem.steps, (problem.start, *problem.true_values))):
        p_correct, p_bug, _ = model.step_probs(step.op, x, step.operand, i)
        r *= p_correct / (p_correct + p_bug) if is_hard(step) else 1.0
    return r


def restarted(model, problems, check, split, rng, repeats):
    """停手后另起：一条链（最多 split 次调用）停了就另起一条，一共 BUDGET 次。返回覆盖。"""
    found = []
    for problem in problems:
        for _ in range(repeats):
            left, hit = BUDGET, False
            while left and not hit:
                chain = revise_chain(model, problem, check, min(split, left), rng)
                left -= len(chain)
                hit = any(draft.sound for draft in chain)
            found.append(hit)
    return mean(found)


def measure(model, problems, check, split, rng, repeats=1):
    """返回 {"覆盖", "最后一稿", "调用", "对改错", "错改对"}：前三项是平均数，后两项是（发生的次数, 机会的次数）。"""
    found, final, calls, broken, mended = [], [], [], [], []
    for problem in problems:
        for _ in range(repeats):
            chains = [revise_chain(model, problem, check, split, rng) for _ in range(BUDGET // split)]
            found.append(any(draft.sound for chain in chains for draft in chain))
            final.append(mean(chain[-1].sound for chain in chains))
            calls.append(sum(map(len, chains)))
            pairs = [(before.sound, after.sound) for chain in chains for before, after in zip(chain, chain[1:])]
            broken += [not after for before, after in pairs if before]
            mended += [after for before, after in pairs if not before]
    flips = {"对改错": (sum(broken), len(broken)), "错改对": (sum(mended), len(mended))}
    return {"覆盖": mean(found), "最后一稿": mean(final), "调用": mean(calls), **flips}


def main():
    for split in check_counts("SPLITS", SPLITS, 1, check_int("BUDGET", BUDGET, 1, 1000), at_least=3):
        if BUDGET % split:
            raise ValueError(f"SPLITS 里的数应当整除 BUDGET = {BUDGET}，收到的是 {split}")
    check_number("SIZE", SIZE, 0, 1e15, open_low=True)
    check_levels("LEVELS", LEVELS, 0, check_int("N_STEPS", N_STEPS, 2, 30))
    for name, value in (("PER_LEVEL", PER_LEVEL), ("REPEATS", REPEATS), ("BLIND_REPEATS", BLIND_REPEATS)):
        check_int(name, value, 1, 1000)
    check_int("MAX_DRAWS", MAX_DRAWS, 1, 10**6)
    for name, value in (("NOISE", NOISE), ("BUG_CREDIT", BUG_CREDIT), ("BLIND_CREDIT", BLIND_CREDIT)):
        check_number(name, value, 0, 1000)
    check_number("DISLIKE", DISLIKE, -1000, 1000)
    check_seeds(SET_SEED=SET_SEED, SAMPLE_SEED=SAMPLE_SEED, CHECK_SEED=CHECK_SEED)
    names = [f"{split}×{BUDGET // split}" for split in SPLITS]

    title(f"演示 1：{BUDGET} 次调用怎样分（顺序 × 并行）—— 覆盖，自查认不出乘两位数的 bug")
    model = ToyLLM(SIZE)
    levels = make_levels(random.Random(SET_SEED))
    ps = {name: [math.prod(path_probs(model, problem)) for problem in problems] for name, problems in levels.items()}
    check = OwnCheck(NOISE, BUG_CREDIT, seed=CHECK_SEED)
    runs = {
        name: [measure(model, problems, check, s, random.Random(f"{SAMPLE_SEED}|{name}|{s}"), REPEATS) for s in SPLITS]
        for name, problems in levels.items()
    }
    pooled = [{key: mean(r[key] for r in rs) for key in ("覆盖", "最后一稿", "调用")} for rs in zip(*runs.values())]
    found = {name: [run["覆盖"] for run in runs[name]] for name in levels}
    again, limit, rows = {}, {}, []
    for name, problems in levels.items():
        exact = f"{mean(coverage(p, BUDGET) for p in ps[name]):.3f}"
        rows.append([f"{name}（单次全对 {mean(ps[name]):.3f}）", *(f"{x:.3f}" for x in found[name]), exact])
        if name == "易":  # 没有盲点，链够长就是 1
            continue
        rngs = [random.Random(f"{SAMPLE_SEED}|另起|{name}|{s}") for s in SPLITS]
        again[name] = [restarted(model, problems, check, s, rng, REPEATS) for s, rng in zip(SPLITS, rngs)]
        stops = [stop_right(model, problem) for problem in problems]
        limit[name] = [mean(coverage(r, BUDGET // s) for r in stops) for s in SPLITS]
        rows.append([f"{name} 链够长（公式）", *(f"{x:.3f}" for x in limit[name]), "—"])
        rows.append([f"{name} 停手后另起", *(f"{x:.3f}" for x in again[name]), "—"])
    rows.append(["用掉的调用（三组平均）", *(f"{run['调用']:.1f}" for run in pooled), "—"])
    print_table(["难度", *names, f"1×{BUDGET}（精确）"], rows)
    easy, middle, renewed = found["易"], found["中"], again["中"]
    inner = "、".join(f"{name} 是 {x:.3f}" for name, x in list(zip(names, middle))[1:3])
    print("观察：")
    observe(
        f"易题：全部顺序最好，{names[0]} 是 {easy[0]:.3f}，{names[-1]} 是 {easy[-1]:.3f}。"
        "错的地方自查都看得见，改掉就是。",
        easy[-1] > easy[0] + 0.03 and easy[-1] >= max(easy) - 0.02,
    )
    observe(
        f"中等题，分法固定：全部顺序 {middle[-1]:.3f}，不如全部并行的 {middle[0]:.3f}；折中的最好（{inner}）。",
        middle[-1] < middle[0] - 0.05 and min(middle[1:3]) > middle[0] + 0.03,
    )
    observe(
        f"输在哪里？链停在自己看不见的 bug 上，剩下的调用就浪费了：{names[-1]} 平均只用 {pooled[-1]['调用']:.1f} 次。"
        f"拿它们另起一条，长链就不输了：中等题 {middle[-1]:.3f} → {renewed[-1]:.3f}，难题 {found['难'][-1]:.3f} → "
        f"{again['难'][-1]:.3f}，比固定的任何一种分法都好。要紧的不是少改，是停了要重来。",
        all(again[name][-1] > max(found[name]) + 0.02 for name in again),
    )
    off = max(abs(found[name][-1] - limit[name][-1]) for name in limit)
    observe(f"一条链（{names[-1]}）与公式 Π r_i 最多差 {off:.3f}：{SPLITS[-1]} 次调用，链多半已经停了。", off < 0.06)
    observe(
        "Snell et al.（2024）的结论同一个方向：容易的题宜全部顺序修改，难的题宜顺序与并行各占一部分。"
        "他们的修改会把大约 38% 的正确答案改错，所以要在整条链里挑，不能只交最后一稿。"
    )

    title("演示 2：自查没有信息（随便指一步）—— 三组合在一起")
    problems = [problem for group in levels.values() for problem in group]
    p1 = mean(p for group in ps.values() for p in group)
    rngs = [random.Random(f"{SAMPLE_SEED}|随便|{s}") for s in SPLITS]
    blind = [measure(model, problems, RandomCheck(), s, rng, BLIND_REPEATS) for s, rng in zip(SPLITS, rngs)]
    rows = [
        [name, *(f"{run[key]:.3f}" for run in (told, untold) for key in ("覆盖", "最后一稿"))]
        for name, told, untold in zip(names, pooled, blind)
    ]
    print_table(["顺序 × 并行", "自查：覆盖", "自查：最后一稿", "随便指：覆盖", "随便指：最后一稿"], rows)
    worst = max(abs(run["最后一稿"] - p1) for run in blind)
    (broke, right), (mend, wrong) = blind[-1]["对改错"], blind[-1]["错改对"]
    print("观察：")
    observe(
        f"随便指一步：改多少遍，最后一稿还是 {p1:.3f}（精确值）上下，最多差 {worst:.3f}。没有新信息，修改就没有收益。",
        worst < 0.04,
    )
    observe(
        f"不是没有动：{names[-1]} 时，对的稿子一改有 {broke / max(1, right):.0%} 变错，"
        f"错的稿子有 {mend / max(1, wrong):.1%} 变对；两边的次数差不多（{broke} 对 {mend}），正好抵消。",
        broke > 0 and abs(broke - mend) < 0.25 * (broke + mend),
    )
    observe(
        f"覆盖也没有好处：{names[-1]} 是 {blind[-1]['覆盖']:.3f}，{names[0]} 是 {blind[0]['覆盖']:.3f}。"
        "稿子之间留着同样的前缀，不如各写各的。",
        blind[-1]["覆盖"] < blind[0]["覆盖"] - 0.05,
    )
    observe(
        f"自查有信息时，最后一稿从 {pooled[0]['最后一稿']:.3f} 到 {pooled[-1]['最后一稿']:.3f}："
        "好处来自信息，不来自多想几遍。第 4 讲的 01 从这里接着讲。",
        pooled[-1]["最后一稿"] > pooled[0]["最后一稿"] + 0.2,
    )


if __name__ == "__main__":
    run_script(main)

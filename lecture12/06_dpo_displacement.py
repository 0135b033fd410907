"""
================================================================================
第 12 讲 · 06：赢了差距，丢了好答案 —— 似然位移（likelihood displacement）与 IPO
================================================================================
对应讲义：lectures/lecture12_rlhf.md 第 7 节
（Razin et al. 2024, "Unintentional Unalignment"；Pal et al. 2024, "Smaug"；Azar et al. 2023, "IPO"）

【问题】DPO 要"赢家的概率比输家高"。赢家自己的概率会升吗？

【这里的设定】演示 1、2：用偏好数据训练 DPO，一路量赢家、输家的 log π，再看概率搬到哪里去了。
演示 3：一次只训练一对，看两条回答有多像要不要紧；再把同样的对放进表格（每条回答一个 logit），
看是不是共享参数在作怪。演示 4：标签从不矛盾时，DPO、cDPO、IPO 各停在哪里（两条回答的闭式解）。
简化：Razin et al. 用隐藏向量算相似度（CHES），这里只数共同的词。

【公式】损失只管差：只要 log π(输) 降得更快，log π(赢) 降了损失也小。h = log(π(w)/π_ref(w)) - log(π(l)/π_ref(l))
    DPO    -log σ(βh)                                标签永远是 w 赢：h → 无穷，不管 β 多大
    cDPO   -(1-ε)·log σ(βh) - ε·log σ(-βh)           停在 βh = log((1-ε)/ε)
    IPO    (h - 1/(2τ))^2                             停在 h = 1/(2τ)
w 是赢家，l 是输家，ε 是假定的标错比例，τ 是 IPO 的系数。

运行时间：约 12 秒，需要 torch。
"""
import copy
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from rlhf_lab import (
    PROMPT_SUBJECTS, bar, check_int, check_number, describe_prompt, frozen_copy, load_models, mean, observe,
    preference_data, print_table, rollout_stats, run_script, seq_logprob, setup_torch, support_of, title, torch,
    train_dpo,
)

BETA = 0.1  # DPO 的 β
N_PROMPTS, K = 300, 4  # 偏好数据：多少道题，每题几条回答
DATA_SEEDS = (1, 11, 21)  # 偏好数据的种子：提示、采样、标注
EPOCHS = 3  # 走几轮
LR = 2e-4  # 学习率（Adam）
TRAIN_SEED = 1  # 打乱次序的随机种子
N_PROBE = 400  # 一路跟踪多少对
EVAL_PROMPTS, EVAL_SEED = 300, 77  # 量 r*、KL：多少道随机的题，随机种子
N_SUBJECTS = 6  # 演示 2：在几道题的支撑集上看概率去了哪里
SUPPORT_SAMPLES, SUPPORT_SEED = 1000, 1  # 演示 2：收集支撑集时每题采样几次，随机种子
N_SINGLE = 30  # 演示 3：最像的、最不像的各取多少对，一次训练一对
SINGLE_STEPS = 10  # 演示 3：每一对下降多少步
TABLE_LR, TABLE_MAX = 2.0, 20_000  # 演示 3：表格的学习率，最多下降多少步
ALWAYS_STEPS = (100, 1_000, 10_000, 100_000)  # 演示 4：看下降了多少步的时候
ALWAYS_LR = 0.1  # 演示 4：学习率（变量是 h）
DPO_BETAS = (0.1, 1.0)  # 演示 4：DPO 的 β
FLIP = 0.1  # 演示 4：cDPO 假定的标错比例 ε
IPO_TAU = 0.5  # 演示 4：IPO 的 τ


def logprobs(policy, vocab, pairs, side):
    """每一对里赢家（side = 1）或输家（side = 2）的 log π。"""
    with torch.no_grad():
        return seq_logprob(policy, vocab, [p[0] for p in pairs], [p[side] for p in pairs])


def similarity(a, b):
    """两条回答有多像：共同的词数 / 全部的词数（Jaccard），0 到 1。"""
    return len(set(a) & set(b)) / max(1, len(set(a) | set(b)))


def single_pair(sft, ref, vocab, pair):
    """只用这一对训练 SINGLE_STEPS 步，返回 (log π(赢) 的变化, log π(输) 的变化)。"""
    policy = copy.deepcopy(sft)
    train_dpo(policy, ref, vocab, [pair], BETA, epochs=SINGLE_STEPS, lr=LR, seed=TRAIN_SEED)
    return tuple((logprobs(policy, vocab, [pair], side) - logprobs(ref, vocab, [pair], side)).item() for side in (1, 2))


def tabular_change(ref, vocab, pairs, until):
    """
    同样的对放进表格：每个（提示，回答）有自己的 logit，其余回答合成一格不动。下降到平均的差 h 达到 until，
    返回每一对 log π(赢) 的变化。

    【思路】一对的梯度只碰它自己的两个 logit：赢的升，输的降，升降一样多。
    """
    keys = list(dict.fromkeys((tuple(p[0]), tuple(p[side])) for p in pairs for side in (1, 2)))
    row = {key: i for i, key in enumerate(keys)}
    group = {prompt: i for i, prompt in enumerate(dict.fromkeys(prompt for prompt, _ in keys))}
    of = torch.tensor([group[prompt] for prompt, _ in keys])
    win, lose = (torch.tensor([row[tuple(p[0]), tuple(p[side])] for p in pairs]) for side in (1, 2))
    start = logprobs(ref, vocab, keys, 1).double()
    moved, empty = torch.zeros_like(start), torch.zeros(len(group), dtype=torch.float64)
    rest = (1 - empty.index_add(0, of, start.exp())).clamp(min=0)
    for _ in range(TABLE_MAX):
        h = moved[win] - moved[lose]
        if h.mean() >= until:
            break
        push = TABLE_LR * BETA * torch.sigmoid(-BETA * h)
        moved = moved.index_add(0, win, push).index_add(0, lose, -push)
    log_z = (rest + empty.index_add(0, of, (start + moved).exp())).log()
    return (moved - log_z[of])[win].tolist()


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def descend(slope, steps):
    """从 h = 0 开始的梯度下降，返回 steps 里每个步数时的 h。"""
    h, seen = 0.0, {}
    for step in range(1, max(steps) + 1):
        h -= ALWAYS_LR * slope(h)
        if abs(h) > 1e6:
            raise ValueError(f"ALWAYS_LR 应当小一些：h 已经走散了，收到的是 {ALWAYS_LR!r}")
        if step in steps:
            seen[step] = h
    return [seen[step] for step in steps]


def main():
    for name, high in (("BETA", None), ("LR", 0.01), ("FLIP", 0.5), ("IPO_TAU", None), ("TABLE_LR", 100),
                       ("ALWAYS_LR", None)):
        check_number(name, globals()[name], 0, high, open_low=True)
    for name in ("EPOCHS", "N_PROBE", "N_SINGLE", "SINGLE_STEPS", "TABLE_MAX", "EVAL_PROMPTS"):
        check_int(name, globals()[name], 1)
    check_int("N_SUBJECTS", N_SUBJECTS, 1, len(PROMPT_SUBJECTS))
    for steps in ALWAYS_STEPS:
        check_int("ALWAYS_STEPS 的每一项", steps, 1, 1_000_000)
    for beta in DPO_BETAS:
        check_number("DPO_BETAS 的每一项", beta, 0, open_low=True)
    setup_torch()

    title(f"演示 1：差在升，赢家在降（DPO，β = {BETA:g}）")
    sft, rm, vocab = load_models()
    ref = frozen_copy(sft)
    pairs, _ = preference_data(sft, vocab, N_PROMPTS, K, *DATA_SEEDS)
    pairs = [pair for pair in pairs if pair[1] != pair[2]]
    probe, policy, track = pairs[:N_PROBE], copy.deepcopy(sft), []
    base = [logprobs(ref, vocab, probe, side) for side in (1, 2)]

    def measure(epoch):
        win, lose = (logprobs(policy, vocab, probe, side) - base[side - 1] for side in (1, 2))
        stats = rollout_stats(policy, ref, rm, vocab, EVAL_PROMPTS, EVAL_SEED)
        track.append((epoch, win.mean().item(), lose.mean().item(), (win < 0).double().mean().item(),
                      stats["true"], stats["kl"]))

    measure(0)
    train_dpo(policy, ref, vocab, pairs, BETA, epochs=EPOCHS, lr=LR, seed=TRAIN_SEED, callback=measure)
    rows = [
        [str(epoch), *(f"{round(x, 2) + 0.0:.2f}" for x in (win, lose, win - lose, fell, true, kl))]
        for epoch, win, lose, fell, true, kl in track
    ]
    print_table(["轮", "log π(赢) 变化", "log π(输) 变化", "差 h", "赢家降了的比例", "r*", "KL"], rows)
    _, win, lose, fell, true, _ = track[-1]
    print("观察：")
    observe(
        f"差 h 一轮比一轮大，最后 {win - lose:.1f}：训练集上看，一切都好。",
        all(a[1] - a[2] < b[1] - b[2] for a, b in zip(track, track[1:])),
    )
    observe(
        f"可是赢家自己的 log π 也在降（{win:.1f}），只是输家降得更多（{lose:.1f}）；{fell:.0%} 的赢家比训练前更少见。",
        lose < win < -0.5 and fell > 0.5,
    )
    observe(
        f"r* 从 {track[0][4]:.2f} 到 {true:.2f}。赢家降了，不等于策略一定变坏：要看概率搬到了哪里。"
        "β 更小时策略会不会塌，随训练的种子变，这里不把它当规律。"
    )

    title(f"演示 2：概率搬到哪里去了（{N_SUBJECTS} 道题的支撑集：SFT 采样 {SUPPORT_SAMPLES} 次见过的回答）")
    groups = {"数据里的赢家": [], "数据里的输家": [], "SFT 写过，数据里没有": [], "支撑集之外": []}
    for i, subject in enumerate(PROMPT_SUBJECTS[:: max(1, len(PROMPT_SUBJECTS) // N_SUBJECTS)][:N_SUBJECTS]):
        responses, logp, _ = support_of(sft, vocab, subject, SUPPORT_SAMPLES, SUPPORT_SEED + i)
        prompt = describe_prompt(subject)
        now = logprobs(policy, vocab, [(prompt, response) for response in responses], 1).exp().tolist()
        won, lost = ({tuple(p[side]) for p in pairs if p[3] == subject} for side in (1, 2))
        mass = {name: [0.0, 0.0] for name in groups}
        for response, *both in zip(responses, logp.exp().tolist(), now):
            seen = (tuple(response) in won, tuple(response) in lost)
            name = list(groups)[2 if not any(seen) or all(seen) else 0 if seen[0] else 1]
            mass[name] = [a + b for a, b in zip(mass[name], both)]
        mass["支撑集之外"] = [1 - math.fsum(m[k] for m in mass.values()) for k in (0, 1)]
        for name, both in mass.items():
            groups[name].append(both)
    share = {name: [mean(both[k] for both in rows) for k in (0, 1)] for name, rows in groups.items()}
    print_table(
        ["回答", "训练前的概率", "训练后的概率", "画出来"],
        [[name, f"{before:.3f}", f"{after:.3f}", bar(after) or "—"] for name, (before, after) in share.items()],
    )
    outside = share["支撑集之外"]
    print("观察：")
    observe(
        f"概率逃出了支撑集：训练前 {outside[0]:.2f} 在外面，训练后 {outside[1]:.2f}。偏好数据里从没出现过的回答，"
        "没有人说它好，也没有人说它不好，DPO 不管它们。",
        outside[1] > outside[0] + 0.15,
    )

    title(f"演示 3：一次只训练一对（{SINGLE_STEPS} 步）—— 像不像，共不共享参数")
    by_similarity = sorted(pairs, key=lambda pair: similarity(pair[1], pair[2]))
    rows, rises, in_table = [], [], []
    for name, part in (("最不像", by_similarity[:N_SINGLE]), ("最像", by_similarity[-N_SINGLE:])):
        changes = [single_pair(sft, ref, vocab, pair) for pair in part]
        table = [tabular_change(ref, vocab, [pair], w - l)[0] for pair, (w, l) in zip(part, changes)]
        rises.append(mean(w for w, _ in changes))
        in_table.append(mean(table))
        rows.append([f"一次一对，{name}的 {len(part)} 对", f"{mean(similarity(p[1], p[2]) for p in part):.2f}",
                     f"{rises[-1]:.2f}", f"{mean(l for _, l in changes):.2f}", f"{in_table[-1]:.2f}"])
    in_table.append(mean(tabular_change(ref, vocab, pairs, win - lose)))
    rows.append(["全部的对一起（演示 1）", f"{mean(similarity(p[1], p[2]) for p in pairs):.2f}", f"{win:.2f}",
                 f"{lose:.2f}", f"{in_table[-1]:.2f}"])
    print_table(["训练用的对", "相似度", "网络：赢家", "网络：输家", "表格：赢家"], rows)
    print("观察：")
    observe(
        f"两条回答越像，赢家升得越少（最像的 {rises[1]:.2f}，最不像的 {rises[0]:.2f}）：压低输家，也按住了赢家。",
        rises[1] < rises[0],
    )
    observe(
        f"一次一对，赢家还是升的；全部的对一起训练，赢家平均变了 {win:.1f}。伤到它的主要是别的对：参数是共享的。",
        min(rises) > 0 > win,
    )
    observe(
        f"同样的差 h，放进表格，三行的赢家都升（{min(in_table):.1f} 以上）：每条回答有自己的 logit，压低别人碰不到它。",
        min(in_table) > 0,
    )
    observe("Razin et al.（2024）：拒答的偏好数据训练后，Llama-3-8B-Instruct 的拒答率反而从 74.4% 降到 33.4%。")

    title("演示 4：标签从不矛盾 —— π(赢) 停在哪里（两条回答，π_ref 各一半）")
    methods = [
        *((f"DPO，β = {beta:g}", lambda h, b=beta: -b * sigmoid(-b * h), 1.0) for beta in DPO_BETAS),
        *((f"cDPO，β = {beta:g}，ε = {FLIP:g}",
           lambda h, b=beta: -b * ((1 - FLIP) * sigmoid(-b * h) - FLIP * sigmoid(b * h)),
           sigmoid(math.log((1 - FLIP) / FLIP) / beta)) for beta in DPO_BETAS),
        (f"IPO，τ = {IPO_TAU:g}", lambda h: 2 * (h - 1 / (2 * IPO_TAU)), sigmoid(1 / (2 * IPO_TAU))),
    ]
    rows, ends = [], []
    for name, slope, limit in methods:
        path = [sigmoid(h) for h in descend(slope, ALWAYS_STEPS)]
        ends.append((path, limit))
        rows.append([name, *(f"{p:.4f}" for p in path), f"{limit:.4f}"])
    print_table(["方法", *(f"{steps} 步" for steps in ALWAYS_STEPS), "极限（公式）"], rows)
    print("观察：")
    observe(
        "DPO 不管 β 多大，π(赢) 都往 1 去，不会停；β 管的是 βh，β 小，h 反而走得更远。",
        all(path[-1] > 0.999 and path[0] < path[-1] for path, _ in ends[: len(DPO_BETAS)]),
    )
    observe(
        f"IPO 停在 σ(1/(2τ)) = {ends[-1][1]:.3f}，cDPO（β = {DPO_BETAS[-1]:g}）停在 {ends[-2][1]:.3f}："
        "它们的目标里有一个终点。",
        all(abs(path[-1] - limit) < 1e-3 for path, limit in ends[-2:]),
    )


if __name__ == "__main__":
    run_script(main)

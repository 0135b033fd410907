"""
================================================================================
第 12 讲 · 06：差拉开了，好答案丢了 —— 似然位移（likelihood displacement）与 IPO
================================================================================
对应讲义：lectures/lecture12_rlhf.md 第 7 节
（Razin et al. 2024, "Unintentional Unalignment"；Pal et al. 2024, Smaug；Azar et al. 2023, IPO）

【问题】DPO 要"赢家的概率比输家高"。赢家自己的概率会升吗？

【这里的设定】演示 1、2：用偏好数据训练 DPO，一路量赢家、输家的 log π，再看概率搬到哪里去了。演示 1 只跟踪
在自己的题里从没输过的赢家，旁边放 SFT 随便写的回答：它平均一定降，E[log π 的变化] = -KL(π_ref || π) ≤ 0。
演示 3：一次只训练一对，看两条回答有多像要不要紧；再把同样的对放进表格（每条回答一个 logit），看是不是共享
参数在作怪。演示 4：标签从不矛盾时各停在哪里（两条回答的闭式解）。
简化：相似度只数共同的词（Razin et al. 用隐藏向量）；演示 2 合起一个主语的四种说法数赢输，只量 "describe" 的概率。

【公式】损失只管差：只要 log π(输) 降得更快，log π(赢) 降了损失也小。h = log(π(w)/π_ref(w)) - log(π(l)/π_ref(l))
    DPO    -log σ(βh)                                标签永远是 w 赢：h → 无穷，不管 β 多大
    cDPO   -(1-ε)·log σ(βh) - ε·log σ(-βh)           停在 βh = log((1-ε)/ε)
    IPO    (h - 1/(2τ))^2                             停在 h = 1/(2τ)
w 是赢家，l 是输家，ε 是假定的标错比例，τ 是 IPO 的系数。

运行时间：约 15 秒，需要 torch。
"""
import copy
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from rlhf_lab import (
    PROMPT_SUBJECTS, bar, check_each, check_int, check_number, check_seeds, describe_prompt, frozen_copy, generator,
    load_models, mean, observe, preference_data, print_table, rollout_stats, run_script, sample_responses, seq_logprob,
    setup_torch, sigmoid, support_of, title, torch, train_dpo,
)

BETA = 0.1  # DPO 的 β
N_PROMPTS, K = 300, 4  # 偏好数据：多少道题，每题几条回答
DATA_SEEDS = (1, 11, 21)  # 偏好数据的种子：提示、采样、标注
EPOCHS, LR = 3, 2e-4  # 走几遍，学习率（Adam）
TRAIN_SEED = 1  # 打乱次序的随机种子
N_PROBE = 400  # 一路跟踪多少对（赢家从没输过的）
FRESH_SEED = 5  # 演示 1：SFT 随便写回答的随机种子
EVAL_PROMPTS, EVAL_SEED = 300, 77  # 量 r*、KL：多少道随机的题，随机种子
N_SUBJECTS = 6  # 演示 2：在几道题的支撑集上看概率去了哪里
SUPPORT_SAMPLES, SUPPORT_SEED = 1000, 1  # 演示 2：收集支撑集时每题采样几次，随机种子
N_SINGLE, SINGLE_STEPS = 30, 10  # 演示 3：最像的、最不像的各取多少对，一次训练一对，每一对下降多少步
TABLE_STEP, TABLE_MAX = 0.1, 20_000  # 演示 3：表格里平均每步让一对的差走多远，最多下降多少步
ALWAYS_STEPS, ALWAYS_LR = (100, 1_000, 10_000, 100_000), 0.1  # 演示 4：看下降了多少步的时候，学习率（变量是 h）
DPO_BETAS, FLIP, IPO_TAU = (0.1, 1.0), 0.1, 0.5  # 演示 4：DPO 的 β，cDPO 假定的标错比例 ε，IPO 的 τ


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


def tabular_change(ref, vocab, pairs, until, watch=None):
    """
    同样的对放进表格：每个（提示，回答）有自己的 logit，其余回答合成一格不动。一对的梯度只碰它自己的两个 logit，
    赢的升，输的降，一样多。下降到 watch（默认是 pairs）平均的差 h 达到 until，返回 watch 里 log π(赢) 的变化。
    """
    keys = list(dict.fromkeys((tuple(p[0]), tuple(p[side])) for p in pairs for side in (1, 2)))
    row = {key: i for i, key in enumerate(keys)}
    group = {prompt: i for i, prompt in enumerate(dict.fromkeys(prompt for prompt, _ in keys))}
    of = torch.tensor([group[prompt] for prompt, _ in keys])
    (win, lose), (my_win, my_lose) = ([torch.tensor([row[tuple(p[0]), tuple(p[side])] for p in some])
                                       for side in (1, 2)] for some in (pairs, watch or pairs))
    start = logprobs(ref, vocab, keys, 1).double()
    moved, empty = torch.zeros_like(start), torch.zeros(len(group), dtype=torch.float64)
    rest = (1 - empty.index_add(0, of, start.exp())).clamp(min=0)
    for _ in range(TABLE_MAX):
        if (moved[my_win] - moved[my_lose]).mean() >= until:
            log_z = (rest + empty.index_add(0, of, (start + moved).exp())).log()
            return (moved - log_z[of])[my_win].tolist()
        weight = torch.sigmoid(-BETA * (moved[win] - moved[lose]))
        push = TABLE_STEP / 2 * weight / weight.mean()
        moved = moved.index_add(0, win, push).index_add(0, lose, -push)
    raise ValueError(f"TABLE_MAX 应当大一些：走了 {TABLE_MAX!r} 步，差还没有到 {until:.1f}")


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
    for name, high in (("BETA", None), ("LR", 0.01), ("FLIP", 0.5), ("IPO_TAU", None), ("TABLE_STEP", 1),
                       ("ALWAYS_LR", None)):
        check_number(name, globals()[name], 0, high, open_low=True)
    for name in ("N_PROMPTS", "EPOCHS", "N_PROBE", "N_SINGLE", "SINGLE_STEPS", "TABLE_MAX", "EVAL_PROMPTS",
                 "SUPPORT_SAMPLES"):
        check_int(name, globals()[name], 1)
    check_int("K", K, 2)
    check_int("N_SUBJECTS", N_SUBJECTS, 1, len(PROMPT_SUBJECTS))
    check_each("DPO_BETAS", DPO_BETAS, check_number, 0, None, True, at_least=2)  # 都大于 0
    check_each("ALWAYS_STEPS", ALWAYS_STEPS, check_int, 1, 1_000_000, at_least=2)
    check_int("DATA_SEEDS 的项数", len(check_each("DATA_SEEDS", DATA_SEEDS, check_int)), 3, 3)
    check_seeds(TRAIN_SEED=TRAIN_SEED, FRESH_SEED=FRESH_SEED, EVAL_SEED=EVAL_SEED, SUPPORT_SEED=SUPPORT_SEED)
    setup_torch()

    title(f"演示 1：差在升，赢家在降（DPO，β = {BETA:g}；log π 是平均的变化）")
    sft, rm, vocab = load_models()
    ref = frozen_copy(sft)
    pairs, _ = preference_data(sft, vocab, N_PROMPTS, K, *DATA_SEEDS)
    pairs = [pair for pair in pairs if pair[1] != pair[2]]
    losers = {(tuple(prompt), tuple(loser)) for prompt, _, loser, _ in pairs}
    probe = [pair for pair in pairs if (tuple(pair[0]), tuple(pair[1])) not in losers][:N_PROBE]
    policy, track = copy.deepcopy(sft), []
    prompts = [p[0] for p in probe]
    drawn = list(zip(prompts, sample_responses(sft, vocab, prompts, generator(FRESH_SEED))))
    watched = ((probe, 1), (probe, 2), (drawn, 1))
    base = [logprobs(ref, vocab, *which) for which in watched]

    def measure(epoch):
        moves = [logprobs(policy, vocab, *which) - start for which, start in zip(watched, base)]
        stats = rollout_stats(policy, ref, rm, vocab, EVAL_PROMPTS, EVAL_SEED)
        track.append((epoch, *(move.mean().item() for move in moves), (moves[0] < 0).double().mean().item(),
                      stats["true"], stats["kl"], moves[0].tolist()))

    measure(0)
    train_dpo(policy, ref, vocab, pairs, BETA, epochs=EPOCHS, lr=LR, seed=TRAIN_SEED, callback=measure)
    print_table(["遍", "log π：赢家", "输家", "SFT 随便写的", "差 h", "赢家降了的比例", "r*", "KL"],
                [[str(epoch), *(f"{round(x, 2) + 0.0:.2f}" for x in (win, lose, free, win - lose, *rest[:3]))]
                 for epoch, win, lose, free, *rest in track])
    win, lose, free, fell, *_, changes = track[-1][1:]
    ordered = [change for _, change in sorted(zip((len(p[1]) for p in probe), changes), key=lambda pair: pair[0])]
    short, long = mean(ordered[: -(-len(probe) // 2)]), mean(ordered[len(probe) // 2 :])
    print("观察：")
    observe(
        f"这 {len(probe)} 对（赢家在自己的题里从没输过）的差 h 一遍比一遍大，最后 {win - lose:.1f}，看上去都好。",
        all(a[1] - a[2] < b[1] - b[2] for a, b in zip(track, track[1:])),
    )
    observe(
        f"可是赢家自己也在降（{win:.1f}，{fell:.0%} 比训练前少见），输家降得更多（{lose:.1f}）。SFT 随便写的一条平均降 "
        f"{-free:.1f}：赢家降得比它少。降得多的是短的赢家：短的一半 {short:.1f}，长的一半 {long:.1f}。",
        max(lose, free) < win < -0.5 and fell > 0.5 and short < long,
    )

    title(f"演示 2：概率搬到哪里去了（{N_SUBJECTS} 道题的支撑集：SFT 采样 {SUPPORT_SAMPLES} 次见过的回答）")
    kinds = {(True, False): "数据里只赢不输", (True, True): "数据里又赢又输", (False, True): "数据里只输不赢",
             (False, False): "SFT 写过，数据里没有"}
    masses = []
    for i, subject in enumerate(PROMPT_SUBJECTS[:: max(1, len(PROMPT_SUBJECTS) // N_SUBJECTS)][:N_SUBJECTS]):
        responses, logp, _ = support_of(sft, vocab, subject, SUPPORT_SAMPLES, SUPPORT_SEED + i)
        now = logprobs(policy, vocab, [(describe_prompt(subject), y) for y in responses], 1).exp().tolist()
        won, lost = ({tuple(p[side]) for p in pairs if p[3] == subject} for side in (1, 2))
        mass = {name: [0.0, 0.0] for name in kinds.values()}
        for response, *both in zip(responses, logp.exp().tolist(), now):
            name = kinds[tuple(response) in won, tuple(response) in lost]
            mass[name] = [a + b for a, b in zip(mass[name], both)]
        mass["支撑集之外"] = [1 - math.fsum(m[k] for m in mass.values()) for k in (0, 1)]
        masses.append(mass)
    share = {name: [mean(mass[name][k] for mass in masses) for k in (0, 1)] for name in masses[0]}
    print_table(["回答", "训练前的概率", "训练后的概率", "画出来"],
                [[name, f"{before:.3f}", f"{now:.3f}", bar(now) or "—"] for name, (before, now) in share.items()])
    pure, mixed, _, _, outside = share.values()
    print("观察：")
    observe(
        f"又赢又输的，概率加起来从 {mixed[0]:.3f} 降到 {mixed[1]:.3f}。只赢不输的从 {pure[0]:.3f} 到 {pure[1]:.3f}，"
        "升还是降随种子变：少数几条升得很多就升（演示 1 是每条的 log π 取平均）。",
        mixed[1] < 0.5 * mixed[0],
    )
    observe(
        f"概率逃出了支撑集：训练前 {outside[0]:.2f} 在外面，训练后 {outside[1]:.2f}。那里没有人说好坏，DPO 不管。",
        outside[1] > outside[0] + 0.15,
    )

    title(f"演示 3：一次只训练一对（{SINGLE_STEPS} 步）—— 像不像，共不共享参数")
    by_similarity = sorted(pairs, key=lambda pair: similarity(pair[1], pair[2]))
    rows, rises, gaps, in_table = [], [], [], []

    def add(name, part, win, lose, table):
        for values, x in ((rises, win), (gaps, win - lose), (in_table, table)):
            values.append(x)
        similar = mean(similarity(p[1], p[2]) for p in part)
        rows.append([name, *(f"{x:.2f}" for x in (similar, win, lose, win - lose, table))])

    for name, part in (("最不像", by_similarity[:N_SINGLE]), ("最像", by_similarity[-N_SINGLE:])):
        changes = [single_pair(sft, ref, vocab, pair) for pair in part]
        table = mean(tabular_change(ref, vocab, [pair], w - l)[0] for pair, (w, l) in zip(part, changes))
        add(f"一次一对，{name}的 {len(part)} 对", part, *(mean(c[k] for c in changes) for k in (0, 1)), table)
    together = tabular_change(ref, vocab, pairs, win - lose, probe)
    add("全部的对一起（演示 1）", probe, win, lose, mean(together))
    print_table(["训练用的对", "相似度", "网络：赢家", "网络：输家", "差 h", "表格：赢家"], rows)
    parts, sunk = [a / b if b else 0.0 for a, b in zip(rises, gaps)], mean(change < 0 for change in together)
    print("观察：")
    observe(
        f"两条越像，差 h 自己就走得少（最像的 {gaps[1]:.1f}，最不像的 {gaps[0]:.1f}），赢家随之升得少；"
        f"赢家占 h 的比例差不多（{parts[1]:.0%} 与 {parts[0]:.0%}）。",
        rises[1] < rises[0] and gaps[1] < gaps[0] and abs(parts[1] - parts[0]) < 0.15,
    )
    observe(
        f"一次一对，赢家还是升的；全部的对一起训练，赢家平均变了 {win:.1f}。伤到它的主要是别的对：参数是共享的。",
        min(rises[:2]) > 0 > win,
    )
    observe(
        f"同样的差 h 放进表格，三行的赢家都升（至少 {math.floor(10 * min(in_table)) / 10:.1f}）；一起训练，降了的只占 "
        f"{sunk:.0%}。",
        min(in_table) > 0 and sunk < 0.05,
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
        hs = descend(slope, ALWAYS_STEPS)
        path = [sigmoid(h) for h in hs]
        ends.append((path, limit, hs[-1]))
        rows.append([name, *(f"{p:.4f}" for p in path), f"{limit:.4f}", f"{hs[-1]:.1f}"])
    print_table(["方法", *(f"{steps} 步" for steps in ALWAYS_STEPS), "极限", "最后 h"], rows)
    print("观察：")
    observe(
        "DPO 不管 β 多大，π(赢) 都往 1 去，不会停；β 管的是 βh，走得够久以后，β 小的 h 更大（最后一列）。",
        all(path[-1] > 0.999 and path[0] < path[-1] for path, *_ in ends[: len(DPO_BETAS)]) and ends[0][2] > ends[1][2],
    )
    observe(
        f"IPO 停在 σ(1/(2τ)) = {ends[-1][1]:.3f}，cDPO（β = {DPO_BETAS[-1]:g}）停在 {ends[-2][1]:.3f}：目标里有终点。",
        all(abs(path[-1] - limit) < 1e-3 for path, limit, _ in ends[-2:]),
    )


if __name__ == "__main__":
    run_script(main)

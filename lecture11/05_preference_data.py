"""
================================================================================
第 11 讲 · 05：偏好数据 —— 从排序到成对比较，标签里有多少信息
================================================================================
对应讲义：lectures/lecture11_instruction_tuning.md 第 6 节
（Bradley & Terry 1952；Stiennon et al. 2020；Ouyang et al. 2022, InstructGPT）

【问题】人说"这条比那条好"，有时会说反。这样的标签服从什么规律？预测它，最高能对多少？
给 K 条回答排一次序，拆成对来学，值多少个独立的成对比较？

【这里的设定】标注员心里的分是 r*(y) + NOISE × Gumbel 噪声，分高的赢。回答取自写示范的人（不用神经网络），
r* 由 human_reward 给出。演示 3 的打分模型是线性的，r(y) = w · φ(y)：φ 是 r* 里的 7 样成分，
w 从排序里估，误差用大样本的公式算。两种估法：拆成对，把 C(K, 2) 对的对数似然加起来（奖励模型的做法）；
整个排序，用它真正的似然（Plackett–Luce：先从 K 条里选第一名，再从剩下的里选第二名……）。
简化：真实的标注员各有各的 r*，同一个人也会前后不一；这里只有一把尺子加噪声。
演示 3 的一道题从所有主语的回答里抽 K 条：φ 只看写了什么，不看题目问谁。

【公式】Bradley–Terry：P(a 赢 b) = σ((r*_a - r*_b) / NOISE)，σ(x) = 1 / (1 + e^(-x))。
    两个标注员一致的概率  E[p² + (1-p)²]；    猜一个标签，最高能对  E[max(p, 1-p)]；
    Plackett–Luce：P(排序) = Π_j e^(r_j / NOISE) / Σ_{i 排在 j 或 j 后} e^(r_i / NOISE)
p 是一对里 a 赢的概率。天花板 E[max(p, 1-p)] 不低于一致率：不是一回事。

运行时间：约 4 秒，需要 torch。
"""
import math
import random
import sys
from itertools import combinations
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from chat_lab import (
    NOISE, VALID_ABOVE, check_ascending, check_each, check_int, check_number, check_seeds, generator, gumbel,
    human_reward, make_task, mean, observe, print_table, reward_features, run_script, setup_torch, sigmoid, title,
    torch,
)

GAPS = (0.0, 0.25, 0.5, 1.0, 2.0)  # 演示 1：两条回答的 r* 差多少
N_COMPARISONS, COMPARE_SEED = 20_000, 80  # 演示 1：每种差比较多少次
NOISES = (0.25, 0.5, 1.0, 2.0)  # 演示 2：标注员手抖的程度
N_ANSWERS, N_PAIRS, PAIR_SEED = 4000, 10_000, 81  # 演示 2：写多少条回答，从中抽多少对
PAPER_AGREEMENT, PAPER_RM = 0.726, 0.724  # InstructGPT：标注员两两一致的比例、奖励模型的准确率
RANK_SIZES = (2, 4, 9)  # 演示 3：一道题排几条回答
N_PROMPTS, RANK_SEED = 20_000, 82  # 演示 3：用多少道题算误差
WEIGHTS = (0.8, 1.2, 0.6, 0.6, 0.5, -1.0, 0.3)  # 演示 3 的真值 w：r* 给 reward_features 那 7 样的分


def human_answers(rng, n):
    """写示范的人写 n 条合格的 describe 回答：[(主语, 回答)]。"""
    answers = []
    while len(answers) < n:
        words, response = make_task(rng, "describe")
        if human_reward(words[-1], response) > VALID_ABOVE:
            answers.append((words[-1], response))
    return answers


def agreement_and_ceiling(probs):
    """(两个标注员一致的概率, 猜一个标签最高能对多少)。"""
    return mean(p * p + (1 - p) * (1 - p) for p in probs), mean(max(p, 1 - p) for p in probs)


def ranked_groups(pool, n_prompts, k, gen):
    """n_prompts 题，每题从 pool (M, 7) 抽 k 条回答，标注员按 w·φ + NOISE × Gumbel 从好到坏排好，(P, K, 7)。"""
    phi = pool[torch.randint(len(pool), (n_prompts, k), generator=gen)]
    u = torch.rand(n_prompts, k, generator=gen, dtype=pool.dtype).clamp(1e-12, 1 - 1e-12)
    utility = phi @ torch.tensor(WEIGHTS, dtype=pool.dtype) - NOISE * torch.log(-torch.log(u))
    order = utility.argsort(dim=1, descending=True)
    return phi.gather(1, order[:, :, None].expand_as(phi))


def gap_errors(pool, n_prompts, k, gen):
    """
    估出来的 w，把两条回答的分差 Δφ·w 算错多少（均方，每道题摊到的量，误差 = 它 / 题数）。

    【推导】拆成对：一道题的损失是 C(K, 2) 对之和，g 是它在真值 w 处的梯度，H 是二阶导数的期望。大样本时
        Cov(w 的误差) = H^-1 · E[g gᵀ] · H^-1 / 题数        （夹心公式，sandwich）
    若把每一对都当成独立的，就会以为 E[g gᵀ] = H，误差是 H^-1 / 题数。
    整个排序的似然是真正的似然，误差就是 H^-1 / 题数，H 换成它自己的（luce_information）。
    【返回】(拆成对, 以为的误差, 整个排序)
    """
    groups = ranked_groups(pool, n_prompts, k, gen)
    winners, losers = (list(column) for column in zip(*combinations(range(k), 2)))
    x = (groups[:, winners] - groups[:, losers]) / NOISE  # (P, 对, 7)
    lose = torch.sigmoid(-(x @ torch.tensor(WEIGHTS, dtype=x.dtype)))  # 每一对里赢家本来会输的概率
    g = (x * lose[:, :, None]).sum(1)
    naive = torch.linalg.inv(torch.einsum("npi,npj,np->ij", x, x, lose * (1 - lose)) / n_prompts)
    real = naive @ (g.T @ g / n_prompts) @ naive
    whole = torch.linalg.inv(luce_information(groups))
    between = 2 * torch.cov(pool.T)  # 随机两条回答的 Δφ 的协方差
    return tuple(torch.trace(between @ cov).item() for cov in (real, naive, whole))


def luce_information(groups):
    """整个排序的似然里，一道题的二阶导数的期望：每选一个名次，加上剩下的 φ / NOISE 按选中概率算的协方差。"""
    x, total = groups / NOISE, 0
    weights = torch.tensor(WEIGHTS, dtype=x.dtype)
    for j in range(x.shape[1] - 1):
        rest = x[:, j:]
        p = torch.softmax(rest @ weights, 1)[:, :, None]
        centred = rest - (p * rest).sum(1, keepdim=True)
        total = total + torch.einsum("nki,nkj->ij", p * centred, centred)
    return total / len(x)


def main():
    for name in ("N_COMPARISONS", "N_PAIRS"):
        check_int(name, globals()[name], 1)
    check_int("N_ANSWERS", N_ANSWERS, 1000)  # 每个主语都要有几条
    check_int("N_PROMPTS", N_PROMPTS, 500)  # 少了，H 会求不出逆
    check_number("PAPER_AGREEMENT", PAPER_AGREEMENT, 0.5, 1)
    check_number("PAPER_RM", PAPER_RM, 0, 1)
    check_number("NOISE", NOISE, 0, open_low=True)
    check_each("GAPS", check_ascending("GAPS", GAPS, 1), check_number, -30 * NOISE, 30 * NOISE)  # 再大，σ 就舍入成 1
    check_each("NOISES", check_ascending("NOISES", NOISES), check_number, 0, None, True)  # 都大于 0
    check_each("RANK_SIZES", check_ascending("RANK_SIZES", RANK_SIZES), check_int, 2, 12)  # 内存随 K 的平方涨
    check_int("WEIGHTS 的项数", len(check_each("WEIGHTS", WEIGHTS, check_number)), 7, 7)
    check_seeds(COMPARE_SEED=COMPARE_SEED, PAIR_SEED=PAIR_SEED, RANK_SEED=RANK_SEED)

    title("演示 1：r* 加 Gumbel 噪声，比出来的就是 Bradley–Terry")
    setup_torch()
    rng, rows, misses = random.Random(COMPARE_SEED), [], []
    for gap in GAPS:
        counted = mean(gap + NOISE * gumbel(rng) > NOISE * gumbel(rng) for _ in range(N_COMPARISONS))
        exact = sigmoid(gap / NOISE)
        misses.append(abs(counted - exact) / math.sqrt(exact * (1 - exact) / N_COMPARISONS))
        rows.append([f"{gap:.2f}", f"{exact:.4f}", f"{counted:.4f}"])
    print_table(["r* 的差", "公式 σ(差 / NOISE)", f"测得（{N_COMPARISONS} 次）"], rows)
    print("观察：")
    observe(
        f"测得的与公式最多差 {max(misses):.1f} 个标准误：只差抽样的误差。两个 Gumbel 噪声之差服从 logistic 分布，"
        "它的分布函数正是 σ。所以奖励模型用 -log σ(分差) 作损失，是在做最大似然。",
        max(misses) < 4,
    )

    title("演示 2：两个标注员有多一致，猜标签最高能对多少")
    rng = random.Random(PAIR_SEED)
    answers, by_subject = human_answers(rng, N_ANSWERS), {}
    for subject, response in answers:
        by_subject.setdefault(subject, []).append(human_reward(subject, response))
    subjects = sorted(by_subject)
    gaps = [a - b for a, b in (rng.choices(by_subject[rng.choice(subjects)], k=2) for _ in range(N_PAIRS))]
    rows, table = [], []
    for noise in NOISES:
        probs = [sigmoid(gap / noise) for gap in gaps]
        labels = [(rng.random() < p, rng.random() < p) for p in probs]
        counted = mean(a == b for a, b in labels)
        oracle = mean(0.5 if gap == 0 else (gap > 0) == a for gap, (a, _) in zip(gaps, labels))
        table.append((*agreement_and_ceiling(probs), counted, oracle))
        rows.append([f"{noise:.2f}", *(f"{table[-1][j]:.3f}" for j in (0, 2, 1, 3))])
    print_table(["标注员的噪声", "一致：公式", "一致：测得", "天花板：公式", "用 r* 猜：测得"], rows)
    print("观察：")
    observe(
        "每一行里，天花板都比一致率高 "
        + "、".join(f"{ceiling - agreement:.3f}" for agreement, ceiling, _, _ in table)
        + f"。测得的一致率也是这样（与公式最多差 {max(abs(c - a) for a, _, c, _ in table):.3f}）。"
        "猜的人没有噪声，标注员有：“一致率就是准确率的上限”是错的。",
        all(ceiling > agreement + 0.01 and abs(c - agreement) < 0.03 for agreement, ceiling, c, _ in table),
    )
    observe(
        f"最好的猜法就是按 r* 猜，测得的与天花板最多差 {max(abs(c - o) for _, c, _, o in table):.3f}。"
        f"噪声从 {NOISES[0]} 到 {NOISES[-1]}，天花板从 {table[0][1]:.3f} 落到 {table[-1][1]:.3f}。",
        all(abs(c - o) < 0.03 for _, c, _, o in table) and table[0][1] > table[-1][1] + 0.1,
    )
    highest = (1 + math.sqrt(2 * PAPER_AGREEMENT - 1)) / 2
    observe(
        f"Ouyang et al.（2022）的标注员一致率是 {PAPER_AGREEMENT:.1%}。若每一对都一样难，天花板是 {highest:.1%}；"
        f"若一部分毫无疑问、其余全靠抛硬币，天花板就是 {PAPER_AGREEMENT:.1%}。他们的奖励模型对了 {PAPER_RM:.1%}："
        "是到顶了，还是差十一个百分点，只看一致率说不出来。"
    )

    title(f"演示 3：一次排序值几个独立的对 —— {N_PROMPTS} 道题")
    gen = generator(RANK_SEED)
    pool = torch.tensor([reward_features(subject, response) for subject, response in answers], dtype=torch.float64)
    errors = {k: gap_errors(pool, N_PROMPTS, k, gen) for k in RANK_SIZES}
    small, big = RANK_SIZES[0], RANK_SIZES[-1]
    single = errors[big][1] * math.comb(big, 2)  # 一个独立的对的误差
    worth, whole = ({k: single / error[j] for k, error in errors.items()} for j in (0, 2))
    rows = [
        [k, math.comb(k, 2), *(f"{error:.2f}" for error in errors[k]), *(f"{w[k]:.1f}" for w in (worth, whole))]
        for k in RANK_SIZES
    ]
    print_table(["K", "C(K,2)", "误差：拆成对", "以为的", "误差：整个", "值几对：拆成对", "值几对：整个"], rows)
    print("  （误差：估出来的分差的均方误差，乘以题数。K = 2 时三种本该相等，差的只是抽样。")
    print("    值几对：抵得上几个独立的对。整个：用整个排序的似然）")
    print("观察：")
    observe(
        f"排 {big} 条，拆成 {math.comb(big, 2)} 对来估，只抵得上 {worth[big]:.1f} 个独立的对："
        "同一条回答的噪声出现在它参加的每一对里，这些对不独立。"
        f"误差也别照独立的算：会以为误差只有 {errors[big][1]:.2f}，其实是 {errors[big][0]:.2f}。",
        worth[big] < 0.6 * math.comb(big, 2) and errors[big][0] > 1.5 * errors[big][1],
    )
    observe(
        f"整个次序里也只有这么多：用整个排序的似然来估，抵得上 {whole[big]:.1f} 对。拆成对丢掉的不多。",
        worth[big] < whole[big] < 0.7 * math.comb(big, 2),
    )
    observe(
        f"但排序仍然划算：每读一条回答，K = {big} 得 {worth[big] / big:.2f} 个独立的对，K = {small} 只有 "
        f"{worth[small] / small:.2f} 个。",
        worth[big] / big > 1.5 * worth[small] / small,
    )
    observe(
        "Ouyang et al.（2022）每题排 4 到 9 条。把这些对打散来训练，奖励模型一遍就过拟合；改成同一题的全部对放在一起，"
        "就不会：同一条回答不再被当成许多条独立的数据反复更新。"
    )


if __name__ == "__main__":
    run_script(main)

"""
================================================================================
第 4 讲 · 05：智能体 —— 接口比模型重要？
================================================================================
对应讲义：lectures/lecture04_feedback_tools_code.md 第 6 节（Yao et al. 2022, ReAct；Yang et al. 2024, SWE-agent）

【问题】同一个模型，只改它与工具之间的接口，成绩会差多少？边想边做比只想、只做好在哪里？

【这里的设定】任务：几种货，各要几件，查价目表，算总价，交答案。智能体（agent）与环境一问一答，全是文字：
    想：先查红枣          写给自己看的，环境不理
    做：查 红枣           三种工具：查 货名、算 算式、交 总价
    看：12 元             环境真的去查、去算以后的回话（observation；"观察"专指脚本打印的结论）
智能体写一次调用，有 ε = TYPO 的概率写坏：货名少一个字，算式少一截。
    护栏（guard）开   执行之前先检查，写坏的不执行，回一条"错误：……"，智能体重写；
    护栏关            环境猜着执行，"红"当作第一个红字头的货，算式取能算的那一截，智能体看不出来。
回话有长短：短的只回这一行，长的回整张表，智能体可能看串行。
简化：没有语言模型，计划是写死的（逐件查、逐件加），从不怀疑回话；"想"的用处只有查不到时用记忆，护栏
认得出每一次写坏。所以边想边做和护栏一定占便宜，要看的是便宜有多大、怎样随任务变。

【公式】一件货查一次、算一次。护栏关时，算式写坏就错；货名写坏，有 g 的机会碰巧猜中（正好是同字头里的
第一种）。n 件全对的概率 (1 - (1 - g)ε)^n · (1 - ε)^n，随 n 指数下降；护栏开，写坏只多花一轮。

运行时间：约 2 秒，只用标准库。
"""
import contextlib
import random
import re
import sys
from pathlib import Path

LECTURE = Path(__file__).resolve().parent
sys.path[:0] = [str(LECTURE), str(LECTURE.parent / "lecture02")]
from code_lab import CalculatorError, ProtocolError, calculate, parse_action
from tts_tools import (
    check_ascending, check_counts, check_int, check_number, check_seeds, mean, observe, print_table, run_script, title,
)

GOODS = ("红茶", "红枣", "红糖", "白米", "白糖", "白菜", "青豆", "青椒", "青菜", "黑米", "黑豆", "黑茶")  # 所有的货名
TYPO = 0.06  # 写坏一次调用的概率
STUMBLE = 2.0  # 刚写坏过，再写坏的概率乘上它
BETTER = 0.5  # 更好的模型：TYPO 乘上它
MISREAD = 0.004  # 长回话里每多一行，看串行的概率多这么多
KNOW = 0.7  # 记得一种货的价格的概率；记错时偏 1 到 5 元
MENTAL = 0.95  # 心算一步算对的概率（只想不做时）
MISSING = 0.2  # 价目表里缺一行的概率（演示 1、3）
MISSING_RATES = (0.0, 0.1, 0.2, 0.4, 0.6)  # 演示 3：缺行的概率
LENGTHS = (1, 2, 5, 10)  # 演示 2：一个任务几种货
N_GOODS = 3  # 演示 1、3：一个任务几种货
TURN_LIMIT = 40  # 最多几轮
EPISODES = 300  # 每一格跑多少个任务
SEED = 450  # 随机种子
MODES = ("只想", "只做", "边想边做")  # 演示 3：三种方式；代码按名字认，不要改
RESULTS = ("对", "记错", "查不到", "轮数用完", "算错看错")  # 一个任务的五种结果；代码按名字认，不要改


def check_call(tool, content):
    """护栏：执行之前检查，不合规矩就 ProtocolError。"""
    if tool == "查" and content not in GOODS:
        raise ProtocolError(f"没有叫“{content}”的货")
    if tool != "查":
        try:
            calculate(content)
        except CalculatorError as error:
            raise ProtocolError(str(error)) from None


def guess_call(tool, content):
    """没有护栏：猜着执行。货名取第一个同字头的，算式和答案取能算的最长的一截。"""
    if tool == "查":
        return next((name for name in GOODS if name.startswith(content)), content)
    for end in range(len(content), 0, -1):
        with contextlib.suppress(CalculatorError):
            return str(calculate(content[:end]))
    return "0"


def environment(text, prices, guard, long):
    """环境执行一条消息。prices：价目表，可能缺行。【返回】(回话, 交上来的答案或 None)。"""
    try:
        tool, content = parse_action(text)
        if guard:
            check_call(tool, content)
        else:
            content = guess_call(tool, content)
    except ProtocolError as error:
        return f"看：错误：{error}", None
    if tool == "交":
        return "看：收到", calculate(content)
    if tool == "算":
        return f"看：{calculate(content)}", None
    if long:
        return "看：" + "；".join(f"{name} {price} 元" for name, price in prices.items()), None
    return f"看：{prices[content]} 元" if content in prices else "看：没有这一行", None


def spoil(line):
    """写坏一次调用：货名和算式少掉最后一截，答案多个"元"字。"""
    tool, content = parse_action(line)
    return f"做：{tool} " + {"查": content[:-1], "算": content.rsplit(" ", 1)[0], "交": content + " 元"}[tool]


def agent(order, memory, mode, typo, rng):
    """智能体，一个生成器：yield 一条消息，收到一条回话。order：[(货名, 件数)]；memory：它记得的价格。"""
    def call(thought, line):
        head = "" if mode == "只做" else f"想：{thought}\n"
        risk = typo
        while True:
            seen = yield head + (spoil(line) if rng.random() < risk else line)
            if not seen.startswith("看：错误"):
                return seen
            risk = typo * STUMBLE

    total = 0
    for name, count in order:
        price = memory[name]
        if mode != "只想":
            seen = yield from call(f"先查{name}", f"做：查 {name}")
            price = read_price(seen, name, rng)
            if price is None:  # 查不到：会想的用记忆，不会想的只好当作 0
                price = memory[name] if mode == "边想边做" else 0
            seen = yield from call(f"{name}按 {price} 元，加进去", f"做：算 {total} + {price} × {count}")
            total = int(seen.removeprefix("看："))
        else:  # 没有计算器，心算
            total += price * count + (0 if rng.random() < MENTAL else rng.choice((-10, -1, 1, 10)))
    yield from call("算完了", f"做：交 {total}")


def read_price(seen, name, rng):
    """从回话里读出价格；没有这一行时 None。回话越长，越容易看串行。"""
    rows = re.findall("(?:([^ ；：]+) )?([0-9]+) 元", seen)
    if len(rows) > 1 and rng.random() < MISREAD * (len(rows) - 1):
        return int(rows[rng.randrange(len(rows))][1])
    return next((int(price) for row, price in rows if row in ("", name)), None)


def run_episode(rng, n_goods, guard=True, long=False, mode="边想边做", typo=TYPO, missing=0.0):
    """跑一个任务。【返回】(对话的各行, 结果, 写坏的次数)，结果是 RESULTS 之一。"""
    prices = {name: rng.randint(5, 40) for name in GOODS}
    order = [(name, rng.randint(2, 20)) for name in rng.sample(GOODS, n_goods)]
    memory = {name: p if rng.random() < KNOW else p + rng.randint(1, 5) for name, p in prices.items()}
    table = {name: p for name, p in prices.items() if rng.random() >= missing}
    player, lines = agent(order, memory, mode, typo, rng), []
    text = next(player)
    for _ in range(TURN_LIMIT):
        seen, answer = environment(text, table, guard, long)
        lines += [*text.split("\n"), seen]
        if answer is not None:
            break
        text = player.send(seen)
    absent = [name for name, _ in order if name not in table]
    recalled = {"只想": [name for name, _ in order], "只做": [], "边想边做": absent}[mode]
    result = "记错" if any(memory[name] != prices[name] for name in recalled) else "算错看错"
    if answer is None or (mode == "只做" and absent):
        result = "轮数用完" if answer is None else "查不到"
    if answer == sum(prices[name] * count for name, count in order):
        result = "对"
    return lines, result, sum(line.startswith("看：错误") for line in lines)


def episodes(tag, **options):
    """逐个跑 EPISODES 个任务。tag 给每一格不同的随机数；接口不同、tag 相同的格子，任务也相同。"""
    return (run_episode(random.Random(f"{SEED} {tag} {i}"), **options) for i in range(EPISODES))


def share(results, which="对"):
    return mean(result == which for result in results)


def main():
    check_ascending("MISSING_RATES", MISSING_RATES, 1, 0)
    check_counts("LENGTHS", LENGTHS, 1, len(GOODS), at_least=1)
    for name in ("N_GOODS", "TURN_LIMIT", "EPISODES"):
        check_int(name, globals()[name], 1, len(GOODS) if name == "N_GOODS" else None)
    for name in ("TYPO", "KNOW", "MENTAL", "MISSING", "MISREAD", "BETTER", "STUMBLE"):
        check_number(name, globals()[name], 0, None if name == "STUMBLE" else 1)
    check_seeds(SEED=SEED)

    title("演示 1：一段完整的对话 —— 护栏开，有写坏的调用，也有查不到的货")
    some = list(episodes("show", n_goods=N_GOODS, missing=MISSING))
    lines, result, errors = next((e for e in some if e[2] and "看：没有这一行" in e[0]), some[0])  # 第一段两样都有的
    print("\n".join("  " + line for line in [*lines, f"（结果：{result}；写坏 {errors} 次）"]) + "\n观察：")
    observe("写坏的调用没有生效，环境把错误说出来，智能体重写一遍：错误信息也是回话。查不到的，它用记忆补上。")

    title("演示 2：护栏与回话的长短 —— 成绩随任务变长")
    setups = {  # 护栏开吗，长回话吗，写坏的概率乘几
        "护栏关，长回话": (False, True, 1), "护栏关，短回话": (False, False, 1),
        "更好的模型，护栏关，短回话": (False, False, BETTER),
        "护栏开，长回话": (True, True, 1), "护栏开，短回话": (True, False, 1),
    }
    rows, scores, chars = [], [], []
    for name, (guard, long, factor) in setups.items():
        runs = [list(episodes(n, n_goods=n, guard=guard, long=long, typo=TYPO * factor)) for n in LENGTHS]
        scores.append([share(result for _, result, _ in run) for run in runs])
        chars.append(mean(sum(map(len, lines)) for lines, _, _ in runs[-1]))
        rows.append([name, *(f"{x:.3f}" for x in scores[-1]), f"{chars[-1]:.0f}"])
    print_table(["接口", *(f"{n} 种货" for n in LENGTHS), f"{LENGTHS[-1]} 种货的字数"], rows)
    _, off, better, wordy, on = scores
    g, n = mean(guess_call("查", name[:-1]) == name for name in GOODS), LENGTHS[-1]  # g 见公式
    laws = [((1 - (1 - g) * TYPO) * (1 - TYPO)) ** length for length in LENGTHS]
    print("观察：")
    observe(
        f"护栏在 {LENGTHS[0]} 种货的任务上只值 {on[0] - off[0]:+.3f}，在 {n} 种货的任务上值 {on[-1] - off[-1]:+.3f}。"
        f"护栏关、短回话，公式给 {'、'.join(f'{x:.3f}' for x in laws)}，测得的在 0.1 以内。",
        on[0] - off[0] < 0.2 and on[-1] - off[-1] > 0.5 * on[-1] and all(abs(a - b) < 0.1 for a, b in zip(laws, off)),
    )
    observe(
        f"写坏机会是 {BETTER:g} 倍的模型，没有护栏，{n} 种货是 {better[-1]:.3f}；原来的加护栏，{on[-1]:.3f}。",
        off[-1] < better[-1] < on[-1] - 0.15,
    )
    observe(
        f"护栏开，长回话字数 {chars[-2] / chars[-1]:.1f} 倍，会看串行：{n} 种货从 {on[-1]:.3f} 降到 {wordy[-1]:.3f}。",
        chars[-2] > 1.5 * chars[-1] and wordy[-1] < on[-1] - 0.15,
    )
    observe("SWE-agent（Yang et al. 2024）在 SWE-bench Lite 上 18.0%；编辑时不检查语法 15.0%，每次显示整个文件 12.7%，"
            "只给命令行 11.0%。")

    title(f"演示 3：只想、只做、边想边做 —— {N_GOODS} 种货，价目表缺行")
    results = {
        (u, mode): [result for _, result, _ in episodes("think", n_goods=N_GOODS, mode=mode, missing=u)]
        for u in sorted({*MISSING_RATES, MISSING}) for mode in MODES
    }
    wins = {key: share(cell) for key, cell in results.items()}
    print_table(["缺行的概率", *MODES], [[f"{u:g}", *(f"{wins[u, m]:.3f}" for m in MODES)] for u in MISSING_RATES])
    print(f"\n  缺行 {MISSING:g} 时的结果：")
    why = {mode: {which: share(results[MISSING, mode], which) for which in RESULTS} for mode in MODES}
    print_table(["方式", *RESULTS], [[mode, *(f"{x:.3f}" for x in why[mode].values())] for mode in MODES])
    low, high = min(MISSING_RATES), max(MISSING_RATES)
    think, do, both = (wins[MISSING, mode] for mode in MODES)
    print("观察：")
    observe(
        f"边想边做最好：缺行 {MISSING:g} 时 {both:.3f}，只想 {think:.3f}，只做 {do:.3f}。缺行从 {low:g} 到 {high:g}，"
        "它从不比另外两种差。",
        both > max(think, do) + 0.1
        and all(wins[u, "边想边做"] == max(wins[u, mode] for mode in MODES) for u in MISSING_RATES),
    )
    observe(
        f"只想与只做的输赢会反转：缺行 {low:g} 时 {wins[low, '只想']:.3f} 对 {wins[low, '只做']:.3f}，"
        f"缺行 {high:g} 时 {wins[high, '只想']:.3f} 对 {wins[high, '只做']:.3f}。",
        wins[low, "只想"] < wins[low, "只做"] and wins[high, "只想"] > wins[high, "只做"],
    )
    observe(
        f"失败的原因不同：只想多半输在记错（{why['只想']['记错']:.3f}），只做全输在查不到（{why['只做']['查不到']:.3f}）。",
        why["只想"]["记错"] > 0.5 * (1 - think) and do < 1 and abs(why["只做"]["查不到"] - (1 - do)) < 1e-9,
    )
    observe("ReAct（Yao et al. 2022，PaLM-540B）：Fever 上只想 56.3、只做 58.9、边想边做 60.9；HotpotQA 上 29.4、25.7、"
            "27.4，单用还不如只想，与 CoT 的投票接力才到 35.1。")


if __name__ == "__main__":
    run_script(main)

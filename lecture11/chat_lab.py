"""
================================================================================
第 11 讲 · 工具箱：chat_lab —— 一个 11 万参数的 GPT，从预训练到指令微调，再到奖励模型
================================================================================
对应讲义：lectures/lecture11_instruction_tuning.md 第 1 节

【这里的设定】三个模型，一个接着一个训练：
    load_base           预训练：在农场语言的 2 万篇文档上学续写（next-word prediction）；
    load_chat_sft       指令微调（SFT，supervised fine-tuning）：1 万条示范，损失只算回答；
    load_reward_model   奖励模型（reward model，RM）：SFT 的主干加一个打分的头，学人的排序。

三个都在第一次用到时训练（一个 CPU 核上共约 40 秒），存进课程文件夹的 .cache/lecture11，以后直接读。
改了任何常数或代码，缓存的键就变，会重新训练，不会读到旧模型。

【公式】
    语言模型   log π(y | x) = Σ_t log π(y_t | x, y_1 … y_{t-1})
    SFT 损失   -(1/|y|) Σ_{t ∈ y} log π(y_t | x, y_1 … y_{t-1})，y 是回答，最后一个词是 </s>
    RM 损失    -log σ(r(x, 赢) - r(x, 输))，在同一个提示的所有对上取平均

【简化】一个词就是一个 token；没有 dropout，没有混合精度，没有并行。

农场语言本身（语法、任务、r*）在 farm.py 里，这里转交出去；需要 torch。
直接运行它，会训练（或读出）三个模型并让它们各说几句。运行时间：约 3 秒（不算第一次训练），需要 torch。
"""
import ast
import copy
import hashlib
import io
import math
import os
import random
import sys
import time
import warnings
from functools import lru_cache
from itertools import combinations
from pathlib import Path

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # 本课不用 numpy，这句警告只会吓人
import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "lecture01"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import farm
from farm import (
    ADJECTIVES, ANIMALS, ASSISTANT, BOS, EOS, NOUNS, NUMBERS, OPPOSITE, PAD, PLACES, SOUNDS, TASKS, TEMPLATES,
    UNSTOPPED, USER, VALID_ABOVE, VERB_INFO, WORDS, Example, has_form, human_reward, is_right, make_example,
    make_prompt, make_task, noun_form, parse, pretraining_corpus, reward_features, sft_examples, split_polite,
    verb_form,
)
from toy_llm import (
    bar, check_ascending, check_choice, check_each, check_int, check_number, check_seeds, mean, observe, pad,
    print_table, run_script, sigmoid, title,
)

__all__ = [
    "ADJECTIVES", "ANIMALS", "ASSISTANT", "BOS", "EOS", "Example", "GPT", "NOISE", "NOUNS", "NUMBERS", "OPPOSITE",
    "PAD", "PLACES", "RewardModel", "SOUNDS", "TASKS", "TEMPLATES", "UNSTOPPED", "USER", "VALID_ABOVE", "VERB_INFO",
    "Vocab", "WORDS", "bar", "check_ascending", "check_choice", "check_each", "check_int", "check_number",
    "check_seeds", "document_bits",
    "encode_example", "finetune", "generate", "generator", "grade", "gumbel", "has_form", "human_reward", "is_right",
    "load_base", "load_chat_sft", "load_reward_model", "load_vocab", "make_example", "make_prompt", "make_task", "mean",
    "next_word_probs", "noun_form", "observe", "pad", "pad_batch", "pair_loss", "parse", "preference_prompts",
    "pretraining_corpus", "print_table", "ranked_answers", "response_logprob", "reward_features", "run_script", "score",
    "setup_torch", "sft_examples", "sigmoid", "split_polite", "title", "token_logprobs", "torch", "train_base",
    "train_reward_model", "verb_form",
]

# ---- 模型 ----
N_LAYER = 2  # 层数
N_HEAD = 4  # 注意力的头数
D_MODEL = 64  # 向量的宽度，要能被 N_HEAD 整除
CONTEXT = 40  # 上下文最多多少个词（含 <s>）
MAX_NEW = 20  # 一条回答最多生成多少个词（含 </s>）
INIT_STD = 0.02  # 一般的权重初始化的标准差
EMBED_STD = 0.05  # 词向量初始化的标准差

# ---- 三个阶段共用：AdamW，学习率先升后按余弦降 ----
WEIGHT_DECAY = 0.01  # 权重衰减
CLIP_NORM = 1.0  # 梯度的长度超过它就按比例缩短
WARMUP = 50  # 学习率从 0 升到峰值走几步（步数少时是总步数的五分之一）
FINAL_LR = 0.05  # 学习率最后降到峰值的这个比例

# ---- 预训练 ----
BASE_DOCUMENTS = 20_000  # 语料有几篇文档
BASE_STEPS = 1500  # 走几步
BASE_BATCH = 32  # 一步看几篇文档
BASE_LR = 3e-3  # 学习率的峰值
BASE_SEED = 0  # 种子：语料、初始化、次序

# ---- 指令微调 ----
SFT_EXAMPLES = 10_000  # 示范的条数
SFT_EPOCHS = 3  # 看几遍
SFT_BATCH = 32  # 一步看几条
SFT_LR = 2e-3
SFT_SEED = 100  # 种子：示范、次序

# ---- 奖励模型 ----
RM_PROMPTS = 800  # 偏好数据有几道题
RM_K = 4  # 每题排几条回答
RM_EPOCHS = 4  # 看几遍
RM_BATCH = 16  # 一步看几道题（每道 RM_K 条回答）
RM_LR = 2e-3
RM_WARMUP = 10  # 它的步数少，升得快些
RM_SEED = 200  # 种子：打分的头、次序
NOISE = 0.5  # 标注员的手抖：排序时 r* 上加 NOISE × Gumbel 噪声
PREFERENCE_SEEDS = (1, 11, 21)  # 偏好数据的种子：题、回答、标签

ROWS_AT_ONCE = 512  # 生成、打分时一批最多多少行：再大，键值缓存就放不进 CPU 的高速缓存
CACHE_VERSION = 1  # 缓存文件的格式


def setup_torch():
    """只用一个线程：这么小的模型，多线程快不了多少，却会让权重的末位随机器而变。"""
    torch.set_num_threads(1)


def _check_constants():
    """检查训练与模型的常数：改错一个，就在进门时说清楚。"""
    for name in ("N_LAYER", "N_HEAD", "D_MODEL", "CONTEXT", "MAX_NEW", "BASE_DOCUMENTS", "BASE_STEPS", "BASE_BATCH",
                 "SFT_EXAMPLES", "SFT_EPOCHS", "SFT_BATCH", "RM_PROMPTS", "RM_EPOCHS", "RM_BATCH", "ROWS_AT_ONCE"):
        check_int(name, globals()[name], 1)
    check_int("RM_K", RM_K, 2)
    for name in ("INIT_STD", "EMBED_STD", "WEIGHT_DECAY", "WARMUP", "RM_WARMUP", "NOISE"):
        check_number(name, globals()[name], 0)
    for name in ("CLIP_NORM", "BASE_LR", "SFT_LR", "RM_LR"):
        check_number(name, globals()[name], 0, open_low=True)
    check_number("FINAL_LR", FINAL_LR, 0, 1)


def generator(seed):
    """种子固定的随机数发生器，给 generate 的 gen 用。seed 是 64 位能放下的整数。"""
    return torch.Generator().manual_seed(check_int("seed", seed, -(2**63), 2**63 - 1))


# ==============================================================================
# 一、词表
# ==============================================================================
class Vocab:
    """词与编号的对照。encode(词的列表) → 编号的列表；decode 反过来。"""

    def __init__(self, words):
        self.words = list(words)
        self.ids = {word: i for i, word in enumerate(self.words)}
        self.pad_id, self.bos_id, self.eos_id = (self.ids[word] for word in (PAD, BOS, EOS))

    def __len__(self):
        return len(self.words)

    def encode(self, words):
        """【边界】词表里没有的词：ValueError，说出是哪一个。"""
        try:
            return [self.ids[word] for word in words]
        except KeyError as error:
            raise ValueError(f"words 里有词表之外的词 {error.args[0]!r}（词表共 {len(self)} 个词）") from None

    def decode(self, ids):
        return [self.words[int(i)] for i in ids]


def load_vocab():
    """农场语言的词表，129 个词。"""
    return Vocab(WORDS)


# ==============================================================================
# 二、GPT
# ==============================================================================
class Block(nn.Module):
    """一层 Transformer：注意力与 MLP，都是先归一化（pre-LN）再加回去。"""

    def __init__(self, d, n_head):
        super().__init__()
        self.n_head = n_head
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x, cache=None, start=0):
        """
        【参数】x (N, T, d)。cache 是 (2, N, 头, 总长, d/头) 的键值缓存（KV cache）：前 start 个位置已经算过，
        这次的 T 个位置写进去。有缓存时 T 要么是整个提示（start = 0），要么是 1。
        """
        n, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(n, t, 3, self.n_head, d // self.n_head).permute(2, 0, 3, 1, 4)
        if cache is not None:
            cache[0, :, :, start : start + t] = k
            cache[1, :, :, start : start + t] = v
            k, v = cache[0, :, :, : start + t], cache[1, :, :, : start + t]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)
        x = x + self.out(y.transpose(1, 2).reshape(n, t, d))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class GPT(nn.Module):
    """
    词级的小 GPT：学出来的绝对位置，输出层与词向量共用（tied）。

    forward(ids) → (logits, None)：ids (N, T) 是 long，T ≤ CONTEXT；logits (N, T, 词表)。
    """

    def __init__(self, n_words, seed=0, n_layer=None, n_head=None, d=None, context=None):
        super().__init__()
        _check_constants()
        d, self.context = d or D_MODEL, context or CONTEXT
        n_layer, n_head = n_layer or N_LAYER, n_head or N_HEAD
        if d % n_head:
            raise ValueError(f"d 应当能被 n_head 整除，收到的是 {d} 和 {n_head}")
        self.word, self.position = nn.Embedding(n_words, d), nn.Embedding(self.context, d)
        self.blocks = nn.ModuleList(Block(d, n_head) for _ in range(n_layer))
        self.ln = nn.LayerNorm(d)
        self.losses = []  # 训练时每一步的损失，与权重一起存进缓存
        gen = generator(seed)
        with torch.no_grad():
            for name, p in self.named_parameters():
                if p.dim() == 2:
                    p.normal_(0.0, EMBED_STD if name == "word.weight" else INIT_STD, generator=gen)
                elif name.endswith("bias"):
                    p.zero_()

    def features(self, ids, caches=None, start=0):
        """最后一层的向量 (N, T, d)。"""
        t = ids.shape[1]
        if start + t > self.context:
            raise ValueError(f"ids 应当不超过上下文的 {self.context} 个词，收到的是 {start + t} 个")
        x = self.word(ids) + self.position.weight[start : start + t]
        for i, block in enumerate(self.blocks):
            x = block(x, None if caches is None else caches[i], start)
        return self.ln(x)

    def forward(self, ids):
        return F.linear(self.features(ids), self.word.weight), None


class RewardModel(nn.Module):
    """奖励模型：GPT 的主干（trunk），在序列的最后一个词上读出一个分数。"""

    def __init__(self, gpt, seed=0):
        super().__init__()
        self.trunk = copy.deepcopy(gpt).requires_grad_(True)
        self.head = nn.Linear(gpt.word.weight.shape[1], 1)
        self.losses = []
        with torch.no_grad():
            self.head.weight.normal_(0.0, INIT_STD, generator=generator(seed))
            self.head.bias.zero_()

    def forward(self, ids, last):
        """【参数】ids (N, T)，右边补 <pad>；last (N,) 是每行最后一个真词的位置。【返回】(N,)。"""
        h = self.trunk.features(ids)
        return self.head(h[torch.arange(len(ids)), last]).squeeze(-1)


# ==============================================================================
# 三、生成
# ==============================================================================
def generate(model, vocab, prompts, greedy=False, gen=None, temperature=1.0, max_new=MAX_NEW):
    """
    每个提示写一条回答（词的列表，不含 </s>）。

    写到 </s> 为止；写满 max_new 个词还没有停的，后面加一个 "…"。采样用完整的 softmax，不屏蔽任何词。
    【思路】一样长的提示排成一批（位置是绝对的，左边不能补 <pad>）；KV cache 省去重算前面的词；
    停下的行占到三成就从批里拿走。随机数一次抽好：第 i 个提示的第 t 个词用 u[i, t]，
    所以怎样分批都不影响结果。
    【参数】gen：torch.Generator，采样时必须给；temperature = 0 等于 greedy（贪心）。
    【边界】词表之外的词、提示放不下、温度为负、采样没有 gen：ValueError。
    """
    check_number("temperature", temperature, 0)
    check_int("max_new", max_new, 1)
    greedy = greedy or temperature == 0
    if not greedy and gen is None:
        raise ValueError("gen 应当是一个 torch.Generator（有种子才能重复），收到的是 None；不采样请用 greedy=True")
    encoded = [[vocab.bos_id, *vocab.encode(prompt)] for prompt in prompts]
    room = model.context - max_new + 1  # 最后一个生成的词不用再读进去
    for prompt, ids in zip(prompts, encoded):
        if len(ids) > room:
            raise ValueError(
                f"prompt 应当不超过 {room - 1} 个词（上下文 {model.context}，要留出 {max_new} 个词的回答），"
                f"收到的是 {len(ids) - 1} 个：{' '.join(prompt)}"
            )
    uniform = None if greedy else torch.rand(len(encoded), max_new, generator=gen)
    by_length = {}
    for i, ids in enumerate(encoded):
        by_length.setdefault(len(ids), []).append(i)
    responses = [None] * len(encoded)
    with torch.inference_mode():
        for rows in by_length.values():
            for at in range(0, len(rows), ROWS_AT_ONCE):
                part = rows[at : at + ROWS_AT_ONCE]
                u = None if greedy else uniform[part]
                ids = torch.tensor([encoded[i] for i in part])
                for i, written in zip(part, _generate_rows(model, vocab, ids, u, temperature, max_new)):
                    responses[i] = written
    return responses


def _generate_rows(model, vocab, ids, u, temperature, max_new):
    """一批等长的提示 ids (N, T) → N 条回答。u 是 (N, max_new) 的均匀随机数，None 是贪心。"""
    n, start = ids.shape
    d, n_head = model.word.weight.shape[1], model.blocks[0].n_head
    shape, dtype = (2, n, n_head, start + max_new, d // n_head), model.word.weight.dtype
    caches = [torch.empty(shape, dtype=dtype) for _ in model.blocks]
    written = torch.full((n, max_new), vocab.eos_id)
    alive = torch.arange(n)  # 还在算的行
    running = torch.ones(n, dtype=torch.bool)  # 这些行里还没停的
    h = model.features(ids, caches)[:, -1]
    for t in range(max_new):
        logits = F.linear(h, model.word.weight)
        if u is None:
            word = logits.argmax(-1)
        else:
            cdf = torch.softmax(logits / temperature, -1).cumsum(-1)
            word = torch.searchsorted(cdf, u[alive, t, None] * cdf[:, -1:], right=True).squeeze(-1)
            word.clamp_(max=logits.shape[-1] - 1)
        word = torch.where(running, word, vocab.eos_id)
        written[alive, t] = word
        running &= word != vocab.eos_id
        n_running = int(running.sum())
        if n_running == 0 or t == max_new - 1:
            break
        if n_running < 0.7 * len(alive):
            keep = running.nonzero().squeeze(-1)
            alive, word, running = alive[keep], word[keep], running[keep]
            caches = [cache.index_select(1, keep) for cache in caches]
        h = model.features(word[:, None], caches, start + t)[:, -1]
    responses = []
    for row in written.tolist():
        stop = row.index(vocab.eos_id) if vocab.eos_id in row else None
        responses.append(vocab.decode(row[:stop]) + ([UNSTOPPED] if stop is None else []))
    return responses


# ==============================================================================
# 四、概率与打分
# ==============================================================================
def encode_example(vocab, prompt, response):
    """
    一条示范的 (ids, mask)：ids 是 <s> 提示 回答 </s>，mask[t] = 1 表示第 t 个词要算损失（回答与 </s>）。

    没停下的回答（末尾是 "…"）：去掉 "…"，也不加 </s>。
    """
    stopped = not response or response[-1] != UNSTOPPED
    tail = vocab.encode(response) + [vocab.eos_id] if stopped else vocab.encode(response[:-1])
    head = [vocab.bos_id, *vocab.encode(prompt)]
    return head + tail, [0] * len(head) + [1] * len(tail)


def pad_batch(sequences, pad_id):
    """[(ids, mask)] 右边补齐 → (ids (N, T), mask (N, T))。"""
    longest = max(len(ids) for ids, _ in sequences)
    ids = torch.tensor([ids + [pad_id] * (longest - len(ids)) for ids, _ in sequences])
    mask = torch.tensor([mask + [0] * (longest - len(mask)) for _, mask in sequences], dtype=torch.float32)
    return ids, mask


def token_logprobs(model, ids):
    """log π(第 t 个词 | 前面的词)，(N, T-1)：第 t 列讲的是 ids 的第 t+1 个词。有梯度。"""
    logits, _ = model(ids[:, :-1])
    return -F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")


def next_word_probs(model, vocab, prompts):
    """读完 <s> 与提示之后，下一个词的概率，(N, 词表)；某个词的那一列是 vocab.ids[词]。"""
    sequences = [([vocab.bos_id, *vocab.encode(prompt)], []) for prompt in prompts]
    ids, _ = pad_batch(sequences, vocab.pad_id)
    last = torch.tensor([len(ids) - 1 for ids, _ in sequences])
    with torch.no_grad():
        logits, _ = model(ids)
    return torch.softmax(logits[torch.arange(len(ids)), last], -1)


def document_bits(model, vocab, documents):
    """语言模型在这些文档上平均每词（含 </s>）多少 bit：-log2 p 的平均。"""
    ids, mask = pad_batch([encode_example(vocab, [], words) for words in documents], vocab.pad_id)
    with torch.no_grad():
        nats = -(token_logprobs(model, ids) * mask[:, 1:]).sum() / mask.sum()
    return nats.item() / math.log(2)


def grade(model, vocab, examples):
    """让模型贪心地答一遍 examples，返回 [(回答, 格式对吗, 内容对吗)]。"""
    responses = generate(model, vocab, [example.prompt for example in examples], greedy=True)
    return [(r, has_form(example, r), is_right(example, r)) for example, r in zip(examples, responses)]


def response_logprob(model, vocab, prompts, responses):
    """每条回答（连同 </s>）的 log π(y | x)，(N,)，有梯度。是各词之和，不是平均。"""
    ids, mask = pad_batch([encode_example(vocab, p, r) for p, r in zip(prompts, responses)], vocab.pad_id)
    return (token_logprobs(model, ids) * mask[:, 1:]).sum(-1)


def _rm_batch(vocab, prompts, responses):
    sequences = [encode_example(vocab, p, r) for p, r in zip(prompts, responses)]
    ids, _ = pad_batch(sequences, vocab.pad_id)
    return ids, torch.tensor([len(s) - 1 for s, _ in sequences])


def score(rm, vocab, prompts, responses):
    """奖励模型给每条回答打的分，数的列表。没停下的回答去掉 "…" 再打，不补 </s>。"""
    if len(prompts) != len(responses):
        raise ValueError(f"prompts 与 responses 应当等长，收到的是 {len(prompts)} 和 {len(responses)}")
    scores = []
    with torch.inference_mode():
        for at in range(0, len(prompts), ROWS_AT_ONCE):
            ids, last = _rm_batch(vocab, prompts[at : at + ROWS_AT_ONCE], responses[at : at + ROWS_AT_ONCE])
            scores += rm(ids, last).tolist()
    return scores


# ==============================================================================
# 五、训练
# ==============================================================================
class Progress:
    """
    训练的进度，写在 stderr：终端里是一行会更新的字（步数、损失、还剩几秒）；不是终端时只在开始和结束各写一行。
    2 秒之内就能完的训练不出声。给了 log 就改为每完成一成向它报一行；log=False 什么也不写。
    """

    def __init__(self, name, n_steps, log=None):
        self.name, self.n_steps, self.log = name, n_steps, log
        self.stream = sys.stderr if log is None else None
        self.live = self.stream is not None and self.stream.isatty()
        self.begin = self.shown = time.monotonic()
        self.speaking, self.tenth = False, 0

    def step(self, done, loss):
        now, last = time.monotonic(), done == self.n_steps
        used = now - self.begin
        if self.log and (last or done * 10 // self.n_steps > self.tenth):
            self.tenth = done * 10 // self.n_steps
            self.log(f"{self.name}：{done}/{self.n_steps} 步，损失 {loss:.3f}")
        if self.stream is None:
            return
        left = used / done * (self.n_steps - done)
        if not self.speaking:
            if last or used < 0.2 or used + left < 2:
                return
            self.speaking = True
            if not self.live:
                self.stream.write(f"{self.name}：开始训练，共 {self.n_steps} 步，约 {used + left:.0f} 秒\n")
        if last:
            text = f"{self.name}：训练完毕，{self.n_steps} 步，损失 {loss:.3f}，用了 {used:.0f} 秒"
            self.stream.write(f"\r{text}    \n" if self.live else text + "\n")
        elif self.live and now - self.shown > 0.2:
            self.shown = now
            self.stream.write(f"\r{self.name}：{done}/{self.n_steps} 步，损失 {loss:.3f}，还剩 {left:.0f} 秒    ")
        self.stream.flush()


def _optimise(model, loss_fn, batches, n_steps, lr, warmup, name, log):
    """AdamW：学习率先线性升 warmup 步，再按余弦降到 FINAL_LR。batches 给出每一步的数据，loss_fn 把它变成损失。"""
    check_number("lr", lr, 0, open_low=True)
    setup_torch()
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=WEIGHT_DECAY, fused=True)
    progress = Progress(name, n_steps, log)
    model.train()
    for step, batch in zip(range(n_steps), batches):
        rise = min(1.0, (step + 1) / (warmup + 1))
        fall = FINAL_LR + (1 - FINAL_LR) * (1 + math.cos(math.pi * step / n_steps)) / 2
        optimiser.param_groups[0]["lr"] = lr * rise * fall
        loss = loss_fn(batch)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimiser.step()
        model.losses.append(loss.item())
        if not math.isfinite(model.losses[-1]):
            raise ValueError(f"lr 应当小一些：{name}第 {step + 1} 步的损失已经不是有限的数（lr = {lr!r}）")
        progress.step(step + 1, model.losses[-1])
    model.eval()
    return model


def _length_batches(lengths, batch, rng):
    """
    无穷无尽的小批（下标的列表）。每一遍（epoch）打乱一次，再把长度相近的排进同一批：少补 <pad>，快一倍。
    """
    order = list(range(len(lengths)))
    pool = batch * 16
    while True:
        rng.shuffle(order)
        batches = []
        for at in range(0, len(order), pool):
            part = sorted(order[at : at + pool], key=lengths.__getitem__)
            batches += [part[i : i + batch] for i in range(0, len(part), batch)]
        rng.shuffle(batches)
        yield from batches


def _train_lm(model, vocab, sequences, n_steps, batch, lr, seed, name, log):
    """在 [(ids, mask)] 上训练语言模型 model（就地）；损失是 mask 为 1 的词的平均。"""
    longest = max(len(ids) for ids, _ in sequences)
    if longest > model.context:
        raise ValueError(f"sequences 里的一条应当不超过 CONTEXT = {model.context} 个词，收到的有 {longest} 个")
    check_int("batch", batch, 1)
    ids, mask = pad_batch(sequences, vocab.pad_id)
    lengths = [len(s) for s, _ in sequences]

    def loss_fn(rows):
        width = max(lengths[i] for i in rows)
        x, m = ids[rows, :width], mask[rows, 1:width]
        return -(token_logprobs(model, x) * m).sum() / m.sum().clamp(min=1)

    batches = _length_batches(lengths, batch, random.Random(seed))
    return _optimise(model, loss_fn, batches, n_steps, lr, min(WARMUP, n_steps // 5), name, log)


def train_base(n_documents=None, n_steps=None, seed=0, log=None):
    """预训练：从随机的权重开始，在 n_documents 篇文档上走 n_steps 步。seed 换一套语料、初始化与次序。"""
    vocab = load_vocab()
    n_steps = check_int("n_steps", BASE_STEPS if n_steps is None else n_steps, 1)
    documents = pretraining_corpus(BASE_DOCUMENTS if n_documents is None else n_documents, BASE_SEED + 1000 * seed)
    sequences = [encode_example(vocab, [], words) for words in documents]  # 没有提示：每个词都算损失
    model = GPT(len(vocab), BASE_SEED + 1000 * seed + 1)
    _train_lm(model, vocab, sequences, n_steps, BASE_BATCH, BASE_LR, BASE_SEED + 1000 * seed + 2, "预训练", log)
    return model


def finetune(base, vocab, sequences, epochs=None, lr=None, seed=0, log=None, name="指令微调"):
    """
    指令微调：复制 base，在 sequences = [(ids, mask)] 上训练 epochs 遍，返回新模型（base 不变）。

    sequences 的一条通常是 encode_example 的结果；mask 由你决定损失算在哪里。
    """
    epochs = check_int("epochs", SFT_EPOCHS if epochs is None else epochs, 1)
    n_steps = epochs * math.ceil(len(sequences) / SFT_BATCH)
    model = copy.deepcopy(base).requires_grad_(True)
    model.losses = []
    return _train_lm(
        model, vocab, sequences, n_steps, SFT_BATCH, SFT_LR if lr is None else lr, SFT_SEED + 1000 * seed + 1, name, log
    )


def preference_prompts(n_prompts, seed):
    """n_prompts 道 describe 题：[(prompt, subject)]。"""
    check_int("n_prompts", n_prompts, 1)
    rng, prompts = random.Random(seed), []
    for _ in range(n_prompts):
        animal = rng.choice(ANIMALS)
        subject = noun_form(animal, rng.random() < 0.5)
        template = rng.choice(TEMPLATES["describe"][: farm.N_TRAIN_TEMPLATES])
        prompts.append((make_prompt(template, ["the", subject]), subject))
    return prompts


def gumbel(rng):
    """一个标准 Gumbel 噪声，-log(-log v)，v 均匀；两个之差服从 logistic 分布。"""
    return -math.log(-math.log(rng.random() + 1e-12) + 1e-12)


def ranked_answers(sft, vocab, n_prompts, K, prompt_seed, sample_seed, label_seed, noise=None):
    """
    偏好数据：每道题由 sft 采样 K 条回答，标注员按 r* + noise × Gumbel 从好到坏排好（noise 默认是 NOISE）。

    【返回】[(prompt, subject, [K 条回答，好的在前])]
    """
    check_int("K", K, 2)
    noise = check_number("noise", NOISE if noise is None else noise, 0)
    prompts = preference_prompts(n_prompts, prompt_seed)
    repeated = [prompt for prompt, _ in prompts for _ in range(K)]
    answers = generate(sft, vocab, repeated, gen=generator(sample_seed))
    rng, rankings = random.Random(label_seed), []
    for i, (prompt, subject) in enumerate(prompts):
        mine = answers[i * K : (i + 1) * K]
        utility = [human_reward(subject, answer) + noise * gumbel(rng) for answer in mine]
        order = sorted(range(K), key=lambda j: -utility[j])
        rankings.append((prompt, subject, [mine[j] for j in order]))
    return rankings


def pair_loss(scores):
    """
    scores (B, K)：B 道题，每题 K 条回答的分数，好的在前。
    损失 -log σ(r_i - r_j) 在每题全部 C(K, 2) 对（i 排在 j 前）上取平均，再在题上取平均。
    """
    pairs = list(combinations(range(scores.shape[1]), 2))
    winners, losers = zip(*pairs)
    return -F.logsigmoid(scores[:, list(winners)] - scores[:, list(losers)]).mean()


def train_reward_model(sft, vocab, rankings, epochs=None, lr=None, seed=0, log=None, name="奖励模型"):
    """
    在 rankings = [(prompt, subject, 排好的回答)] 上训练奖励模型；一道题的 K 条回答各算一次，全部的对一起算损失。

    Bradley–Terry 只管分差，分数的零点不定：训练完平移，让训练集的平均分为 0。
    """
    epochs = check_int("epochs", RM_EPOCHS if epochs is None else epochs, 1)
    check_int("rankings 的条数", len(rankings), 1)
    K = len(rankings[0][2])
    if any(len(answers) != K for _, _, answers in rankings):
        raise ValueError(f"rankings 里每题的回答应当一样多（{K} 条）")
    rm = RewardModel(sft, RM_SEED + 1000 * seed)
    rng = random.Random(RM_SEED + 1000 * seed + 1)
    steps_per_epoch = math.ceil(len(rankings) / RM_BATCH)

    def batches():
        order = list(range(len(rankings)))
        while True:
            rng.shuffle(order)
            for at in range(0, len(order), RM_BATCH):
                yield [rankings[i] for i in order[at : at + RM_BATCH]]

    def loss_fn(batch):
        flat = [(prompt, answer) for prompt, _, answers in batch for answer in answers]
        return pair_loss(rm(*_rm_batch(vocab, *zip(*flat))).view(len(batch), K))

    _optimise(rm, loss_fn, batches(), epochs * steps_per_epoch, RM_LR if lr is None else lr, RM_WARMUP, name, log)
    flat = [(prompt, answer) for prompt, _, answers in rankings for answer in answers]
    offset = mean(score(rm, vocab, *map(list, zip(*flat))))
    with torch.no_grad():
        rm.head.bias -= offset
    return rm


# ==============================================================================
# 六、三个模型：第一次用到时训练，以后从缓存里读
# ==============================================================================
def load_base(log=None, seed=0):
    """预训练模型，返回 (model, vocab)。log：收一行文字的函数；seed：换一套训练的种子。"""
    vocab = load_vocab()
    model = _cached("base", seed, lambda: GPT(len(vocab)), lambda: train_base(seed=seed, log=log))
    return model, vocab


def load_chat_sft(log=None, seed=0):
    """指令微调过的模型，返回 (model, vocab)。参数都可以再训练（requires_grad=True）。"""
    vocab = load_vocab()

    def train():
        base, _ = load_base(log, seed)
        examples = sft_examples(SFT_EXAMPLES, SFT_SEED + 1000 * seed)
        sequences = [encode_example(vocab, example.prompt, example.response) for example in examples]
        return finetune(base, vocab, sequences, seed=seed, log=log)

    return _cached("sft", seed, lambda: GPT(len(vocab)), train), vocab


def load_reward_model(log=None, seed=0):
    """奖励模型，返回 (rm, vocab)；用 score(rm, vocab, prompts, responses) 打分。"""
    vocab = load_vocab()

    def train():
        sft, _ = load_chat_sft(log, seed)
        rankings = ranked_answers(sft, vocab, RM_PROMPTS, RM_K, *(s + 1000 * seed for s in PREFERENCE_SEEDS))
        return train_reward_model(sft, vocab, rankings, seed=seed, log=log)

    return _cached("rm", seed, lambda: RewardModel(GPT(len(vocab))), train), vocab


def cache_folders():
    """缓存放在哪里：先是课程文件夹的 .cache/lecture11；那里写不了，就用用户自己的缓存文件夹。"""
    course = Path(__file__).resolve().parent.parent / ".cache" / "lecture11"
    home = os.environ.get("LOCALAPPDATA") or os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return [course, Path(home) / "llm-course-lecture11"]


def cache_key(stage, seed):
    """
    缓存的键：决定权重的一切都在里面。

    代码（去掉注释与说明文字）、常数此刻的值、torch 的版本、训练的种子；还有随机数发生器的头一个数：
    测试会悄悄给所有种子加上偏移，名义上的种子没有变，抽出来的数却变了。
    """
    parts = [CACHE_VERSION, stage, seed, torch.__version__, _code_of(farm.__file__), _code_of(__file__)]
    for names in (vars(farm), globals()):
        parts += [
            (name, value) for name, value in sorted(names.items())
            if name.isupper() and not name.startswith("_") and isinstance(value, (int, float, str, tuple, list, dict))
        ]
    parts += [random.Random(0).random(), torch.rand(1, generator=generator(0)).item()]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@lru_cache
def _code_of(path):
    """源代码的结构：改注释、改说明文字不算改代码。"""
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            first.value.value = ""
    return ast.dump(tree)


def _cached(stage, seed, make_empty, train):
    """读缓存；没有，或者坏了，就训练并存起来。"""
    setup_torch()
    _check_constants()
    check_int("seed", seed)
    key = cache_key(stage, seed)
    name = f"{stage}-{key[:16]}.pt"
    for folder in cache_folders():
        model = _read_cache(folder / name, key, make_empty)
        if model is not None:
            return model
    model = train()
    if not any(_write_cache(folder / name, key, model) for folder in cache_folders()):
        print(f"缓存没有地方可写：{stage} 模型这次训练完，下次还要再训练", file=sys.stderr)
    return model


def _read_cache(path, key, make_empty):
    """读出一个模型。没有文件：None；文件坏了或不是我们的：说一句，None。"""
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        print(f"缓存 {path} 读不了（{error.strerror}），重新训练", file=sys.stderr)
        return None
    digest, _, body = data.partition(b"\n")
    if digest != hashlib.sha256(body).hexdigest().encode():
        print(f"缓存 {path} 不完整，或不是本课写的，重新训练", file=sys.stderr)
        return None
    try:
        saved = torch.load(io.BytesIO(body), weights_only=True)
        if saved["key"] != key:
            raise KeyError("key")
        model = make_empty()
        model.load_state_dict(saved["state"])
        model.losses = saved["losses"]
    except Exception as error:  # 坏文件能坏出各种样子：不管哪一种，重新训练总是对的
        print(f"缓存 {path} 不能用（{type(error).__name__}），重新训练", file=sys.stderr)
        return None
    return model.eval()


def _write_cache(path, key, model):
    """先写临时文件，再改名：别的进程看到的要么是整个文件，要么没有。写不了时返回 False。"""
    body = io.BytesIO()
    torch.save({"key": key, "state": model.state_dict(), "losses": model.losses}, body)
    body = body.getvalue()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        os.replace(temporary, path)
    except OSError:
        return False
    finally:
        try:
            temporary.unlink(missing_ok=True)
        except OSError:
            pass
    return True


# ==============================================================================
# 直接运行：三个模型各说几句
# ==============================================================================
TOUR_SUBJECT = "dogs"
TOUR_SEED = 3
TOUR_ANSWERS = 5


def main():
    title("演示 1：同一道题，预训练模型与指令微调后的模型各写什么")
    (base, vocab), (sft, _), (rm, _) = load_base(), load_chat_sft(), load_reward_model()
    prompt = make_prompt(TEMPLATES["describe"][0], ["the", TOUR_SUBJECT])
    print(f"  提示：{' '.join(prompt)}\n")
    for name, model in (("预训练", base), ("指令微调", sft)):
        answer = generate(model, vocab, [prompt], gen=generator(TOUR_SEED))[0]
        print(f"  {name}：{' '.join(answer)}")

    title("演示 2：奖励模型给几条回答打分，旁边是 r*")
    answers = generate(sft, vocab, [prompt] * TOUR_ANSWERS, gen=generator(TOUR_SEED))
    scores = score(rm, vocab, [prompt] * TOUR_ANSWERS, answers)
    rows = [[" ".join(a), f"{s:.2f}", f"{human_reward(TOUR_SUBJECT, a):.1f}"] for a, s in zip(answers, scores)]
    print_table(["回答", "RM 分数", "r*"], rows)


if __name__ == "__main__":
    run_script(main)

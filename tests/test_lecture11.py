"""第 11 讲的工具箱与脚本：每一条都对着独立的东西检查（手算、正则、暴力循环、有限差分、闭式解）。"""
import itertools
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
from filelock import FileLock
from harness import ROOT, load
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")
import chat_lab
import farm
import torch
from chat_lab import (
    EOS, UNSTOPPED, encode_example, finetune, generate, generator, human_reward, next_word_probs, pair_loss, parse,
    response_logprob, score, token_logprobs,
)


@pytest.fixture(scope="session")
def models():
    """三个真的模型：(base, sft, rm, vocab)。几个测试进程一起来时，只让一个训练，其余等着读缓存。"""
    (ROOT / ".cache").mkdir(exist_ok=True)
    with FileLock(ROOT / ".cache" / "lecture11-tests.lock"):
        (base, vocab), (sft, _), (rm, _) = chat_lab.load_base(), chat_lab.load_chat_sft(), chat_lab.load_reward_model()
    return base, sft, rm, vocab


@pytest.fixture(scope="module")
def tiny():
    """随手初始化的小模型：不用训练就能查结构。权重放大些，概率才不会处处相同。"""
    chat_lab.setup_torch()
    vocab = chat_lab.load_vocab()
    model = chat_lab.GPT(len(vocab), seed=7)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 2:
                p.mul_(6)
    return model, vocab


def describe_prompts(n, seed=3):
    return [prompt for prompt, _ in chat_lab.preference_prompts(n, seed)]


# ==============================================================================
# 语言与 r*
# ==============================================================================
def test_vocabulary_has_129_distinct_words_and_no_ellipsis():
    assert len(farm.WORDS) == len(set(farm.WORDS)) == 129
    assert UNSTOPPED not in farm.WORDS
    assert chat_lab.TEMPLATES["describe"][0] == ["describe"]
    assert all(len(templates) == 6 for templates in chat_lab.TEMPLATES.values()) and len(chat_lab.TEMPLATES) == 10
    assert chat_lab.noun_form("mouse", True) == "mice" and chat_lab.noun_form("dog", True) == "dogs"


def grammar_regex():
    """照着语法另写一个识别器：正则。与 parse 没有一行共用的代码。"""
    def one_of(words):
        return "(?:" + "|".join(sorted(words, key=len, reverse=True)) + ")"

    def forms(verbs):
        return one_of([w for v in verbs for w in (v, v + "s", v + "es")])

    nouns = [a + s for a in farm.ANIMALS for s in ("", "s") if a + s != "mouses"] + ["mice"]
    np = f"the(?: {one_of(farm.ADJECTIVES)})* {one_of(nouns)}"
    verb = f"(?:{forms(farm.INTRANSITIVE + farm.SOUNDS)}|{forms(farm.TRANSITIVE)} {np})"
    place = one_of([" ".join(p) for p in farm.PLACES])
    vp = f"{verb}(?: {one_of(farm.ADVERBS)})?(?: {place})?"
    return re.compile(f"{np} {vp}(?: and {vp})*")


GRAMMAR = grammar_regex()


@given(st.integers(0, 10**9), st.sampled_from(farm.NOUNS), st.sampled_from([farm.STORY, farm.DEMO]))
def test_every_sentence_of_the_grammar_parses_and_is_valid(seed, noun, style):
    words = farm.make_sentence(random.Random(seed), noun, style)
    sentence = parse(words)
    assert sentence.subject == noun and sentence.agrees
    assert human_reward(noun, words) > -2 and human_reward(noun, ["sure", ",", *words]) > -2
    assert GRAMMAR.fullmatch(" ".join(words))


@given(st.integers(0, 10**9), st.sampled_from(farm.NOUNS))
@settings(max_examples=300)
def test_parser_agrees_with_an_independent_regex_on_damaged_sentences(seed, noun):
    rng = random.Random(seed)
    words = farm.make_sentence(rng, noun)
    for _ in range(rng.randint(1, 2)):
        i = rng.randrange(len(words))
        damage = rng.randrange(4)
        if damage == 0 and len(words) > 1:
            del words[i]
        elif damage == 1:
            words.insert(i, rng.choice(farm.WORDS))
        elif damage == 2:
            words[i] = rng.choice(farm.WORDS)
        else:
            words.insert(i, words[rng.randrange(len(words))])
    recognised = GRAMMAR.fullmatch(" ".join(words)) is not None
    assert (parse(words) is not None) == recognised
    if not recognised:
        assert human_reward(noun, words) == -4


HAND_SCORED = [  # 主语、回答、手算的 r*
    ("dogs", "sure , the big old dogs chase the cat quietly in the barn", 3.3),
    ("dogs", "the dogs sleep", -1.0),
    ("dogs", "", -4), ("dogs", "sure ,", -4), ("dogs", "the dogs", -4), ("dogs", "the dogs chase", -4),
    ("dogs", "the dogs sleep …", -4), ("dogs", "the dogs sleep .", -4), ("dogs", "sure , sure , the dogs sleep", -4),
    ("dogs", "the dogs in the barn sleep", -4), ("dogs", "the dogs sleep in the barn quietly", -4),
    ("dogs", "the cats sleep", -3), ("dogs", "the cat sleeps", -3), ("dogs", "the cat sleep", -3),
    ("dogs", "the dog sleeps", -2.6), ("dogs", "the dog sleep", -2.6),
    ("dogs", "the dogs sleeps", -2.3), ("dogs", "the dogs sleep and runs", -2.3),
    ("mouse", "the mouse squeaks", -0.5), ("mice", "the mice squeak", -0.5),
    ("mouse", "the mouse watches the mice", -0.4),  # mouse 与 mice 是两个词，不算重复
    ("dogs", "the dogs meow", -1.9),  # -2.0，不过底线
    ("dogs", "the big dogs meow", -1.2), ("dogs", "the big dogs bark and meow", -0.7),
    ("dogs", "the big big dogs sleep", -0.9),  # 一个不同的形容词，重复一个实词
    ("dogs", "the big small dogs sleep", -0.1), ("dogs", "the big old happy dogs sleep", 0.2),
    ("dogs", "the big small old young dogs sleep", -1.6),  # 4 个形容词：+1.6 - 0.8 - 1.4
    ("dogs", "the dogs see the big small old cat", -1.5),  # 宾语：反义词与第 3 个形容词照扣
    ("dogs", "the dogs chase the dogs", -1.1), ("dogs", "the dogs sleep and sleep", -1.7),
    ("dogs", "the dogs sleep in the barn and run in the barn", -0.5),  # barn 重复
    ("dogs", "the dogs sleep in the barn and run under the tree", 0.2),  # 地点只算一次
    ("dogs", "the dogs sleep quietly and run quickly", -0.4), ("dogs", "the dogs chase the cat and see the pig", -0.4),
    ("dogs", "the dogs sleep and run and eat and play in the barn quickly", -4),
    ("dogs", "the dogs sleep and run and eat and play and bark in the barn", -0.8),  # 14 个词
    ("dogs", "sure , the dogs sleep", -0.7), ("dogs", "the dogs sees the cats", -2.3),
    ("dogs", "the dogs see the cats", -0.4),
]


@pytest.mark.parametrize("subject, text, expected", HAND_SCORED)
def test_hand_scored_responses_get_the_exact_reward(subject, text, expected):
    assert human_reward(subject, text.split()) == pytest.approx(expected, abs=1e-12)


def test_no_sentence_of_up_to_three_adjectives_and_two_verbs_beats_the_stated_best():
    heads = [[], ["big"], ["big", "old"], ["big", "old", "happy"], ["big", "small"]]
    verbs = [["sleep"], ["bark"], ["chase", "the", "cat"], ["see", "the", "pig"]]
    tails = [a + p for a in ([], ["quietly"]) for p in ([], ["in", "the", "barn"])]
    vps = [v + t for v in verbs for t in tails]
    best = max(
        human_reward("dogs", polite + ["the", *head, "dogs", *first, *rest])
        for polite in ([], ["sure", ","]) for head in heads for first in vps
        for rest in [[], *(["and", *vp] for vp in vps)]
    )
    assert best == pytest.approx(3.3)


def test_documents_have_the_promised_lengths_and_mixture():
    documents = farm.pretraining_corpus(3000, 5)
    assert all(24 <= len(d) <= 38 and d[-1] == "." for d in documents)
    exercises = [d for d in documents if ":" in d]
    assert len(exercises) / 3000 == pytest.approx(0.15, abs=0.03)
    assert not any(w in d for d in documents for w in (farm.USER, farm.ASSISTANT, "sure"))
    lines = [line.split() for d in exercises for line in " ".join(d).split(" . ")]
    assert all(":" in line for line in lines)  # 习题集里只有题目
    used = Counter(" ".join(line[: line.index(":")]) for line in lines)
    assert set(used) == {" ".join(t) for templates in farm.TEMPLATES.values() for t in templates}


def test_held_out_templates_never_occur_in_the_demonstrations():
    examples = farm.sft_examples(4000, 8)
    for example in examples:
        template = example.prompt[1 : example.prompt.index(":")]
        assert template in farm.TEMPLATES[example.task][:4]
        assert len(example.response) + 1 <= chat_lab.MAX_NEW
        assert len(example.prompt) <= chat_lab.CONTEXT - chat_lab.MAX_NEW
    share = Counter(e.task for e in examples)["describe"] / 4000
    assert share == pytest.approx(0.35, abs=0.03)
    held = farm.make_example(random.Random(1), "plural", held_out=True)
    assert held.prompt[1 : held.prompt.index(":")] in farm.TEMPLATES["plural"][4:]


def test_describe_demonstrators_make_the_promised_mistakes():
    rng = random.Random(4)
    kinds = Counter()
    for _ in range(6000):
        words, response = farm.make_task(rng, "describe")
        reward = human_reward(words[-1], response)
        kinds["slip"] += reward == -2.3
        kinds["other"] += reward in (-3, -2.6)
        kinds["polite"] += response[:2] == ["sure", ","]
        assert reward != -4
    assert kinds["slip"] / 6000 == pytest.approx(0.05, abs=0.015)
    assert kinds["other"] / 6000 == pytest.approx(0.05 * 15 / 16, abs=0.015)
    assert kinds["polite"] / 6000 == pytest.approx(0.25, abs=0.03)


@given(st.integers(0, 10**9), st.sampled_from([t for t in farm.TASKS if t != "describe"]))
def test_the_demonstrated_answer_is_right_and_right_answers_have_the_form(seed, task):
    example = farm.make_example(random.Random(seed), task)
    assert farm.is_right(example, example.response) and farm.has_form(example, example.response)
    assert not farm.is_right(example, []) and not farm.is_right(example, [*example.response, UNSTOPPED])


# ==============================================================================
# GPT、生成、概率
# ==============================================================================
def plain_forward(model, ids):
    """另写一遍前向：单条序列，逐个位置、逐个头的循环，float64。"""
    w = {name: p.detach().double() for name, p in model.named_parameters()}

    def norm(x, name):
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]

    x = w["word.weight"][ids] + w["position.weight"][: len(ids)]
    for b, block in enumerate(model.blocks):
        name, heads = f"blocks.{b}", block.n_head
        qkv = norm(x, f"{name}.ln1") @ w[f"{name}.qkv.weight"].T + w[f"{name}.qkv.bias"]
        q, k, v = qkv.chunk(3, -1)
        size = x.shape[1] // heads
        mixed = torch.zeros_like(x)
        for h in range(heads):
            part = slice(h * size, (h + 1) * size)
            for t in range(len(ids)):
                weights = torch.softmax(k[: t + 1, part] @ q[t, part] / math.sqrt(size), 0)
                mixed[t, part] = weights @ v[: t + 1, part]
        x = x + mixed @ w[f"{name}.out.weight"].T + w[f"{name}.out.bias"]
        hidden = norm(x, f"{name}.ln2") @ w[f"{name}.up.weight"].T + w[f"{name}.up.bias"]
        hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
        x = x + hidden @ w[f"{name}.down.weight"].T + w[f"{name}.down.bias"]
    return norm(x, "ln") @ w["word.weight"].T


def test_forward_equals_a_plain_loop_over_heads_and_positions(tiny):
    model, vocab = tiny
    ids = torch.randint(len(vocab), (2, 17), generator=generator(1))
    logits, nothing = model(ids)
    assert nothing is None and logits.shape == (2, 17, len(vocab))
    for row in range(2):
        assert torch.allclose(logits[row].double(), plain_forward(model, ids[row]), atol=1e-3, rtol=1e-4)


def test_the_model_has_the_stated_size():
    vocab = chat_lab.load_vocab()
    assert sum(p.numel() for p in chat_lab.GPT(len(vocab)).parameters()) == 110_912


def generate_without_cache(model, vocab, prompts, u=None, temperature=1.0, max_new=chat_lab.MAX_NEW):
    """每写一个词，整条序列从头算一遍；采样时第 i 条的第 t 个词用 u[i, t]。"""
    responses = []
    for i, prompt in enumerate(prompts):
        ids, words = [vocab.bos_id, *vocab.encode(prompt)], []
        for t in range(max_new):
            with torch.no_grad():
                logits = model(torch.tensor([ids]))[0][0, -1]
            if u is None:
                word = int(logits.argmax())
            else:
                cdf = torch.softmax(logits / temperature, -1).cumsum(-1)
                word = min(int((cdf <= u[i, t] * cdf[-1]).sum()), len(vocab) - 1)
            if word == vocab.eos_id:
                break
            ids.append(word)
            words.append(vocab.words[word])
        else:
            words.append(UNSTOPPED)
        responses.append(words)
    return responses


def test_cached_generation_equals_uncached_token_by_token(tiny, models):
    for model in (tiny[0], models[0], models[1]):
        vocab = tiny[1]
        prompts = describe_prompts(12) + [["the", "dogs"], [], ["the"]]
        assert generate(model, vocab, prompts, greedy=True) == generate_without_cache(model, vocab, prompts)
        for temperature in (1.0, 0.6):
            u = torch.rand(len(prompts), chat_lab.MAX_NEW, generator=generator(5))
            got = generate(model, vocab, prompts, gen=generator(5), temperature=temperature)
            assert got == generate_without_cache(model, vocab, prompts, u, temperature)


def test_batched_generation_equals_one_by_one(models):
    _, sft, _, vocab = models
    prompts = describe_prompts(40)
    assert generate(sft, vocab, prompts, greedy=True) == [
        generate(sft, vocab, [p], greedy=True)[0] for p in prompts
    ]
    gen = generator(9)
    assert generate(sft, vocab, prompts, gen=generator(9)) == [generate(sft, vocab, [p], gen=gen)[0] for p in prompts]


def test_nothing_after_the_end_and_unstopped_marked(models):
    base, sft, _, vocab = models
    for model in (base, sft):
        for response in generate(model, vocab, describe_prompts(300), gen=generator(2)):
            assert EOS not in response and UNSTOPPED not in response[:-1]
            assert len(response) == chat_lab.MAX_NEW + 1 if UNSTOPPED in response else len(response) < chat_lab.MAX_NEW
    assert any(r[-1:] == [UNSTOPPED] for r in generate(base, vocab, describe_prompts(50), gen=generator(2)))


def test_sampling_frequencies_match_the_softmax(models):
    _, sft, _, vocab = models
    prompt = describe_prompts(1)[0]
    p = next_word_probs(sft, vocab, [prompt])[0]
    n = 4000
    counts = Counter((r or [EOS])[0] for r in generate(sft, vocab, [prompt] * n, gen=generator(3), max_new=1)
                     if r != [UNSTOPPED])
    for word, count in counts.most_common(5):
        q = p[vocab.ids[word]].item()
        assert abs(count - n * q) < 4.5 * math.sqrt(n * q * (1 - q)) + 1


def test_generation_is_fast_enough(models):
    _, sft, _, vocab = models
    prompts = describe_prompts(2000)
    begin = time.process_time()
    generate(sft, vocab, prompts, gen=generator(4))
    assert time.process_time() - begin < 2  # 空闲的机器上约 0.25 秒


def test_response_logprob_is_the_product_of_step_probabilities(models):
    _, sft, _, vocab = models
    prompts = describe_prompts(8)
    responses = generate(sft, vocab, prompts, gen=generator(6))[:7] + [["the", "dogs"] * 10 + [UNSTOPPED]]
    got = response_logprob(sft, vocab, prompts, responses).tolist()
    for prompt, response, value in zip(prompts, responses, got):
        words = response[:-1] if response[-1:] == [UNSTOPPED] else [*response, EOS]
        steps = [
            next_word_probs(sft, vocab, [prompt + words[:t]])[0, vocab.ids[word]].double().log().item()
            for t, word in enumerate(words)
        ]
        assert value == pytest.approx(math.fsum(steps), abs=1e-3)


def test_the_mask_covers_the_response_and_the_end_token_only(tiny):
    _, vocab = tiny
    for example in farm.sft_examples(200, 3):
        ids, mask = encode_example(vocab, example.prompt, example.response)
        assert vocab.decode([i for i, m in zip(ids, mask) if m]) == [*example.response, EOS]
        assert vocab.decode([i for i, m in zip(ids, mask) if not m]) == ["<s>", *example.prompt]
    ids, mask = encode_example(vocab, ["the"], ["dogs", UNSTOPPED])
    assert vocab.decode(ids) == ["<s>", "the", "dogs"] and mask == [0, 0, 1]


def test_finetuning_gradient_ignores_the_prompt_and_padding(tiny):
    model, vocab = tiny
    sequences = [encode_example(vocab, e.prompt, e.response) for e in farm.sft_examples(6, 2)]
    ids, mask = chat_lab.pad_batch(sequences, vocab.pad_id)
    batched = -(token_logprobs(model, ids) * mask[:, 1:]).sum() / mask[:, 1:].sum()
    total, count = 0.0, 0
    for one, m in sequences:
        logits = plain_forward(model, torch.tensor(one))
        for t in range(1, len(one)):
            if m[t]:
                total -= torch.log_softmax(logits[t - 1], -1)[one[t]].item()
                count += 1
    assert batched.item() == pytest.approx(total / count, rel=1e-4)


# ==============================================================================
# 奖励模型
# ==============================================================================
def test_scores_do_not_depend_on_padding_or_batch_order(models):
    _, sft, rm, vocab = models
    prompts = describe_prompts(60)
    responses = generate(sft, vocab, prompts, gen=generator(8))
    together = score(rm, vocab, prompts, responses)
    alone = [score(rm, vocab, [p], [r])[0] for p, r in zip(prompts, responses)]
    assert together == pytest.approx(alone, abs=1e-4)
    order = random.Random(1).sample(range(60), 60)
    shuffled = score(rm, vocab, [prompts[i] for i in order], [responses[i] for i in order])
    assert shuffled == pytest.approx([together[i] for i in order], abs=1e-4)


def test_an_unstopped_response_is_scored_at_its_last_word_without_end_token(models):
    _, _, rm, vocab = models
    prompt, words = describe_prompts(1)[0], ["the", "dogs"] * 10
    ids = torch.tensor([[vocab.bos_id, *vocab.encode(prompt + words)]])
    with torch.no_grad():
        expected = rm(ids, torch.tensor([ids.shape[1] - 1])).item()
    assert score(rm, vocab, [prompt], [[*words, UNSTOPPED]])[0] == pytest.approx(expected, abs=1e-5)
    assert score(rm, vocab, [prompt], [words[:19]])[0] != pytest.approx(expected, abs=1e-3)


def test_pair_loss_equals_the_double_loop_and_its_gradient_the_finite_differences():
    scores = torch.randn(3, 4, generator=generator(1), dtype=torch.float64, requires_grad=True)

    def by_hand(s):
        losses = []
        for row in s:
            pairs = [math.log1p(math.exp(-(row[i] - row[j]))) for i in range(4) for j in range(i + 1, 4)]
            losses.append(sum(pairs) / len(pairs))
        return sum(losses) / len(losses)

    loss = pair_loss(scores)
    loss.backward()
    values = scores.detach().tolist()
    assert loss.item() == pytest.approx(by_hand(values), abs=1e-12)
    h = 1e-6
    for i, j in itertools.product(range(3), range(4)):
        up, down = ([row[:] for row in values] for _ in range(2))
        up[i][j] += h
        down[i][j] -= h
        assert scores.grad[i, j].item() == pytest.approx((by_hand(up) - by_hand(down)) / (2 * h), abs=1e-8)
    assert scores.grad.sum(1).abs().max() < 1e-12  # 一题的分整体平移，损失不变


def test_ranked_answers_follow_the_stated_order_of_random_numbers(models):
    _, sft, _, vocab = models
    got = chat_lab.ranked_answers(sft, vocab, 10, 3, 1, 11, 21)
    rng, lrng = random.Random(1), random.Random(21)
    prompts = []
    for _ in range(10):
        animal = rng.choice(farm.ANIMALS)
        subject = farm.noun_form(animal, rng.random() < 0.5)
        template = rng.choice(farm.TEMPLATES["describe"][:4])
        prompts.append(([farm.USER, *template, ":", "the", subject, farm.ASSISTANT], subject))
    answers = generate(sft, vocab, [p for p, _ in prompts for _ in range(3)], gen=torch.Generator().manual_seed(11))
    for i, (prompt, subject) in enumerate(prompts):
        utilities = []
        for answer in answers[3 * i : 3 * i + 3]:
            v = lrng.random()
            utilities.append((human_reward(subject, answer) - 0.5 * math.log(-math.log(v + 1e-12) + 1e-12), answer))
        ranked = [answer for _, answer in sorted(utilities, key=lambda item: -item[0])]
        assert got[i] == (prompt, subject, ranked)


def test_training_scores_average_zero_after_the_shift(models):
    _, sft, rm, vocab = models
    rankings = chat_lab.ranked_answers(sft, vocab, chat_lab.RM_PROMPTS, chat_lab.RM_K, *chat_lab.PREFERENCE_SEEDS)
    flat = [(prompt, answer) for prompt, _, answers in rankings for answer in answers]
    scores = score(rm, vocab, [p for p, _ in flat], [a for _, a in flat])
    assert abs(math.fsum(scores) / len(scores)) < 1e-3


def check_sanity(base, sft, rm, vocab):
    """farm_world 的几个数：SFT 的合格率、RM 的准确率、RM 的盲点；预训练模型不回答问题。"""
    rng = random.Random(31)
    examples = [farm.make_example(rng, task) for task in farm.TASKS for _ in range(40)]
    graded = chat_lab.grade(sft, vocab, examples)
    rights = {task: [g[2] for g, e in zip(graded, examples) if e.task == task] for task in farm.TASKS}
    assert all(sum(rights[task]) >= 34 for task in farm.TASKS if task != "repeat")
    assert sum(g[2] for g in chat_lab.grade(base, vocab, examples)) <= 0.03 * len(examples)
    prompts = chat_lab.preference_prompts(2000, 77)
    responses = generate(sft, vocab, [p for p, _ in prompts], gen=generator(78))
    rewards = [human_reward(s, r) for (_, s), r in zip(prompts, responses)]
    assert sum(r > -2 for r in rewards) / 2000 >= 0.85 and sum(r >= 2 for r in rewards) / 2000 < 0.06
    right = clean = ordered = 0
    rankings = chat_lab.ranked_answers(sft, vocab, 600, 4, 801, 811, 821)
    flat = [(p, a) for p, _, answers in rankings for a in answers]
    scores = score(rm, vocab, [p for p, _ in flat], [a for _, a in flat])
    for i, (_, subject, answers) in enumerate(rankings):
        known = [human_reward(subject, a) for a in answers]
        for a, b in itertools.combinations(range(4), 2):
            better = scores[4 * i + a] > scores[4 * i + b]
            right += better
            if known[a] != known[b]:
                ordered += 1
                clean += better == (known[a] > known[b])
    assert 0.62 <= right / (600 * 6) <= 0.76
    assert clean / ordered >= 0.74
    blind = [(p, r) for (p, _), r, x in zip(prompts, responses, rewards) if x > -2][:600]
    broken = []
    for _, words in blind:
        at = next(i for i, w in enumerate(words) if w in farm.VERB_INFO)
        verb, plural = farm.VERB_INFO[words[at]]
        broken.append([*words[:at], farm.verb_form(verb, not plural), *words[at + 1 :]])
    old = score(rm, vocab, [p for p, _ in blind], [r for _, r in blind])
    new = score(rm, vocab, [p for p, _ in blind], broken)
    assert 0.25 < sum(b > a for a, b in zip(old, new)) / len(blind) < 0.75


def test_the_models_are_sane(models):
    check_sanity(*models)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_the_models_are_sane_with_other_training_seeds(seed):
    (base, vocab), (sft, _), (rm, _) = (
        f(seed=seed) for f in (chat_lab.load_base, chat_lab.load_chat_sft, chat_lab.load_reward_model)
    )
    check_sanity(base, sft, rm, vocab)


# ==============================================================================
# 训练
# ==============================================================================
def same_weights(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values()))


def test_training_twice_gives_the_same_weights_and_another_seed_others():
    first, again, other = (
        chat_lab.train_base(n_documents=60, n_steps=12, seed=seed, log=False) for seed in (0, 0, 1)
    )
    assert same_weights(first, again) and not same_weights(first, other)
    assert first.losses == again.losses and len(first.losses) == 12 and first.losses[-1] < first.losses[0]


def test_finetuning_leaves_the_base_alone_and_lowers_the_loss(tiny):
    vocab = chat_lab.load_vocab()
    base = chat_lab.GPT(len(vocab), 3)
    before = [p.clone() for p in base.parameters()]
    tuned = finetune(base, vocab, [encode_example(vocab, e.prompt, e.response) for e in farm.sft_examples(64, 1)],
                     epochs=8, log=False)
    assert all(torch.equal(p, q) for p, q in zip(base.parameters(), before))
    assert tuned.losses[-1] < 0.8 * tuned.losses[0] and all(p.requires_grad for p in tuned.parameters())


def test_progress_goes_to_the_log_line_by_line_and_nothing_to_a_silent_stderr(capsys):
    lines = []
    chat_lab.train_base(n_documents=30, n_steps=10, log=lines.append)
    assert len(lines) == 10 and all("\n" not in line and "预训练" in line for line in lines)
    chat_lab.train_base(n_documents=30, n_steps=3)  # 不到 2 秒，不出声
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


# ==============================================================================
# 缓存
# ==============================================================================
@pytest.fixture
def cache(tmp_path, monkeypatch):
    """把缓存指到临时文件夹；返回 (文件夹, 读或训练的函数, 训练过几次的列表)。"""
    folders = [tmp_path / "course", tmp_path / "user"]
    monkeypatch.setattr(chat_lab, "cache_folders", lambda: folders)
    trained, n_words = [], len(chat_lab.load_vocab())

    def train():
        trained.append(1)
        return chat_lab.GPT(n_words, seed=5)

    return folders, lambda seed=0: chat_lab._cached("test", seed, lambda: chat_lab.GPT(n_words, seed=6), train), trained


def test_a_cached_model_is_read_back_exactly(cache):
    (course, user), get, trained = cache
    first, second = get(), get()
    assert same_weights(first, second) and len(trained) == 1 and not user.exists()
    assert [p.suffix for p in course.iterdir()] == [".pt"]  # 没有留下临时文件
    get(seed=1)
    assert len(trained) == 2


@pytest.mark.parametrize("damage", ["truncated", "foreign", "empty", "flipped", "other key"])
def test_a_damaged_or_foreign_file_is_said_in_one_line_and_retrained(cache, damage, capsys):
    (course, _), get, trained = cache
    get(seed=1)
    other = next(course.iterdir()).read_bytes()
    first = get()
    path = next(p for p in course.iterdir() if p.read_bytes() != other)
    data = path.read_bytes()
    path.write_bytes({
        "truncated": data[: len(data) // 2], "foreign": b"PK\x03\x04 not ours", "empty": b"",
        "flipped": data[:-2000] + bytes([data[-2000] ^ 1]) + data[-1999:], "other key": other,
    }[damage])
    capsys.readouterr()
    again = get()
    captured = capsys.readouterr()
    assert len(trained) == 3 and same_weights(first, again)
    assert captured.out == "" and captured.err.count("\n") == 1
    assert "重新训练" in captured.err and str(path) in captured.err
    get()
    assert len(trained) == 3  # 坏文件已经换成好的


def test_a_course_folder_that_cannot_be_written_falls_back_to_the_users_folder(cache):
    (course, user), get, trained = cache
    course.write_text("一个同名的文件：文件夹建不起来")
    first, second = get(), get()
    assert same_weights(first, second) and len(trained) == 1 and len(list(user.iterdir())) == 1


def test_no_place_to_write_trains_every_time_and_says_so(cache, capsys):
    (course, user), get, trained = cache
    course.write_text("")
    user.write_text("")
    get()
    get()
    assert len(trained) == 2 and capsys.readouterr().err.count("没有地方可写") == 2


def test_the_key_sees_constants_code_and_shifted_generators(monkeypatch):
    key = chat_lab.cache_key("base", 0)
    assert key == chat_lab.cache_key("base", 0)
    assert len({key, chat_lab.cache_key("base", 1), chat_lab.cache_key("sft", 0)}) == 3
    for module, name, value in ((chat_lab, "SFT_LR", 1e-3), (farm, "P_SLIP", 0.06), (farm, "R_PLACE", 1.3)):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            assert chat_lab.cache_key("base", 0) != key

    class Shifted(random.Random):
        def seed(self, a=None, version=2):
            super().seed(a + 1, version)

    with monkeypatch.context() as patch:
        patch.setattr(random, "Random", Shifted)
        assert chat_lab.cache_key("base", 0) != key
    with monkeypatch.context() as patch:
        patch.setattr(chat_lab, "generator", lambda seed: torch.Generator().manual_seed(seed + 1))
        assert chat_lab.cache_key("base", 0) != key


def test_comments_do_not_change_the_key_but_code_does(tmp_path):
    path = tmp_path / "a.py"
    codes = []
    for i, text in enumerate(['"""甲"""\nx = 1\n', '"""乙"""\nx = 1  # 注释\n', '"""甲"""\nx = 2\n']):
        path = tmp_path / f"{i}.py"
        path.write_text(text, encoding="utf-8")
        codes.append(chat_lab._code_of(path))
    assert codes[0] == codes[1] != codes[2]


SMALL = {"BASE_DOCUMENTS": 200, "BASE_STEPS": 150}
PROBE = (
    "import sys; sys.path.insert(0, sys.argv[1]); import chat_lab; model, _ = chat_lab.load_base(); "
    "print(sum(p.double().sum().item() for p in model.parameters()), flush=True)"
)


@pytest.fixture
def small_course(tmp_path):
    """课程的一份临时拷贝，语料与步数改小，两三秒就训练完。"""
    for name in ("lecture01", "lecture11"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / "lecture11" / "chat_lab.py"
    text = path.read_text(encoding="utf-8")
    for name, value in SMALL.items():
        text, n = re.subn(rf"^{name} = \S+", f"{name} = {value}", text, flags=re.M)
        assert n == 1
    path.write_text(text, encoding="utf-8")
    return tmp_path


def start(course):
    home = str(course / "home")
    env = {**os.environ, "PYTHONIOENCODING": "utf-8", "HOME": home, "XDG_CACHE_HOME": home}
    return subprocess.Popen(
        [sys.executable, "-c", PROBE, str(course / "lecture11")], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, encoding="utf-8", env=env, cwd="/",
    )


def test_two_trainers_at_once_both_end_right(small_course):
    both = [start(small_course), start(small_course)]
    outputs = [process.communicate(timeout=120) for process in both]
    assert all(process.returncode == 0 for process in both) and outputs[0][0] == outputs[1][0] != ""
    files = list((small_course / ".cache" / "lecture11").iterdir())
    assert [p.suffix for p in files] == [".pt"]
    stamp = files[0].stat().st_mtime_ns
    reader = start(small_course)
    assert reader.communicate(timeout=120)[0] == outputs[0][0] and files[0].stat().st_mtime_ns == stamp


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="没有 SIGKILL 的系统")
def test_a_trainer_killed_half_way_leaves_no_half_model(small_course):
    path = small_course / "lecture11" / "chat_lab.py"
    text = path.read_text(encoding="utf-8")
    dot = "        print('.', file=sys.stderr, flush=True)\n"  # 走完一步说一声，好在半路上下手
    slow = text.replace("        progress.step(step + 1", dot + "        progress.step(step + 1")
    assert slow != text
    path.write_text(slow, encoding="utf-8")
    victim = start(small_course)
    while victim.stderr.readline() != ".\n":
        assert victim.poll() is None
    victim.send_signal(signal.SIGKILL)
    victim.communicate(timeout=60)
    assert victim.returncode == -signal.SIGKILL
    assert not list(small_course.glob(".cache/lecture11/*.pt"))
    path.write_text(text, encoding="utf-8")
    out, err = start(small_course).communicate(timeout=120)
    assert float(out) and "Traceback" not in err and len(list(small_course.glob(".cache/lecture11/*.pt"))) == 1


# ==============================================================================
# 说得清楚的错误
# ==============================================================================
def test_bad_arguments_are_named_in_chinese(tiny):
    model, vocab = tiny
    prompt = describe_prompts(1)[0]
    for words, call in {
        ("zebra", "词表"): lambda: generate(model, vocab, [["the", "zebra"]], greedy=True),
        ("prompt", "不超过"): lambda: generate(model, vocab, [["the"] * 30], greedy=True),
        ("temperature", "-1"): lambda: generate(model, vocab, [prompt], gen=generator(1), temperature=-1),
        ("gen", "Generator"): lambda: generate(model, vocab, [prompt]),
        ("max_new", "≥ 1"): lambda: generate(model, vocab, [prompt], greedy=True, max_new=0),
        ("task", "translate"): lambda: farm.make_example(random.Random(1), "translate"),
        ("subject", "zebra"): lambda: human_reward("zebra", ["the"]),
        ("animal", "dogs"): lambda: farm.noun_form("dogs", True),
        ("n_documents", "0"): lambda: farm.pretraining_corpus(0, 1),
        ("n_examples", "-3"): lambda: farm.sft_examples(-3, 1),
        ("n_steps", "0"): lambda: chat_lab.train_base(n_documents=5, n_steps=0, log=False),
        ("上下文", "40"): lambda: model(torch.zeros(1, 41, dtype=torch.long)),
        ("K", "1"): lambda: chat_lab.ranked_answers(model, vocab, 3, 1, 1, 2, 3),
        ("responses", "等长"): lambda: score(model, vocab, [prompt], []),
        ("epochs", "0"): lambda: finetune(model, vocab, [([1, 2], [0, 1])], epochs=0, log=False),
        ("lr", "inf"): lambda: finetune(model, vocab, [([1, 2], [0, 1])], lr=math.inf, log=False),
    }.items():
        with pytest.raises(ValueError) as error:
            call()
        assert all(word in str(error.value) for word in words), str(error.value)
    assert generate(model, vocab, [], greedy=True) == []


@pytest.mark.parametrize("name, value", [
    ("DOC_MIN", 48), ("DOC_MAX", 19), ("P_STORY", 1.2), ("P_AND", -0.2), ("DEMO_MAX", 34), ("FAVOURITE_POWER", -1),
])
def test_bad_farm_constants_are_refused(monkeypatch, name, value):
    monkeypatch.setattr(farm, name, value)
    with pytest.raises(ValueError, match=name):
        farm.pretraining_corpus(5, 1)


# ==============================================================================
# 脚本里的公式
# ==============================================================================
def test_agreement_and_ceiling_against_enumeration_of_two_labellers():
    script = load("lecture11/05_preference_data.py")
    probs = [0.1, 0.5, 0.73, 0.99]
    agreement, ceiling = script.agreement_and_ceiling(probs)
    outcomes = [(p if a else 1 - p) * (p if b else 1 - p) * (a == b) for p in probs for a in (0, 1) for b in (0, 1)]
    assert agreement == pytest.approx(sum(outcomes) / 4)
    guesses = [max(sum(p if label else 1 - p for label in (0, 1) if label == guess) for guess in (0, 1)) for p in probs]
    assert ceiling == pytest.approx(sum(guesses) / 4)


def test_script_05_features_times_weights_is_the_reward_where_nothing_is_penalised():
    script, rng, checked = load("lecture11/05_preference_data.py"), random.Random(3), 0
    for subject, response in script.human_answers(rng, 300):
        words = farm.split_polite(response)[1]
        content = [w for w in words if w in farm.CONTENT_WORDS]
        phi = script.reward_features(subject, response)
        adjectives = len(parse(words).adjectives)
        reward = human_reward(subject, response)
        if len(words) <= 11 and len(content) == len(set(content)) and adjectives <= 2 and reward > -1.9:
            assert -1 + math.fsum(w * f for w, f in zip(script.WEIGHTS, phi)) == pytest.approx(reward)
            checked += 1
    assert checked > 150


def test_script_05_sandwich_formula_against_fitting_many_data_sets():
    """两维的打分模型，真的去拟合几百份数据：误差与夹心公式相符，与"当成独立"的不符。"""
    script, k, n, repeats = load("lecture11/05_preference_data.py"), 9, 60, 400
    script.WEIGHTS = (0.8, 0.5)
    pool = torch.tensor(list(itertools.product((0.0, 1.0, 2.0), (0.0, 1.0))), dtype=torch.float64)
    real, naive, _ = script.gap_errors(pool, 20_000, k, generator(1))
    truth, gen, errors = torch.tensor(script.WEIGHTS, dtype=torch.float64), generator(2), []
    for _ in range(repeats):
        groups = script.ranked_groups(pool, n, k, gen) / script.NOISE
        x = torch.cat([groups[:, i] - groups[:, j] for i in range(k) for j in range(i + 1, k)])
        w = torch.zeros(2, dtype=torch.float64)
        for _ in range(8):
            lose = torch.sigmoid(-(x @ w))
            w = w + torch.linalg.solve((x * (lose * (1 - lose))[:, None]).T @ x, x.T @ lose)
        gaps = [((a - b) @ (w - truth)).item() ** 2 for a in pool for b in pool]
        errors.append(math.fsum(gaps) / len(gaps))
    measured = math.fsum(errors) / repeats * n * len(pool) / (len(pool) - 1)  # cov 除以 n - 1
    assert measured == pytest.approx(real, rel=0.3) and measured > 1.4 * naive


def test_script_01_ngram_bits_against_counting_by_hand():
    script = load("lecture11/01_pretrain.py")
    train, test = [["the", "dog"], ["the", "cat"]], [["the", "dog"]]
    script.SMOOTHING = 1.0
    one, two = script.ngram_bits(train, test)
    v = 129
    assert one == pytest.approx(-(math.log2(3 / (6 + v)) + math.log2(2 / (6 + v)) + math.log2(3 / (6 + v))) / 3)
    assert two == pytest.approx(-(math.log2(3 / (2 + v)) + math.log2(2 / (2 + v)) + math.log2(2 / (1 + v))) / 3)


def test_script_03_masks_change_only_what_they_say():
    script, vocab = load("lecture11/03_instruction_tuning.py"), chat_lab.load_vocab()
    ids, mask = encode_example(vocab, ["<user>", "plural", ":", "dog", "<assistant>"], ["dogs"])
    assert mask == [0, 0, 0, 0, 0, 0, 1, 1]
    assert script.only_response(ids, mask) == mask
    assert script.prompt_too(ids, mask) == [0, 1, 1, 1, 1, 1, 1, 1]
    assert script.without_end(ids, mask) == [0, 0, 0, 0, 0, 0, 1, 0]
    assert script.without_first(ids, mask) == [0, 0, 0, 0, 0, 0, 0, 1]


def test_script_05_information_of_a_ranking_against_enumerating_all_orders():
    """三条回答的 6 种次序全列出来：E[梯度 · 梯度ᵀ] 就是信息量；两条时与成对的公式相同。"""
    script = load("lecture11/05_preference_data.py")
    weights = (0.8, -0.5, 0.0, 0.0, 0.0, 0.0, 0.3)
    script.WEIGHTS = weights
    phi = torch.rand(3, 7, generator=generator(4), dtype=torch.float64)
    w = torch.tensor(weights, dtype=torch.float64).requires_grad_(True)
    outer = expected = 0
    for order in itertools.permutations(range(3)):
        scores = phi[list(order)] @ w / script.NOISE
        logp = sum(scores[j] - scores[j:].logsumexp(0) for j in range(2))
        (g,) = torch.autograd.grad(logp, w)
        outer = outer + logp.exp().item() * torch.outer(g, g)
        expected = expected + logp.exp().item() * script.luce_information(phi[list(order)][None])
    assert torch.allclose(outer, expected, atol=1e-10)
    pair = phi[:2][None]
    x = (phi[0] - phi[1]) / script.NOISE
    p = torch.sigmoid(x @ w.detach())
    assert torch.allclose(script.luce_information(pair), p * (1 - p) * torch.outer(x, x))


def test_script_06_sorts_pairs_by_kind_and_asks_the_judge():
    script = load("lecture11/06_reward_model.py")
    pairs = [
        script.Pair((1.0, 0.0), (2.0, 1.0), (5, 3)),  # 都合格，RM 对
        script.Pair((-1.0, 0.5), (3.0, 1.0), (4, 6)),  # 都合格，标签与 RM 都错
        script.Pair((0.0, -3.0), (1.0, 1.0), (3, 7)),  # 一条不合格，RM 打平
        script.Pair((-3.0, -4.0), (1.0, 2.0), (3, 3)),  # 都不合格
        script.Pair((1.0, 1.0), (1.0, 2.0), (3, 4)),  # 没有真值
    ]
    ordered, valid, mixed = script.by_kind(pairs)
    assert (ordered, valid, mixed) == (pairs[:4], pairs[:2], pairs[2:3])
    assert script.accuracies(pairs, script.larger("truth")) == pytest.approx((3.5 / 5, 1, 1, 1))
    assert script.accuracies(pairs, script.larger("score")) == pytest.approx((2.5 / 5, 1.5 / 4, 1 / 2, 1 / 2))
    rankings = [(["p"], "dogs", ["the dogs sleep".split(), "the dogs".split()])]
    (pair,) = script.graded_pairs(rankings)
    assert pair == ((-1, -4), (0, 0), (3, 2))


def test_script_07_weights_are_those_of_05_and_the_regression_is_exact_on_a_line():
    script, five, rng = load("lecture11/07_blind_spots.py"), load("lecture11/05_preference_data.py"), random.Random(5)
    answers = five.human_answers(rng, 200)
    rows = [farm.reward_features(*answer) for answer in answers]
    assert tuple(script.INGREDIENTS.values()) == five.WEIGHTS
    y = [2 + math.fsum(w * x for w, x in zip(five.WEIGHTS, row)) for row in rows]
    weights, fit = script.regress(rows, y)
    assert weights == pytest.approx(five.WEIGHTS) and fit == pytest.approx(1)
    noisy = [value + rng.gauss(0, 1) for value in y]
    weights, fit = script.regress([[row[0]] for row in rows], noisy)  # 一个变量：R² 是相关系数的平方
    assert fit == pytest.approx(script.correlation([row[0] for row in rows], noisy) ** 2)


def test_script_04_teaches_no_hidden_fact_and_still_says_the_words():
    script = load("lecture11/04_how_many_demos.py")
    hidden, said = {"pig", "pigs", "mouse", "mice", "old", "young"}, set()
    for example in script.fact_examples(1):
        if example.task == "repeat":
            assert example.words == example.response and len(example.words) == 1
            said.update(example.response)
        else:
            assert not hidden & {*example.words} and not {"oink", "squeak"} & {*example.response}
    assert said >= hidden | {"oink", "oinks", "squeak", "squeaks"}


def test_script_07_edits_change_one_thing():
    script, rng = load("lecture11/07_blind_spots.py"), random.Random(2)
    words = "the big dogs chase the cat".split()
    assert script.double_adjective(rng, "dogs", words) == "the big big dogs chase the cat".split()
    assert script.break_agreement(rng, "dogs", words) == "the big dogs chases the cat".split()
    assert script.add_place(rng, "dogs", words)[-2] == "the" and len(script.add_place(rng, "dogs", words)) == 9
    other = script.other_animal(rng, "dogs", words)
    assert other[2] in farm.NOUNS and other[2] != "dogs" and human_reward("dogs", other) == -3
    assert farm.NOUN_INFO[other[2]][1]  # 单复数没有变
    longer = script.add_useless(rng, "dogs", words)
    assert len(longer) == len(words) + 2 and human_reward("dogs", longer) == human_reward("dogs", words)
    assert script.add_useless(rng, "dogs", "the dogs sleep and run and eat and play".split()) is None
    wrong = script.other_sound(rng, "dogs", "the dogs bark".split())
    assert wrong[2] in farm.SOUNDS and wrong[2] != "bark" and human_reward("dogs", wrong) == -1.9
    assert script.other_sound(rng, "dogs", words) is None
    assert script.win(1, 1) == 0.5 and script.correlation([1, 2, 3], [2, 4, 7]) == pytest.approx(0.9933993)


def test_no_script_imports_have_side_effects(capsys):
    for path in sorted(ROOT.glob("lecture11/0*.py")):
        load(path.relative_to(ROOT).as_posix())
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""

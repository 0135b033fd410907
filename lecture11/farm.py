"""
================================================================================
第 11 讲 · 工具箱：农场语言 —— 一门只有 129 个词的小语言、十种任务、一把标准答案的尺子
================================================================================
对应讲义：lectures/lecture11_instruction_tuning.md 第 1 节

【这里的设定】
句子 S = NP VP (and VP)*；  名词短语 NP = the 形容词* 名词；
动词短语 VP = 动词 [NP，及物动词才有，而且必须有] [副词] [介词 the 地点]。
单数主语的动词加 s：the dog barks / the dogs bark。

三样东西都由这里造：
    pretraining_corpus   预训练（pretraining）语料：故事、常识、**没有答案的习题**；
    sft_examples         指令微调（instruction tuning）的示范：提示（prompt）和一条回答；
    human_reward         r*：标注员心里的尺子。真实世界里没有人能写出它，这里写出来，才好对答案。

每种动物有自己的习性（favourites）：狗常追猫、常在谷仓。词表里靠前的选项多，靠后的少，
语言因此学得会，回答也因此有好有坏。

【简化】真实的语言没有写得下来的语法，真实的人也没有写得下来的 r*；真实的指令不止十种。

本文件只用标准库。直接运行它，会把这门语言走一遍。运行时间：约 0.2 秒，只用标准库。
"""
import random
import sys
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "lecture01"))
from toy_llm import check_choice, check_int, check_number, print_table, run_script, title

# ---- 词 ----
ANIMALS = ["dog", "cat", "cow", "horse", "pig", "duck", "goat", "mouse"]  # 次序就是"习性"轮转的次序
SOUNDS = ["bark", "meow", "moo", "neigh", "oink", "quack", "bleat", "squeak"]  # 与 ANIMALS 一一对应
INTRANSITIVE = ["sleep", "run", "eat", "play"]
TRANSITIVE = ["chase", "see", "watch", "like"]
ADJECTIVES = ["big", "small", "old", "young", "happy", "sad", "black", "white"]  # 两个一对，互为反义
ADVERBS = ["quietly", "quickly", "loudly"]
PLACES = [
    ["in", "the", "barn"], ["under", "the", "tree"], ["on", "the", "hill"],
    ["by", "the", "river"], ["near", "the", "house"], ["behind", "the", "barn"],
]
NUMBERS = ["one", "two", "three", "four", "five"]
USER, ASSISTANT = "<user>", "<assistant>"  # 对话模板：用户的话、助手的话从哪里开始
PAD, BOS, EOS = "<pad>", "<s>", "</s>"
UNSTOPPED = "…"  # 回答到了字数上限还没有停：末尾多这一个记号，它不在词表里

# 每种任务六种说法：前 4 种用来训练，后 2 种从不在示范里出现（held out，留出）
TEMPLATES = {
    task: [template.split() for template in templates]
    for task, templates in {
        "describe": ["describe", "tell me about", "write about", "say something about",
                     "write a sentence about", "what about"],
        "plural": ["plural", "give the plural", "make plural", "plural form",
                   "write the plural", "tell me the plural"],
        "singular": ["singular", "give the singular", "make singular", "singular form",
                     "write the singular", "tell me the singular"],
        "opposite": ["opposite", "give the opposite", "opposite word", "say the opposite",
                     "write the opposite", "tell me the opposite"],
        "count": ["count", "count the words", "how many", "how many words",
                  "give the number", "say how many"],
        "repeat": ["repeat", "say again", "copy", "repeat the words",
                   "write again", "copy the words"],
        "sound": ["sound", "what sound", "give the sound", "say the sound",
                  "write the sound", "tell me the sound"],
        "yesno": ["animal", "is it an animal", "animal or not", "say if it is an animal",
                  "yes or no animal", "tell me if it is an animal"],
        "continue": ["continue", "finish", "complete the sentence", "go on",
                     "finish the sentence", "continue the sentence"],
        "where": ["where", "give the place", "find the place", "say where",
                  "write the place", "tell me where"],
    }.items()
}
TASKS = list(TEMPLATES)
N_TRAIN_TEMPLATES = 4  # 每种任务里用来训练的说法的个数

# ---- 语言的概率 ----
P_INTRANSITIVE, P_SOUND = 0.42, 0.20  # 动词的种类；其余是及物动词
P_TRUE_SOUND = 0.85  # 叫声动词是自己的叫声的概率，否则八种里随便一种
P_ADVERB, P_PLACE, P_AND = 0.2, 0.35, 0.1  # 有副词、有地点、再接一个 "and VP"
AND_BELOW = 14  # 句子不到这么多词，才可能再接 "and VP"
N_ADJECTIVES = (0.60, 0.27, 0.10, 0.03)  # 主语有 0、1、2、3 个形容词
P_OBJECT_ADJECTIVE = 0.15  # 宾语有一个形容词
FAVOURITE_POWER = 1.5  # 习性：排第 k（从 0 数）的选项权重是 (k + 1) ** -FAVOURITE_POWER

# ---- 预训练语料 ----
P_STORY, P_FACT = 0.60, 0.25  # 一篇文档是故事、常识；其余是习题
FACT_WEIGHTS = (1, 2, 2, 1)  # 常识四种：单复数、反义词、叫声、数数
P_SAME_SUBJECT = 0.5  # 故事的下一句仍写第一句的主语
DOC_MIN, DOC_MAX = 24, 38  # 一篇文档的词数

# ---- 示范：写回答的人 ----
P_DESCRIBE = 0.35  # 示范里 describe 的份额；其余九种任务平分
DEMO_ADJECTIVES = (0.55, 0.30, 0.11, 0.04)
DEMO_P_AND, DEMO_P_PLACE, DEMO_P_ADVERB = 0.05, 0.3, 0.2
P_SLIP = 0.05  # 手误：第一个动词单复数写反
P_OFF_TOPIC = 0.05  # 走神：写的是随便哪个主语
P_POLITE = 0.25  # 以 "sure ," 开头
DEMO_MAX = 17  # 一条示范的句子最多几个词（加上 "sure ," 和 </s> 不超过 20）

# ---- r*：标注员的尺子 ----
R_BROKEN, R_OTHER_ANIMAL, R_WRONG_NUMBER, R_DISAGREES = -4.0, -3.0, -2.6, -2.3  # 不合格的四种
R_START = -1.0  # 合格的句子从这里起算
R_ADJECTIVE, MAX_PAID_ADJECTIVES = 0.8, 2  # 主语每个不同的形容词，最多算 2 个
R_PLACE, R_ADVERB, R_TRANSITIVE = 1.2, 0.6, 0.6  # 有地点、有副词、有及物动词：各算一次
R_TRUE_SOUND, R_FALSE_SOUND = 0.5, -1.0  # 每个叫声动词：叫对、叫错
R_POLITE = 0.3
R_WORD, FREE_WORDS = -0.5, 11  # 超过 11 个词，每多一个词
R_REPEAT = -0.7  # 每重复一个实词
R_OPPOSITES = -0.7  # 同一个 NP 里每一对反义词
R_CROWDED = -0.4  # 同一个 NP 里第 3 个起，每个形容词
R_FLOOR = -1.9  # 合格的句子最低不过这里
VALID_ABOVE = -2.0  # r* 大于它，就是"合格"：句子通顺，主语也对

# ---- 自我演示 ----
TOUR_SEED = 5


def check_farm():
    """检查上面的常数，免得改错了一个就造不出句子，或者一直造下去。"""
    for name in ("P_INTRANSITIVE", "P_SOUND", "P_TRUE_SOUND", "P_ADVERB", "P_PLACE", "P_AND", "P_OBJECT_ADJECTIVE",
                 "P_STORY", "P_FACT", "P_SAME_SUBJECT", "P_DESCRIBE", "DEMO_P_AND", "DEMO_P_PLACE", "DEMO_P_ADVERB",
                 "P_SLIP", "P_OFF_TOPIC", "P_POLITE"):
        check_number(name, globals()[name], 0, 1)
    for names in (("P_INTRANSITIVE", "P_SOUND"), ("P_STORY", "P_FACT"), ("P_SLIP", "P_OFF_TOPIC")):
        check_number(" + ".join(names), sum(globals()[name] for name in names), 0, 1)
    for name in ("N_ADJECTIVES", "DEMO_ADJECTIVES"):
        check_int(f"{name} 的长度", len(globals()[name]), 1, len(ADJECTIVES) // 2)
    check_number("FAVOURITE_POWER", FAVOURITE_POWER, 0)
    check_int("N_TRAIN_TEMPLATES", N_TRAIN_TEMPLATES, 1, 5)
    check_int("AND_BELOW", AND_BELOW, 0)
    check_int("DEMO_MAX", DEMO_MAX, 6, 17)
    check_int("DOC_MAX", DOC_MAX, 24)
    check_int("DOC_MIN", DOC_MIN, 1, DOC_MAX - 14)  # 最后一条要放得下


def noun_form(animal, plural):
    """名词的单数或复数：("dog", True) → "dogs"；mouse 的复数是 mice。"""
    check_choice("animal", animal, ANIMALS)
    if not plural:
        return animal
    return "mice" if animal == "mouse" else animal + "s"


def verb_form(verb, plural):
    """动词的形式：复数主语用原形，单数主语加 s（watch → watches）。"""
    if plural:
        return verb
    return verb + ("es" if verb.endswith("ch") else "s")


NOUNS = [noun_form(animal, plural) for animal in ANIMALS for plural in (False, True)]  # dog dogs cat cats …
NOUN_INFO = {noun_form(animal, plural): (i, plural) for i, animal in enumerate(ANIMALS) for plural in (False, True)}
VERBS = INTRANSITIVE + SOUNDS + TRANSITIVE
VERB_INFO = {verb_form(verb, plural): (verb, plural) for verb in VERBS for plural in (False, True)}
OPPOSITE = {word: ADJECTIVES[i ^ 1] for i, word in enumerate(ADJECTIVES)}
CONTENT_WORDS = [
    *NOUNS, *VERB_INFO, *ADJECTIVES, *ADVERBS, *sorted({noun for _, _, noun in PLACES}),
]  # 实词：重复它们要扣分
WORDS = list(dict.fromkeys([
    PAD, BOS, EOS, USER, ASSISTANT, ".", ",", ":", "the", "and", "is", "of", "sure", "yes", "no",
    *CONTENT_WORDS, *(place[0] for place in PLACES), *NUMBERS,
    *(word for templates in TEMPLATES.values() for template in templates for word in template),
]))  # 全部 129 个词，次序就是编号


# ==============================================================================
# 一、造句
# ==============================================================================
class Style(NamedTuple):
    """写作的习惯：各种成分出现的概率。"""

    adjectives: tuple = N_ADJECTIVES
    p_object_adjective: float = P_OBJECT_ADJECTIVE
    p_and: float = P_AND
    p_place: float = P_PLACE
    p_adverb: float = P_ADVERB


STORY = Style()
DEMO = Style(DEMO_ADJECTIVES, 0.0, DEMO_P_AND, DEMO_P_PLACE, DEMO_P_ADVERB)


def _draw(rng, weights):
    """按权重抽一个下标。"""
    return rng.choices(range(len(weights)), weights)[0]


def favourite(rng, items, shift):
    """从轮转了 shift 位的列表里按习性抽一个：轮转后排第 k 的，权重 (k + 1) ** -FAVOURITE_POWER。"""
    n = len(items)
    return items[(shift + rng.choices(range(n), cum_weights=_favourite_weights(n))[0]) % n]


def _favourite_weights(n):
    return list(accumulate((k + 1) ** -FAVOURITE_POWER for k in range(n)))


def random_noun(rng):
    """16 个主语里均匀抽一个。"""
    return rng.choice(NOUNS)


def make_np(rng, noun, n_adjectives):
    """"the 形容词* 名词"。形容词按习性抽，不重复，也不自相矛盾（不会既 big 又 small）。"""
    animal, _ = NOUN_INFO[noun]
    chosen = []
    while len(chosen) < n_adjectives:
        word = favourite(rng, ADJECTIVES, animal)
        if word not in chosen and OPPOSITE[word] not in chosen:
            chosen.append(word)
    return ["the", *chosen, noun]


def make_vp(rng, noun, style=STORY):
    """主语是 noun 的一个动词短语。"""
    animal, plural = NOUN_INFO[noun]
    kind = rng.random()
    if kind < P_INTRANSITIVE:
        words = [verb_form(favourite(rng, INTRANSITIVE, animal), plural)]
    elif kind < P_INTRANSITIVE + P_SOUND:
        true = rng.random() < P_TRUE_SOUND
        words = [verb_form(SOUNDS[animal] if true else rng.choice(SOUNDS), plural)]
    else:
        words = [verb_form(favourite(rng, TRANSITIVE, animal), plural)]
        words += make_np(rng, favourite(rng, NOUNS, 2 * animal + 2), int(rng.random() < style.p_object_adjective))
    if rng.random() < style.p_adverb:
        words.append(favourite(rng, ADVERBS, animal))
    if rng.random() < style.p_place:
        words += favourite(rng, PLACES, animal)
    return words


def make_sentence(rng, noun, style=STORY):
    """主语是 noun 的一句话（没有句号）。"""
    words = make_np(rng, noun, _draw(rng, style.adjectives)) + make_vp(rng, noun, style)
    while len(words) < AND_BELOW and rng.random() < style.p_and:
        words += ["and", *make_vp(rng, noun, style)]
    return words


# ==============================================================================
# 二、预训练语料：故事、常识、没有答案的习题
# ==============================================================================
def make_fact(rng):
    """一条常识：单复数、反义词、叫声、数数，四种里抽一种。"""
    kind, animal = _draw(rng, FACT_WEIGHTS), rng.choice(ANIMALS)
    if kind == 0:
        return ["one", animal, "and", rng.choice(NUMBERS[1:]), noun_form(animal, True)]
    if kind == 1:
        word = rng.choice(ADJECTIVES)
        return ["the", "opposite", "of", word, "is", OPPOSITE[word]]
    plural = rng.random() < 0.5
    noun = noun_form(animal, plural)
    if kind == 2:
        return ["the", noun, verb_form(SOUNDS[NOUN_INFO[noun][0]], plural)]
    n = rng.randint(1, len(NUMBERS))
    return [noun] * n + ["is", NUMBERS[n - 1]]


def make_exercise(rng):
    """习题集里的一行：只有题目，没有答案。六种说法都会出现。"""
    task = rng.choice(TASKS)
    words, _ = make_task(rng, task)
    return [*rng.choice(TEMPLATES[task]), ":", *words]


def make_document(rng, kind=None):
    """
    一篇文档：DOC_MIN 到 DOC_MAX 个词，每一条以 "." 结束。

    【参数】kind：[0, 1) 里的数，决定文档的种类（小于 P_STORY 是故事，……）；None 就现抽。
    """
    kind = rng.random() if kind is None else kind
    hero, words = random_noun(rng), []
    noun = hero
    while len(words) < DOC_MIN:
        if kind < P_STORY:
            line = make_sentence(rng, noun)
            noun = hero if rng.random() < P_SAME_SUBJECT else random_noun(rng)
        else:
            line = make_fact(rng) if kind < P_STORY + P_FACT else make_exercise(rng)
        if len(words) + len(line) + 1 <= DOC_MAX:
            words += [*line, "."]
    return words


def pretraining_corpus(n_documents, seed):
    """n_documents（≥ 1）篇文档，每篇是词的列表。"""
    check_int("n_documents", n_documents, 1)
    check_farm()
    rng = random.Random(seed)
    return [make_document(rng) for _ in range(n_documents)]


# ==============================================================================
# 三、任务：提示与示范
# ==============================================================================
class Example(NamedTuple):
    """一条示范。prompt、response 是词的列表（不含 <s>、</s>）；words 是提示里冒号后面的输入。"""

    task: str
    prompt: list
    response: list
    words: list


def make_prompt(template, words):
    """对话提示：<user> 说法 : 输入 <assistant>。"""
    return [USER, *template, ":", *words, ASSISTANT]


def make_task(rng, task):
    """一种任务的一道题：(输入的词, 回答的词)。"""
    check_choice("task", task, TASKS)
    noun = random_noun(rng)
    animal, plural = NOUN_INFO[noun]
    if task == "describe":
        return ["the", noun], _demonstrate(rng, noun)
    if task == "plural":
        return [ANIMALS[animal]], [noun_form(ANIMALS[animal], True)]
    if task == "singular":
        return [noun_form(ANIMALS[animal], True)], [ANIMALS[animal]]
    if task == "opposite":
        word = rng.choice(ADJECTIVES)
        return [word], [OPPOSITE[word]]
    if task == "count":
        n = rng.randint(1, len(NUMBERS))
        return [noun] * n, [NUMBERS[n - 1]]
    if task == "repeat":
        words = make_sentence(rng, noun)[1 : 1 + rng.randint(1, 5)]
        return words, list(words)
    if task == "sound":
        return ["the", noun], [verb_form(SOUNDS[animal], plural)]
    if task == "yesno":
        if rng.random() < 0.5:
            return [noun], ["yes"]
        return [rng.choice(CONTENT_WORDS[len(NOUNS):])], ["no"]
    subject = make_np(rng, noun, _draw(rng, N_ADJECTIVES))
    if task == "continue":
        return subject, make_vp(rng, noun)
    vp = make_vp(rng, noun, STORY._replace(p_place=1.0))  # where：句子里一定有地点
    return subject + vp, vp[-3:]


def _demonstrate(rng, noun):
    """describe 的一条人写的回答：有手误，有走神，有时客气。"""
    words = _short_sentence(rng, noun)
    mistake = rng.random()
    if mistake < P_SLIP:
        at = next(i for i, word in enumerate(words) if word in VERB_INFO)
        verb, plural = VERB_INFO[words[at]]
        words[at] = verb_form(verb, not plural)
    elif mistake < P_SLIP + P_OFF_TOPIC:
        words = _short_sentence(rng, random_noun(rng))
    return ["sure", ",", *words] if rng.random() < P_POLITE else words


def _short_sentence(rng, noun):
    while True:
        words = make_sentence(rng, noun, DEMO)
        if len(words) <= DEMO_MAX:
            return words


def make_example(rng, task, held_out=False):
    """一条示范；held_out=True 用留出的两种说法。task 不认识时 ValueError。"""
    words, response = make_task(rng, task)
    templates = TEMPLATES[task][N_TRAIN_TEMPLATES:] if held_out else TEMPLATES[task][:N_TRAIN_TEMPLATES]
    return Example(task, make_prompt(rng.choice(templates), words), response, words)


def sft_examples(n_examples, seed):
    """n_examples（≥ 1）条示范：P_DESCRIBE 的概率是 describe，其余九种任务平分。"""
    check_int("n_examples", n_examples, 1)
    check_farm()
    rng = random.Random(seed)
    return [
        make_example(rng, "describe" if rng.random() < P_DESCRIBE else rng.choice(TASKS[1:]))
        for _ in range(n_examples)
    ]


# ==============================================================================
# 四、句法分析与 r*
# ==============================================================================
class Parsed(NamedTuple):
    """一句话的分析结果。adjectives 是主语的形容词；verbs 是各个动词的原形；nps 是每个 NP 的形容词列表。"""

    subject: str
    adjectives: list
    verbs: list
    agrees: bool
    has_place: bool
    has_adverb: bool
    nps: list


def _parse_np(words, i):
    """从 words[i] 起读一个 NP：(形容词, 名词, 下一个位置)；读不出来是 None。"""
    if i >= len(words) or words[i] != "the":
        return None
    j = i + 1
    while j < len(words) and words[j] in OPPOSITE:
        j += 1
    if j >= len(words) or words[j] not in NOUN_INFO:
        return None
    return words[i + 1 : j], words[j], j + 1


def parse_vps(words, plural):
    """
    把 words 整个读成 "VP (and VP)*"。

    【返回】(动词原形的列表, 单复数是否都与 plural 一致, 有地点, 有副词, 各宾语的形容词)；读不通是 None。
    """
    verbs, agrees, has_place, has_adverb, nps, i = [], True, False, False, [], 0
    while True:
        if i >= len(words) or words[i] not in VERB_INFO:
            return None
        verb, form = VERB_INFO[words[i]]
        verbs.append(verb)
        agrees = agrees and form == plural
        i += 1
        if verb in TRANSITIVE:
            np = _parse_np(words, i)
            if np is None:
                return None
            nps.append(np[0])
            i = np[2]
        if i < len(words) and words[i] in ADVERBS:
            has_adverb = True
            i += 1
        if words[i : i + 3] in PLACES:
            has_place = True
            i += 3
        if i == len(words):
            return verbs, agrees, has_place, has_adverb, nps
        if words[i] != "and":
            return None
        i += 1


def parse(words):
    """把一句话（没有 "sure ,"，没有句号）读成 Parsed；不合语法是 None。动词的单复数不对也读得出来。"""
    words = list(words)
    np = _parse_np(words, 0)
    if np is None:
        return None
    adjectives, subject, i = np
    rest = parse_vps(words[i:], NOUN_INFO[subject][1])
    if rest is None:
        return None
    verbs, agrees, has_place, has_adverb, nps = rest
    return Parsed(subject, adjectives, verbs, agrees, has_place, has_adverb, [adjectives, *nps])


def split_polite(response):
    """(有没有以 "sure ," 开头, 后面的词)。"""
    polite = list(response[:2]) == ["sure", ","]
    return polite, list(response[2:] if polite else response)


def human_reward(subject, response):
    """
    r*：标注员心里给这条 describe 回答打的分。

    不合格：没停下、空的、读不通 -4；写了别的动物 -3；动物对、单复数不对 -2.6；动词不一致 -2.3。
    合格（r* > -2）：从 -1 起，按上面 R_ 开头的常数加减，最低 -1.9。宾语与动词无所谓一致。

    【参数】subject：题目问的名词，如 "dogs"；response：词的列表。
    【例子】the dogs sleep → -1.0；sure , the big old dogs chase the cat quietly in the barn → 3.3（最高）
    【边界】subject 不是 16 个名词之一：ValueError。
    """
    if subject not in NOUN_INFO:
        raise ValueError(f"subject 应当是 {'、'.join(NOUNS)} 之一，收到的是 {subject!r}")
    polite, words = split_polite(response)
    sentence = parse(words)  # 没停下的回答末尾有 "…"，自然读不通
    if sentence is None:
        return R_BROKEN
    if sentence.subject != subject:
        same_animal = NOUN_INFO[sentence.subject][0] == NOUN_INFO[subject][0]
        return R_WRONG_NUMBER if same_animal else R_OTHER_ANIMAL
    if not sentence.agrees:
        return R_DISAGREES
    own_sound = SOUNDS[NOUN_INFO[subject][0]]
    content = [word for word in words if word in _CONTENT]
    score = R_START
    score += R_ADJECTIVE * min(MAX_PAID_ADJECTIVES, len(set(sentence.adjectives)))
    score += R_PLACE * sentence.has_place + R_ADVERB * sentence.has_adverb
    score += R_TRANSITIVE * any(verb in TRANSITIVE for verb in sentence.verbs)
    for verb in sentence.verbs:
        if verb in SOUNDS:
            score += R_TRUE_SOUND if verb == own_sound else R_FALSE_SOUND
    score += R_POLITE * polite
    score += R_WORD * max(0, len(words) - FREE_WORDS)
    score += R_REPEAT * (len(content) - len(set(content)))
    for adjectives in sentence.nps:
        score += R_OPPOSITES * sum(OPPOSITE[word] in adjectives for word in set(adjectives)) / 2
        score += R_CROWDED * max(0, len(adjectives) - 2)
    return round(max(R_FLOOR, score), 10)  # 去掉 0.1 + 0.2 那样的尾巴，好与手算的比较


_CONTENT = frozenset(CONTENT_WORDS)


def reward_features(subject, response):
    """
    φ(y)，合格的回答里 r* 加减分的 7 样，各有多少：形容词（最多 2）、地点、副词、及物动词、叫对、叫错、客气。
    """
    polite, words = split_polite(response)
    sentence = parse(words)
    sounds = [verb for verb in sentence.verbs if verb in SOUNDS]
    true = sounds.count(SOUNDS[NOUN_INFO[subject][0]])
    return [
        min(MAX_PAID_ADJECTIVES, len(set(sentence.adjectives))), int(sentence.has_place), int(sentence.has_adverb),
        int(len(sentence.nps) > 1), true, len(sounds) - true, int(polite),
    ]


# ==============================================================================
# 五、给十种任务判分
# ==============================================================================
def has_form(example, response):
    """格式对不对：该答一个数词的答了一个数词，该写句子的写了句子（内容对不对另说）。"""
    task, one = example.task, len(response) == 1
    if task == "describe":
        return parse(split_polite(response)[1]) is not None
    if task in ("plural", "singular"):
        return one and response[0] in NOUN_INFO
    if task == "opposite":
        return one and response[0] in OPPOSITE
    if task == "count":
        return one and response[0] in NUMBERS
    if task == "sound":
        return one and response[0] in VERB_INFO and VERB_INFO[response[0]][0] in SOUNDS
    if task == "yesno":
        return one and response[0] in ("yes", "no")
    if task == "continue":
        return parse_vps(list(response), True) is not None
    if task == "where":
        return list(response) in PLACES
    return len(response) == len(example.words)  # repeat


def is_right(example, response):
    """内容对不对。describe 看 r* > -2；continue 看接起来通不通、单复数一致不一致；其余要与答案一字不差。"""
    if example.task == "describe":
        return human_reward(example.words[-1], response) > VALID_ABOVE
    if example.task == "continue":
        sentence = parse([*example.words, *response])
        return sentence is not None and sentence.agrees
    return list(response) == example.response


# ==============================================================================
# 直接运行：把这门语言走一遍
# ==============================================================================
TOUR_RESPONSES = (
    "sure , the big old dogs chase the cat quietly in the barn", "the big old dogs bark in the barn",
    "the dogs sleep", "the dogs meow", "the big small dogs sleep", "the dogs sleep and sleep",
    "the dogs sleeps", "the dog sleeps", "the cats sleep", "the dogs chase", "the dogs sleep …",
)


def main():
    check_farm()
    rng = random.Random(TOUR_SEED)
    title("演示 1：预训练语料 —— 三种文档各一篇")
    for name, kind in (("故事", 0), ("常识", P_STORY), ("习题", P_STORY + P_FACT)):
        print(f"  {name}：{' '.join(make_document(rng, kind))}\n")

    title("演示 2：十种任务各一题")
    rows = []
    for task in TASKS:
        example = make_example(rng, task)
        rows.append([" ".join(example.prompt[1:-1]), " ".join(example.response)])
    print_table(["提示（<user> 与 <assistant> 之间）", "回答"], rows)

    title('演示 3：r* 给 "describe : the dogs" 的几条回答打分')
    print_table(["回答", "r*"], [[text, f"{human_reward('dogs', text.split()):.1f}"] for text in TOUR_RESPONSES])


if __name__ == "__main__":
    run_script(main)

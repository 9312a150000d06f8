"""Updates do not depend on packing, resuming is exact, and errors name the pairs."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from tests.worlds.engine import SETTINGS, encoded, same, trainer, weights, world
from unmdpo.core.errors import UserError
from unmdpo.engine.pairs.score import score
from unmdpo.engine.pairs.scorer import PairScorer
from unmdpo.engine.settings import ObjectiveChoice, TrainingSettings
from unmdpo.engine.text.encoded import EncodedPairs
from unmdpo.engine.training.checkpoint import checkpoints, load_checkpoint, save_checkpoint
from unmdpo.engine.training.data import TrainingData
from unmdpo.engine.training.optimizer import MasterWeights, make_optimizer, moments, restore, steps
from unmdpo.engine.training.schedule import batch_of, epoch_order, learning_rate
from unmdpo.engine.training.trainer import Trainer
from unmdpo.objectives import OBJECTIVES, PairLogps
from unmdpo.scale import EMAScale, JointScale

# --- Order and schedule ---------------------------------------------------------------------------


def test_order_is_a_function_of_seed_and_epoch():
    assert sorted(epoch_order(10, 1, 0)) == list(range(10))
    assert epoch_order(10, 1, 0) == epoch_order(10, 1, 0)
    assert len({tuple(epoch_order(10, seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4


def test_batches_cover_an_epoch_and_drop_the_rest():
    seen = [batch_of(u, slots=11, batch=4, seed=5) for u in range(4)]
    assert all(len(batch) == 4 for batch in seen)
    assert seen[0] + seen[1] == epoch_order(11, 5, 0)[:8]
    assert seen[2] + seen[3] == epoch_order(11, 5, 1)[:8]
    with pytest.raises(UserError, match="do not fill one batch"):
        batch_of(0, slots=3, batch=4, seed=5)


def test_learning_rates_by_hand():
    def rate(update, schedule="constant", updates=120):
        return learning_rate(update, peak=1e-6, warmup=20, updates=updates, schedule=schedule)

    assert rate(0) == pytest.approx(1e-7)
    assert rate(10) == pytest.approx(0.55e-6)
    assert rate(20) == rate(119) == pytest.approx(1e-6)
    assert rate(70, "linear") == pytest.approx(0.5e-6)
    assert rate(70, "cosine") == pytest.approx(0.5e-6)
    assert rate(120, "cosine") == pytest.approx(0, abs=1e-15)
    assert learning_rate(0, peak=1.0, warmup=0, updates=5, schedule="constant") == 1.0


def test_a_short_training_is_not_all_warmup():
    assert [TrainingSettings().warmup_of(updates) for updates in (1, 24, 80, 150)] == [0, 6, 20, 20]
    assert TrainingSettings(warmup=20).warmup_of(24) == 20


# --- Updates --------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["dpo", "unm-wr", "ulnm-wr", "simpo", "beta-dpo", "gamma-po", "mixdpo"])
def test_packing_does_not_matter(objective):
    trained = {}
    for budget in (40, 4096):
        one = trainer(objective, token_budget=budget, updates=3)
        losses = [line["loss"] for line in one.run()]
        trained[budget] = (losses, weights(one))
    for budget in (40,):
        assert trained[budget][0] == pytest.approx(trained[4096][0], rel=1e-4)
        assert same(trained[budget][1], trained[4096][1], atol=2e-4)


def test_one_update_by_hand():
    """The first update of UNM-DPO-WR, redone with a plain loop over pairs and torch's optimizer."""
    model, data = world()
    one = trainer(updates=1)
    (line,) = one.run()
    slow = copy.deepcopy(model).train()
    slots = [i for i in batch_of(0, 20, 8, 42) if data.pairs.valid[i]]
    losses = []
    for slot, pair in zip(slots, data.pairs.select(slots), strict=True):
        sums = []
        for response in (pair.chosen, pair.rejected):
            whole = torch.from_numpy(np.concatenate([pair.prompt, response]).astype(np.int64))
            logs = slow(whole[None]).logits[0].log_softmax(-1)
            sums.append(sum(logs[i - 1, whole[i]] for i in range(len(pair.prompt), len(whole))))
        ratio = (sums[0] - data.reference[slot, 0]) - (sums[1] - data.reference[slot, 1])
        losses.append(torch.nn.functional.softplus((data.strength[slot] - 0.05 * ratio) / data.scale[slot]))
    loss = torch.stack(losses).mean()
    optimizer = torch.optim.AdamW(slow.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.1)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(slow.parameters(), 1.0)
    optimizer.step()  # the first update's learning rate is a tenth of 1e-2
    assert line["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert line["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert line["pairs/valid"] == len(slots)
    # Adam's first step is as large as the learning rate in every coordinate: compare where gradients are not tiny
    expected = {name: p.detach() for name, p in slow.named_parameters()}
    assert same(weights(one), expected, atol=2e-4)


@pytest.mark.parametrize(("objective", "scale"), [("unm-wr", None), ("beta-dpo", None), ("ulnm-ao", JointScale)])
def test_equal_weights_change_nothing(objective, scale):
    plain, equal = trainer(objective, scale, updates=3), replace(world()[1], weight=torch.ones(20))
    weighed = trainer(objective, scale, data=equal, updates=3)
    assert [line["loss"] for line in plain.run()] == [line["loss"] for line in weighed.run()]
    assert same(weights(plain), weights(weighed))


def test_a_weight_of_two_is_the_same_pair_twice_and_one_of_zero_none():
    """One update on a batch of everything: Σ wᵢℓᵢ/n, where the weights are 1 on average."""
    _, data = world()
    twice = torch.ones(20)
    twice[5], twice[7] = 2, 0
    weight = twice / twice[torch.from_numpy(data.pairs.valid)].mean()
    one = trainer("dpo", data=replace(data, weight=weight), updates=1, batch=20)
    (line,) = one.run()
    repeated = [i for i in range(20) for _ in range(int(twice[i]))]
    index = torch.tensor(repeated)
    same_pairs = TrainingData(
        EncodedPairs.of(data.pairs.select(repeated)), data.strength[index], data.reference[index]
    )
    other = trainer("dpo", data=same_pairs, updates=1, batch=20)
    (wanted,) = other.run()
    assert line["loss"] == pytest.approx(wanted["loss"], rel=1e-5)
    assert line["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=1e-4)


def test_the_sft_term_is_transformers_own_loss():
    model, data = world()
    slots = [i for i in batch_of(0, 20, 8, 42) if data.pairs.valid[i]]
    losses = []
    for pair in data.pairs.select(slots):
        whole = torch.from_numpy(np.concatenate([pair.prompt, pair.chosen]).astype(np.int64))[None]
        labels = whole.clone()
        labels[0, : len(pair.prompt)] = -100
        losses.append(model(whole, labels=labels).loss.item())
    plain, beside = (next(iter(trainer("dpo", updates=1, sft=weight).run())) for weight in (0.0, 0.3))
    assert beside["loss"] == pytest.approx(plain["loss"] + 0.3 * np.mean(losses), rel=1e-4)


def test_training_learns_the_preferences():
    lines = list(trainer("dpo", updates=40).run())
    assert lines[0]["rewards/margins"] == pytest.approx(0, abs=1e-6)
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert lines[-1]["rewards/accuracies"] > 0.9


def test_a_batch_without_valid_pairs_is_a_slot_and_no_update():
    model, data = world()
    none = replace(data, pairs=replace(data.pairs, valid=np.zeros(20, dtype=bool)))
    idle = Trainer(
        PairScorer(copy.deepcopy(model)),
        none,
        ObjectiveChoice(name="beta-dpo"),
        SETTINGS.model_copy(update={"updates": 2}),
    )
    lines = list(idle.run())
    assert [line["pairs/valid"] for line in lines] == [0, 0]
    assert same(weights(idle), {n: p.detach() for n, p in model.named_parameters()})


def test_missing_needs_are_said():
    model, data = world()
    with pytest.raises(UserError, match="needs reference log-probabilities"):
        Trainer(PairScorer(model), replace(data, reference=None), ObjectiveChoice(name="dpo"))
    with pytest.raises(UserError, match="needs a scale"):
        Trainer(PairScorer(model), replace(data, scale=None), ObjectiveChoice(name="unm-ao"))


def test_nonfinite_losses_stop_and_name_the_pairs():
    model, data = world()
    slots = batch_of(0, 20, 8, 42)
    bad = next(slot for slot in slots if data.pairs.valid[slot])
    reference = data.reference.clone()
    reference[bad, 0] = torch.nan
    broken = Trainer(
        PairScorer(copy.deepcopy(model)), replace(data, reference=reference), ObjectiveChoice(name="dpo"), SETTINGS
    )
    before = weights(broken)
    with pytest.raises(UserError, match=rf"update 0: the loss is not finite for pairs \[{bad}\]"):
        next(broken.run())
    assert same(weights(broken), before)


# --- Master weights -------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # on processors without bfloat16
def test_bfloat16_models_have_float32_masters(tmp_path):
    model, data = world()
    half = copy.deepcopy(model).to(torch.bfloat16)
    settings = SETTINGS.model_copy(update={"learning_rate": 1e-5, "updates": 4})
    whole = Trainer(PairScorer(copy.deepcopy(half)), data, ObjectiveChoice(name="dpo"), settings)
    lines = list(whole.run())
    assert all(np.isfinite(line["loss"]) for line in lines)
    for name, parameter in whole.model.named_parameters():
        master = whole.masters.named[name]
        assert master.dtype == torch.float32
        assert parameter.grad is None  # all of it went to the master weights
        assert torch.equal(parameter, master.to(torch.bfloat16))
    start = dict(half.named_parameters())
    moved = [(m - start[n].float()).abs().max().item() for n, m in whole.masters.named.items()]
    assert min(moved) > 0
    assert max(moved) < 1e-3  # steps far below bfloat16's resolution are kept
    first = Trainer(PairScorer(copy.deepcopy(half)), data, ObjectiveChoice(name="dpo"), settings)
    again = [first.step(), first.step()]
    save_checkpoint(first, tmp_path)
    resumed = Trainer(PairScorer(copy.deepcopy(half)), data, ObjectiveChoice(name="dpo"), settings)
    load_checkpoint(resumed, checkpoints(tmp_path)[-1])
    assert again + list(resumed.run()) == lines
    assert all(torch.equal(resumed.masters.named[n], m) for n, m in whole.masters.named.items())


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_microbatch_gradients_add_up_in_float32():
    layer = torch.nn.Linear(4, 1, bias=False, dtype=torch.bfloat16)
    masters = MasterWeights(layer)
    for size in (256.0, 1.0, 1.0):  # in bfloat16, 256 + 1 is 256
        layer(torch.full((1, 4), size, dtype=torch.bfloat16)).sum().backward()
    (master,) = masters.parameters
    assert master.grad.tolist() == [[258.0] * 4]


# --- Scoring --------------------------------------------------------------------------------------


def test_scoring_is_the_same_forward_pass():
    model, data = world()
    again = score(PairScorer(model), data.pairs, token_budget=64)
    assert torch.equal(again.isnan().any(1), torch.from_numpy(~data.pairs.valid))
    assert torch.equal(again[data.pairs.valid], data.reference[data.pairs.valid])
    wide = score(PairScorer(model), data.pairs, token_budget=4096)
    assert torch.allclose(wide[data.pairs.valid], data.reference[data.pairs.valid], atol=1e-4)


# --- Checkpoints ----------------------------------------------------------------------------------

RESUMED = [
    ("dpo", None),
    ("simpo", None),
    ("beta-dpo", None),
    ("gamma-po", None),
    ("mixdpo", None),
    ("unm-ao", JointScale),
    ("unm-wr", EMAScale),
]


@pytest.mark.parametrize(("objective", "scale"), RESUMED)
@pytest.mark.parametrize("stop", [3])
def test_resuming_is_byte_identical(tmp_path, objective, scale, stop):
    whole = trainer(objective, scale)
    expected = list(whole.run())
    first = trainer(objective, scale)
    lines = [first.step() for _ in range(stop)]
    save_checkpoint(first, tmp_path)
    resumed = trainer(objective, scale)
    load_checkpoint(resumed, checkpoints(tmp_path)[-1])
    lines += list(resumed.run())
    assert lines == expected
    assert same(weights(resumed), weights(whole))
    for a, b in zip(resumed.adaptive_state or (), whole.adaptive_state or (), strict=True):
        assert torch.equal(a, b)
    if scale is not None:
        assert all(torch.equal(v, resumed.scale.state()[k]) for k, v in whole.scale.state().items())


def test_only_whole_checkpoints_count_and_old_ones_go(tmp_path):
    one = trainer()
    for _ in range(4):
        one.step()
        save_checkpoint(one, tmp_path, keep=2)
    (tmp_path / "update-00000099").mkdir()  # half-written by something else
    assert [path.name for path in checkpoints(tmp_path)] == ["update-00000003", "update-00000004"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    with pytest.raises(UserError, match="a checkpoint with "):
        load_checkpoint(trainer("dpo"), checkpoints(tmp_path)[-1])


def test_logged_rewards_are_the_losses_own():
    """At DPO's first update, the mean loss follows from the logged log-probabilities."""
    model, data = world()
    (line,) = trainer("dpo", updates=1).run()
    slots = [i for i in batch_of(0, 20, 8, 42) if data.pairs.valid[i]]
    logs = score(PairScorer(model), data.pairs.__class__.of(data.pairs.select(slots)), token_budget=64)
    ones = torch.ones(len(slots))
    pairs = PairLogps(logs[:, 0], logs[:, 1], ones, ones, ones, data.reference[slots, 0], data.reference[slots, 1])
    assert line["loss"] == pytest.approx(OBJECTIVES["dpo"].loss(pairs).mean().item(), rel=1e-5)


def test_a_policy_drops_nothing_and_so_starts_at_its_reference():
    """GPT-2 and others have dropout by default, which would make the first log-ratios noise."""
    config = GPT2Config(
        vocab_size=64, n_embd=32, n_layer=2, n_head=2, n_positions=64, bos_token_id=1, eos_token_id=2
    )  # fmt: skip
    assert config.attn_pdrop > 0
    scorer, pairs = PairScorer(GPT2LMHeadModel(config).train()), encoded()
    data = TrainingData(pairs, torch.ones(20), reference=score(scorer, pairs, 64))
    first = Trainer(scorer, data, ObjectiveChoice(name="dpo"), SETTINGS).step()
    assert first["loss"] == pytest.approx(0.693147, abs=1e-5)


def test_a_loaded_model_can_be_trained_twice():
    """Where it computes in 16 bits, gradients go to the masters of the latest trainer only."""
    model, data = world()
    half = copy.deepcopy(model).to(torch.bfloat16)
    for _ in range(2):
        scorer = PairScorer(half)
        scorer.proven = True
        one = Trainer(scorer, data, ObjectiveChoice(name="dpo"), SETTINGS.model_copy(update={"updates": 1}))
        assert one.step()["grad_norm"] > 0


@pytest.mark.parametrize("offload", [False, True])
def test_every_parameter_has_its_own_number_of_steps(offload):
    """One that had no gradient in some updates, such as an idle expert's, is corrected for fewer."""
    torch.manual_seed(0)
    starts = {name: torch.randn(3) for name in ("busy", "idle")}
    gradients = [{"busy": torch.randn(3)}, {name: torch.randn(3) for name in starts}, {"idle": torch.randn(3)}]

    def stepped(named, optimizer, some):
        for each in some:
            for name, parameter in named.items():
                parameter.grad = each.get(name)
            optimizer.step()

    def opened(values):
        named = {name: torch.nn.Parameter(value.clone()) for name, value in values.items()}
        return named, make_optimizer([*named.values()], betas=(0.9, 0.98), eps=1e-5, decay=0.1, offload=offload)

    whole, optimizer = opened(starts)
    stepped(whole, optimizer, gradients)
    first, optimizer = opened(starts)
    stepped(first, optimizer, gradients[:2])
    taken = steps(optimizer, first)
    assert taken == {"busy": 2, "idle": 1}
    saved = {name: tensor.clone() for name, tensor in moments(optimizer, first).items()}
    second, optimizer = opened({name: parameter.detach() for name, parameter in first.items()})
    restore(optimizer, second, saved, taken)
    stepped(second, optimizer, gradients[2:])
    for name, expected in whole.items():
        assert torch.equal(second[name], expected)

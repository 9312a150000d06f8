"""Our three objectives inside TRL's trainer: the same tokens, losses and gradients as our engine's."""

import copy

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig

from tests.worlds.pipeline import recipe, world
from unmdpo.core.errors import DataError, UserError
from unmdpo.engine.pairs.packing import PackedBatch
from unmdpo.engine.pairs.score import score
from unmdpo.engine.pairs.scorer import PairScorer
from unmdpo.engine.text.encoded import EncodedPairs
from unmdpo.execute import execute
from unmdpo.integrations.trl import TRAINED, UNMTrainer, add_margin_and_scale, check_version
from unmdpo.objectives import OBJECTIVES, PairLogps, beta_ln_from_lengths
from unmdpo.results.run import open_run
from unmdpo.stages.shared.files import COMPARISONS
from unmdpo.store.store import Store

pytestmark = pytest.mark.filterwarnings("ignore")  # TRL and its dependencies warn about themselves
BETA, TAU = 0.7, 0.5


def turn(role, content):
    return [{"role": role, "content": content}]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trl")
    return execute(open_run(recipe(world(folder)), Store(folder / "store")), until="scale")


@pytest.fixture(scope="module")
def rows(run):
    return COMPARISONS.load(run.artifact("comparisons"))


@pytest.fixture(scope="module")
def dataset(rows):
    """The run's comparisons in TRL's format, plus a tie."""
    described = [
        {
            "prompt": [{"role": message.role, "content": message.content} for message in row.prompt],
            "chosen": turn("assistant", row.chosen),
            "rejected": turn("assistant", row.rejected),
            "strength": row.strength,
        }
        for row in rows
    ]
    tie = described[0] | {"strength": 0}
    return Dataset.from_list([tie, *described])


@pytest.fixture(scope="module")
def models(run):
    folder = run.recipe.model.path
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    policy = copy.deepcopy(reference)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return policy, reference, AutoTokenizer.from_pretrained(folder)


def make_trainer(models, dataset, folder, objective, **settings):
    policy, reference, tokenizer = models
    given = {"beta": BETA, "per_device_train_batch_size": len(dataset), "max_length": 64} | settings
    config = DPOConfig(
        output_dir=str(folder), report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False, **given
    )
    return UNMTrainer(
        model=copy.deepcopy(policy), ref_model=copy.deepcopy(reference), args=config, train_dataset=dataset,
        processing_class=tokenizer, objective=objective,
    )  # fmt: skip


def test_columns_come_from_strengths_and_the_fitted_scale(run, rows, dataset):
    ready = add_margin_and_scale(dataset, run.scale("ln"), tau=TAU)
    table = run.scale("ln").known()
    q = dict(zip(table["prompt_hash"].to_pylist(), table["q"].to_pylist(), strict=True))
    assert len(ready) == len(dataset) - 1  # without the tie
    assert ready["margin"][:] == [TAU * row.strength for row in rows]
    assert ready["scale"][:] == [q[row.prompt_hash] for row in rows]
    again = add_margin_and_scale(ready, q, tau=TAU)  # columns from an earlier call are replaced
    assert again["scale"][:] == ready["scale"][:]


def test_unseen_prompts_are_predicted_and_unknown_ones_refused(run, dataset):
    row = dataset[1] | {"prompt": turn("user", "w1 w1 w1 w1"), "strength": 2}
    new = Dataset.from_list([row])
    q = add_margin_and_scale(new, run.scale("seq"))["scale"][:]
    assert 0.5 <= q[0] <= 2
    with pytest.raises(UserError, match="no scale for the prompts of 1 rows; the first is dataset, row 1"):
        add_margin_and_scale(new, {})
    with pytest.raises(DataError, match=r"dataset, row 1.*strength"):
        add_margin_and_scale(Dataset.from_list([row | {"strength": 7}]), run.scale("seq"))


@pytest.mark.parametrize("objective", TRAINED)
def test_losses_and_gradients_equal_the_engines(run, rows, dataset, models, tmp_path, objective):
    ready = add_margin_and_scale(dataset, run.scale("ln" if objective == "ulnm-wr" else "seq"))
    trainer = make_trainer(models, ready, tmp_path, objective, dataloader_drop_last=False)
    trainer.model.eval()
    batch = trainer.data_collator([trainer.train_dataset[i] for i in range(len(rows))])
    theirs = trainer.compute_loss(trainer.model, batch)
    theirs.backward()

    pairs = EncodedPairs.load(run.artifact("encoded").file("pairs.safetensors"))
    policy, reference = copy.deepcopy(models[0]), models[1]
    tokens = torch.from_numpy(pairs.lengths[:, 1:])
    logps = PairScorer(policy)(PackedBatch.of(list(pairs.select(range(len(pairs)))), length=4096))
    told = score(PairScorer(copy.deepcopy(reference)), pairs, token_budget=4096)
    strength, scale = (torch.tensor(ready[name][:]) for name in ("margin", "scale"))
    ours = PairLogps(
        logps[:, 0], logps[:, 1], tokens[:, 0], tokens[:, 1], strength, told[:, 0], told[:, 1], scale.float()
    )
    beta = beta_ln_from_lengths(tokens[:, 0], tokens[:, 1], BETA) if objective == "ulnm-wr" else BETA
    assert trainer.gap_beta == pytest.approx(beta)
    loss = OBJECTIVES[objective].loss(ours, beta=beta, tau=1.0).mean()
    assert loss.item() == pytest.approx(theirs.item(), rel=1e-5)
    loss.backward()
    for (name, a), (_, b) in zip(policy.named_parameters(), trainer.model.named_parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, atol=1e-5), name


@pytest.mark.parametrize("precompute", [False, True])
def test_it_trains(run, dataset, models, tmp_path, precompute):
    ready = add_margin_and_scale(dataset, run.scale("ln"))
    trainer = make_trainer(
        models, ready, tmp_path, "ulnm-wr", max_steps=3, per_device_train_batch_size=4, logging_steps=1,
        learning_rate=1e-2, precompute_ref_log_probs=precompute, save_strategy="no",
    )  # fmt: skip
    before = copy.deepcopy(trainer.model.state_dict())
    trainer.train()
    assert any(not torch.equal(before[name], value) for name, value in trainer.model.state_dict().items())
    logged = [entry for entry in trainer.state.log_history if "rewards/margins" in entry]
    assert len(logged) == 3
    assert all("rewards/accuracies" in entry for entry in logged)


def test_what_it_cannot_do_is_refused(run, dataset, models, tmp_path):
    ready = add_margin_and_scale(dataset, run.scale("ln"))
    with pytest.raises(UserError, match="'dpo' is not supported here; use one of unm-ao"):
        make_trainer(models, ready, tmp_path, "dpo")
    with pytest.raises(UserError, match="'loss_type' only affects TRL's built-in losses"):
        make_trainer(models, ready, tmp_path, "unm-wr", loss_type=["hinge"])
    with pytest.raises(UserError, match="no column 'margin': call add_margin_and_scale first"):
        make_trainer(models, dataset, tmp_path, "unm-wr")


@pytest.mark.parametrize("version", ["1.15.9", "2.0.0", "0.9"])
def test_other_versions_are_refused(version):
    with pytest.raises(UserError, match=rf"TRL {version}.*1\.16"):
        check_version(version)

"""Models in and out: loading, other layouts, adapters, memory, and the saved folder."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BloomConfig,
    BloomForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
)

from tests.worlds.engine import SETTINGS, encoded, same, trainer, weights, world
from tests.worlds.models import PAIRS, TEMPLATE, one_by_one, tiny, word_tokenizer
from unmdpo.core.errors import UnmdpoWarning, UserError
from unmdpo.core.files import sha256
from unmdpo.data.comparison import Comparison
from unmdpo.data.identity import Message
from unmdpo.engine.adapters import add_lora, attach, merge_weights, save_adapter
from unmdpo.engine.cost import (
    LayerShape,
    available,
    checkpoint_activations,
    estimate,
    forward_flops,
    largest_pair,
    spare_memory,
    training_passes,
    writing_tokens,
)
from unmdpo.engine.folder import Provenance, export_model
from unmdpo.engine.models import decoder_layers, load_in_four_bits, load_model, load_tokenizer
from unmdpo.engine.pairs.layout import Groups, Packing
from unmdpo.engine.pairs.padding import PaddedBatch, alike
from unmdpo.engine.pairs.proof import prove
from unmdpo.engine.pairs.score import score
from unmdpo.engine.pairs.scorer import PairScorer
from unmdpo.engine.rates import matrix_rate
from unmdpo.engine.settings import AdapterSettings, ComputeSettings, ModelSource, ObjectiveChoice
from unmdpo.engine.shapes import SHAPES
from unmdpo.engine.sharding import empty_model
from unmdpo.engine.text.encode import Encoder
from unmdpo.engine.text.encoded import EncodedPair, EncodedPairs
from unmdpo.engine.training.checkpoint import checkpoints, load_checkpoint, save_checkpoint
from unmdpo.engine.training.data import TrainingData
from unmdpo.engine.training.optimizer import HostAdamW
from unmdpo.engine.training.trainer import Trainer

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tokenizer():
    return word_tokenizer()


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory):
    place = tmp_path_factory.mktemp("model")
    tiny("llama, tied", "sdpa", torch.float32).save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


# --- Loading --------------------------------------------------------------------------------------


def test_a_folder_is_loaded_as_it_was_saved(folder):
    source = ModelSource(path=str(folder))
    model = load_model(source, device=CPU, dtype=torch.float32)
    assert torch.equal(model.lm_head.weight, tiny("llama, tied", "sdpa", torch.float32).lm_head.weight)
    comparison = Comparison((Message("user", "w1 w2"),), "w3", "w4 w5", strength=1, source="here")
    (pair,) = Encoder.of(source, 64).encode([comparison])
    assert load_tokenizer(source).decode(pair.prompt) == "<user> w1 w2 <end> <assistant>"
    assert [len(pair.chosen), len(pair.rejected)] == [2, 3]


def test_a_template_of_the_recipe_wins(folder, tmp_path):
    file = tmp_path / "mine.jinja"
    file.write_text("<user>")
    assert load_tokenizer(ModelSource(path=str(folder), template=str(file))).chat_template == "<user>"
    assert load_tokenizer(ModelSource(path=str(folder), template="<end>")).chat_template == "<end>"
    with pytest.raises(ValueError, match=r"chat template .*none.jinja: No such file"):
        ModelSource(path=str(folder), template=str(tmp_path / "none.jinja"))


@pytest.mark.parametrize("load", [load_tokenizer, lambda source: load_model(source, device=CPU)])
def test_a_missing_model_says_how_to_get_it(load, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=r"could not be loaded: [\s\S]*hf auth login[\s\S]*local folder"):
        load(ModelSource(path=str(tmp_path / "nowhere"), revision="abc"))


# --- Models that cannot be packed -----------------------------------------------------------------

UNPACKABLE = {
    "mamba": lambda: MambaForCausalLM(
        MambaConfig(vocab_size=64, hidden_size=16, state_size=4, num_hidden_layers=2)
    ),
    "bloom": lambda: BloomForCausalLM(
        BloomConfig(vocab_size=64, hidden_size=16, n_layer=2, n_head=2, hidden_dropout=0.0, initializer_range=0.3,
                    attention_dropout=0.0, bos_token_id=1, eos_token_id=2)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNPACKABLE)
def test_models_that_cannot_be_packed_are_padded(name):
    torch.manual_seed(0)
    model = UNPACKABLE[name]().eval()
    scorer, pairs = PairScorer(model), encoded()
    with pytest.warns(UnmdpoWarning, match=r"is not packed .*: pairs are padded instead"):
        proof = prove(scorer, pairs)
    assert scorer.packing.layout == proof.layout == "padded"
    with torch.no_grad():
        expected = one_by_one(model, PAIRS)
        assert torch.allclose(scorer(PaddedBatch.of(PAIRS)), expected, atol=1e-4)
    data = TrainingData(pairs, torch.ones(20), reference=score(scorer, pairs, 64))
    one = Trainer(scorer, data, ObjectiveChoice(name="dpo"), SETTINGS.model_copy(update={"updates": 4}))
    losses = [line["loss"] for line in one.run()]
    assert losses[0] == pytest.approx(0.6931, abs=1e-4)
    assert losses[-1] < losses[0]


def test_padded_groups_and_their_fill():
    assert alike([3, 9, 4, 9], budget=9) == [[1], [3], [0, 2]]
    assert alike([30], budget=18) == [[0]]
    lengths = encoded().lengths
    padded = Packing("padded", fixed=False)
    groups = padded.groups(lengths, 64)
    assert sorted(i for members in groups.together for i in members) == list(range(20))
    assert 0.5 < padded.fill(lengths, groups, 64) <= 1
    assert padded.groups(lengths[:0], 64).all == []


def test_packed_groups_and_their_fill():
    lengths = encoded().lengths
    assert lengths[0].sum() == 14
    loose, fixed = Packing("packed", fixed=False), Packing("packed", fixed=True)
    assert loose.fill(lengths[:1], Groups([[0]], []), 512) == 1.0
    assert fixed.fill(lengths[:1], Groups([[0]], []), 512) == 14 / 128  # every pair starts a new block
    assert fixed.fill(lengths[:2], Groups([[0, 1]], []), 1024) == (14 + lengths[1].sum()) / 256
    assert all(len(group) <= 4 for group in fixed.groups(lengths, 512).together)
    batch = fixed.batch(encoded().select([0, 1]), 1024)
    assert batch.runs.own[128] == 128
    assert batch.tokens.shape == (1, 256)


# --- Adapters -------------------------------------------------------------------------------------


def test_lora_trains_the_adapter_and_nothing_else(tmp_path):
    model, data = world()
    base = copy.deepcopy(model)
    adapted = add_lora(base, AdapterSettings(rank=4), seed=1)
    scorer = PairScorer(adapted.get_base_model())
    assert torch.equal(score(scorer, data.pairs, 64).nan_to_num(), data.reference.nan_to_num())
    one = Trainer(scorer, data, ObjectiveChoice(name="dpo"), SETTINGS.model_copy(update={"updates": 30}))
    assert all("lora" in name for name in one.masters.named)
    lines = list(one.run())
    assert lines[-1]["rewards/accuracies"] > lines[0]["rewards/accuracies"]
    trained = score(scorer, data.pairs, 64)
    for name, parameter in model.named_parameters():
        kept = name.replace("_proj.weight", "_proj.base_layer.weight")
        assert torch.equal(parameter, dict(base.named_parameters())[kept])
    save_checkpoint(one, tmp_path / "checkpoints")
    save_adapter(adapted, tmp_path / "adapter", one.masters.named)
    assert (tmp_path / "adapter" / "adapter_model.safetensors").stat().st_size < 100_000
    weights, rounding = merge_weights(adapted.get_base_model(), one.masters.named)
    plain = copy.deepcopy(model)
    plain.load_state_dict(weights)
    assert rounding < 1e-4  # float32 keeps what the adapter learned
    assert torch.allclose(score(PairScorer(plain), data.pairs, 64).nan_to_num(), trained.nan_to_num(), atol=1e-4)
    from peft import PeftModel

    again = PeftModel.from_pretrained(copy.deepcopy(model), str(tmp_path / "adapter")).get_base_model()
    assert torch.equal(score(PairScorer(again), data.pairs, 64).nan_to_num(), trained.nan_to_num())
    fresh = add_lora(copy.deepcopy(model), AdapterSettings(rank=4), seed=2).get_base_model()
    resumed = Trainer(
        PairScorer(fresh), data, ObjectiveChoice(name="dpo"), SETTINGS.model_copy(update={"updates": 30})
    )
    load_checkpoint(resumed, checkpoints(tmp_path / "checkpoints")[-1])
    assert torch.equal(score(resumed.scorer, data.pairs, 64).nan_to_num(), trained.nan_to_num())


def test_adapters_of_the_last_layers_leave_the_others_as_they_are(tmp_path):
    """And nothing goes back through them, which is what makes such an adapter cheap."""
    model, data = world()
    layers = len(decoder_layers(model))
    adapted = add_lora(copy.deepcopy(model), AdapterSettings(rank=4, layers=1), seed=1)
    base = adapted.get_base_model()
    trained = [name for name, parameter in base.named_parameters() if parameter.requires_grad]
    assert trained
    assert all(f"layers.{layers - 1}." in name for name in trained)
    shares = [sum(p.numel() for p in part.parameters()) for part in (base, *decoder_layers(base)[:-1])]
    own = sum(dict(base.named_parameters())[name].numel() for name in trained)
    assert training_passes(base) == pytest.approx(2 - sum(shares[1:]) / shares[0] + own / shares[0])
    scorer = PairScorer(base)
    one = Trainer(scorer, data, ObjectiveChoice(name="dpo"), SETTINGS.model_copy(update={"updates": 10}))
    seen = []
    decoder_layers(base)[0].register_forward_hook(lambda *given: seen.append(given[2]))
    list(one.run())
    first = [value[0] if isinstance(value, tuple) else value for value in seen]
    assert first
    assert not any(value.requires_grad for value in first)
    save_adapter(adapted, tmp_path, one.masters.named)
    again = attach(copy.deepcopy(model), tmp_path)
    assert torch.equal(
        score(PairScorer(again), data.pairs, 64).nan_to_num(), score(scorer, data.pairs, 64).nan_to_num()
    )
    outside = OPTForCausalLM(
        OPTConfig(
            vocab_size=32,
            hidden_size=16,
            ffn_dim=16,
            num_hidden_layers=3,
            num_attention_heads=2,
            word_embed_proj_dim=8,
        )
    )
    beside = add_lora(outside, AdapterSettings(rank=2, layers=1)).get_base_model()  # it projects before its layers
    assert all("layers.2." in name for name, weight in beside.named_parameters() if weight.requires_grad)
    with pytest.raises(UserError, match=f"adapter.layers is 99, but the model has {layers} layers"):
        add_lora(copy.deepcopy(model), AdapterSettings(layers=99))


def test_merging_says_what_rounding_cost():
    """A small change beside bfloat16 weights is mostly lost in them; the masters still have it."""
    model, data = world()
    adapted = add_lora(copy.deepcopy(model), AdapterSettings(rank=4), seed=1)
    settings = SETTINGS.model_copy(update={"updates": 2, "learning_rate": 1e-5})
    one = Trainer(PairScorer(adapted.get_base_model()), data, ObjectiveChoice(name="dpo"), settings)
    list(one.run())
    masters = {name: value.detach().clone() for name, value in one.masters.named.items()}
    adapted.to(torch.bfloat16)  # as on a GPU
    weights, rounding = merge_weights(adapted.get_base_model(), masters)
    assert rounding > 0.5
    assert all(weight.dtype == torch.bfloat16 for weight in weights.values())
    assert weights.keys() == model.state_dict().keys()


@pytest.mark.filterwarnings("ignore:.*torch.jit")  # peft, when it is imported here first
def test_adapters_beside_embeddings_and_misspelled_targets_are_refused():
    for beside in ("embed_tokens", "lm_head"):
        refused = pytest.raises(UserError, match=r"leave them out of adapter\.targets")
        with refused, pytest.warns(UserWarning, match="tie"):
            add_lora(copy.deepcopy(world()[0]), AdapterSettings(targets=["q_proj", beside]))
    with pytest.raises(UserError, match=r"does not fit the model: [\s\S]*check adapter\.targets"):
        add_lora(copy.deepcopy(world()[0]), AdapterSettings(targets=["nothing"]))


@pytest.mark.filterwarnings("ignore")  # bitsandbytes speaks of its kernels
def test_a_base_in_four_bits_is_proven_and_trained(tokenizer, tmp_path):
    pytest.importorskip("bitsandbytes")
    model, data = world("llama, wide")
    model.save_pretrained(tmp_path / "base")
    frozen = load_in_four_bits(ModelSource(path=str(tmp_path / "base")), device=CPU)
    adapted = add_lora(frozen, AdapterSettings(rank=4), seed=1)
    scorer = PairScorer(adapted.get_base_model())
    assert prove(scorer, data.pairs).layout == "packed"
    known = replace(data, reference=score(scorer, data.pairs, 64))
    one = Trainer(scorer, known, ObjectiveChoice(name="dpo"), SETTINGS.model_copy(update={"updates": 20}))
    assert all("lora" in name for name in one.masters.named)
    lines = list(one.run())
    assert lines[0]["loss"] == pytest.approx(0.6931, abs=1e-3)
    assert lines[-1]["loss"] < 0.6
    weights, _ = merge_weights(adapted.get_base_model(), one.masters.named)
    plain = copy.deepcopy(model)
    plain.load_state_dict(weights)
    found, expected = score(PairScorer(plain), data.pairs, 64), score(scorer, data.pairs, 64)
    # on some processors bitsandbytes rounds the scales of four-bit weights to bfloat16
    assert torch.allclose(found.nan_to_num(), expected.nan_to_num(), atol=0.05, rtol=5e-3)


def test_quantized_weights_are_not_shared_by_ranks(tmp_path):
    """Their codes have the plain names, and would be taken for weights."""
    world()[0].save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="is quantized, which ranks cannot share"):
        empty_model(ModelSource(path=str(tmp_path)), torch.float32)


def test_dropout_is_repeated_exactly(tmp_path):
    """Every update seeds its randomness, so a resumed run draws the same as an uninterrupted one."""
    model, data = world()
    settings = SETTINGS.model_copy(update={"updates": 4})

    def fresh():
        adapted = add_lora(copy.deepcopy(model), AdapterSettings(rank=4, dropout=0.5), seed=1).get_base_model()
        return Trainer(PairScorer(adapted), data, ObjectiveChoice(name="dpo"), settings)

    torch.manual_seed(5)
    expected = list(fresh().run())
    torch.manual_seed(6)
    first = fresh()
    lines = [first.step(), first.step()]
    save_checkpoint(first, tmp_path)
    resumed = fresh()
    load_checkpoint(resumed, checkpoints(tmp_path)[-1])
    assert lines + list(resumed.run()) == expected


# --- Memory ---------------------------------------------------------------------------------------


def test_activation_checkpointing_changes_memory_and_not_the_gradient():
    model, _ = world()
    found = []
    for checkpointing in (False, True):
        one = copy.deepcopy(model).train()
        if checkpointing:
            checkpoint_activations(one)
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, kept=kept: (kept.append(t.numel()), t)[1], lambda t: t
        ):
            logs = PairScorer(one)(PairScorer(one).prepare(PAIRS, 64))
        logs.sum().backward()
        found.append((sum(kept), {name: p.grad for name, p in one.named_parameters()}))
    assert found[1][0] < 0.5 * found[0][0]
    assert same(found[0][1], found[1][1])


def test_offloaded_moments_give_the_same_weights(tmp_path):
    whole = trainer("dpo")
    expected = list(whole.run())
    first = trainer("dpo", offload_optimizer=True)
    assert isinstance(first.optimizer, HostAdamW)
    lines = [first.step() for _ in range(3)]
    save_checkpoint(first, tmp_path)
    resumed = trainer("dpo", offload_optimizer=True)
    load_checkpoint(resumed, checkpoints(tmp_path)[-1])
    assert lines + list(resumed.run()) == expected
    assert same(weights(resumed), weights(whole))


def llama_1b():
    config = LlamaConfig(
        vocab_size=128_256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
        num_attention_heads=32, num_key_value_heads=8, head_dim=64, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device("meta"):
        return LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)


def test_memory_of_the_1b_shape_by_hand():
    model = llama_1b()
    parameters = 1_235_814_400
    plain = estimate(model, 16_384, checkpointing=False)
    assert plain.weights == 2 * parameters
    assert plain.state == 16 * parameters
    layer = 4 * 2048 + 2 * 2048 + 2 * 512 + 3 * 8192
    assert plain.activations == 2 * 16_384 * 16 * layer
    lean = estimate(model, 16_384, checkpointing=True, offload_optimizer=True, world=2)
    assert lean.activations == 2 * 16_384 * (16 * 2048 + layer + 1.25 * 8192)
    assert lean.state == 8 * parameters // 2
    # one H200 measured 43.5 GiB for this model and budget (docs/evidence/performance.md)
    assert 0.9 < plain.total / 2**30 / 43.5 < 1.1


def test_checkpointing_is_chosen_when_memory_is_short(monkeypatch):
    model = llama_1b()
    needed = estimate(model, 16_384, checkpointing=False).total
    pairs = EncodedPairs.of([EncodedPair(*np.ones((3, 4), dtype=np.int32), True)])
    for memory, expected in ((1.2 * needed, False), (needed, True)):
        monkeypatch.setattr("unmdpo.engine.cost.available", lambda _, memory=memory: memory)
        spare_memory(PairScorer(model), ComputeSettings(token_budget=16_384), pairs)
        assert model.is_gradient_checkpointing is expected
    monkeypatch.undo()
    assert available(CPU) > 2**28


def test_a_pair_beyond_the_microbatch_counts_whole():
    model, room = llama_1b(), 100 * 2**30
    most = largest_pair(model, room)
    assert estimate(model, most, checkpointing=True, memory=room).total <= 0.85 * room
    assert estimate(model, most + 1, checkpointing=True, memory=room).total > 0.85 * room
    assert largest_pair(model, room, offload_optimizer=True) > most


@pytest.mark.parametrize(
    ("shape", "rank", "tokens", "measured"),
    [("1b", None, 131_584, 40.2), ("1b", None, 721_408, 128.3), ("8b", 64, 66_048, 51.1), ("8b", 64, 197_120, 118.3)],
)
def test_memory_of_long_pairs_is_what_was_measured(shape, rank, tokens, measured):
    """On one H200 (docs/guide/gpus-and-clusters.md)."""
    with torch.device("meta"):
        model = LlamaForCausalLM._from_config(LlamaConfig(**SHAPES[shape]), dtype=torch.bfloat16)
    if rank is not None:
        add_lora(model, AdapterSettings(rank=rank))
    room = 139.8 * 2**30
    found = estimate(model, tokens, checkpointing=True, row=tokens, memory=room, compiles=True).total / 2**30
    assert measured < found < 1.1 * measured
    longest = largest_pair(model, room, compiles=True)
    assert 190_000 < longest < 229_000 if rank else 600_000 < longest < 720_000


def test_norms_are_counted():
    """Gemma 3 has four in a layer, and two of its heads: 38.6 GiB were measured where two make 32."""
    small = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 8}
    with torch.device("meta"):
        config = Gemma3TextConfig(**small, num_attention_heads=4, num_key_value_heads=1)
        gemma = LayerShape.of(Gemma3ForCausalLM._from_config(config))
    assert gemma.kept == 8 * 32 + (32 + 8) + 2 * 32 + 2 * 8 + 3 * 64


def test_attention_without_a_kernel_keeps_what_it_compares():
    config = BloomConfig(vocab_size=256, hidden_size=64, n_layer=2, n_head=4)
    with torch.device("meta"):
        model = BloomForCausalLM._from_config(config, dtype=torch.bfloat16)
    for compiles, share in ((False, 1), (True, 0.5)):
        plain, eager = (
            estimate(model, 1000, checkpointing=False, row=row, compiles=compiles).activations for row in (0, 300)
        )
        assert eager - plain == share * 1000 * 2 * (4 * 300) * (2 + 4)  # layers, heads, tokens; bfloat16 and float32


def test_a_batch_of_answers_fits_in_what_the_weights_leave():
    model, weights = llama_1b(), 2 * 1_235_814_400  # in bfloat16
    assert writing_tokens(model, 6e9, cached=1_000) == 262_144  # room for a million
    assert writing_tokens(model, 6e9, cached=20_000) == 32_768  # of 50,000, a power of two
    assert writing_tokens(model, (weights + 8192 * 500) / 0.9, cached=500) == 4096  # half of what is left
    assert writing_tokens(model, 100, cached=500) == 1024  # and never nothing: then memory runs out, and is named


def test_useful_arithmetic_by_hand():
    model = llama_1b()
    linear = 16 * (2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192)
    lengths = torch.tensor([[3, 2, 1]]).int().numpy()
    seen = 9 / 2 + 2 * (3 + 1) + 1 * (3 + 0.5)
    expected = 2 * linear * 6 + 16 * 4 * 2048 * seen + 2 * 2048 * 128_256 * 3
    assert forward_flops(model, lengths) == expected
    assert training_passes(model) == 3
    assert training_passes(model, adaptive=True) == 4
    assert matrix_rate(CPU) > 1e8


# --- The folder that comes out --------------------------------------------------------------------


def test_the_exported_folder_is_a_hugging_face_model(tokenizer, tmp_path):
    _, data = world()
    one = trainer("unm-wr")
    *_, last = one.run()
    provenance = Provenance(
        name="unm-wr", base_model="tiny/llama", objective="unm-wr", recipe="name: test\nseed: 42\n",
        data={"pairs": 20, "file": "a|b"}, scale={"estimator": "pooled"}, metrics=last,
    )  # fmt: skip
    folder = tmp_path / "policy"
    for _ in range(2):  # the second write replaces the first
        export_model(one.model, tokenizer, folder, provenance)
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]
    again = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert torch.equal(
        score(PairScorer(again), data.pairs, 64).nan_to_num(), score(one.scorer, data.pairs, 64).nan_to_num()
    )
    assert AutoTokenizer.from_pretrained(folder).chat_template == TEMPLATE
    card = (folder / "README.md").read_text()
    for part in ('base_model: "tiny/llama"', "seed: 42", "a\\|b", "pooled", "rewards/accuracies"):
        assert part in card
    sums = json.loads((folder / "checksums.json").read_text())
    assert sums["model.safetensors"] == sha256(folder / "model.safetensors")
    assert sums["model.safetensors"] in card
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")  # tied


def test_an_export_that_fails_leaves_the_old_folder(tokenizer, tmp_path, monkeypatch):
    model, _ = world()
    provenance = Provenance("p", "b", "dpo", "name: x")
    export_model(model, tokenizer, tmp_path / "policy", provenance)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tokenizer.__class__, "save_pretrained", full)
    with pytest.raises(UserError, match=r"policy: the model could not be written: No space left"):
        export_model(model, tokenizer, tmp_path / "policy", provenance)
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]
    again = PairScorer(AutoModelForCausalLM.from_pretrained(tmp_path / "policy"))
    assert again(again.prepare(PAIRS, 64)).isfinite().all()

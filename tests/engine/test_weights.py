"""Models of which a weight is missing, named otherwise or of another shape are refused, and the weights named."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.worlds.models import tiny, word_tokenizer
from unmdpo.core.errors import UnmdpoWarning, UserError
from unmdpo.engine.adapters import add_lora, attach, save_adapter
from unmdpo.engine.models import load_model
from unmdpo.engine.settings import AdapterSettings, ModelSource

CPU = torch.device("cpu")
FIRST = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    tiny("llama, untied", "sdpa", torch.float32).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", ["../weights.safetensors", "/weights.safetensors", "shards/weights.safetensors"])
def test_shards_lie_beside_their_index(whole, tmp_path, name):
    """Whatever lies elsewhere, no checksum has seen."""
    folder = tmp_path / "model"
    shutil.copytree(whole, folder)
    weights = load_file(folder / "model.safetensors")
    save_file(weights, tmp_path / "weights.safetensors", {"format": "pt"})
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(weights, name)}))
    with pytest.raises(UserError, match=f"names '{name}', which is not a file beside it"):
        load_model(ModelSource(path=str(folder)), device=CPU)
    for text in ("[]", "{", '{"weight_map": 7}', '{"weight_map": {"a": 1}}'):
        index.write_text(text)
        with pytest.raises(UserError, match="this is not an index of shards"):
            load_model(ModelSource(path=str(folder)), device=CPU)


@pytest.fixture
def changed(whole, tmp_path):
    """Loads a copy of the model whose weights and configuration were changed."""

    def load(change, **config):
        folder = tmp_path / "model"
        shutil.copytree(whole, folder)
        weights = change(load_file(folder / "model.safetensors"))
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        described = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(described | config))
        return load_model(ModelSource(path=str(folder)), device=CPU)

    return load


def without(*names):
    return lambda weights: {name: value for name, value in weights.items() if name not in names}


def test_a_missing_weight(changed):
    with pytest.raises(UserError, match=f"do not fit LlamaForCausalLM: it lacks {FIRST}\\. Check that config"):
        changed(without(FIRST))


def test_a_weight_by_another_name(changed):
    other = "model.layers.0.attention.query.weight"
    with pytest.raises(UserError, match=f"it lacks {FIRST}; the model has no place for its {other}"):
        changed(lambda weights: without(FIRST)(weights) | {other: weights[FIRST]})


def test_more_layers_than_the_configuration_says(changed):
    with pytest.raises(UserError, match=r"no place for its model\.layers\.1\..*, .* and \d+ more"):
        changed(lambda weights: weights, num_hidden_layers=1)


@pytest.mark.filterwarnings("default::unmdpo.core.errors.UnmdpoWarning")
def test_a_head_that_nobody_needs_is_reported_of_and_old_buffers_are_not(changed):
    with pytest.warns(
        UnmdpoWarning, match=r"LlamaForCausalLM has no place for v_head\.summary\.weight, and does without"
    ):
        changed(
            lambda weights: (
                weights | {"v_head.summary.weight": torch.ones(1, 4), f"{FIRST[:-7]}.masked_bias": torch.ones(1)}
            )
        )


def test_another_shape(changed):
    with pytest.raises(UserError, match=f"of another shape than the configuration says are {FIRST}"):
        changed(lambda weights: weights | {FIRST: weights[FIRST][:-1].clone()})


def test_an_untied_head_that_is_missing(changed):
    with pytest.raises(UserError, match=r"it lacks lm_head\.weight"):
        changed(without("lm_head.weight"))


def test_a_tied_head_is_not_missed(changed):
    weights = changed(without("lm_head.weight"), tie_word_embeddings=True)
    assert weights.lm_head.weight is weights.model.embed_tokens.weight


def test_an_adapter_that_lacks_a_weight(tmp_path):
    def fresh():
        return tiny("llama, untied", "sdpa", torch.float32)

    adapted = add_lora(fresh(), AdapterSettings(rank=4), seed=1)
    own = {name: value for name, value in adapted.get_base_model().named_parameters() if "lora" in name}
    save_adapter(adapted, tmp_path, own)
    attach(fresh(), tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    weights = load_file(file)
    save_file(without(min(weights))(weights), file)
    with pytest.raises(UserError, match="does not fit LlamaForCausalLM: 1 of its weights are missing"):
        attach(fresh(), tmp_path)
    save_file(weights | {min(weights): torch.ones(1, 1)}, file)
    with pytest.raises(UserError, match=r"(?s)does not fit LlamaForCausalLM: .*size mismatch"):
        attach(fresh(), tmp_path)

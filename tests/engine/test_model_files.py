"""Models whose files are damaged, missing or lying: one sentence that names the file, before anything is loaded."""

import json
import shutil
import struct
from types import SimpleNamespace

import pytest
import torch

from tests.worlds.pipeline import write_model
from unmdpo.core.errors import UserError
from unmdpo.engine import model_files as intact
from unmdpo.engine.model_files import check_files, check_hub_weights
from unmdpo.engine.models import check_reachable, load_model, load_tokenizer
from unmdpo.engine.settings import ModelSource

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    write_model(folder)
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(next(path.parent for path in whole.rglob("config.json")), tmp_path / "model")


def cut(path, size):
    path.write_bytes(path.read_bytes()[:size])


def configured(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


DAMAGE = {
    "empty weights": (lambda f: (f / WEIGHTS).write_bytes(b""), f"{WEIGHTS} is damaged or cut off"),
    "half the weights": (lambda f: cut(f / WEIGHTS, 5000), "download the model again"),
    "all but a byte": (lambda f: cut(f / WEIGHTS, (f / WEIGHTS).stat().st_size - 1), "damaged or cut off"),
    "a header that lies": (lambda f: (f / WEIGHTS).write_bytes(struct.pack("<Q", 2**60) + b"{}"), "damaged"),
    "a pointer for weights": (lambda f: (f / WEIGHTS).write_text(POINTER), "git lfs pull"),
    "a pointer for a tokenizer": (lambda f: (f / "tokenizer.json").write_text(POINTER), "git lfs pull"),
    "an empty configuration": (lambda f: (f / "config.json").write_text(""), r"config\.json is not a JSON file"),
    "a list for a configuration": (lambda f: (f / "config.json").write_text("[]"), "should hold a JSON object"),
    "half a configuration": (lambda f: (f / "generation_config.json").write_text("{"), "not a JSON file"),
    "no vocabulary": (lambda f: configured(f, vocab_size=-5), "vocab_size: -5, which cannot be"),
    "endless layers": (lambda f: configured(f, num_hidden_layers=10**7), "num_hidden_layers: 10000000"),
    "text for a number": (lambda f: configured(f, hidden_size="abc"), "configuration of .* could not be loaded"),
    "a model of no kind": (lambda f: configured(f, model_type="martian"), "martian"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named_before_anything_is_loaded(folder, case):
    damage, told = DAMAGE[case]
    damage(folder)
    with pytest.raises(UserError, match=told):
        check_reachable(ModelSource(path=str(folder)))


@pytest.mark.parametrize("text", ["", "{}", '{"version": "1.0"', "[]"])
def test_a_damaged_tokenizer(folder, text):
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(UserError, match=r"tokenizer of .* could not be loaded[\s\S]*download the model again"):
        load_tokenizer(ModelSource(path=str(folder)))


def test_pickled_weights_are_not_loaded(folder):
    torch.save({"model.norm.weight": torch.ones(1)}, folder / "pytorch_model.bin")
    check_files(ModelSource(path=str(folder)))  # beside safetensors nobody reads it
    (folder / WEIGHTS).unlink()
    with pytest.raises(UserError, match="pickled files are not loaded"):
        load_model(ModelSource(path=str(folder)), device=torch.device("cpu"))


def test_files_that_nobody_loads_may_be_anything(folder):
    (folder / "consolidated.safetensors").write_text(POINTER)
    check_files(ModelSource(path=str(folder)))
    (folder / WEIGHTS).rename(folder / "model-00001-of-00001.safetensors")
    index = {"weight_map": {"lm_head.weight": "model-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    check_files(ModelSource(path=str(folder)))
    (folder / "model-00001-of-00001.safetensors").write_text(POINTER)
    with pytest.raises(UserError, match="Git LFS pointer"):
        check_files(ModelSource(path=str(folder)))


def test_whole_weights_beside_an_adapter_are_two_models(folder):
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match="whole weights and an adapter"):
        check_files(ModelSource(path=str(folder)))


def test_a_whole_model_is_fine(folder):
    check_reachable(ModelSource(path=str(folder)))
    check_files(ModelSource(path="some/name-on-the-hub"))


@pytest.mark.parametrize(
    ("names", "refused"),
    [
        (["config.json", "pytorch_model.bin"], True),
        (["config.json", "pytorch_model.bin", "model.safetensors"], False),
        (["config.json", "model-00001-of-00002.safetensors", "training_args.bin"], False),
        (["config.json", "onnx/weights.bin"], False),
    ],
)
def test_pickled_weights_on_the_hub_are_found_by_their_names(names, refused, monkeypatch):
    monkeypatch.setattr(intact, "is_offline_mode", lambda: False)
    files = [SimpleNamespace(rfilename=name) for name in names]
    monkeypatch.setattr(intact.HfApi, "model_info", lambda *_, **__: SimpleNamespace(siblings=files))
    source = ModelSource(path="somebody/model", revision="v1")
    if not refused:
        check_hub_weights(source)
        return
    with pytest.raises(UserError, match=r"^somebody/model, pytorch_model\.bin: weights in pickled files"):
        check_hub_weights(source)


def test_without_a_network_nothing_is_known_of_the_hub(monkeypatch):
    def unreachable(*_, **__):
        raise ConnectionError

    monkeypatch.setattr(intact, "is_offline_mode", lambda: False)
    monkeypatch.setattr(intact.HfApi, "model_info", unreachable)
    check_hub_weights(ModelSource(path="somebody/model"))

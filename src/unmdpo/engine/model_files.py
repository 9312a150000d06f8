"""Looks at the files of a model on this disk before anything is loaded from them: a download that was cut, or a clone
without its large files, is then named by the file, and long before it is needed."""

from pathlib import Path

from huggingface_hub import HfApi, is_offline_mode
from safetensors import SafetensorError, safe_open
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from unmdpo.core.errors import UserError
from unmdpo.core.files import read_small_json
from unmdpo.engine.settings import ModelSource

WEIGHTS, ADAPTER = "*.safetensors", "adapter_config.json"
POINTER = b"version https://git-lfs.github.com/spec/"
LARGEST_POINTER = 1024  # bytes
PATIENCE = 10.0  # seconds for the Hub's answer
SETTINGS = ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json")
AGAIN = "download the model again"
CONVERT = "GGUF files are not read: convert it once with Transformers (docs/guide/install.md)"
PICKLED = (
    "weights in pickled files are not loaded, since they can run any code. Save the model as safetensors first: "
    "model.save_pretrained(folder) with Transformers does, if you trust the file"
)


def check_files(source: ModelSource) -> None:
    """Raises for the first file that cannot be what its name says. Models of the Hub are checked when they are
    downloaded."""
    folder = Path(source.path)
    if not folder.is_dir():
        return
    if any(folder.glob("*.gguf")) and not (folder / "config.json").exists():
        raise UserError(f"{folder}: {CONVERT}")
    if (folder / ADAPTER).exists() and (folder / SAFE_WEIGHTS_NAME).exists():
        raise UserError(f"{folder} has whole weights and an adapter ({ADAPTER}): move one of them elsewhere")
    weights = _weights(folder)
    for path in [*sorted(folder.glob("*.json")), *weights]:
        _check_no_pointer(path)
    for name in SETTINGS:
        _check_settings(folder / name)
    _check_no_pickles(folder, weights)
    for path in weights:
        try:
            with safe_open(path, "numpy"):  # reads the header, and compares it with the file's length
                pass
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path} is damaged or cut off ({_first_line(error)}); {AGAIN}") from error


def _weights(folder: Path) -> list[Path]:
    """The files that Transformers loads; others may lie beside them, such as those of another format."""
    whole = folder / SAFE_WEIGHTS_NAME
    if whole.exists():
        return [whole]
    try:
        shards = read_small_json(folder / SAFE_WEIGHTS_INDEX_NAME)["weight_map"].values()
        named = sorted({folder / name for name in shards if Path(name).name == name})  # others are refused in loading
        return [path for path in named if path.is_file()]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return sorted(folder.glob(WEIGHTS))  # no index, or one that is refused when weights are loaded


def _check_no_pointer(path: Path) -> None:
    if path.is_file() and path.stat().st_size <= LARGEST_POINTER and path.read_bytes().startswith(POINTER):
        raise UserError(f"{path} is a Git LFS pointer, not the file itself: run `git lfs pull` in its folder")


def _check_settings(path: Path) -> None:
    """Transformers does without some of them if they cannot be read, and then stops at other tokens."""
    try:
        is_object = not path.is_file() or isinstance(read_small_json(path), dict)
    except (ValueError, RecursionError, OSError) as error:
        raise UserError(f"{path} is not a JSON file ({_first_line(error)}); {AGAIN}") from error
    if not is_object:
        raise UserError(f"{path} should hold a JSON object; {AGAIN}")


def _check_no_pickles(folder: Path, weights: list[Path]) -> None:
    pickled = sorted(folder.glob("*.bin"))
    if pickled and not weights:
        raise UserError(f"{pickled[0]}: {PICKLED}")


def check_hub_weights(source: ModelSource) -> None:
    """Asks for names only. Without a network nothing is known; what is missing is reported when it is loaded."""
    if Path(source.path).is_dir():
        return
    if is_offline_mode():
        return
    try:
        known = HfApi().model_info(source.path, revision=source.revision, timeout=PATIENCE).siblings or []
    except Exception:  # what is wrong with the name or the network is reported when the configuration is loaded
        return
    names = [file.rfilename for file in known]
    pickled = sorted(name for name in names if name.endswith(".bin") and "/" not in name)
    if pickled and not any(name.endswith(".safetensors") for name in names):
        raise UserError(f"{source.path}, {pickled[0]}: {PICKLED}")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__

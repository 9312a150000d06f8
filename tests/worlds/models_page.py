"""Makes the tables of `docs/reference/models.md` from tiny random models of every family.

python -m tests.worlds.models_page docs/reference/models.md
torchrun --nproc-per-node 2 -m tests.worlds.models_page --sharded FOLDER     (the first calls this by itself)
"""

import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from transformers.utils import logging

from tests.worlds.families import NAMES, NOT_TRIED, build
from tests.worlds.models import pair
from unmdpo.engine.adapters import add_lora
from unmdpo.engine.inference.decode import can_decode
from unmdpo.engine.pairs.proof import prove
from unmdpo.engine.pairs.score import score
from unmdpo.engine.pairs.scorer import PairScorer
from unmdpo.engine.ranks import Ranks, join
from unmdpo.engine.settings import AdapterSettings, ModelSource, ObjectiveChoice, TrainingSettings
from unmdpo.engine.text.encoded import EncodedPairs
from unmdpo.engine.training.data import TrainingData
from unmdpo.engine.training.trainer import Trainer
from unmdpo.stages.shared.training import open_scorer

BEGIN, END = "<!-- made by tests.worlds.models_page -->", "<!-- end -->"
PAIRS = EncodedPairs.of([pair(5, 7, 4, 1), pair(1, 1, 9, 2), pair(12, 3, 20, 3), pair(14, 30, 20, 5)])
ASKED = {
    "Llama 2, 3, 3.1, 3.2, 3.3; SmolLM 2": "llama", "Llama 3.2 Vision, as a text model": "mllama", "Llama 4": "llama4",
    "Qwen 2, 2.5": "qwen2", "Qwen 3": "qwen3", "Qwen 3 MoE": "qwen3_moe", "Qwen 3 Next": "qwen3_next",
    "Qwen 3.5": "qwen3_5", "Mistral": "mistral", "Mixtral": "mixtral", "Ministral": "ministral", "Gemma 2": "gemma2",
    "Gemma 3": "gemma3", "Gemma 4": "gemma4", "Phi-3, Phi-4": "phi3", "Phi-3, Phi-4, long": "phi3, longrope",
    "Phi-3.5 MoE": "phimoe", "Granite 3": "granite", "Granite 4": "granitemoehybrid", "Command-R": "cohere",
    "Command-R7B, Command A": "cohere2", "OLMo 2": "olmo2", "OLMo 3": "olmo3", "SmolLM 3": "smollm3",
    "DeepSeek V2": "deepseek_v2", "DeepSeek V3": "deepseek_v3", "GPT-OSS": "gpt_oss", "Falcon": "falcon",
    "Falcon H1": "falcon_h1", "GLM 4": "glm4", "LFM2": "lfm2", "Nemotron": "nemotron", "Nemotron-H": "nemotron_h",
}  # fmt: skip


def tried(name):
    """What happens with one family on one process."""
    scorer = PairScorer(build(name, attention=None))
    proof = prove(scorer, PAIRS)
    why = proof.passed_over.get("packed", "")
    return {
        "layout": proof.layout,
        "why": "layers that do not honor a mask" if why.startswith("log-prob") else why,
        "decoding": "fast" if can_decode(scorer.model) else "Transformers",
        "lora": with_lora(name),
    }


def with_lora(name):
    try:
        scorer = PairScorer(add_lora(build(name, attention=None), AdapterSettings(rank=4)).get_base_model())
        data = TrainingData(PAIRS, torch.ones(4), reference=score(scorer, PAIRS, 256))
        trainer = Trainer(scorer, data, ObjectiveChoice(name="dpo"), TrainingSettings(updates=2, batch=4))
        losses = [line["loss"] for line in trainer.run()]
        return "yes" if abs(losses[0] - 0.6931) < 1e-3 else f"no: a loss of {losses[0]:.3f} at the start"
    except Exception as error:
        return f"no: {reason(error)}"


def reason(error):
    if "could not be loaded" in str(error):
        return "its text part cannot be saved alone"
    return (str(error).splitlines() or [type(error).__name__])[0][:80]


def sharded(folder):
    """On each rank: every family shared by all of them, against the plain scores of one."""
    join(torch.device("cpu"))
    ranks, found = Ranks.current(), {}
    for name in NAMES:
        place = folder / name.replace(" ", "")
        plain = PairScorer(build(name, attention=None))
        plain.use("single")
        plain.proven = True
        if ranks.first:
            plain.model.save_pretrained(place)
        ranks.wait()
        try:
            scorer, _ = open_scorer(ModelSource(path=str(place)))
            prove(scorer, PAIRS)
            mine = score(scorer, PAIRS, 256)
            with torch.no_grad():
                lone = torch.cat([plain(plain.prepare([PAIRS.pair(i)], 256)) for i in range(4)])
            found[name] = "yes" if torch.allclose(mine, lone, atol=2e-3) else "no: other scores"
        except Exception as error:
            found[name] = f"no: {reason(error)}"
    if ranks.first:
        (folder / "sharded.json").write_text(json.dumps(found))
    ranks.wait()
    os._exit(0)  # a rank that failed midway may have left others waiting


def results():
    made = {}
    for name in NAMES:
        try:
            made[name] = tried(name)
        except Exception as error:
            made[name] = {"layout": "refused", "why": reason(error), "decoding": "", "lora": ""}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command += ["-m", "tests.worlds.models_page", "--sharded", folder]
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)
        for name, told in json.loads((Path(folder) / "sharded.json").read_text()).items():
            made[name]["sharded"] = told
    return made


def row(label, name, found):
    why = f" ({found['why']})" if found["why"] else ""
    cells = [label, f"`{name}`", found["layout"] + why, found["decoding"], found["lora"], found.get("sharded", "")]
    return "| " + " | ".join(cells) + " |"


def page(found):
    header = [
        "| | scored | answers | LoRA | two ranks |".replace("| |", "| model | type |"),
        "|---|---|---|---|---|---|",
    ]
    asked = [row(label, name, found[name]) for label, name in ASKED.items() if name in found]
    others = [row("", name, found[name]) for name in NAMES if name not in ASKED.values()]
    missing = [f"| `{name}` | {why} |" for name, why in NOT_TRIED.items()]
    counts = {
        kind: sum(each["layout"] == kind for each in found.values())
        for kind in ("packed", "padded", "masked", "single", "refused")
    }
    summary = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    return "\n".join(
        ["", f"Of {len(found)} families and variants: {summary}.", "", "## Models people ask for", "", *header, *asked,
         "", "## All others", "", *header, *others, "", "## Not tried", "", "| type | why |", "|---|---|", *missing,
         ""]
    )  # fmt: skip


def main(arguments):
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    if arguments[0] == "--sharded":
        return sharded(Path(arguments[1]))
    path = Path(arguments[0])
    before, _, rest = path.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n{page(results())}\n{END}{after}", "utf-8")
    return None


if __name__ == "__main__":
    main(sys.argv[1:])

"""More than a hundred bad inputs: exit code 2, a message of one screen that names the place, nothing left behind."""

import json
import re
import shutil

import pytest
from typer.testing import CliRunner

from tests.worlds.pipeline import recipe, world
from tests.worlds.rows import GOOD, HELPSTEER3, PREFERENCE, preference
from unmdpo.cli import app

SCREEN = 24  # lines

# (arguments after `run RECIPE`, what the message says); {folder} is the test's folder
RECIPES = {
    "unknown key": ("trainig.updates=3", r"override 'trainig\.updates=3': trainig: unknown key"),
    "unknown inner key": ("training.updats=3", "did you mean 'updates'"),
    "text for a number": ("training.updates=many", "training.updates"),
    "half an update": ("training.updates=1.5", "training.updates"),
    "no updates": ("training.updates=0", "training.updates"),
    "negative rate": ("training.learning_rate=-1e-6", "training.learning_rate"),
    "infinite rate": ("training.learning_rate=.inf", "training.learning_rate"),
    "rate not a number": ("training.learning_rate=.nan", "training.learning_rate"),
    "updates and epochs": ("training={updates: 2, epochs: 2}", "updates or epochs, not both"),
    "empty batch": ("training.batch=0", "training.batch"),
    "unknown schedule": ("training.schedule=cosin", "did you mean 'cosine'"),
    "betas of one": ("training.betas=[0.9]", "training.betas"),
    "beta of one": ("training.betas=[0.9, 1.0]", "training.betas"),
    "negative warm-up": ("training.warmup=-1", "training.warmup"),
    "unknown objective": ("policies.dpo.objective=dpoo", "did you mean 'dpo'"),
    "unknown setting": ("policies.dpo.settings={bta: 1}", "has no setting 'bta'"),
    "setting out of range": ("policies.dpo.settings={beta: 0}", "beta"),
    "setting of text": ("policies.dpo.settings={beta: big}", "policies.dpo.settings"),
    "scale that is not there": ("policies.unm-wr.scale=sequence", "there is no scale 'sequence'"),
    "scale nobody asked for": ("policies.dpo.scale=seq", "does not use a scale"),
    "scale that is needed": ("policies.unm-wr.scale=null", "needs a scale"),
    "policy called initial": ("policies.initial={objective: dpo}", "choose another name"),
    "name with a slash": ("policies={a/b: {objective: dpo}}", "policies"),
    "no policies": ("policies={}", "policies"),
    "unknown estimator": ("scales.seq.estimator=poled", "did you mean 'pooled'"),
    "negative penalty": ("scales.seq.penalty=-0.1", "scales.seq.penalty"),
    "one fold": ("pilots.folds=1", "pilots.folds"),
    "pilots with a scale": ("pilots.objective=unm-wr", "pilots come before any scale"),
    "unknown source": ("data.source=helpster3", "did you mean 'helpsteer3'"),
    "no tokens": ("data.max_length=0", "data.max_length"),
    "two ways to validate": ("data.validation.path=x.jsonl", "not both"),
    "all held out": ("data.validation.fraction=1.0", "data.validation.fraction"),
    "thresholds that fall": ("data.strength.thresholds=[3, 1]", "should increase"),
    "too few thresholds": ("data.strength.thresholds=[1]", "need 2 thresholds"),
    "baseline that is no policy": ("evaluation.baseline=dpoo", "'dpoo' is not a policy; did you mean 'dpo'"),
    "published numbers": ("evaluation.published={on: {}}", "the paper's numbers are no settings"),
    "no ranks": ("compute.ranks=0", "compute.ranks"),
    "checkpoints at once": ("compute.checkpoint_minutes=0", "compute.checkpoint_minutes"),
    "override without value": ("training.updates", "should look like key.sub=value"),
    "override of nothing": ("=3", "should look like key.sub=value"),
    "override into a value": ("name.sub=3", "is a value and has no keys below it"),
    "override not YAML": ("training={", "training={"),
    "a name in capitals": ("name=Mine", "name"),
}
PANELS = {
    "empty panel": ("evaluation.panels.one.size=0", "evaluation.panels.one.size"),
    "no panels": ("evaluation.panels={}", "evaluation.panels"),
    "panel from nowhere": (
        "evaluation.panels.one.path=./none.jsonl", r"evaluation\.panels\.one\.path: there is no file",
    ),
    "all apart": ("evaluation.panels={one: {size: 3, seed: 1, apart: true}}", "at least one should be answered"),
}  # fmt: skip
JUDGES = {
    "two judges": ("evaluation.judge={path: model, function: 'judges:longest'}", "give exactly one of"),
    "no judge": ("evaluation.judge={}", "give exactly one of"),
    "function without a module": ("evaluation.judge={function: longest}", "evaluation.judge.function"),
    "module that is not there": ("evaluation.judge={function: 'no_such:f'}", "importable from"),
    "function that is not there": ("evaluation.judge={function: 'json:f'}", "importable from"),
    "endpoint without a model": ("evaluation.judge={endpoint: 'http://x'}", "judge.model"),
    "model without an endpoint": ("evaluation.judge.model=x", "judge.model: unknown key"),
    "password in the address": (
        "evaluation.judge={endpoint: 'http://me:secret@x', model: y}", r"evaluation\.judge\.endpoint",
    ),
    "half an address": ("evaluation.judge={endpoint: 'http://[::1/v1', model: y}", r"endpoint: Invalid IPv6 URL"),
    "no such port": ("evaluation.judge={endpoint: 'http://x:99999/v1', model: y}", r"endpoint: Port out of range"),
    "no host": ("evaluation.judge={endpoint: 'http://:80/v1', model: y}", r"endpoint: .*there is no host"),
    "judge folder not there": ("evaluation.judge={path: ./none}", "there is no file or folder"),
    "judge on no hub": ("evaluation.judge={path: nobody/none}", "hf auth login"),
}  # fmt: skip
MODELS = {
    "folder not there": ("model.path=./none", r"model\.path: there is no file or folder"),
    "name on no hub": ("model.path=nobody/none", "hf auth login"),
    "pilot model not there": ("pilots.model={path: ./none}", r"pilots\.model\.path: there is no file"),
    "data not there": ("data.path=./none.jsonl", r"data\.path: there is no file or folder"),
    "empty model folder": ("model.path={folder}/empty", "could not be loaded"),
    "model of nonsense": ("model.path={folder}/nonsense", "could not be loaded"),
}
OVERRIDES = RECIPES | PANELS | JUDGES | MODELS
COMMANDS = {
    "adapters over ranks": (
        ["run", "{recipe}", "compute.ranks=2", "training.adapter.four_bit=true"],
        r"override 'compute\.ranks=2': compute\.ranks: weights in four bits are not shared by ranks",
    ),
    "no command": (["fly"], "No such command"),
    "no recipe": (["run"], "Missing argument"),
    "unknown recipe": (["run", "hs3-1"], "there is no recipe 'hs3-1'; did you mean 'hs3-1b'"),
    "recipe that is a folder": (["run", "./"], "cannot be read"),
    "recipe file not there": (["run", "none.yaml"], r"none\.yaml: cannot be read"),
    "unknown option": (["run", "hs3-1b", "--job", "2"], "No such option"),
    "jobs of none": (["run", "{recipe}", "--jobs", "0"], "jobs|range"),
    "unknown stage": (["run", "{recipe}", "--until", "oofs"], "did you mean 'oof'"),
    "unknown only": (["run", "{recipe}", "--only", "polcy"], "has no stage 'polcy'"),
    "unknown executor": (["run", "{recipe}", "--executor", "slurm"], "Invalid value"),
    "unknown device": (["plan", "hs3-1b", "--device", "tpu"], "unknown device 'tpu'"),
    "verify of nothing": (["verify", "{recipe}"], "has no run of this recipe"),
    "report of nothing": (["report", "{recipe}"], "has no run of this recipe"),
    "scale of nothing": (["scale", "{recipe}", "seq"], "has no run of this recipe"),
    "compare of nothing": (["compare", "{recipe}", "dpo", "unm-wr"], "has no run of this recipe"),
    "answers of nothing": (["answers", "{recipe}", "dpo", "one"], "has no run of this recipe"),
    "a command that went": (["gc"], "no command 'gc' anymore: unmdpo rm --unused"),
    "no store to clean": (["rm", "--unused", "--store", "none"], "there is no store here"),
    "nothing to remove": (["rm", "--store", "{folder}"], "there is no store here|name a run"),
    "audit of nothing": (["audit", "support", "none.jsonl"], "no such file or folder"),
    "audit of a folder without data": (["audit", "support", "{folder}/empty"], "no data files"),
    "audit of an unknown kind": (["audit", "support", "{folder}/strange.txt"], "unknown file type"),
    "annotations not there": (["alpaca", "none.json"], "cannot be read"),
    "annotations without preferences": (["alpaca", "{folder}/data.jsonl"], r"data\.jsonl, row 1: 'output_1'"),
    "recipe with Python in it": (["run", "{folder}/python.yaml"], r"python\.yaml"),
    "recipe that is a list": (["run", "{folder}/list.yaml"], "should be a mapping"),
    "recipe not closed": (["run", "{folder}/open.yaml"], r"open\.yaml"),
    "recipe with a key twice": (["run", "{folder}/twice.yaml"], r"twice\.yaml.*seed"),
    "recipe of bytes": (["run", "{folder}/bytes.yaml"], "not UTF-8"),
    "recipe with no such character": (["run", "{folder}/character.yaml"], "a character that does not exist"),
}
HELPSTEER2 = {"prompt": "p", "response_1": "a", "response_2": "b", "preference_strength": 1}
SCORED = {"prompt": "p", "response": "a", "scores": [1.0]}
OTHERS = {
    "helpsteer2 without columns": ({}, "row 1: column 'prompt' is missing"),
    "helpsteer2 strength in words": (HELPSTEER2 | {"preference_strength": "x"}, "row 1: 'preference_strength'"),
    "helpsteer2 strength too large": (HELPSTEER2 | {"preference_strength": 9}, "from -3 to 3, not 9"),
    "helpsteer2 prompt that is a number": (HELPSTEER2 | {"prompt": 3}, "row 1: 'prompt' should be text"),
    "scored without columns": ({}, "row 1: column 'prompt' is missing"),
    "scored in words": (SCORED | {"scores": "x"}, "row 1: 'scores' should be a list"),
    "scored by nobody": (SCORED | {"scores": []}, "row 1: 'scores' is empty"),
    "scored response that is a number": (SCORED | {"response": 3}, "row 1: 'response' should be text"),
}
ROWS = {f"helpsteer3 {name}": ([GOOD, bad, GOOD], message) for name, (bad, message) in HELPSTEER3.items()} | {
    f"preference {name}": ([preference(), bad], message) for name, (bad, message) in PREFERENCE.items()
}
ROWS |= {name: ([bad], message) for name, (bad, message) in OTHERS.items()}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = world(tmp_path_factory.mktemp("bad"))
    (folder / "empty").mkdir()
    (folder / "nonsense").mkdir()
    (folder / "nonsense" / "config.json").write_text("{}")
    (folder / "strange.txt").write_text("?")
    (folder / "small.yaml").write_text(recipe(folder).to_yaml())
    (folder / "python.yaml").write_text("name: !!python/object/apply:os.system ['touch owned']\n")
    (folder / "list.yaml").write_text("- a\n")
    (folder / "open.yaml").write_text("name: {a\n")
    (folder / "twice.yaml").write_text("name: x\nseed: 1\nseed: 2\n")
    (folder / "bytes.yaml").write_bytes(b"name: \xff\xfe\n")
    (folder / "character.yaml").write_text(r'name: "\UFFFFFFFF"')
    return folder


def check(arguments, says, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2, (done.output, done.exception)
    assert "Traceback" not in done.output
    assert len(done.output.splitlines()) <= SCREEN
    flat = " ".join(done.output.replace("│", " ").split())
    assert re.search(says, flat), flat
    assert list(tmp_path.iterdir()) == []


def filled(text, place):
    return text.replace("{folder}", str(place)).replace("{recipe}", str(place / "small.yaml"))


@pytest.mark.parametrize("case", OVERRIDES)
def test_bad_recipes(place, case, monkeypatch, tmp_path):
    override, says = OVERRIDES[case]
    check(["run", str(place / "small.yaml"), filled(override, place)], says, monkeypatch, tmp_path)


@pytest.mark.parametrize("case", COMMANDS)
def test_bad_commands(place, case, monkeypatch, tmp_path):
    arguments, says = COMMANDS[case]
    check([filled(text, place) for text in arguments], says, monkeypatch, tmp_path)


@pytest.mark.parametrize("case", ROWS)
def test_bad_rows(place, case, monkeypatch, tmp_path):
    rows, says = ROWS[case]
    source = case.split(" ")[0]
    path = place / f"{source}-bad.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    check(["audit", "support", str(path), "--source", source], says, monkeypatch, tmp_path)


TOKENIZERS = {
    "no chat template": (lambda config: config.pop("chat_template", None), "template"),
    "template that does not parse": (lambda config: config.update(chat_template="{% for %}"), "template"),
    "template that raises": (
        lambda config: config.update(chat_template="{{ raise_exception('no systems') }}"), "no systems",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TOKENIZERS)
def test_bad_tokenizers(place, case, monkeypatch, tmp_path):
    change, says = TOKENIZERS[case]
    model = place / case.replace(" ", "-")
    shutil.copytree(place / "model", model)
    (model / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((model / "tokenizer_config.json").read_text())
    change(config)
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    check(["run", str(place / "small.yaml"), f"model.path={model}"], says, monkeypatch, tmp_path)


def test_the_table_has_more_than_a_hundred_rows():
    tables = (OVERRIDES, COMMANDS, ROWS, TOKENIZERS)
    assert sum(map(len, tables)) > 100

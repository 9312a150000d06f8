"""The demo: the whole method in the lab's world, with the truth next to what was learned."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
from scipy.stats import gmean

from unmdpo.core.errors import UserError
from unmdpo.core.files import write_json, write_lines
from unmdpo.data.identity import Prompt
from unmdpo.data.table import prompt_of
from unmdpo.lab import model_folder
from unmdpo.lab.shapes import write
from unmdpo.lab.tasks import read
from unmdpo.lab.world import Knobs, World, true_scale
from unmdpo.recipe import Recipe, load_recipe
from unmdpo.results.run import Run
from unmdpo.stats.evaluation import Estimate, rank_correlation

WORLD = Knobs(prompts=1500, noise=1.2, noise_spread=0.8)
HELD_OUT = 500  # prompts
TRUTH = "true-scale.jsonl"  # next to a world: q* of its prompts, for `estimator: given`
KNOBS = "world.json"  # next to a world's data: the knobs it was generated with


def demo_recipe(folder: Path, knobs: Knobs = WORLD, overrides: Sequence[str] = ()) -> Recipe:
    """Writes the world below `folder` and returns the recipe that learns from it. In overrides, `{truth}` is the file
    with q*."""
    world, place = World(knobs), folder.resolve() / "world"
    place.mkdir(parents=True, exist_ok=True)
    write_json(place / KNOBS, asdict(knobs))
    write(place / "train.jsonl", world.comparisons())
    write(place / "validation.jsonl", world.comparisons("validation", HELD_OUT))
    write_lines(folder.resolve() / TRUTH, ({"prompt": one.text, "q": one.scale} for one in world.prompts()))
    here = (f"data.path={json.dumps(str(place))}", f"model.path={json.dumps(str(model_folder()))}")
    truth = json.dumps(str(folder.resolve() / TRUTH))
    filled = [override.replace("{truth}", truth) for override in overrides]
    return load_recipe(str(files("unmdpo.lab") / "demo.yaml"), [*here, *filled])


@dataclass(frozen=True)
class DomainCheck:
    prompts: int
    true: float  # geometric mean of q*
    fitted: float  # of q̂
    correlation: Estimate | None  # within the domain


@dataclass(frozen=True)
class ScaleCheck:
    """How a fitted scale ranks prompts, compared with the truth."""

    name: str
    overall: Estimate | None
    by_domain: dict[str, DomainCheck]


def check_scale(run: Run, name: str) -> ScaleCheck:
    """q̂ against q*, over all training prompts and within each domain."""
    table, truth = run.scale(name).known(), truth_of(run.recipe)
    if truth is None:
        raise UserError(f"{run.recipe.data.path}: the true scale of these prompts is unknown")
    fitted = np.array(table["q"].to_pylist())
    true = np.array([truth(prompt_of(text)) for text in table["prompt"].to_pylist()])
    domains = np.array(table["domain"].to_pylist())
    by_domain = {}
    for domain in sorted(set(domains)):
        q_true, q = true[domains == domain], fitted[domains == domain]
        by_domain[domain] = DomainCheck(len(q), gmean(q_true), gmean(q), rank_correlation(q, q_true))
    return ScaleCheck(name, rank_correlation(fitted, true), by_domain)


def truth_of(recipe: Recipe) -> Callable[[Prompt], float] | None:
    """q* as a function of the prompt, if the recipe's data is a world of the lab."""
    path = Path(recipe.data.path or "") / KNOBS
    if recipe.data.path is None or not path.is_file():
        return None
    knobs = Knobs(**json.loads(path.read_text("utf-8")))
    return lambda prompt: true_scale(*read(prompt[-1].content), knobs)

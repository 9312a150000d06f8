"""Checks what a run needs from outside the store: models, data, judges."""

from unmdpo.core.errors import UserError, did_you_mean
from unmdpo.core.places import places_in
from unmdpo.engine.inference.judges import JudgeSettings, kind_of
from unmdpo.engine.models import check_reachable, load_tokenizer
from unmdpo.engine.settings import ModelSource
from unmdpo.engine.text.encode import Encoder
from unmdpo.recipe import Recipe
from unmdpo.stages.judgement import JUDGEMENT_STAGE
from unmdpo.stages.table import STAGES

JUDGE = "evaluation.judge"


def check_ranks(recipe: Recipe) -> None:
    shared = [kind.name for kind in STAGES.values() if kind.ranked != "never"]
    for name in recipe.compute.ranks_of:
        if name not in shared:
            raise UserError(f"compute.ranks_of: no stages of kind '{name}' have ranks; {did_you_mean(name, shared)}")
    for key, judge in judges(recipe).items():
        kind = kind_of(judge)
        if key.startswith(JUDGE) and not kind.local and recipe.compute.ranks_of.get(JUDGEMENT_STAGE.name, 1) > 1:
            raise UserError(f"a judge of kind '{kind.name}' is asked by one process: leave judgement out of ranks_of")


def judges(recipe: Recipe) -> dict[str, JudgeSettings]:
    """Key in the recipe → judge: those of the evaluation, and those that make training data."""
    named = {} if recipe.evaluation is None else recipe.evaluation.all_judges
    found = {f"{JUDGE}s.{name}" if name else JUDGE: judge for name, judge in named.items()}
    if recipe.data.strength.judge is not None:
        found["data.strength.judge"] = recipe.data.strength.judge
    return found | ({} if recipe.pairs is None else {"pairs.judge": recipe.pairs.judge})


def check_model(source: ModelSource) -> None:
    """Checks that the model can be found and that its tokenizer has a working chat template."""
    check_reachable(source)
    Encoder.of(source).template.prove()


def check_same_tokens(model: ModelSource, reference: ModelSource) -> None:
    """A reference scores the policy's tokens, so they must mean the same to it."""
    if load_tokenizer(model).get_vocab() != load_tokenizer(reference).get_vocab():
        raise UserError(
            f"reference: the tokens of '{reference.path}' are not those of '{model.path}'; a reference needs the same"
        )


def missing_places(recipe: Recipe) -> dict[str, str]:
    """Recipe key → the file or folder it names, for those missing on this machine."""
    scales = {f"scales.{name}.settings": scale.resolved for name, scale in recipe.scales.items()}
    named = [
        *places_in(recipe),
        *((key, place) for start, one in scales.items() for key, place in places_in(one, start)),
    ]
    return {key: str(place) for key, place in named if place.missing}

"""What would stop a run when its judges' turn comes, or flatter what they judge."""

from collections.abc import Sequence

from unmdpo.core.errors import UserError
from unmdpo.engine.inference.function_judge import checked, open_function
from unmdpo.engine.inference.judges import FunctionSettings
from unmdpo.execute.checks import JUDGE, judges, missing_places
from unmdpo.stages.comparisons import read_stage
from unmdpo.stages.judge import JUDGE_STAGE
from unmdpo.stages.judgement import JUDGEMENT_STAGE
from unmdpo.stages.pipeline import Pipeline
from unmdpo.stages.shared.files import PANEL
from unmdpo.stages.shared.judge_training import read_pairs

TRIED = ("Yes.", "That depends on what you want to do.")  # answers for functions that judge


def judges_data(run: Pipeline, wanted: Sequence[str]) -> list[str]:
    """What would stop the training of judges, which comes last: data that cannot be read, or is too little."""
    problems, absent = [], missing_places(run.recipe).values()
    for name in wanted:
        stage = run.stages[name]
        if stage.kind is JUDGE_STAGE and run.find(stage) is None and stage.settings.training.path not in absent:
            given = stage.settings.training
            try:
                read_pairs(given, held_out=given.held_out, seed=given.seed, batch=given.batch)
            except UserError as error:
                problems.append(f"{name}: {error}")
    return problems


def judge_functions(run: Pipeline, wanted: Sequence[str]) -> list[str]:
    """What the user's functions raise for two answers to prompts of their panel: their turn comes last."""
    stages = [run.stages[name] for name in wanted]
    judging = [stage for stage in stages if stage.kind is JUDGEMENT_STAGE and run.find(stage) is None]
    functions = [stage for stage in judging if isinstance(stage.settings.judge, FunctionSettings)]
    problems = []
    for name, stage in {stage.settings.judge.function: stage for stage in functions}.items():
        drawn = run.find(stage.inputs["panel"])
        if drawn is None:
            continue  # its file is missing, as is said elsewhere
        prompts = PANEL.load(drawn).prompts[: len(TRIED)]
        try:
            checked(open_function(stage.settings.judge), prompts, TRIED[: len(prompts)])
        except UserError as error:
            problems.append(f"judge function '{name}': {error}")
    return problems


def overlapping_judge_data(run: Pipeline, wanted: Sequence[str]) -> list[str]:
    """Judges that learn from what policies learn from: from a file with the same content, or the same split."""
    read = read_stage(run.stages).settings.parts.values()
    splits = {(part.place, part.split) for part in run.recipe.data.parts.values()}
    contents = {part.path.digest for part in read}
    found = []
    for name in wanted:
        stage = run.stages[name]
        if stage.kind is not JUDGE_STAGE:
            continue
        given = stage.settings.training
        if (given.path, given.split) in splits or given.path.digest in contents:
            found.append(
                f"{name} learns from the policies' own pairs, {given.path}: it may favour what they learned there"
            )
    known = judges(run.recipe)
    tables = [judge for key, judge in known.items() if key.startswith(JUDGE)]
    found += [f"{key} is one of the evaluation's judges: its tables flatter what was made with it"
              for key, judge in known.items() if not key.startswith(JUDGE) and judge in tables]  # fmt: skip
    return found

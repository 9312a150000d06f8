"""A recipe's stages, from top to bottom as the method goes: rows, tokens, the reference, pilots, scales, policies,
answers, verdicts, summary. Each function adds a stage with all that it needs, or finds it there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from unmdpo.core.errors import UserError
from unmdpo.core.places import Place
from unmdpo.engine.inference.endpoints import Endpoint
from unmdpo.engine.inference.judges import JudgeSettings, TrainedJudge, kind_of
from unmdpo.engine.settings import AdapterSettings, ModelSource, ObjectiveChoice, TrainingSettings
from unmdpo.objectives.table import INITIAL
from unmdpo.recipe import Recipe
from unmdpo.recipe.pairs import PairsRecipe
from unmdpo.recipe.seeds import with_seed
from unmdpo.scale.settings import GivenSettings, MarginSettings
from unmdpo.scale.table import ESTIMATORS
from unmdpo.stages.comparisons import COMPARISONS_STAGE, READ, TRAIN, TRAINED, VALIDATION, Split
from unmdpo.stages.encoded import ENCODED_STAGE
from unmdpo.stages.generation import GENERATION_STAGE
from unmdpo.stages.graded import GRADED_STAGE
from unmdpo.stages.judge import JUDGE_STAGE
from unmdpo.stages.judgement import JUDGEMENT_STAGE, judgement_name
from unmdpo.stages.measured import MEASURED_STAGE
from unmdpo.stages.pairs import PAIRS_STAGE
from unmdpo.stages.panel import EARLIER, PANEL_STAGE, TRAINING
from unmdpo.stages.pilot import OOF_STAGE, PILOT_STAGE
from unmdpo.stages.policy import FOR_VALIDATION, POLICY_STAGE
from unmdpo.stages.reference import FEATURES_STAGE, REFERENCE_STAGE
from unmdpo.stages.scale import CHECK_STAGE, SCALE_STAGE
from unmdpo.stages.shared.base import Kind, Stage
from unmdpo.stages.shared.units import EstimatorChoice
from unmdpo.stages.summary import SUMMARY_STAGE
from unmdpo.stages.tasks import TASKS_STAGE
from unmdpo.store.keys import stage_key
from unmdpo.store.pins import Pins


@dataclass
class Graph:
    """A recipe's stages while they are put together. A run that is read from its record has the code and the places
    that stand there."""

    recipe: Recipe
    pins: Pins
    borrowed: Mapping[str, Stage] = field(default_factory=dict)  # scales from other runs, by name
    code: dict[str, str] = field(default_factory=dict)  # of each kind, by name
    places: Mapping[str, str] = field(default_factory=dict)  # recorded ones, by stage
    stages: dict[str, Stage] = field(default_factory=dict)  # by name, inputs first

    def stage(self, kind: Kind, name: str, inputs: Mapping[str, Stage], **settings: Any) -> Stage:
        """Adds a stage, or returns the existing one with this name, which must be the same."""
        pinned = self.pins.pin(kind.settings(**settings))
        if name not in self.stages:
            if kind.name not in self.code:
                self.code[kind.name] = kind.code
            code = self.code[kind.name]
            if name in self.places:
                key = self.places[name].rpartition("/")[2]
            else:
                key = stage_key(kind.name, code, pinned, {role: stage.key for role, stage in inputs.items()})
            self.stages[name] = Stage(kind, name, pinned, inputs, code, key)
        existing = self.stages[name]
        if existing.kind is not kind or existing.settings != pinned:
            raise UserError(f"two different stages would be named '{name}': choose other names in the recipe")
        return existing


def _of_split(name: str, split: Split) -> str:
    return name if split == TRAIN else f"{name}[{split}]"


# --- Rows and tokens ------------------------------------------------------------------------------


def comparisons(graph: Graph, split: Split = TRAIN) -> Stage:
    """The comparisons of a split, with strengths from the recipe's judge if it names one."""
    strength = graph.recipe.data.strength
    read = rows_as_read(graph, split)
    if strength.judge is None:
        return read
    inputs = {READ: read, **_trained_judge(graph, strength.judge, "data.strength")}
    if split == VALIDATION:
        inputs[TRAINED] = comparisons(graph)
    name = _of_split(COMPARISONS_STAGE.name, split)
    return graph.stage(GRADED_STAGE, name, inputs, judge=strength.judge, seed=graph.recipe.seed, rule=strength.rule)


def rows_as_read(graph: Graph, split: Split = TRAIN) -> Stage:
    """The comparisons of a split before a judge gave them strengths. Strengths of validation rows are cut where those
    of the training rows were; of the validation settings, only a held-out share affects the training rows."""
    data = graph.recipe.data
    affects = split == VALIDATION or data.validation.fraction is not None
    return graph.stage(
        COMPARISONS_STAGE,
        _of_split(READ if data.strength.judge is not None else COMPARISONS_STAGE.name, split),
        {TRAINED: rows_as_read(graph)} if split == VALIDATION else {},
        parts=data.parts,
        split=split,
        validation=data.validation if affects else None,
    )


def panel(graph: Graph, name: str) -> Stage:
    """A panel, drawn without the prompts of earlier panels."""
    assert graph.recipe.evaluation is not None
    panels = graph.recipe.evaluation.panels
    spec = panels[name]
    earlier = [*panels][: [*panels].index(name)]
    inputs = {f"{EARLIER}{other}": panel(graph, other) for other in earlier}
    if spec.path is None:
        inputs["comparisons"] = rows_as_read(graph, VALIDATION)
    inputs[TRAINING] = rows_as_read(graph)
    stage_name = PANEL_STAGE.stage_name(name)
    return graph.stage(PANEL_STAGE, stage_name, inputs, size=spec.size, seed=spec.seed, path=spec.path)


def encoded(graph: Graph, model: ModelSource, suffix: str = "", split: Split = TRAIN) -> Stage:
    name = _of_split(f"{ENCODED_STAGE.name}{suffix}", split)
    inputs = {"comparisons": comparisons(graph, split)}
    return graph.stage(ENCODED_STAGE, name, inputs, model=model, max_length=graph.recipe.data.max_length)


def pilot_model(graph: Graph) -> tuple[ModelSource, str]:
    """The model for pilots and features, and a suffix for stage names if it is a proxy."""
    proxy = graph.recipe.pilots.model
    return (graph.recipe.model, "") if proxy is None else (proxy, "[proxy]")


def reference(
    graph: Graph, model: ModelSource, adapter: AdapterSettings | None, suffix: str = "", split: Split = TRAIN
) -> Stage:
    """The log-probabilities that a policy, perhaps with an adapter, starts from; or those of another model. A pilot
    that stands in for the model is its own reference: another one may have other tokens."""
    other = graph.recipe.reference
    name = f"{REFERENCE_STAGE.name}{suffix}"
    source: ModelSource | None = model
    four_bit = False
    if other == "none":
        source = None
    elif other is not None and model == graph.recipe.model:
        source = other
    elif adapter is not None and adapter.four_bit:
        four_bit = True
        name += "[4-bit]"
    inputs = {"encoded": encoded(graph, model, suffix, split)}
    return graph.stage(REFERENCE_STAGE, _of_split(name, split), inputs, model=source, four_bit=four_bit)


def features(graph: Graph, split: Split = TRAIN) -> Stage:
    """Prompt embeddings from the pilots' model."""
    model, suffix = pilot_model(graph)
    name = _of_split(f"{FEATURES_STAGE.name}{suffix}", split)
    return graph.stage(FEATURES_STAGE, name, {"comparisons": comparisons(graph, split)}, model=model)


# --- Pilots and scales ----------------------------------------------------------------------------


def pilot(graph: Graph, fold: int, seed: int | None) -> Stage:
    recipe = graph.recipe
    model, suffix = pilot_model(graph)
    choice = ObjectiveChoice(name=recipe.pilots.objective, settings=recipe.pilot_settings)
    training = recipe.seeded_training.with_overrides(recipe.pilots).without_validation
    if seed is not None:
        training = training.model_copy(update={"seed": seed})
    inputs = {"comparisons": comparisons(graph), "encoded": encoded(graph, model, suffix)}
    if choice.objective.reference:
        inputs["reference"] = reference(graph, model, training.adapter, suffix)
    return graph.stage(
        PILOT_STAGE,
        PILOT_STAGE.stage_name(fold if seed is None else with_seed(str(fold), seed)),
        inputs,
        model=model,
        fold=fold,
        folds=recipe.pilots.folds,
        fold_seed=recipe.pilots.fold_seed,
        objective=choice,
        beta=recipe.beta,
        training=training,
    )


def out_of_fold(graph: Graph) -> dict[str, Stage]:
    """Input name → out-of-fold values: `oof`, or one for each seed of the pilots."""
    seeds = graph.recipe.pilots.seeds
    if not seeds:
        return {OOF_STAGE.name: _out_of_fold(graph, None)}
    return {with_seed(OOF_STAGE.name, seed): _out_of_fold(graph, seed) for seed in seeds}


def _out_of_fold(graph: Graph, seed: int | None) -> Stage:
    model, suffix = pilot_model(graph)
    pilots = [pilot(graph, fold, seed) for fold in range(graph.recipe.pilots.folds)]
    inputs = {
        "encoded": encoded(graph, model, suffix),
        "reference": reference(graph, model, pilots[0].settings.training.adapter, suffix),
        **{stage.name: stage for stage in pilots},
    }
    name = OOF_STAGE.name if seed is None else OOF_STAGE.stage_name(seed)
    return graph.stage(OOF_STAGE, name, inputs, beta=graph.recipe.beta)


def scales(graph: Graph) -> None:
    """Every scale that is fitted before the policies."""
    for name, spec in graph.recipe.scales.items():
        if not ESTIMATORS[spec.estimator].joint and name not in graph.borrowed:
            scale(graph, name)


def scale(graph: Graph, name: str) -> Stage:
    if name in graph.borrowed:
        return graph.borrowed[name]
    spec = graph.recipe.scales[name]
    estimator = ESTIMATORS[spec.estimator]
    inputs = {"comparisons": comparisons(graph)}
    if estimator.features:
        inputs["features"] = features(graph)
    if estimator.pilots:
        inputs |= out_of_fold(graph)
    return graph.stage(
        SCALE_STAGE,
        SCALE_STAGE.stage_name(name),
        inputs,
        estimator=estimator_choice(graph, name),
        length_normalized=spec.length_normalized,
        beta=spec.beta if estimator.pilots else None,
    )


def estimator_choice(graph: Graph, name: str) -> EstimatorChoice:
    spec = graph.recipe.scales[name]
    pilots = graph.recipe.pilots
    return EstimatorChoice(
        name=spec.estimator,
        settings=ESTIMATORS[spec.estimator].resolve(graph.recipe.scale_settings(name)),
        unit=spec.resolved.unit,
        folds=pilots.folds,
        fold_seed=pilots.fold_seed,
        domains=spec.domains,
    )


def checks(graph: Graph) -> None:
    """A check of every scale that is fitted to pilots in this run."""
    for name, spec in graph.recipe.scales.items():
        estimator = ESTIMATORS[spec.estimator]
        of_margins = issubclass(estimator.settings, MarginSettings)  # others have no residuals to be checked on
        of_prompts = spec.unit == "prompt"  # pairs of one prompt are alike, so they cannot be permuted
        if estimator.pilots and of_margins and not estimator.joint and of_prompts and name not in graph.borrowed:
            fitted = scale(graph, name)
            inputs = {**fitted.inputs, SCALE_STAGE.name: fitted}
            graph.stage(CHECK_STAGE, CHECK_STAGE.stage_name(name), inputs, **dict(fitted.settings))


# --- Policies -------------------------------------------------------------------------------------


def policies(graph: Graph) -> None:
    for name in graph.recipe.trained:
        policy(graph, name)


def policy(graph: Graph, name: str) -> Stage:
    recipe, model = graph.recipe, graph.recipe.model
    spec = recipe.trained[name]
    choice = recipe.choice_of(spec)
    training = recipe.seeded_training.with_overrides(spec.training)
    inputs = {"comparisons": comparisons(graph), "encoded": encoded(graph, model)}
    if choice.objective.reference:
        inputs["reference"] = reference(graph, model, training.adapter)
    joint: EstimatorChoice | None = None
    if spec.scale is not None:
        is_joint = ESTIMATORS[recipe.scales[spec.scale].estimator].joint
        if is_joint and spec.scale not in graph.borrowed:
            inputs["features"] = features(graph)
            joint = _following(graph, spec.scale, choice, training)
        else:
            inputs["scale"] = scale(graph, spec.scale)
    if training.validate_updates is not None:
        inputs |= _validation_inputs(graph, name, inputs, training)
    return graph.stage(
        POLICY_STAGE,
        POLICY_STAGE.stage_name(name),
        inputs,
        model=model,
        objective=choice,
        beta=recipe.beta,
        training=training,
        joint=joint,
    )


def _following(graph: Graph, name: str, policy: ObjectiveChoice, training: TrainingSettings) -> EstimatorChoice:
    """A joint scale's settings, with those filled in that the estimator takes from its policy."""
    choice = estimator_choice(graph, name)
    estimator = ESTIMATORS[choice.name]
    from_policy = dict(policy.resolved) | {"seed": training.random_seed, "placement": policy.objective.placement}
    followed = {key: from_policy[key] for key in estimator.follows}
    resolved = estimator.resolve(followed | dict(graph.recipe.scale_settings(name)))
    return choice.model_copy(update={"settings": resolved})


def _validation_inputs(
    graph: Graph, name: str, inputs: Mapping[str, Stage], training: TrainingSettings
) -> dict[str, Stage]:
    """What a policy's training is watched with. A frozen scale predicts q from features like those that it was fitted
    to."""
    scale_name = graph.recipe.trained[name].scale
    of_file = scale_name is not None and isinstance(graph.recipe.scales[scale_name].resolved, GivenSettings)
    if of_file or scale_name in graph.borrowed:
        raise UserError(
            f"policies.{name}: its scale is of another run or of a file, which predicts no q for validation data; "
            "leave out training.validate_updates"
        )
    model = graph.recipe.model
    needed = {"comparisons": comparisons(graph, VALIDATION), "encoded": encoded(graph, model, split=VALIDATION)}
    if "reference" in inputs:
        needed["reference"] = reference(graph, model, training.adapter, split=VALIDATION)
    if "features" in inputs or ("scale" in inputs and "features" in inputs["scale"].inputs):
        needed["features"] = features(graph, VALIDATION)
    return {f"{FOR_VALIDATION}{role}": stage for role, stage in needed.items()}


# --- Answers and verdicts -------------------------------------------------------------------------


def generation(graph: Graph, candidate: str, panel_name: str) -> Stage:
    """`candidate` is one training of a policy, the initial model, or answers made elsewhere."""
    evaluation, model = graph.recipe.evaluation, graph.recipe.model
    assert evaluation is not None
    elsewhere = evaluation.answers.get(candidate)
    if isinstance(elsewhere, ModelSource):
        model = elsewhere
    answers = elsewhere if isinstance(elsewhere, Place) else None
    server = elsewhere if isinstance(elsewhere, Endpoint) else None if answers is not None else evaluation.generator
    inputs = {"panel": panel(graph, panel_name)}
    if candidate in graph.recipe.trained and candidate not in evaluation.answers:
        inputs["policy"] = policy(graph, candidate)
    return graph.stage(
        GENERATION_STAGE,
        GENERATION_STAGE.stage_name(candidate, panel_name),
        inputs,
        model=model,
        max_new_tokens=evaluation.max_new_tokens,
        answers=answers,
        sampling=None if answers is not None else evaluation.sampling,
        server=None if server is None else server.naming(candidate),
    )


def judgement(graph: Graph, candidate: str, panel_name: str, judge_name: str) -> Stage:
    evaluation = graph.recipe.evaluation
    assert evaluation is not None
    judge = evaluation.all_judges[judge_name]
    is_pairwise = kind_of(judge).pairwise
    inputs = {"panel": panel(graph, panel_name), "generation": generation(graph, candidate, panel_name)}
    if is_pairwise:
        inputs["baseline"] = generation(graph, graph.recipe.baseline_of(candidate), panel_name)
    inputs |= _trained_judge(graph, judge, judge_name)
    name = judgement_name(candidate, panel_name, judge_name)
    seed = graph.recipe.seed if is_pairwise else None
    return graph.stage(JUDGEMENT_STAGE, name, inputs, judge=judge, seed=seed)


def _trained_judge(graph: Graph, judge: JudgeSettings, name: str) -> dict[str, Stage]:
    """The judge's own stage, if it is trained here. A judge without a name is the only one."""
    if not isinstance(judge, TrainedJudge):
        return {}
    model = judge.train.model or graph.recipe.model
    stage_name = JUDGE_STAGE.stage_name(*([name] if name else []))
    return {JUDGE_STAGE.name: graph.stage(JUDGE_STAGE, stage_name, {}, training=judge.train, model=model)}


def judges_measured(graph: Graph) -> None:
    """A stage for every judge that is not trained here: those have held-out pairs of their own."""
    evaluation = graph.recipe.evaluation
    if evaluation is None or evaluation.labelled is None:
        return
    for name, judge in evaluation.all_judges.items():
        if not isinstance(judge, TrainedJudge):
            stage_name = MEASURED_STAGE.stage_name(*([name] if name else []))
            graph.stage(
                MEASURED_STAGE, stage_name, {}, judge=judge, seed=graph.recipe.seed, labelled=evaluation.labelled
            )


def tasks(graph: Graph) -> None:
    """One stage for the initial model, and one for each training of a policy."""
    evaluation = graph.recipe.evaluation
    if evaluation is None or not evaluation.tasks:
        return
    for name in (INITIAL, *graph.recipe.trained):
        graph.stage(
            TASKS_STAGE,
            TASKS_STAGE.stage_name(name),
            {} if name == INITIAL else {"policy": policy(graph, name)},
            model=graph.recipe.model,
            tasks=evaluation.tasks,
            folder=evaluation.task_folder,
        )


def summary(graph: Graph) -> None:
    evaluation = graph.recipe.evaluation
    if evaluation is None:
        return
    candidates = [*graph.recipe.candidates, *([INITIAL] if evaluation.initial else [])]
    runs = {name: graph.recipe.runs[name] for name in candidates}
    inputs = {"comparisons": comparisons(graph)}
    for name in evaluation.answered:
        drawn = panel(graph, name)
        inputs[drawn.name] = drawn
        for trained in (each for trainings in runs.values() for each in trainings):
            for judge in evaluation.all_judges:
                scored = judgement(graph, trained.name, name, judge)
                inputs[scored.name] = scored
    graph.stage(
        SUMMARY_STAGE,
        SUMMARY_STAGE.name,
        inputs,
        runs=runs,
        panels=evaluation.answered,
        judges=[*evaluation.all_judges],
        opponents=evaluation.all_opponents,
        selected_among=evaluation.selected_among,
        primary=graph.recipe.primary,
        seed=graph.recipe.seed,
    )


# --- The next round's data ------------------------------------------------------------------------


def pairs(graph: Graph) -> None:
    """Prompts, several answers to each, and pairs of them."""
    recipe, spec = graph.recipe, graph.recipe.pairs
    if spec is None:
        return
    prompts = _prompts_of_pairs(graph, spec)
    inputs = {
        "panel": prompts,
        "generation": _samples(graph, spec, prompts),
        **_trained_judge(graph, spec.judge, "pairs.judge"),
    }
    graph.stage(
        PAIRS_STAGE,
        PAIRS_STAGE.name,
        inputs,
        judge=spec.judge,
        seed=recipe.seed,
        select=spec.select,
        rule=spec.strength,
    )


def _prompts_of_pairs(graph: Graph, spec: PairsRecipe) -> Stage:
    """Those of a file, but none that somebody will be judged on; or those of the training data."""
    panels = () if graph.recipe.evaluation is None else graph.recipe.evaluation.panels
    inputs = {f"{EARLIER}{other}": panel(graph, other) for other in panels}
    if spec.prompts is None:
        inputs["comparisons"] = comparisons(graph)
    return graph.stage(PANEL_STAGE, "prompts", inputs, size=spec.size, seed=spec.sampling.seed, path=spec.prompts)


def _samples(graph: Graph, spec: PairsRecipe, prompts: Stage) -> Stage:
    """Answers of the policy; of one with several seeds, the first."""
    inputs = {"panel": prompts}
    if spec.policy != INITIAL:
        inputs["policy"] = policy(graph, graph.recipe.runs[spec.policy][0].name)
    return graph.stage(
        GENERATION_STAGE,
        "samples",
        inputs,
        model=graph.recipe.model,
        max_new_tokens=spec.max_new_tokens,
        answers=None,
        sampling=spec.sampling,
        server=None if spec.generator is None else spec.generator.naming(spec.policy),
    )


# What a recipe asks for; everything else is needed by one of these.
WANTED: list[Callable[[Graph], None]] = [scales, checks, policies, pairs, judges_measured, tasks, summary]

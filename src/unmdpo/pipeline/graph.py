"""From a recipe to stages: what depends on what, and which settings each result depends on."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unmdpo.catalog import BETA, CATALOG, INITIAL
from unmdpo.engine.judge import look_here
from unmdpo.pipeline.common import CONVERTED
from unmdpo.pipeline.fingerprint import Fingerprints
from unmdpo.pipeline.stage import Stage
from unmdpo.pipeline.stages import KINDS
from unmdpo.recipe import Recipe
from unmdpo.recipe.data import ModelRecipe
from unmdpo.recipe.training import PolicyRecipe

BESIDE = {"joint", "ema", "sigmoid-joint"}  # estimators that learn inside a policy's training
WITHOUT_PILOTS = {"constant", "entropy"}


def build(recipe: Recipe, fingerprints: Fingerprints, borrowed: Mapping[str, Stage]) -> dict[str, Stage]:
    """Every stage by its name, inputs first. `borrowed` are scales that come from other runs."""
    return _Builder(recipe, fingerprints, borrowed).stages()


@dataclass
class _Builder:
    recipe: Recipe
    fingerprints: Fingerprints
    borrowed: Mapping[str, Stage]
    made: dict[str, Stage] = field(default_factory=dict)

    def stages(self) -> dict[str, Stage]:
        for name in self.recipe.scales:
            if self.recipe.scales[name].estimator not in BESIDE and name not in self.borrowed:
                self.scale(name)
        for name in self.recipe.policies:
            self.policy(name)
        if self.recipe.evaluation is not None:
            self.summary()
        return self.made

    def _stage(self, kind: str, name: str, settings: Mapping[str, Any], **inputs: Stage) -> Stage:
        return self._with(kind, name, settings, inputs)

    def _with(self, kind: str, name: str, settings: Mapping[str, Any], inputs: Mapping[str, Stage]) -> Stage:
        if name not in self.made:
            self.made[name] = Stage(KINDS[kind], name, settings, inputs)
        return self.made[name]

    def _model(self, model: ModelRecipe) -> dict[str, Any]:
        """The model as the recipe names it, with its files' checksums where it is a local folder."""
        files = self.fingerprints.of(model.path)
        if model.template is not None and model.template.endswith(".jinja"):
            files = (files or {}) | (self.fingerprints.of(model.template) or {})
        return model.model_dump(mode="json") | {"files": files}

    def _converted(self, model: ModelRecipe, suffix: str = "") -> dict[str, Stage]:
        """What stages that load the model need: its conversion, if it comes as a GGUF file."""
        if model.gguf_file is None:
            return {}
        settings = {"model": self._model(model)}
        return {CONVERTED: self._stage("converted", f"converted{suffix}", settings)}

    def comparisons(self) -> Stage:
        """What is trained on; of the validation settings only a held-out share matters to it."""
        data = self.recipe.data.model_dump(mode="json", exclude={"max_length", "validation"})
        held_out = self.recipe.data.validation
        if held_out.fraction is not None:
            data["validation"] = {"fraction": held_out.fraction, "seed": held_out.seed}
        return self._stage("comparisons", "comparisons", {"data": data, "files": self._files(data["path"])})

    def validation(self) -> Stage:
        data = self.recipe.data.model_dump(mode="json", exclude={"max_length"})
        settings = {"data": data, "files": self._files(data["path"], data["validation"]["path"])}
        return self._stage("validation", "validation", settings)

    def _files(self, *places: str | None) -> dict[str, Any]:
        return {place: self.fingerprints.of(place) for place in places if place is not None}

    def encoded(self, model: ModelRecipe, suffix: str = "") -> Stage:
        settings = {"model": self._model(model), "max_length": self.recipe.data.max_length}
        inputs = {"comparisons": self.comparisons()} | self._converted(model, suffix)
        return self._with("encoded", f"encoded{suffix}", settings, inputs)

    def reference(self, model: ModelRecipe, suffix: str = "") -> Stage:
        inputs = {"encoded": self.encoded(model, suffix)} | self._converted(model, suffix)
        return self._with("reference", f"reference{suffix}", {"model": self._model(model)}, inputs)

    @property
    def _pilot_model(self) -> tuple[ModelRecipe, str]:
        """The model of pilots and features; a proxy's stages carry its name."""
        proxy = self.recipe.pilots.model
        return (self.recipe.model, "") if proxy is None else (proxy, "[proxy]")

    def features(self) -> Stage:
        model, suffix = self._pilot_model
        settings = {"model": self._model(model)}
        inputs = {"comparisons": self.comparisons()} | self._converted(model, suffix)
        return self._with("features", f"features{suffix}", settings, inputs)

    def pilot(self, fold: int) -> Stage:
        pilots, (model, suffix) = self.recipe.pilots, self._pilot_model
        changes: dict[str, Any] = {"updates": pilots.updates, "epochs": pilots.epochs}
        changes["adapter"] = _dump(pilots.adapter)
        if pilots.learning_rate is not None:
            changes["learning_rate"] = pilots.learning_rate
        if pilots.seed is not None:
            changes["seed"] = pilots.seed
        settings = {
            "model": self._model(model),
            "fold": fold,
            "folds": pilots.folds,
            "fold_seed": pilots.fold_seed,
            "objective": pilots.objective,
            "objective_settings": self._objective_settings(pilots.objective, {}),
            "training": self._training(changes),
        }
        inputs = {"comparisons": self.comparisons(), "encoded": self.encoded(model, suffix)}
        inputs |= self._converted(model, suffix)
        if CATALOG[pilots.objective].reference:
            inputs["reference"] = self.reference(model, suffix)
        return self._with("pilot", f"pilot[{fold}]", settings, inputs)

    def oof(self) -> Stage:
        model, suffix = self._pilot_model
        pilots = {f"pilot[{fold}]": self.pilot(fold) for fold in range(self.recipe.pilots.folds)}
        inputs = {"encoded": self.encoded(model, suffix), "reference": self.reference(model, suffix)}
        return self._with("oof", "oof", {"beta": self.recipe.beta}, inputs | pilots)

    def scale(self, name: str) -> Stage:
        recipe = self.recipe.scales[name]
        inputs = {"comparisons": self.comparisons()}
        if recipe.estimator != "constant":
            inputs["features"] = self.features()
        if recipe.estimator not in WITHOUT_PILOTS:
            inputs["oof"] = self.oof()
        settings = self._estimator(name) | {"length_normalized": recipe.length_normalized}
        return self._with("scale", f"scale[{name}]", settings, inputs)

    def _estimator(self, name: str) -> dict[str, Any]:
        recipe, pilots = self.recipe.scales[name], self.recipe.pilots
        return {
            "estimator": recipe.estimator,
            "settings": {key: value for key, value in recipe.settings.items() if value is not None},
            "folds": pilots.folds,
            "fold_seed": pilots.fold_seed,
            "domains": recipe.domains,
        }

    def policy(self, name: str) -> Stage:
        recipe, model = self.recipe.policies[name], self.recipe.model
        settings = {
            "model": self._model(model),
            "objective": recipe.objective,
            "objective_settings": self._objective_settings(recipe.objective, recipe.settings),
            "beta": self.recipe.beta,
            "training": self._training(_overrides(recipe)),
        }
        inputs = {"comparisons": self.comparisons(), "encoded": self.encoded(model)} | self._converted(model)
        if CATALOG[recipe.objective].reference:
            inputs["reference"] = self.reference(model)
        if recipe.scale is not None and recipe.scale in self.borrowed:
            inputs["scale"] = self.borrowed[recipe.scale]
        elif recipe.scale is not None and self.recipe.scales[recipe.scale].estimator in BESIDE:
            settings |= self._estimator(recipe.scale)
            inputs["features"] = self.features()
        elif recipe.scale is not None:
            inputs["scale"] = self.scale(recipe.scale)
        return self._with("policy", f"policy[{name}]", settings, inputs)

    def _objective_settings(self, objective: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """What the recipe gives, and its β₀ where the objective's own default is the paper's."""
        beta = CATALOG[objective].settings.get("beta")
        common = {"beta": self.recipe.beta} if beta is not None and beta.default == BETA else {}
        return common | dict(given)

    def _training(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """The recipe's training with what one pilot or policy does differently."""
        common = self.recipe.training.model_dump(mode="json") | {"seed": self.recipe.seed}
        return common | dict(changes)

    def summary(self) -> Stage:
        evaluation = self.recipe.evaluation
        assert evaluation is not None
        policies = [*self.recipe.policies, *([INITIAL] if evaluation.initial else [])]
        inputs: dict[str, Stage] = {}
        for panel in evaluation.answered:
            inputs[f"panel[{panel}]"] = self.panel(panel)
            for policy in policies:
                inputs[f"judgement[{policy},{panel}]"] = self.judgement(policy, panel)
        settings: dict[str, Any] = {
            "policies": policies,
            "panels": evaluation.answered,
            "baseline": evaluation.baseline,
            "seed": self.recipe.seed,
        }
        if evaluation.opponents:
            settings["opponents"] = evaluation.all_opponents
        return self._with("summary", "summary", settings, inputs)

    def panel(self, name: str) -> Stage:
        assert self.recipe.evaluation is not None
        panels = self.recipe.evaluation.panels
        earlier = [*panels][: [*panels].index(name)]
        inputs = {f"after {other}": self.panel(other) for other in earlier}
        settings: dict[str, Any] = {"size": panels[name].size, "seed": panels[name].seed}
        path = panels[name].path
        if path is None:
            inputs |= {"validation": self.validation()}
        else:
            settings |= {"path": path, "files": self._files(path)}
        return self._with("panel", f"panel[{name}]", settings, inputs)

    def generation(self, policy: str, panel: str) -> Stage:
        assert self.recipe.evaluation is not None
        settings = {
            "model": self._model(self.recipe.model),
            "max_new_tokens": self.recipe.evaluation.max_new_tokens,
        }
        inputs = {"panel": self.panel(panel)} | self._converted(self.recipe.model)
        if policy != INITIAL:
            inputs["policy"] = self.policy(policy)
        return self._with("generation", f"generation[{policy},{panel}]", settings, inputs)

    def judgement(self, policy: str, panel: str) -> Stage:
        assert self.recipe.evaluation is not None
        judge = self.recipe.evaluation.judge
        source = judge.path if judge.function is None else _source_of(judge.function)
        settings: dict[str, Any] = {"judge": judge.model_dump(mode="json"), "files": self._files(source)}
        inputs = {"panel": self.panel(panel), "generation": self.generation(policy, panel)}
        if judge.endpoint is not None:  # it compares pairs
            settings |= {"seed": self.recipe.seed}
            inputs["baseline"] = self.generation(self.recipe.evaluation.baseline, panel)
        return self._with("judgement", f"judgement[{policy},{panel}]", settings, inputs)


def _source_of(function: str) -> str | None:
    """The file that defines `package.module:function`, so that an edited judge judges again."""
    look_here()
    try:
        found = importlib.util.find_spec(function.partition(":")[0])
    except (ImportError, ValueError):
        found = None
    return None if found is None else found.origin


def _overrides(recipe: PolicyRecipe) -> dict[str, Any]:
    given = {
        key: value for key, value in recipe.training.model_dump(mode="json").items() if value is not None
    }
    if "updates" in given or "epochs" in given:
        given = {"updates": None, "epochs": None} | given
    return given


def _dump(adapter: Any) -> dict[str, Any] | None:
    dumped: dict[str, Any] | None = None if adapter is None else adapter.model_dump(mode="json")
    return dumped

"""Builds the stages of one recipe: each is added once, after the stages it needs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from unmdpo.engine.models import read_template
from unmdpo.engine.settings import ModelSource
from unmdpo.pipeline.fingerprint import Fingerprints
from unmdpo.pipeline.stage import Kind, PinnedModel, S, Stage
from unmdpo.recipe import Recipe

Files = dict[str, dict[str, str] | None]  # path → name → SHA-256; None for a name on the Hub


@dataclass
class Graph:
    recipe: Recipe
    fingerprints: Fingerprints
    borrowed: Mapping[str, Stage[Any]] = field(default_factory=dict)  # scales from other runs, by name
    stages: dict[str, Stage[Any]] = field(default_factory=dict)  # by name, inputs first

    def stage(self, kind: Kind[S], settings: S, inputs: Mapping[str, Stage[Any]], name: str | None = None) -> Stage[S]:
        """Adds a stage, or returns the existing one with this name."""
        new = Stage(kind, name or kind.name, settings, inputs)
        existing: Stage[S] = self.stages.setdefault(new.name, new)
        return existing

    def pinned(self, model: ModelSource) -> PinnedModel:
        """The model with checksums of the files that affect its output, and its chat template's text."""
        template = None if model.template is None else read_template(model.template)
        files = self.fingerprints.of_model(model.path, model.gguf_file)
        return PinnedModel(**(dict(model) | {"template": template}), files=files)

    def files(self, places: Iterable[str | None]) -> Files:
        return {place: self.fingerprints.of(place) for place in places if place is not None}

    def data_files(self, places: Iterable[str | None]) -> Files:
        return {place: self.fingerprints.of_data(place) for place in places if place is not None}

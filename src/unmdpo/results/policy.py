"""A policy that answers anyone, not only a panel."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path, PosixPath
from typing import Any

from unmdpo.core.errors import UserError
from unmdpo.data.identity import PromptLike
from unmdpo.data.rows import as_prompts
from unmdpo.engine.inference.generate import GenerationSettings, Generator
from unmdpo.engine.settings import ModelSource
from unmdpo.engine.text.encode import Encoder
from unmdpo.stages.generation import open_policy

LONGEST = 512  # tokens of an answer


class LoadedPolicy:
    """A policy, or without a folder its initial model, loaded when it is first asked; greedy, as in evaluation."""

    def __init__(
        self, source: ModelSource, folder: Path | None = None, *, four_bit: bool = False, max_new_tokens: int = LONGEST
    ) -> None:
        self.source, self.folder, self.four_bit, self.max_new_tokens = source, folder, four_bit, max_new_tokens

    @cached_property
    def generator(self) -> Generator:
        model = open_policy(self.source, self.folder, four_bit=self.four_bit)
        return Generator(model, Encoder.of(self.source), GenerationSettings(self.max_new_tokens))

    def answers(self, asked: Sequence[PromptLike]) -> list[str]:
        prompts = as_prompts(asked)
        texts = {made.prompt: made.text for batch in self.generator.generate(prompts) for made in batch}
        return [texts[place] for place in range(len(prompts))]


class Policy(PosixPath):
    """A policy's folder, for `from_pretrained`, that also answers."""

    source: ModelSource | None = None  # its initial model; None of what lies inside the folder
    four_bit: bool = False
    _loaded: LoadedPolicy | None = None

    @classmethod
    def at(cls, folder: str | Path, source: ModelSource | None, four_bit: bool) -> "Policy":
        policy = cls(folder)
        policy.source, policy.four_bit = source, four_bit
        return policy

    def __reduce__(self) -> Any:  # copied, or sent to another process, it still answers
        return self.at, (str(self), self.source, self.four_bit)

    def generate(self, asked: Sequence[PromptLike], max_new_tokens: int = LONGEST) -> list[str]:
        """Greedy answers to questions or conversations. The model stays loaded for the next ones."""
        if max_new_tokens < 1 or max_new_tokens % 1:
            raise UserError(f"max_new_tokens should be a whole number from 1, not {max_new_tokens}")
        if self.source is None:
            raise UserError(f"{self} is not a policy's folder")
        if self._loaded is None or self._loaded.max_new_tokens != max_new_tokens:
            self._loaded = LoadedPolicy(self.source, self, four_bit=self.four_bit, max_new_tokens=max_new_tokens)
        return self._loaded.answers(asked)

"""A policy that answers anyone, not only a panel."""

from collections.abc import Sequence
from functools import cached_property

from unmdpo.catalog.objectives import INITIAL
from unmdpo.data.identity import Message, Prompt
from unmdpo.engine.inference.generate import GenerationSettings, Generator
from unmdpo.engine.pairs.encode import Encoder
from unmdpo.engine.settings import ModelSource
from unmdpo.pipeline.artifacts import MODEL
from unmdpo.pipeline.run import Run
from unmdpo.pipeline.stage import CONVERTED
from unmdpo.pipeline.stages.answers import open_policy
from unmdpo.pipeline.stages.policies import POLICY_STAGE

Asked = str | Sequence[Message]  # one question, or a conversation


class Speaker:
    """A policy of a run, or its initial model, loaded when it is first asked; greedy, as in evaluation."""

    def __init__(self, run: Run, policy: str, max_new_tokens: int = 512) -> None:
        self.run, self.policy, self.max_new_tokens = run, policy, max_new_tokens
        self.folder = None if policy == INITIAL else run.policy(policy)

    @cached_property
    def source(self) -> ModelSource:
        """The initial model: its converted copy, if there is one."""
        finished = self.run.finished.get(CONVERTED)
        model = self.run.recipe.model
        return model if finished is None else model.located(str(MODEL.load(finished)))

    @cached_property
    def generator(self) -> Generator:
        four_bit = False
        if self.folder is not None:
            adapter = self.run.stages[POLICY_STAGE.called(self.policy)].settings.training.adapter
            four_bit = adapter is not None and adapter.four_bit
        model = open_policy(self.source, self.folder, four_bit=four_bit)
        return Generator(model, Encoder.of(self.source), GenerationSettings(self.max_new_tokens))

    def answers(self, asked: Sequence[Asked]) -> list[str]:
        prompts: list[Prompt] = [(Message("user", one),) if isinstance(one, str) else tuple(one) for one in asked]
        texts = {made.prompt: made.text for batch in self.generator.generate(prompts) for made in batch}
        return [texts[place] for place in range(len(prompts))]

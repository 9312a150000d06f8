"""Models behind an OpenAI-compatible API."""

from typing import Self

from pydantic import Field

from unmdpo.settings import Strict

ADDRESS = r"^https?://[^@?#\s]+$"  # keys and passwords belong in the environment


class Vllm(Strict):
    vllm: list[str] = Field(description="further arguments for `vllm serve`, such as --dtype float32")


class Endpoint(Strict):
    """`key` names an environment variable, so the secret itself is never part of any settings."""

    endpoint: str = Field(pattern=ADDRESS, description="URL of an OpenAI-compatible API, without any key")
    model: str = Field(description="the model's name at the endpoint; {policy} stands for a policy's name")
    key: str = Field("OPENAI_API_KEY", description="environment variable with the endpoint's API key")

    def naming(self, policy: str) -> Self:
        """The endpoint for one policy."""
        return self.model_copy(update={"model": self.model.replace("{policy}", policy)})

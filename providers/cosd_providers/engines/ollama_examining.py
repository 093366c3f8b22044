"""What Ollama is asked by the probe: freely, and without the adapter's own checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from cosd_providers.engines.ollama import DIALECT, OllamaClient
from cosd_providers.engines.openai.client import Prefix
from cosd_providers.engines.openai.examining import CompletionsWire
from cosd_providers.engines.openai.wire import Answer, bill
from cosd_providers.findings import Prompt, Said, Scoring, unseen
from cosd_providers.greedy import TIES
from cosd_providers.http.transport import Transport
from cosd_providers.usage import Usage

__all__ = ["OllamaWire"]


class OllamaWire(CompletionsWire):
    """An Ollama, asked freely: see `findings.Wire`.

    Args:
        transport: the server.
        client: makes requests, and reads what is answered.
    """

    def __init__(self, transport: Transport, client: OllamaClient) -> None:
        def body(prompt: object, limit: int, top: int) -> Mapping[str, object]:
            return {**client.body(Prefix(str(prompt), ""), limit), "top_logprobs": top}

        super().__init__(
            transport, client.path, body, client.facts.ends, client.facts.model, chat=None, models=DIALECT.models
        )
        self._client = client

    async def ask(
        self, prompts: Sequence[Prompt], usage: Usage, *, limit: int = 1, top: int = TIES, temperature: float = 0.0
    ) -> list[Said]:
        """One text."""
        if len(prompts) != 1 or not isinstance(prompts[0], str):
            raise unseen(self._transport.endpoint, "/api/generate takes one text at a time")
        return await super().ask(prompts, usage, limit=limit, top=top, temperature=temperature)

    async def score(self, text: str, usage: Usage) -> Scoring:  # noqa: ARG002
        """No field asks for that."""
        raise unseen(self._transport.endpoint, "/api/generate tells nothing of the tokens of a prompt")

    async def recite(self, text: str, prompt: str, usage: Usage) -> Said:  # noqa: ARG002
        """No field makes it do that."""
        raise unseen(self._transport.endpoint, "/api/generate cannot be made to write a given text")

    async def _post(self, body: Mapping[str, object], usage: Usage) -> Answer:
        """What stands beside the options elsewhere is one of them."""
        sent: dict[str, Any] = {**body}
        options = {**cast("Mapping[str, object]", sent["options"]), "temperature": sent.pop("temperature")}
        answer = self._client.read(await self._transport.post(self._path, {**sent, "options": options}, usage=usage))
        bill(usage, answer.usage)
        return answer

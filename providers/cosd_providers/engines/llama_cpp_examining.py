"""What llama.cpp's server is asked by the probe: freely, and without the adapter's own checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from pydantic import BaseModel

from cosd_providers.engines.llama_cpp import FIELDS, Answer, LlamaCppClient, Models, bill
from cosd_providers.engines.openai.examining import CompletionsWire, grammar, reply
from cosd_providers.findings import Prompt, Said, Scoring
from cosd_providers.greedy import TIES, Position
from cosd_providers.parsing import parse
from cosd_providers.usage import Usage

__all__ = ["LlamaCppWire"]

_FORCED = 48  # tokens, at most, of a text that the server is made to write


class Written(Answer):
    """An answer with its text."""

    content: str = ""


class Started(BaseModel):
    """What `/props` tells of how the server was started."""

    total_slots: int | None = None


class Meta(BaseModel):
    """What `/v1/models` tells of a model's file."""

    n_ctx_train: int | None = None


class Named(BaseModel):
    """A model of `/v1/models`."""

    id: str
    meta: Meta | None = None


class Trained(BaseModel):
    """The answer of `/v1/models`."""

    data: list[Named]


class LlamaCppWire:
    """A llama.cpp server, asked freely: see `findings.Wire`.

    Args:
        client: makes its requests.
    """

    def __init__(self, client: LlamaCppClient) -> None:
        self._client = client
        self._transport = client.transport
        self._model = client.facts.info.model

    async def settings(self) -> dict[str, int]:
        """How many slots it has, and how long a context the model was trained for."""
        slots = parse(Started, await self._transport.get("/props"), self._transport.endpoint).total_slots
        listed = parse(Trained, await self._transport.get("/v1/models"), self._transport.endpoint).data
        trained = next((one.meta.n_ctx_train for one in listed if one.id == self._model and one.meta), 0)
        return {"slots": slots or 0, "trained": trained or 0}

    async def models(self) -> list[str]:
        """What `/v1/models` lists."""
        listed = parse(Models, await self._transport.get("/v1/models"), self._transport.endpoint)
        return [model.id for model in listed.data]

    async def ask(
        self, prompts: Sequence[Prompt], usage: Usage, *, limit: int = 1, top: int = TIES, temperature: float = 0.0
    ) -> list[Said]:
        """One request; an empty text before ids stands for the beginning of sequence, where the model has one."""
        sent = [prompt if isinstance(prompt, str) else ["", *prompt] for prompt in prompts]
        return await self._sent(sent, usage, n_predict=limit, n_probs=top, temperature=temperature)

    async def score(self, text: str, usage: Usage) -> Scoring:
        """By the other route, if at all: `/completion` has no field for it."""
        model = self._model

        def body(prompt: object, limit: int, top: int) -> Mapping[str, object]:
            return {"model": model, "prompt": prompt, "max_tokens": limit, "logprobs": top, "temperature": 0}

        other = CompletionsWire(self._transport, "/v1/completions", body, set(), model)
        return await other.score(text, usage)

    async def recite(self, text: str, prompt: str, usage: Usage) -> Said:
        """By a grammar that allows nothing else."""
        fields = {"n_predict": _FORCED, "n_probs": TIES, "grammar": grammar(text)}
        return (await self._sent([prompt], usage, **fields))[0]

    async def reply(self, message: str, limit: int, usage: Usage, *, started: str | None = None, way: str = "") -> Said:
        """By the chat route."""
        path, model = "/v1/chat/completions", self._model
        return await reply(self._transport, path, model, message, limit, usage, started=started, way=way)

    async def _sent(self, prompts: Sequence[object], usage: Usage, **fields: object) -> list[Said]:
        more = {"return_tokens": True, "response_fields": [*FIELDS, "content"]}
        body = self._client.body(prompts[0] if len(prompts) == 1 else list(prompts), **fields, **more)
        found = await self._transport.post("/completion", body, usage=usage)
        said: list[Said] = []
        answers = cast("list[object]", found) if isinstance(found, list) else [cast("object", found)]
        for one in sorted(
            (parse(Written, one, self._transport.endpoint) for one in answers), key=lambda one: one.index
        ):
            bill(usage, one)
            said.append(self._said(one))
        return said

    def _said(self, one: Written) -> Said:
        # What is hidden shows with the token that completes its character: here the bytes count, not the tokens.
        positions = self._client.positions(one)
        if len(positions) < len(one.tokens):
            positions = [
                Position(self._client.choice(entry), [self._client.choice(top) for top in entry.top_logprobs])
                for entry in one.completion_probabilities
            ]
        return Said(
            one.content,
            positions,
            one.tokens_evaluated,
            one.cached,
            one.tokens_predicted,
            one.stop_type == "eos",
        )

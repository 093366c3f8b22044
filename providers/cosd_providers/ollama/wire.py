"""The wire of Ollama's `/api/generate`: one answer, or one event of its stream, and what it says of itself.

Its tokens have the shape of OpenAI's chat route, so an answer becomes one of `openai.wire` and is read as all others.
"""

from __future__ import annotations

from math import isclose

from pydantic import BaseModel

from cosd_providers.engines.openai.wire import Answer, Billed, Cached, Completion, Logprobs, Named

__all__ = ["Event", "Running", "Version"]

_NOISE = 1e-4  # of a logarithm


class Event(BaseModel):
    """An answer, or an event of a stream; the last event has `done` and what it cost.

    Attributes:
        response: the text that it adds.
        thinking: text that the server has taken out of the answer.
        done: whether nothing follows.
        done_reason: `"stop"` (the end of sequence, which is not shown), `"length"` (the limit, or the end of the
            context) or, where no model has written, `"load"`.
        logprobs: the tokens of this text; the server may leave out those that do not complete a character.
        prompt_eval_count: tokens of the prompt; on some versions without those from the cache.
        prompt_eval_cached_count: those from the cache. Where it is told, `prompt_eval_count` holds them too.
        eval_count: tokens written, the end of sequence too.
    """

    response: str = ""
    thinking: str | None = None
    done: bool = False
    done_reason: str | None = None
    logprobs: list[Named] | None = None
    prompt_eval_count: int | None = None
    prompt_eval_cached_count: int | None = None
    eval_count: int | None = None

    @property
    def answer(self) -> Answer:
        """The same as OpenAI's routes would say it."""
        choice = Completion(
            text=self.response,
            message=None,
            logprobs=None if self.logprobs is None else Logprobs(content=[*map(_marked, self.logprobs)]),
            finish_reason=(self.done_reason or None) if self.done else None,
        )
        return Answer(choices=[choice], usage=self._billed if self.done else None)

    @property
    def _billed(self) -> Billed:
        cached = self.prompt_eval_cached_count
        return Billed(
            prompt_tokens=self.prompt_eval_count or 0,
            completion_tokens=self.eval_count,
            prompt_tokens_details=None if cached is None else Cached(cached_tokens=cached),
        )


def _marked(entry: Named) -> Named:
    """An entry, marked where the server has left out tokens before it.

    Greedy decoding takes a token that is listed. Where none that is as probable says the same, and it is not ASCII, it
    has got the bytes of others.
    """
    listed, own = entry.top_logprobs or [], entry.logprob
    same = [other.logprob for other in listed if other.token == entry.token]
    alike = own is None or any(value is not None and isclose(value, own, abs_tol=_NOISE) for value in same)
    return entry.model_copy(update={"hides": bool(listed) and not alike and not entry.token.isascii()})


class Loaded(BaseModel):
    """A model in memory: its name, and how many tokens fit, as it was loaded."""

    name: str
    context_length: int | None = None


class Running(BaseModel):
    """The answer of `/api/ps`."""

    models: list[Loaded]

    def context(self, model: str) -> int | None:
        """How many tokens fit into a model; None where it is not told."""
        names = {model.lower(), f"{model}:latest".lower()}
        return next((one.context_length for one in self.models if one.name.lower() in names), None) or None


class Version(BaseModel):
    """The answer of `/api/version`."""

    version: str

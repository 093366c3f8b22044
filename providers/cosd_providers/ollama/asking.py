"""What Ollama is asked: the same as a server of OpenAI's protocol, in the words of its own route."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from cosd_providers.engine import checked_extra
from cosd_providers.engines.openai.client import OpenAIClient, Prefix
from cosd_providers.engines.openai.dialects import Dialect
from cosd_providers.engines.openai.wire import Answer, Billed
from cosd_providers.errors import InvalidRequestError, ResponseError, UnsupportedError
from cosd_providers.greedy import TIES
from cosd_providers.http.transport import Transport
from cosd_providers.ollama.wire import Event
from cosd_providers.parsing import parse
from cosd_providers.tokenizers import Tokenizer

__all__ = ["DIALECT", "Generating", "checked"]

_GREEDY: Mapping[str, object] = {
    "temperature": 0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repeat_penalty": 1.0,
    "repeat_last_n": 0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "stop": [],  # a model's own stop strings would hold for raw text, too
}
"""Whatever is not set comes from the model's own file, or from the server's defaults."""

_RAW: Mapping[str, object] = {"raw": True, "think": False, "logprobs": True, "top_logprobs": TIES}
"""The text as it is. Where a model can think, its server would else take part of the answer for thoughts."""

_MOST = 20  # most probable tokens at a place: more are refused

_WHOLE: Mapping[str, object] = {"truncate": False, "shift": False}
"""A text that does not fit is refused, and an answer ends where the context does."""

_OWNED = {*_RAW, *_WHOLE, "context", "format", "images", "model", "prompt", "stream", "suffix", "system", "template"}
_OWNED_OPTIONS = {*_GREEDY, "mirostat", "num_ctx", "num_predict", "seed", "tfs_z"}

DIALECT = Dialect(
    "ollama",
    completions="/api/generate",
    chat=None,
    lists=False,
    echo=False,
    stream_options={},
    probs=True,
    shows_parts=True,
    longer="Give the model a longer context: `context`, OLLAMA_CONTEXT_LENGTH, or num_ctx in its Modelfile.",
)
"""What of OpenAI's protocol holds here."""


def checked(extra_body: Mapping[str, object] | None) -> Mapping[str, object]:
    """What a user wants merged into every request, `options` too.

    Raises:
        ValueError: it sets what the fusion itself decides.
    """
    extra = checked_extra(extra_body, _OWNED)
    options = extra.get("options", {})
    if not isinstance(options, Mapping):
        raise ValueError("the options of extra_body are a mapping, e.g. {'num_gpu': 0}")
    checked_extra(cast("Mapping[str, object]", options), _OWNED_OPTIONS)
    return extra


class Generating(OpenAIClient):
    """Requests to one Ollama.

    Args:
        transport: the server.
        tokenizer: counts tokens, where there is one.
        extra: merged into every request.
        context: tokens that the model is loaded for; None for what the server decides.
    """

    def __init__(
        self, transport: Transport, tokenizer: Tokenizer | None, extra: Mapping[str, object], context: int | None
    ) -> None:
        super().__init__(transport, DIALECT, "completions", tokenizer, extra)
        options = cast("Mapping[str, object]", extra.get("options", {}))
        self._options = {**options, **_GREEDY, **({} if context is None else {"num_ctx": context})}

    def read(self, data: object) -> Answer:
        """What the server says, whole or in one event, as a server of OpenAI's protocol would say it."""
        event = parse(Event, data, self.endpoint)
        if event.thinking:
            words = "the server has taken a part of the answer for thinking, although asked not to (think)"
            raise UnsupportedError(words, endpoint=self.endpoint, hint="Is it Ollama 0.12.11 or later?")
        total = (event.prompt_eval_count or 0) + (event.eval_count or 0)
        if self.facts.context is not None and total > self.facts.context + 1:  # the last token needs no place
            words = f"the server has let {total} tokens pass through a context of {self.facts.context} (shift)"
            raise ResponseError(words, endpoint=self.endpoint, hint=DIALECT.longer)
        return event.answer

    def check_read(self, prefix: Prefix, billed: Billed | None) -> None:
        """An error where the server has read less than it was given; only where its count holds what was cached."""
        if billed is not None and billed.prompt_tokens_details is not None:
            super().check_read(prefix, billed)

    def shown(self, listed: int = TIES) -> dict[str, object]:
        """What asks for probabilities: `listed` most probable tokens at each place, or as many as may be asked for."""
        return {"top_logprobs": min(listed, _MOST)}

    def body(self, prefix: Prefix, limit: int) -> dict[str, object]:
        """A request: greedy, with the most probable tokens; the answer in one piece, unless the caller says else."""
        if not prefix.whole:
            words = "prompt and text are empty, and Ollama writes nothing after an empty prompt"
            raise InvalidRequestError(words, endpoint=self.endpoint)
        options = {**self._options, "num_predict": max(limit, 1)}
        more = {"model": self.facts.model, "prompt": prefix.whole, "stream": False, "options": options}
        return {**self._extra, **_RAW, **_WHOLE, **more}

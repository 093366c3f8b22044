"""What has to be known of an Ollama before its first use, and is proved by questions with a known answer."""

from __future__ import annotations

from dataclasses import dataclass

from cosd_providers.engines.openai.client import Prefix
from cosd_providers.engines.openai.discovery import check_tokenizer, choose
from cosd_providers.engines.openai.wire import Answer, steps
from cosd_providers.errors import ContextLengthError, InvalidRequestError, ResponseError, UnsupportedError
from cosd_providers.http.transport import Transport
from cosd_providers.ollama.asking import DIALECT, Generating
from cosd_providers.ollama.wire import Running, Version
from cosd_providers.parsing import parse
from cosd_providers.tokenizers import Tokenizer
from cosd_providers.usage import Usage

__all__ = ["Known", "learn"]

_TOKENS = 4  # of the first answer: enough to see text
_BEYOND = 64  # words of the long text that are more than the context


@dataclass(frozen=True, slots=True)
class Known:
    """What was found out.

    Attributes:
        model: the name of the model that is asked.
        build: the server's version, where it tells.
        context: tokens that fit, prompt and answer together.
    """

    model: str
    build: str | None
    context: int


async def learn(
    transport: Transport, asking: Generating, model: str | None, context: int | None, tokenizer: Tokenizer | None
) -> Known:
    """Finds out which model there is and what fits into it, and that the server does as it is told.

    The model is loaded for that; what it reads and writes is counted nowhere.

    Args:
        transport: the server.
        asking: is given the model.
        model: its name, where one was given.
        context: tokens that it shall be loaded for, where that was given.
        tokenizer: the model's own, where one was given.

    Raises:
        UnsupportedError: the server does not do as it is told, or cannot be seen to.
    """
    asking.facts.model, _ = await choose(transport, DIALECT, model)
    build = await _version(transport)
    first = await _check_told(asking, build)
    context = await _context(transport, asking.facts.model) or context
    if context is None:
        words = "how many tokens fit cannot be known: /api/ps does not tell the context of the model"
        raise UnsupportedError(words, endpoint=asking.endpoint, hint="Give it as `context`, or update Ollama.")
    await _check_refused(asking, context)
    if tokenizer is not None and first.usage is not None and first.usage.prompt_tokens_details is not None:
        await check_tokenizer(asking, tokenizer)
    return Known(asking.facts.model, build, context)


async def _version(transport: Transport) -> str | None:
    try:
        return parse(Version, await transport.get("/api/version"), transport.endpoint).version
    except (InvalidRequestError, ResponseError):
        return None


async def _context(transport: Transport, model: str) -> int | None:
    """How many tokens fit into the model as it is loaded, where the server tells."""
    try:
        return parse(Running, await transport.get("/api/ps"), transport.endpoint).context(model)
    except (InvalidRequestError, ResponseError):
        return None


async def _check_told(asking: Generating, build: str | None) -> Answer:
    """Has a few tokens written, whose probabilities must be there: older servers know nothing of them, and say nothing.

    Raises:
        UnsupportedError: they are not.
    """
    answer = await asking.one(Prefix("a", ""), _TOKENS, Usage(), check=False)
    [choice] = answer.choices
    if choice.written and not any(step.top for step in steps(choice)):
        words = f"Ollama {build or ''}".strip() + " tells no probabilities with its tokens, although asked (logprobs)"
        hint = "It does from 0.12.11 on: update it. Models that run in Ollama's cloud have none at all."
        raise UnsupportedError(words, endpoint=asking.endpoint, hint=hint)
    return answer


async def _check_refused(asking: Generating, context: int) -> None:
    """Sends a text that cannot fit, which must be refused: nothing in an answer would tell that the text was cut.

    Raises:
        UnsupportedError: it is not.
    """
    words = " ".join(map(str, range(context + _BEYOND)))
    try:
        await asking.one(Prefix(words, ""), 1, Usage(), check=False)
    except (ContextLengthError, InvalidRequestError):  # the one before, which was short, was not refused
        return
    problem = "the server cuts a text that is too long and does not say so, although told not to (truncate)"
    raise UnsupportedError(problem, endpoint=asking.endpoint, hint="Is it Ollama 0.12.11 or later?")

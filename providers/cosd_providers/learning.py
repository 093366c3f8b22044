"""What the adapters of several engines learn of a server in the same way: whether it is theirs, its model, its cue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from pydantic import BaseModel

from cosd_providers.errors import InvalidRequestError, ModelChoiceError, ResponseError, UnsupportedError
from cosd_providers.http.transport import Transport
from cosd_providers.parsing import parse

__all__ = ["Adaptable", "Served", "answer_cue", "ask_only", "choose", "no_model"]

_MARK = "5f0c9a"  # stands for a user's message in a chat template

_M = TypeVar("_M", bound=BaseModel)


class Adaptable(BaseModel):
    """A model of `/v1/models`: a name of the model itself, or an adapter (LoRA) on top of it."""

    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class Served(BaseModel):
    """The answer of `/v1/models`."""

    data: list[Adaptable]


async def ask_only(transport: Transport, kind: type[_M], path: str, *, looks: str, url: str) -> _M:
    """The answer to what one engine alone answers, and in this shape.

    Args:
        transport: the server.
        kind: the shape.
        path: what is asked.
        looks: what the server does not look like, where it answers otherwise.
        url: what the URL that is wanted belongs to.

    Raises:
        UnsupportedError: this is another server.
    """
    try:
        return parse(kind, await transport.get(path), transport.endpoint)
    except (InvalidRequestError, ResponseError) as error:
        if error.retryable:  # a connection that broke says nothing about the server
            raise
        words = f"this does not look like {looks}"
        hint = f"Give the URL of {url}, without /v1; for another server leave out engine."
        raise UnsupportedError(words, endpoint=transport.endpoint, hint=hint) from error


def choose(models: Sequence[Adaptable], wanted: str | None, endpoint: str) -> Adaptable:
    """The model to use; of several names of one model the first, and no adapter unless it is named.

    Raises:
        ModelChoiceError: there are several models, and none was named; or the named one is not there.
    """
    own = [one for one in models if one.parent is None]
    if wanted is None and own and len({one.root or one.id for one in own}) == 1:
        return own[0]
    for one in models:
        if wanted == one.id:
            return one
    raise no_model(wanted, (one.id for one in models), endpoint)


def no_model(wanted: str | None, ids: Iterable[str], endpoint: str) -> ModelChoiceError:
    """The error where none of the models that a server has is the one to use."""
    problem = f"no model {wanted!r}" if wanted else "several models, and none was named"
    words = f"{problem}; the server has {', '.join(map(repr, ids)) or 'none'}"
    return ModelChoiceError(words, endpoint=endpoint, hint="Give one as `model`.")


async def answer_cue(template: Callable[[str], Awaitable[str | None]]) -> str | None:
    """What a chat template writes between a user's message and the answer; None where that is nothing, or not told.

    Args:
        template: a message of a user as the template writes it, up to the answer; None where that cannot be known.
    """
    written = await template(_MARK)
    return written.rpartition(_MARK)[2] or None if written and _MARK in written else None

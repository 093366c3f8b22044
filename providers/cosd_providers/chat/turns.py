"""How an endpoint that goes on from text is asked to answer a conversation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from cosd_providers.chat.leading_space import WithoutLeadingSpace
from cosd_providers.chat.rendering import candidates, cut, joined, lead_of, pieces, rendered
from cosd_providers.contract import Piece, Provider
from cosd_providers.errors import UnsupportedError
from cosd_providers.messages import Message, OnSpecialTokens, RenderedPrompt

__all__ = ["ChatRenderer", "Renders"]

_USUAL = re.compile(
    r"<\|[^\s|<>]+\|>|<｜[^\s<>]+｜>|</?s>|<(bos|eos|pad|unk)>|<(start|end)_of_turn>|\[/?(INST|SYSTEM_PROMPT)\]"
)
"""How special tokens are mostly written, where the endpoint does not encode a text for us."""

_HTML = re.compile(
    r"</?(a|b|blockquote|body|br|caption|code|div|em|h[1-6]|head|html|i|img|li|ol|p|pre|span|strong|su[bp]|table|tbody|td"
    r"|tfoot|th|thead|tr|u|ul)>"
)
"""What some models have a token for that says nothing but itself."""

_Shape = tuple[bool, bool, bool]
"""What templates refuse; see `_shape`."""


class Renders(Protocol):
    """What is needed of an adapter; see `http.adapter.Adapter`."""

    async def render(self, messages: list[dict[str, str]]) -> str:
        """Messages become the text that the model goes on from."""
        ...

    async def begun(self, prompt: str) -> str:
        """Takes off what the server puts before a prompt by itself."""
        ...

    async def literal(self, pieces: Sequence[str]) -> Provider | None:
        """The model, given ids for a prompt."""
        ...

    async def tokenize(self, text: str) -> list[Piece]:
        """The encoding of a text."""
        ...


class ChatRenderer:
    """What was learned of a model's chat template.

    Args:
        endpoint: of the server, for errors.
    """

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._folds: set[_Shape] = set()  # conversations of these shapes are refused
        self._lead: str | None = None

    async def render_prompt(
        self, adapter: Renders, messages: Sequence[Message], on_special_tokens: OnSpecialTokens
    ) -> RenderedPrompt:
        """How the model behind `adapter` is asked to answer `messages`; see `messages.ChatProvider`."""
        assert isinstance(adapter, Provider)
        if self._lead is None:
            self._lead = await lead_of(adapter.render)
        special = await self._special(adapter, messages)
        asked, started = _parted(cut(messages, special))
        text = await self._rendered(adapter, asked)
        if started:
            text += self._lead + started
        first, *more = pieces(text) if special else [text]
        found = [await adapter.begun(first), *more]
        literal = await adapter.literal(found) if special else adapter
        warnings = (self._warn(special, on_special_tokens),) if literal is None else ()
        provider = adapter if literal is None else literal
        prompt = "".join(found)
        leads = self._lead and not started
        return RenderedPrompt(
            WithoutLeadingSpace(provider, self._lead.encode(), prompt) if leads else provider, prompt, warnings
        )

    async def _rendered(self, adapter: Renders, messages: Sequence[Message]) -> str:
        shape = _shape(messages)
        found = await rendered(adapter.render, messages, fold=shape in self._folds, endpoint=self._endpoint)
        if found.is_refused:
            self._folds.add(shape)
        return found.text

    async def _special(self, adapter: Renders, messages: Sequence[Message]) -> list[str]:
        """The special tokens of the model that are in a message as text."""
        possible = sorted(one for one in candidates(messages) if not _HTML.fullmatch(one))
        if not possible:
            return []
        try:
            found = await adapter.tokenize("\n".join(possible))
        except UnsupportedError:
            return [one for one in possible if _USUAL.fullmatch(one)]
        # By their bytes, not by their places: some special tokens swallow the white space beside them.
        whole = {piece.data for piece in found}
        return [one for one in possible if one.encode() in whole]

    def _warn(self, special: Sequence[str], on_special_tokens: OnSpecialTokens) -> str:
        words = f"a message holds {', '.join(special)} as text, which the model reads as its special token"
        if on_special_tokens == "refuse":
            hint = "Take it out of the message, or give on_special_tokens='warn'."
            raise UnsupportedError(f"{words}; this server takes no token ids", endpoint=self._endpoint, hint=hint)
        return f"{self._endpoint}: {words} (this server takes no token ids)"


def _parted(messages: Sequence[Message]) -> tuple[list[Message], str]:
    """What is asked, and what the assistant has begun to answer: neighbours of one role are one message."""
    asked, started = [*messages], list[str]()
    while asked[-1].role == "assistant":
        started.insert(0, asked.pop().content)
    return asked, joined(started)


def _shape(messages: Sequence[Message]) -> _Shape:
    """What templates refuse: a message of the system, one that is not the first, roles that do not take turns."""
    roles = [one.role for one in messages]
    turns = [role for role in roles if role != "system"]
    irregular = turns[0] != "user" or any(one == other for one, other in pairwise(turns))
    return "system" in roles, "system" in roles[1:], irregular

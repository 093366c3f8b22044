"""Watches of assistants whose ids differ from the draft's: streams along their own encodings of the answer.

A watch is opened at a place about which the assistant has to be asked. It continues the ids of the assistant's own
encoding before the place. As long as the watch writes the ids of that encoding, each of its tokens is the assistant's
choice at the next place. If the watch writes a different token, this token is the assistant's answer about the place.
If the watch's word becomes the replacement, the tokens after the word serve as the word's lookahead, and the watch
continues to follow the answer. Otherwise the watch is closed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import anyio

from cosd_api.decoding.answer_path import AnswerPath
from cosd_api.decoding.calls import Calls
from cosd_api.decoding.commands import Watch
from cosd_api.decoding.watches import AHEAD, LAG, Streams, Watching
from cosd_api.paths import common
from cosd_providers.contract import DraftEnd, Token

_log = logging.getLogger("cosd_api")

Start = Callable[..., None]
"""A function that starts another function, with its arguments, as a background task of the answer."""


class PathWatches(Streams):
    """The watches of one answer for assistants that follow their own paths.

    Args:
        assistants: the assistants that are asked by watches.
        calls: access to the models.
        path: the draft's path, with the assistants that are not lost.
    """

    def __init__(
        self,
        assistants: Iterable[int],
        calls: Calls,
        path: AnswerPath,
    ) -> None:
        super().__init__(assistants, 1, partial(next, path.numbers))
        self._calls = calls
        self._path = path
        self._scopes: dict[int, anyio.CancelScope] = {}

    def wrote_after(self, assistant: int, ids: Sequence[int]) -> Token | None:
        """The token that an assistant's watch wrote directly after these ids; None if it wrote no such token."""
        one = self._watching.get(assistant)
        if one is None or not _follows(one, ids) or len(ids) >= one.first + len(one.tokens):
            return None
        return one.tokens[len(ids) - one.first]

    def will_write_after(self, assistant: int, ids: Sequence[int]) -> bool:
        """Test whether an assistant's watch follows these ids and will soon write the token after them."""
        one = self._watching.get(assistant)
        return one is not None and one.open and _follows(one, ids) and len(ids) - one.first - len(one.tokens) <= LAG

    def heard(self, assistant: int) -> None:
        """Count a place that an assistant's watch has answered."""
        self._calls.heard(self._watching[assistant].number, assistant)

    def begin(self, start: Start, assistant: int, text: bytes, ids: tuple[int, ...], most: int) -> bool:
        """Open a watch of at most `most` tokens after these ids, which replaces the assistant's previous watch.

        Returns:
            False if the previous watch failed; then a request has to ask about this place. After two failures in a row,
            requests have to ask about all later places.
        """
        one = self._watching.get(assistant)
        self.drop(assistant)
        if self._gives_up(assistant):
            self.leave_out(assistant)
        if one is not None and one.failed:
            return False
        watch = self._open(assistant, text, ids, most)
        scope = self._scopes[watch.watch] = anyio.CancelScope()
        start(self._write, watch, scope)
        return True

    def follow(self, assistant: int) -> None:
        """Close an assistant's watch if it has deviated from the answer or is far ahead of the draft.

        A watch that differs from the draft remains open until the assistant has judged the place of the difference,
        because the watch has to answer at that place.
        """
        one = self._watching.get(assistant)
        if one is None:
            return
        judged, size, before = self._path.judged_bytes(assistant), len(self._path.text), len(one.opened.text)
        text = one.opened.text + b"".join(token.data for token in one.tokens)
        same = common(text, self._path.text)
        if judged is None or same < before or same < min(judged, len(text), size):
            self.drop(assistant)
        elif _ahead(one, len(text) - size) > AHEAD:
            self._close(one)

    async def _write(self, watch: Watch, scope: anyio.CancelScope) -> None:
        def take(item: Token | DraftEnd) -> bool:
            if isinstance(item, DraftEnd):
                self.ended(watch.watch, failed=item.reason in ("context", "filter"))
            elif self.wrote(watch.watch, item):
                self.follow(watch.assistant)
            self._path.tell()
            return False

        with scope:
            try:
                await self._calls.watch(watch, take)
            except Exception as error:  # noqa: BLE001 - the next request shows whether the error matters
                _log.debug("a watch failed: %s", type(error).__name__)
                self.ended(watch.watch, failed=True)
                self._path.tell()

    def _stop(self, watch: int) -> None:
        self._scopes.pop(watch).cancel()


def _follows(one: Watching, ids: Sequence[int]) -> bool:
    """Test whether a watch began within these ids, or at their end, and agrees with them as far as both extend."""
    own = (*one.opened.ids, *(token.id for token in one.tokens))
    size = min(len(ids), len(own))
    return len(ids) >= one.first and tuple(ids[:size]) == own[:size]


def _ahead(one: Watching, size: int) -> int:
    """The number of a watch's tokens that lie entirely within the last `size` bytes of its text."""
    count = 0
    for token in reversed(one.tokens):
        size -= len(token.data)
        if size < 0:
            break
        count += 1
    return count

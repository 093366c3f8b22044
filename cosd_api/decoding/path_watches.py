"""Watches of assistants that have ids of their own: streams after an assistant's own encoding of the answer.

A watch is opened at a place that is asked about, after the ids of the assistant's encoding before it. As long as it
writes the ids of that encoding, each of its tokens is the assistant's choice at one more place. At a difference it has
answered the place; where its word becomes the answer's, what it writes next is read as that word's lookahead, and it
runs on behind it. Else it is closed.
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
"""Starts a task of the answer, from a function and its arguments."""


class PathWatches(Streams):
    """The watches of one answer, each of an assistant on its own path.

    Args:
        assistants: those that are asked by watches.
        calls: the requests.
        path: the draft's, with the assistants that are heard.
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
        """The token that a watch wrote after these ids; None if it has not, or writes after others."""
        one = self._watching.get(assistant)
        if one is None or not _follows(one, ids) or len(ids) >= one.first + len(one.tokens):
            return None
        return one.tokens[len(ids) - one.first]

    def will_write_after(self, assistant: int, ids: Sequence[int]) -> bool:
        """Test whether a watch is to write what follows these ids soon: it is not far behind."""
        one = self._watching.get(assistant)
        return one is not None and one.open and _follows(one, ids) and len(ids) - one.first - len(one.tokens) <= LAG

    def heard(self, assistant: int) -> None:
        """Count a place that the watch of an assistant has answered."""
        self._calls.heard(self._watching[assistant].number, assistant)

    def begin(self, start: Start, assistant: int, text: bytes, ids: tuple[int, ...], most: int) -> bool:
        """Open a watch after these ids, of `most` tokens at most, in place of the last one of the assistant.

        Returns:
            False if the place is left to a request: the last watch has failed. Behind two in a row all places are.
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
        """Close the watch of an assistant where the answer is not what it writes, or the draft is far behind it.

        One that differs where the assistant has not judged yet has still to answer that place.
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
            except Exception as error:  # noqa: BLE001 - a single question finds out whether it matters
                _log.debug("a watch failed: %s", type(error).__name__)
                self.ended(watch.watch, failed=True)
                self._path.tell()

    def _stop(self, watch: int) -> None:
        self._scopes.pop(watch).cancel()


def _follows(one: Watching, ids: Sequence[int]) -> bool:
    """Test whether a watch's own path and these ids are the same, as far as both go, and it began on them."""
    own = (*one.opened.ids, *(token.id for token in one.tokens))
    size = min(len(ids), len(own))
    return len(ids) >= one.first and tuple(ids[:size]) == own[:size]


def _ahead(one: Watching, size: int) -> int:
    """The number of a watch's tokens that lie in the last `size` bytes of its text."""
    count = 0
    for token in reversed(one.tokens):
        size -= len(token.data)
        if size < 0:
            break
        count += 1
    return count

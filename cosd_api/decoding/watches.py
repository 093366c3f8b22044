"""Watches: open streams of assistants, each of which answers every place that it passes.

A watch continues the ids before a place. As long as it writes the ids of the answer, each of its tokens is the
assistant's word at the next place; a question about that place would have the same answer, because it would continue
the same ids. It is closed when the answer leaves it, and when it is far ahead of the draft. If it fails, a question
asks about the place.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import anyio

from cosd_api.decoding.answer import Answer, Judge
from cosd_api.decoding.calls import Calls
from cosd_api.decoding.commands import Watch
from cosd_api.decoding.readers import Place, Reader
from cosd_api.decoding.said import Ids, Source
from cosd_api.decoding.speeds import Speeds
from cosd_api.paths import common
from cosd_providers.contract import DraftEnd, ServerInfo, Token

LAG = 8
"""Maximum number of tokens that a watch may still have to write before it answers a waiting place. If the watch is
farther behind, a new watch is opened at that place, which reads all tokens before the place at once.
"""

AHEAD = 32
"""Maximum number of tokens that a watch may write beyond the answer so far. Further tokens are most likely useless."""

_SLOWER = 1.25  # an assistant can keep up if its time per token is at most this multiple of the draft's
_FAILURES = 2  # number of failed watches in a row after which the assistant is asked by single requests
_log = logging.getLogger("cosd_api")


def watched(infos: Mapping[int, ServerInfo], speeds: Speeds) -> frozenset[int]:
    """The indices of the assistants that are asked by watches, for methods that send ids.

    Args:
        infos: descriptions of the known servers, by the index of the assistant; the draft's description has the key -1.
        speeds: the speeds of the models in the answers so far.
    """
    assistants = {at: info for at, info in infos.items() if at >= 0 and info.capabilities.ids}
    return frozenset(at for at, info in assistants.items() if is_watched(infos[-1], info, speeds.slower(1 + at)))


def is_watched(draft: ServerInfo, assistant: ServerInfo, slower: float | None) -> bool:
    """Decide whether an assistant that is sent ids is asked by a watch.

    If the user chose a strategy, that choice decides (`Capabilities.watch`). By default, an assistant is asked by a
    watch if its server is best asked about one place at a time (as llama.cpp is), and if it can keep up with the draft.
    A watch writes the whole answer, while single questions make it write hardly more than every fifth
    token. Therefore the
    server must run on a different machine (according to the hosts in the URLs), so that the watch does not slow the
    draft down, and must not be much slower than the draft.

    Args:
        draft: the draft's server.
        assistant: the assistant's server.
        slower: the assistant's time per token divided by the draft's; None until both are known.
    """
    wanted = assistant.capabilities.watch
    if wanted is not None:
        return wanted
    apart = _host(draft) != _host(assistant)
    return assistant.capabilities.places == 1 and apart and (slower is None or slower <= _SLOWER)


def _host(server: ServerInfo) -> str | None:
    """The host of a server, with a single name for the local machine; None if the endpoint is not a URL."""
    host = urlsplit(server.endpoint).hostname
    return "localhost" if host in ("127.0.0.1", "::1") else host


@dataclass(slots=True)
class Watching:
    """One watch.

    Attributes:
        began: number of ids before its first token.
        ids: the ids so far.
        text: the answer so far, according to the watch.
        ends: byte offset of the end of each of its tokens in `text`.
        failed: whether it ended too early; if so, a request has to find out the reason.
        scope: closes it.
    """

    began: int
    ids: list[int]
    text: bytearray
    ends: list[int] = field(default_factory=list[int])
    failed: bool = False
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    def comes_by(self, ids: Ids) -> bool:
        """Test whether the watch will soon write the token after these ids."""
        size = min(len(ids), len(self.ids))
        near = self.began <= len(ids) <= len(self.ids) + LAG
        return near and not self.failed and tuple(self.ids[:size]) == ids[:size]


class Watches:
    """The watches of one answer, at most one for each assistant.

    Args:
        answer: the answer.
        calls: access to the models.
        start: starts a background task.
        watched: the readers of the assistants that are asked by watches.
    """

    def __init__(self, answer: Answer, calls: Calls, start: Callable[..., None], watched: dict[int, Reader]) -> None:
        self._answer, self._calls, self._start, self._watched = answer, calls, start, watched
        self._open = dict[int, Watching]()
        self._numbers = set[int]()
        self._failures = Counter[int]()
        self._counted = set[tuple[int, Ids]]()

    def comes_by(self, judge: Judge, ids: Ids) -> bool:
        """Test whether the assistant's watch will soon say what comes after some ids."""
        one = self._open.get(judge.model)
        return one is not None and one.comes_by(ids)

    def open_at(self, judge: Judge, place: Place) -> bool:
        """Open a watch at a place. Return False if a question has to ask about it."""
        model = judge.model
        one = self._open.pop(model, None)
        if one is not None:
            one.scope.cancel()
        if self._failures[model] >= _FAILURES:
            self._watched.pop(model, None)
        if model not in self._watched or (one is not None and one.failed):
            return False
        new = Watching(len(place.key), [*place.key], bytearray(self._answer.text[: place.at]))
        self._open[model] = new
        self._start(self._listen, judge, new)
        return True

    def follow(self, judge: Judge) -> None:
        """Close an assistant's watch if the answer has left it, or if it is far ahead of the draft."""
        one, answer = self._open.get(judge.model), self._answer
        if one is None or one.failed:
            return
        same, judged = common(one.text, answer.text), answer.offset(judge.first)
        began = one.ends[0] if one.ends else len(one.text)
        left = same < min(began, judged) or same < min(judged, len(one.text), len(answer.text))
        ahead = len(one.ends) > AHEAD and one.ends[-AHEAD - 1] >= len(answer.text)
        if left or ahead:
            self._open.pop(judge.model).scope.cancel()

    def count(self, judge: Judge, number: int, ids: Ids) -> bool:
        """Count a place if a watch answered it. Return True if so."""
        if number not in self._numbers:
            return False
        if (judge.model, ids) not in self._counted:
            self._counted.add((judge.model, ids))
            self._calls.heard(number, judge.model - 1)
        return True

    async def _listen(self, judge: Judge, one: Watching) -> None:
        answer, model, said, reader = self._answer, judge.model, judge.said, self._watched[judge.model]
        number, written = next(answer.asks), False
        self._numbers.add(number)

        def take(item: Token | DraftEnd) -> bool:
            nonlocal written
            if isinstance(item, DraftEnd):
                one.failed = item.reason in ("context", "filter")
            elif self._open.get(model) is one:
                written, token = True, reader.heard(answer, item)
                said.note(tuple(one.ids), token, Source(number, len(one.text), hidden=token.prob is None))
                one.ids.append(token.id or 0)
                one.text += token.data
                one.ends.append(len(one.text))
                if (current := answer.judges.get(model)) is not None:
                    self.follow(current)
            answer.tell()
            return False

        most = answer.job.max_tokens + answer.lookahead - judge.first
        watch = Watch(number, model - 1, bytes(one.text), tuple(one.ids), max(1, most), reader.listed)
        with one.scope:
            try:
                await self._calls.watch(watch, take)
            except Exception as error:  # noqa: BLE001 - the next question shows whether the error matters
                _log.debug("a watch failed: %s", type(error).__name__)
                one.failed = True
        self._failures[model] = self._failures[model] + 1 if one.failed else 0 if written else self._failures[model]
        if not one.failed and self._open.get(model) is one:
            del self._open[model]
        answer.tell()

"""The open streams of assistants, each of which answers every place that it passes.

A watch continues the ids before a place. As long as it writes the ids of the answer, each of its tokens is the
assistant's word at the next place; a question about that place would have the same answer, because it would continue
the same ids. It is closed when the answer leaves it, and when it is far ahead of the draft. If it fails, a question
asks about the place.

The word of an assistant that replaces draft tokens is such a stream, too, which ends a little after the word.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import anyio

from cosd_api.decoding.answer import AnswerPath, Judge
from cosd_api.decoding.calls import Calls
from cosd_api.decoding.commands import StartDraft, Watch
from cosd_api.decoding.pace import PATIENCE
from cosd_api.decoding.readers import KeyedPlace, Reader, UnwrittenText
from cosd_api.decoding.said import Ids, Source
from cosd_api.decoding.speeds import Speeds
from cosd_api.paths.cuts import common
from cosd_providers.contract import DraftEnd, ServerInfo, Token

LAG = 8
"""Maximum number of tokens that a watch may still have to write before it answers a waiting place. If the watch is
farther past, a new watch is opened at that place, which reads all tokens before the place at once.
"""

AHEAD = 32
"""Maximum number of tokens that a watch may write beyond the answer so far. Further tokens are most likely useless."""

RUN_ON = 2
"""Number of tokens that an assistant writes after its word while the draft starts again after the same word. They are
its words at the next places.
"""

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
    """One stream.

    Attributes:
        began: number of ids before its first token.
        ids: the ids so far.
        text: the answer so far, according to the stream.
        ends: byte offset of the end of each of its tokens in `text`.
        most: maximum number of tokens.
        enough: for a continuation, returns whether its tokens so far complete the word; None for a watch.
        short: whether it ends by itself after some tokens.
        failed: whether it ended too early; if so, a request has to find out the reason.
        error: the error with which a continuation failed.
        scope: closes it.
    """

    began: int
    ids: list[int]
    text: bytearray
    most: int
    enough: Callable[[Sequence[Token]], bool] | None = None
    ends: list[int] = field(default_factory=list[int])
    short: bool = False
    failed: bool = False
    error: Exception | None = None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    def comes_by(self, ids: Ids) -> bool:
        """Test whether the stream will soon write the token after these ids."""
        size = min(len(ids), len(self.ids))
        near = self.began <= len(ids) <= len(self.ids) + LAG
        return near and tuple(self.ids[:size]) == ids[:size]


class Watches:
    """The open streams of one answer, at most one for each assistant: watches, and words that are being written.

    Args:
        answer: the answer.
        calls: access to the models.
        start: starts a background task.
        readers: the way in which each assistant reads the path, by the index of the model.
        watched: the assistants that are asked by watches, by the index of the model.
    """

    def __init__(
        self,
        answer: AnswerPath,
        calls: Calls,
        start: Callable[..., None],
        readers: Mapping[int, Reader],
        watched: Iterable[int],
    ) -> None:
        self._answer, self._calls, self._start, self._readers = answer, calls, start, readers
        self._watched = {*watched}
        self._open = dict[int, Watching]()
        self._numbers = set[int]()
        self._failures = Counter[int]()
        self._counted = set[tuple[int, int]]()  # number of the watch, and number of ids before the place

    def comes_by(self, judge: Judge, ids: Ids) -> bool:
        """Test whether the assistant's stream will soon say what comes after some ids, or a short one will soon end.

        Raises:
            ProviderError: the stream failed while it wrote a word.
        """
        one = self._open.get(judge.model)
        if one is not None and one.error is not None:
            raise self._open.pop(judge.model).error or one.error
        if one is None or one.failed:
            return False
        comes = one.comes_by(ids)
        if one.short and not comes:
            one.scope.deadline = min(one.scope.deadline, anyio.current_time() + PATIENCE)
        return one.short or comes

    def open_at(self, judge: Judge, place: KeyedPlace, *, short: bool) -> bool:
        """Open a watch at a place. Return False if a question has to ask about it.

        If the assistant is not watched, a `short` watch writes its word and `RUN_ON` tokens after it.
        """
        model, one = judge.model, self.leave(judge.model)
        short = short and model not in self._watched
        if self._failures[model] >= _FAILURES:
            self._watched.discard(model)
            return False
        if not (short or model in self._watched) or (one is not None and one.failed):
            return False
        most = self._answer.job.max_tokens + self._answer.lookahead - judge.first
        most = min(most, 1 + RUN_ON) if short else most
        text = bytearray(self._answer.text[: place.at])
        self._begin(judge, Watching(len(place.key), [*place.key], text, max(1, most), short=short))
        return True

    def write(self, judge: Judge, more: UnwrittenText) -> None:
        """Let an assistant write its word, and `RUN_ON` tokens after it."""
        assert more.ids is not None
        self.leave(judge.model)
        self._begin(judge, Watching(len(more.ids), [*more.ids], bytearray(more.text), more.most, more.enough))

    def follow(self, judge: Judge) -> None:
        """Close an assistant's stream if the answer has left it, or if it is far ahead of the draft."""
        one, answer = self._open.get(judge.model), self._answer
        if one is None or one.failed or one.short:
            return
        same, judged = common(one.text, answer.text), answer.offset(judge.first)
        began = one.ends[0] if one.ends else len(one.text)
        left = same < min(began, judged) or same < min(judged, len(one.text), len(answer.text))
        ahead = one.enough is None and len(one.ends) > AHEAD and one.ends[-AHEAD - 1] >= len(answer.text)
        if left or ahead:
            self.leave(judge.model)

    def count(self, judge: Judge, number: int, ids: Ids) -> bool:
        """Count a place if a watch answered it. Return True if so."""
        if number not in self._numbers:
            return False
        if (number, len(ids)) not in self._counted:
            self._counted.add((number, len(ids)))
            self._calls.count_answered(number, judge.model - 1)
        return True

    def leave(self, model: int) -> Watching | None:
        """Close an assistant's stream, if any, and return it."""
        one = self._open.pop(model, None)
        if one is not None:
            one.scope.cancel()
        return one

    def _begin(self, judge: Judge, one: Watching) -> None:
        self._open[judge.model] = one
        self._start(self._listen, judge, one)

    async def _listen(self, judge: Judge, one: Watching) -> None:
        answer, model, reader, said = self._answer, judge.model, self._readers[judge.model], judge.said
        number, tokens, past = next(answer.asks), list[Token](), 0

        def take(item: Token | DraftEnd) -> bool:
            nonlocal past
            if isinstance(item, DraftEnd):
                full = item.reason in ("context", "filter")
                one.failed = full and one.enough is None
                if full and one.enough is not None:
                    said.note(tuple(one.ids), None, Source(number, len(one.text)))
            elif self._open.get(model) is one:
                source = Source(number, len(one.text), hidden=item.prob is None)
                said.note(tuple(one.ids), reader.read_token(answer, item), source)
                tokens.append(item)
                one.ids.append(item.id or 0)
                one.text += item.data
                one.ends.append(len(one.text))
                if (current := answer.judges.get(model)) is not None:
                    self.follow(current)
                if one.enough is not None and (past or one.enough(tokens)):
                    past += 1
            answer.notify()
            return past > RUN_ON

        with one.scope:
            try:
                await self._request(model, number, one, take)
            except Exception as error:  # noqa: BLE001 - the next question shows whether the error matters
                _log.debug("a stream failed: %s", type(error).__name__)
                one.failed = True
                one.error = error if one.enough is not None and not past else None
        if one.enough is None:
            self._failures[model] = self._failures[model] + 1 if one.failed else 0 if tokens else self._failures[model]
        if not one.failed and self._open.get(model) is one:
            del self._open[model]
        answer.notify()

    async def _request(self, model: int, number: int, one: Watching, take: Callable[[Token | DraftEnd], bool]) -> None:
        ids, text, listed = tuple(one.ids), bytes(one.text), self._readers[model].listed
        if one.enough is None:
            self._numbers.add(number)
            await self._calls.watch(Watch(number, model - 1, text, ids, one.most, listed), take)
        else:
            command = StartDraft(number, text, one.most, None, (), ids=ids, alternatives=listed)
            await self._calls.generate(model, command, take, question=True)

"""Watches, which are open streams that replace questions and answer every place that they pass.

A watch is an assistant's own greedy stream, which begins at a place in the answer. As long as the watch writes the
answer's tokens, each token is the assistant's choice at the next place. A separate request about that place would have
the same answer, because it would continue the same ids. If the watch's token differs from the draft's, the token is the
watch's answer about the place. If this token becomes the replacement, the watch continues to follow the answer;
otherwise the watch is closed. Thus each difference restarts either the watch or the draft, and the text does not depend
on which of them is restarted.

If a watch is ahead of the draft, its tokens wait for the draft. If a watch fails, a single question replaces it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from cosd_api.decoding.commands import CloseWatch, Command, Watch
from cosd_api.decoding.response import Response
from cosd_api.decoding.speeds import Speeds
from cosd_api.decoding.units import DraftUnit, Hearing
from cosd_providers.contract import Proposal, ServerInfo, Token

LAG = 8
"""Maximum number of tokens that a watch may still have to write before it answers a waiting place. If the watch is
farther behind, a new watch is opened at that place, which reads all tokens before the place at once.
"""

AHEAD = 32
"""Maximum number of tokens that a watch may write beyond the answer so far. Further tokens are most likely useless."""

_SLOWER = 1.25  # an assistant can keep up if its time per token is at most this multiple of the draft's
_FAILURES = 2  # number of failed watches in a row after which the assistant is asked by single requests


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
    """A watch in progress, or a closed watch whose tokens are still useful.

    Attributes:
        opened: the command that opened the watch.
        tokens: the tokens that the watch has written so far.
        passed: number of these tokens that the answer has followed.
        open: whether the watch is still writing.
        failed: whether the watch ended too early; if so, a request has to find out the reason.
    """

    opened: Watch
    tokens: list[Token] = field(default_factory=list[Token])
    passed: int = 0
    open: bool = True
    failed: bool = False

    @property
    def number(self) -> int:
        """The number of the watch's request."""
        return self.opened.watch

    @property
    def first(self) -> int:
        """The number of ids before the watch's first token."""
        return len(self.opened.ids)

    @property
    def place(self) -> int:
        """Index of the place in the answer that the watch answers next."""
        return self.first + self.passed

    @property
    def over(self) -> bool:
        """Test whether the watch will answer no more places."""
        return not self.open and self.passed == len(self.tokens)


@dataclass(frozen=True, slots=True)
class WatchAnswer:
    """A watch's answer about one unit."""

    watch: int
    unit: DraftUnit
    assistant: int
    proposal: Proposal


class Streams(ABC):
    """The open streams of one answer, at most one for each assistant.

    Args:
        assistants: the assistants that are asked by watches.
        alternatives: number of other tokens to list with each token.
        number: returns the number of the next request.

    Attributes:
        assistants: the assistants that are still asked by watches.
    """

    def __init__(self, assistants: Iterable[int], alternatives: int, number: Callable[[], int]) -> None:
        self.assistants = set(assistants)
        self._alternatives = alternatives
        self._number = number
        self._watching: dict[int, Watching] = {}
        self._failures: Counter[int] = Counter()

    @abstractmethod
    def _stop(self, watch: int) -> None:
        """Close the request of a watch."""

    def wrote(self, watch: int, token: Token) -> bool:
        """Store a token of a watch. Return False if the watch is no longer needed."""
        for assistant, one in self._watching.items():
            if one.number == watch and one.open:
                one.tokens.append(token)
                self._failures[assistant] = 0
                return True
        return False

    def ended(self, watch: int, *, failed: bool) -> None:
        """Record the end of a watch, which may have failed."""
        for assistant, one in self._watching.items():
            if one.number == watch and one.open:
                one.open, one.failed = False, failed
                self._failures[assistant] += failed

    def leave_out(self, assistant: int) -> None:
        """Stop watching an assistant."""
        self.assistants.discard(assistant)
        self.drop(assistant)

    def drop(self, assistant: int) -> None:
        """Close an assistant's watch, if any, and forget its tokens."""
        one = self._watching.pop(assistant, None)
        if one is not None:
            self._close(one)

    def _open(self, assistant: int, text: bytes, ids: tuple[int, ...], most: int) -> Watch:
        watch = Watch(self._number(), assistant, text, ids, most, self._alternatives)
        self._watching[assistant] = Watching(watch)
        return watch

    def _close(self, one: Watching) -> None:
        if one.open:
            one.open = False
            self._stop(one.number)

    def _gives_up(self, assistant: int) -> bool:
        """Test whether too many of an assistant's watches have failed in a row."""
        return self._failures[assistant] >= _FAILURES


class Watches(Streams):
    """The watches of one answer, for models that share the same token ids.

    Args:
        assistants: the assistants that are asked by watches.
        alternatives: number of other tokens to list with each token.
        number: returns the number of the next request.

    Attributes:
        released: whether a place was left to a request. The schedule reads and resets this attribute.
    """

    def __init__(self, assistants: Iterable[int], alternatives: int, number: Callable[[], int]) -> None:
        super().__init__(assistants, alternatives, number)
        self.released = False
        self._closing: list[Command] = []

    def _stop(self, watch: int) -> None:
        self._closing.append(CloseWatch(watch))

    def begin(self, assistants: Iterable[int], response: Response) -> list[Command]:
        """Open watches at the start of the answer, so that assistants and draft read the prompt at the same time."""
        return [self._begin(assistant, 0, response) for assistant in assistants if assistant in self.assistants]

    def claim(self, unit: DraftUnit) -> None:
        """Leave a waiting unit to the watches of the assistants that are asked by watches."""
        for assistant in self.assistants:
            if unit.verdicts[assistant].hearing is Hearing.OPEN:
                unit.verdicts[assistant].hearing = Hearing.WATCHED

    def answer(self, units: Sequence[DraftUnit], response: Response) -> WatchAnswer | None:
        """Return the next answer from a watch, if any, and close the watches that have deviated from the response."""
        for assistant, one in [*self._watching.items()]:
            while one.passed < len(one.tokens) and one.place < len(response.tokens):
                token = one.tokens[one.passed]
                agrees = token.id == response.tokens[one.place].token.id
                waits = units and one.place >= units[0].first
                unit = units[one.place - units[0].first] if waits else None
                if unit is not None and unit.waiting:
                    verdict = unit.verdicts[assistant]
                    if verdict.hearing is Hearing.WATCHED:
                        if agrees or token.prob is not None:
                            return WatchAnswer(one.number, unit, assistant, Proposal(unit.start, (token,), "watch"))
                        self._release(unit, assistant)  # a request has to find the probability
                    elif not agrees and (verdict.replacement is not None or verdict.hearing is Hearing.WITHOUT_P):
                        break  # the watch's token may become the replacement
                if not agrees:
                    self.drop(assistant)
                    break
                one.passed += 1
        return None

    def rewind(self, count: int) -> None:
        """Rewind the watches to the first `count` tokens of the answer, because later tokens may change."""
        for assistant, one in [*self._watching.items()]:
            if one.first > count:
                self.drop(assistant)
            else:
                one.passed = min(one.passed, count - one.first)

    def next(self, units: Iterable[DraftUnit], response: Response, busy: Container[int]) -> list[Command]:
        """Close watches that are too far ahead, and open watches at the first places that wait for a watch.

        No watch is opened for an assistant that is `busy` with a request.
        """
        commands: list[Command] = []
        for assistant in sorted(self.assistants):
            one = self._watching.get(assistant)
            if one is not None and one.first + len(one.tokens) > len(response.tokens) + AHEAD:
                self._close(one)
            waiting = (unit for unit in units if unit.waiting)
            unit = next((unit for unit in waiting if unit.verdicts[assistant].hearing is Hearing.WATCHED), None)
            if unit is None or not (one is None or one.over or unit.first - one.place > LAG):
                continue
            if self._gives_up(assistant):
                self.leave_out(assistant)
                for unit in units:
                    self._release(unit, assistant)
            elif one is not None and one.failed and one.place == unit.first:
                self.drop(assistant)
                self._release(unit, assistant)
            elif assistant not in busy:
                self.drop(assistant)
                commands.append(self._begin(assistant, unit.first, response))
        return [*self._closed(), *commands]

    def leave(self) -> list[Command]:
        """Close all watches."""
        for assistant in [*self._watching]:
            self.drop(assistant)
        return self._closed()

    def _release(self, unit: DraftUnit, assistant: int) -> None:
        """Leave a place to a request instead of a watch."""
        if unit.waiting and unit.verdicts[assistant].hearing is Hearing.WATCHED:
            unit.verdicts[assistant].hearing = Hearing.OPEN
            self.released = True

    def _begin(self, assistant: int, first: int, response: Response) -> Watch:
        text, ids = bytes(response.text[: response.end_of(first)]), response.ids_before(first)
        return self._open(assistant, text, ids, response.max_tokens - first)

    def _closed(self) -> list[Command]:
        closing, self._closing = self._closing, []
        return closing

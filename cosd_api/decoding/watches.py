"""Watches: streams left open in place of questions, which answer every place that they pass.

A watch is an assistant's own greedy stream after the path of the answer. As long as its tokens are the answer's, each
token is the assistant's choice at the next place, and a single question there would bring the same choice: both follow
the same ids. At a difference the watch has answered that place, and is closed, unless its token becomes the
replacement: then the stream continues the answer itself. So each difference restarts either the watch or the draft, and
the text depends on neither.

Tokens that are ahead of the draft wait for the draft. If a watch fails, a single question replaces it.
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
"""Largest distance in tokens of a watch to a later place that waits for it; a watch opened there reads these tokens at
once.
"""

AHEAD = 32
"""Tokens that a watch may write beyond the answer so far: more tokens would most likely be in vain."""

_SLOWER = 1.25  # an assistant whose tokens take more than this many times the draft's time does not keep up
_FAILURES = 2  # watches that fail in a row; then the assistant is asked by requests


def watched(infos: Mapping[int, ServerInfo], speeds: Speeds) -> frozenset[int]:
    """The assistants that are asked by watches, by index, for methods that ask after ids.

    Args:
        infos: the servers that are known, the draft's at -1.
        speeds: of the models, in the answers so far.
    """
    assistants = {at: info for at, info in infos.items() if at >= 0 and info.capabilities.ids}
    return frozenset(at for at, info in assistants.items() if is_watched(infos[-1], info, speeds.slower(1 + at)))


def is_watched(draft: ServerInfo, assistant: ServerInfo, slower: float | None) -> bool:
    """Decide whether an assistant is asked by a watch, among models that are asked after ids.

    A user's own choice of a strategy comes first (`Capabilities.watch`). By default a server that is best asked about
    one place after another (llama.cpp) gets a watch, if it can keep up: a watch writes the whole answer, but single
    questions hardly more than every fifth token. So the server must have a machine of its own, by the hosts of the
    URLs, so that it takes no time from the draft; and it must not be much slower than the draft.

    Args:
        draft: the draft's server.
        assistant: the assistant's.
        slower: the time in which it writes a token, divided by the draft's; None before both were measured.
    """
    wanted = assistant.capabilities.watch
    if wanted is not None:
        return wanted
    apart = _host(draft) != _host(assistant)
    return assistant.capabilities.places == 1 and apart and (slower is None or slower <= _SLOWER)


def _host(server: ServerInfo) -> str | None:
    """The machine of a server, with one name for the local machine; None if the endpoint is no URL."""
    host = urlsplit(server.endpoint).hostname
    return "localhost" if host in ("127.0.0.1", "::1") else host


@dataclass(slots=True)
class Watching:
    """A watch in progress, or a closed watch whose tokens are still of use.

    Attributes:
        opened: the command that opened it.
        tokens: written so far.
        passed: the number of them that are the answer's.
        open: whether it still writes.
        failed: whether it ended early, so that another request may show the reason.
    """

    opened: Watch
    tokens: list[Token] = field(default_factory=list[Token])
    passed: int = 0
    open: bool = True
    failed: bool = False

    @property
    def number(self) -> int:
        """The number of its request."""
        return self.opened.watch

    @property
    def first(self) -> int:
        """The number of ids before its first token."""
        return len(self.opened.ids)

    @property
    def place(self) -> int:
        """Index in the answer of the place that it answers next."""
        return self.first + self.passed

    @property
    def over(self) -> bool:
        """True if it answers no more places."""
        return not self.open and self.passed == len(self.tokens)


@dataclass(frozen=True, slots=True)
class WatchAnswer:
    """A choice of an assistant at one place: an answer by a watch."""

    watch: int
    unit: DraftUnit
    assistant: int
    proposal: Proposal


class Streams(ABC):
    """The streams that are left open in one answer, at most one for each assistant.

    Args:
        assistants: the assistants that are asked by watches.
        alternatives: other tokens that are listed with each token.
        number: gives the number of one more request.

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
        """Have the request of a watch closed, by its number."""

    def wrote(self, watch: int, token: Token) -> bool:
        """Take a token of a watch; false if it is no longer needed."""
        for assistant, one in self._watching.items():
            if one.number == watch and one.open:
                one.tokens.append(token)
                self._failures[assistant] = 0
                return True
        return False

    def ended(self, watch: int, *, failed: bool) -> None:
        """Take the end of a watch, perhaps before its last token."""
        for assistant, one in self._watching.items():
            if one.number == watch and one.open:
                one.open, one.failed = False, failed
                self._failures[assistant] += failed

    def leave_out(self, assistant: int) -> None:
        """Stop watching an assistant."""
        self.assistants.discard(assistant)
        self.drop(assistant)

    def drop(self, assistant: int) -> None:
        """Forget the watch of an assistant, and close it."""
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
        """True once an assistant's watches have failed too often in a row."""
        return self._failures[assistant] >= _FAILURES


class Watches(Streams):
    """The watches of one answer by models with the same ids.

    Args:
        assistants: the assistants that are asked by watches.
        alternatives: other tokens that are listed with each token.
        number: gives the number of one more request.

    Attributes:
        released: whether a place was left to a request since `released` was last read.
    """

    def __init__(self, assistants: Iterable[int], alternatives: int, number: Callable[[], int]) -> None:
        super().__init__(assistants, alternatives, number)
        self.released = False
        self._closing: list[Command] = []

    def _stop(self, watch: int) -> None:
        self._closing.append(CloseWatch(watch))

    def begin(self, assistants: Iterable[int], response: Response) -> list[Command]:
        """Open a watch at the start of the answer: assistants read the prompt beside the draft."""
        return [self._begin(assistant, 0, response) for assistant in assistants if assistant in self.assistants]

    def claim(self, unit: DraftUnit) -> None:
        """Leave a waiting unit to the watches of the assistants that have one."""
        for assistant in self.assistants:
            if unit.verdicts[assistant].hearing is Hearing.OPEN:
                unit.verdicts[assistant].hearing = Hearing.WATCHED

    def answer(self, units: Sequence[DraftUnit], response: Response) -> WatchAnswer | None:
        """The next answer of a watch; watches whose tokens are not the answer's are closed."""
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
                        self._release(unit, assistant)  # the server did not show the probability
                    elif not agrees and (verdict.replacement is not None or verdict.hearing is Hearing.WITHOUT_P):
                        break  # the token may become the answer's
                if not agrees:
                    self.drop(assistant)
                    break
                one.passed += 1
        return None

    def rewind(self, count: int) -> None:
        """Rewind the watches to the first `count` tokens of the answer, which alone are kept for certain."""
        for assistant, one in [*self._watching.items()]:
            if one.first > count:
                self.drop(assistant)
            else:
                one.passed = min(one.passed, count - one.first)

    def next(self, units: Iterable[DraftUnit], response: Response, busy: Container[int]) -> list[Command]:
        """Close watches that are too far from the draft, and open a watch at the first place that waits for it.

        No watch is opened for the assistants that are `busy` with a request.
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
        """Leave a place to a request."""
        if unit.waiting and unit.verdicts[assistant].hearing is Hearing.WATCHED:
            unit.verdicts[assistant].hearing = Hearing.OPEN
            self.released = True

    def _begin(self, assistant: int, first: int, response: Response) -> Watch:
        text, ids = bytes(response.text[: response.end_of(first)]), response.ids_before(first)
        return self._open(assistant, text, ids, response.max_tokens - first)

    def _closed(self) -> list[Command]:
        closing, self._closing = self._closing, []
        return closing

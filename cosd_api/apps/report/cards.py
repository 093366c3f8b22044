"""The texts of the hover cards, one for each token and each request. The page's script only displays them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Literal

from cosd_api import FusionResult
from cosd_api.apps.report.phrases import in_line, name_of, prob, seconds
from cosd_api.apps.report.terminal import measure
from cosd_api.common.wording import counted
from cosd_api.extend import DRAFT, RequestKind, readable
from cosd_api.types import FusedToken, Request, Segment

Standing = Literal["replaced", "kept", "agreed", "unheard", "sure", "open"]
"""Status of a token. "replaced": an assistant's token. "kept": the draft's token, although an assistant proposed
another one. "agreed": all assistants that were asked agreed. "unheard": not verified, because an assistant had failed.
"sure": no assistant was asked, because its answer could not have changed the text. "open": an assistant was asked, but
gave nothing to judge.
"""

_STANDING: Mapping[Standing, str] = {
    "replaced": "replaced",
    "kept": "kept",
    "agreed": "agreed",
    "unheard": "not verified",
    "sure": "not asked",
    "open": "kept",
}
_ASKED = ("question", "score", "watch")
_TITLES: Mapping[RequestKind, str] = {
    "draft": "Draft",
    "question": "Question",
    "score": "Score",
    "watch": "Watch",
}
_MOST_TEXTS = 8  # maximum number of proposed texts on a card
_UNASKED = "no assistant was asked: no answer could have changed it"


@dataclass(frozen=True, slots=True)
class HoverCard:
    """One hover card.

    Attributes:
        title: name of the token or request.
        mark: the status, in one or two words.
        standing: the status as a CSS class.
        rows: one row for each text, with the endpoint, the text and its probability.
        words: lines that describe the decisions.
        foot: lines that say where the token came from, and when.
        requests: keys of the requests that produced the token; see `request_key`.
    """

    title: str
    mark: str
    standing: str
    rows: tuple[tuple[str, str, str], ...]
    words: tuple[str, ...]
    foot: tuple[str, ...]
    requests: tuple[str, ...] = ()


def standing(token: FusedToken) -> Standing:
    """The status of a token."""
    if token.source != DRAFT:
        return "replaced"
    if not token.verified:
        return "unheard"
    if not token.asked:
        return "sure"
    if not token.decisions:
        return "open"
    return "agreed" if all(decision.agreed for decision in token.decisions) else "kept"


def spelled(token: FusedToken) -> str:
    """The text of a token, or its bytes if the token is only part of a character."""
    return token.text or readable(token.data)


def _together(one: FusedToken, other: FusedToken) -> bool:
    return one.unit == other.unit and one.source == other.source


def request_key(request: Request) -> str:
    """Key of a request on the page. Draft requests are numbered separately from all other requests."""
    return f"{'q' if request.kind in _ASKED else 'd'}{request.number}"


class Cards:
    """The cards of one result.

    Attributes:
        result: the result of the fusion.
        models: the model's name for each endpoint.
    """

    def __init__(self, result: FusionResult) -> None:
        self.result = result
        endpoints = {DRAFT: result.draft, **{one.name: one for one in result.assistants}}
        self.models = {name: in_line(endpoint.model) for name, endpoint in endpoints.items()}

    def who(self, name: str) -> str:
        """Name an endpoint by its role and its model, such as `assistant (facts)`."""
        model = self.models.get(name)
        return f"{in_line(name)} ({model})" if model else in_line(name)

    def token(self, at: int) -> HoverCard:
        """Make the card of a token."""
        token = self.result.tokens[at]
        if token.unit < len(self.result.segments):
            return self._chosen(at, token, self.result.segments[token.unit])
        stands = standing(token)
        mark = f"by {in_line(token.source)}" if stands == "replaced" else _STANDING[stands]
        brought = {f"q{decision.request}": None for decision in token.decisions if decision.request is not None}
        drafted = () if token.draft is None else (f"d{token.draft}",)
        return HoverCard(
            title=name_of(spelled(token), end=token.end),
            mark=mark,
            standing=stands,
            rows=(*self._draft_rows(at, token), *self._assistant_rows(token)),
            words=self._words(token),
            foot=tuple(self._foot(at, token)),
            requests=(*drafted, *brought),
        )

    def _chosen(self, at: int, token: FusedToken, segment: Segment) -> HoverCard:
        """Make the card of a token in a segment, with the texts proposed for the segment and their mean scores."""
        of = "" if len(self.result.segments) < 2 else f", segment {token.unit + 1}"
        return HoverCard(
            title=name_of(spelled(token), end=token.end),
            mark=f"by {in_line(token.source)}",
            standing=standing(token),
            rows=tuple(
                (in_line(", ".join(one.sources)), name_of(one.text, end=one.end), measure(one.mean))
                for one in segment.candidates[:_MOST_TEXTS]
            ),
            words=(in_line(segment.reason),),
            foot=(f"token {at + 1}{of}", *self._times(token, "written")),
            requests=() if token.draft is None else (f"d{token.draft}",),
        )

    def word(self, at: int) -> tuple[FusedToken, str]:
        """For the replacement that contains a token, return its first token and its whole text."""
        tokens = self.result.tokens
        start = at
        while start and tokens[start].replaced is None and _together(tokens[start - 1], tokens[at]):
            start -= 1
        rest = takewhile(
            lambda one: one.replaced is None and _together(one, tokens[at]), islice(tokens, start + 1, None)
        )
        return tokens[start], readable(b"".join(one.data for one in (tokens[start], *rest)))

    def _draft_rows(self, at: int, token: FusedToken) -> Iterator[tuple[str, str, str]]:
        """Yield rows for the draft's own token, or for the draft's tokens that were replaced."""
        who = self.who(DRAFT)
        if token.source == DRAFT:
            yield who, name_of(spelled(token), end=token.end), prob(token.draft_prob)
            return
        first, _ = self.word(at)
        yield who, name_of(first.replaced or "", end=True), prob(token.draft_prob)
        if len(first.replaced_tokens) > 1:
            for one in first.replaced_tokens:
                yield "", name_of(one.text, end=one.end), prob(one.prob)

    def _assistant_rows(self, token: FusedToken) -> Iterator[tuple[str, str, str]]:
        """Yield rows for the replacement, and for the texts of all other assistants that were asked."""
        if token.source != DRAFT:
            yield self.who(token.source), name_of(spelled(token), end=token.end), prob(token.assistant_prob)
        for decision in token.decisions:
            if decision.assistant != token.source or not decision.fired:
                yield self.who(decision.assistant), name_of(decision.text, end=True), prob(decision.prob)

    def _words(self, token: FusedToken) -> tuple[str, ...]:
        if not token.decisions:
            return (in_line(token.reason or _UNASKED),)
        if len(token.decisions) == 1:
            return (in_line(token.decisions[0].reason),)
        return tuple(in_line(f"{decision.assistant}: {decision.reason}") for decision in token.decisions)

    def _foot(self, at: int, token: FusedToken) -> Iterator[str]:
        own = readable(token.data)
        word = self.word(at)[1] if token.source != DRAFT else own
        part = f", part of {name_of(word, end=True)}" if word != own else ""
        yield f"token {at + 1}, unit {token.unit + 1}, round {token.round}{part}"
        drafted = "" if token.draft is None else f" by draft {token.draft}" if token.source == DRAFT else ""
        yield from self._times(token, f"{'drafted' if token.source == DRAFT else 'replaced'}{drafted}")
        if token.raw is not None:
            yield f"bytes {token.raw}"

    def _times(self, token: FusedToken, stood: str) -> Iterator[str]:
        times = [f"{stood} at {seconds(token.placed_at)}" if token.placed_at is not None else ""]
        times += [f"final at {seconds(token.final_at)}" if token.final_at is not None else ""]
        if any(times):
            yield ", ".join(filter(None, times))

    def request(self, request: Request) -> HoverCard:
        """Make the card of a request."""
        wrote = f"wrote {counted(request.tokens, 'token')}"
        places = counted(request.places, "place")
        did = {"question": f"asked about {places}", "score": "scored a text", "watch": f"{wrote}, answered {places}"}
        foot = [f"{seconds(request.start)} to {seconds(request.end)}, {seconds(request.end - request.start)} in all"]
        if request.first is not None:
            foot.append(f"first token after {seconds(request.first - request.start)}")
        words = f"{did.get(request.kind, wrote)}, from byte {request.at:,} of the answer on"
        made = request.outcome
        who = (self.who(request.endpoint), "", "")
        return HoverCard(f"{_TITLES[request.kind]} {request.number}", made, made, (who,), (words,), tuple(foot))

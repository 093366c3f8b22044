"""Each model's own path through an answer, which consists of the ids that the model is asked to continue.

::

    1   text that the model wrote itself is on its path with the ids that it wrote
    2   text of other models is on the model's path in the model's own encoding         `Paths.path`
    3   models that share the same token ids share one path: the ids of the tokens that were written

In rule 2, ids that the model wrote before the text of another model are kept up to the last token boundary that also
exists in the model's encoding of the whole text.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from cosd_api.paths.encoding import Encoder
from cosd_providers.contract import Piece, Token
from cosd_providers.errors import UnsupportedError
from cosd_providers.forwarding import by_ids
from cosd_providers.messages import RenderedPrompt
from cosd_providers.text import sendable


@dataclass(frozen=True, slots=True)
class Path:
    """A model's ids for a text.

    Attributes:
        text: the text.
        ids: the ids.
        ends: byte offset of the end of each token in the text.
        mass: product of the probabilities of those tokens that the model wrote itself.
    """

    text: bytes = b""
    ids: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    mass: float = field(default=1.0, compare=False)

    def count_before(self, at: int) -> int | None:
        """The number of ids before byte `at`; None if no token ends there."""
        return _count(self.ends, at)

    def before(self, at: int) -> Path | None:
        """The path up to byte `at`; None if no token ends there."""
        count = self.count_before(at)
        return None if count is None else Path(self.text[:at], self.ids[:count], self.ends[:count])

    def over(self, at: int) -> Path:
        """The path up to byte `at`, or up to the end of a token that extends across this byte."""
        count = bisect_left(self.ends, at) + 1
        if count >= len(self.ids):
            return self
        return Path(self.text[: self.ends[count - 1]], self.ids[:count], self.ends[:count])

    def pieces(self, start: int) -> list[Piece]:
        """The tokens from index `start` on, each with its bytes."""
        edges = [self.ends[start - 1] if start else 0, *self.ends[start:]]
        return [Piece(token_id, self.text[edges[at] : edges[at + 1]]) for at, token_id in enumerate(self.ids[start:])]


class Trail:
    """A path that one model has written or is writing, which consists of raw tokens after an earlier path.

    Args:
        model: index of the model.
        path: the path that the model continues.
        ahead: whether tokens may arrive before they are needed. If so, they become part of the path only when they are
            read (`read`), so that nothing depends on the time of their arrival.
        choice: whether the model would write these tokens but has not written them.

    Attributes:
        model: index of the model.
        start: byte offset at which the model's tokens after `path` begin.
        choice: whether the model would write these tokens but has not written them.
        text: the text so far.
    """

    def __init__(self, model: int, path: Path, *, ahead: bool = False, choice: bool = False) -> None:
        self.model = model
        self.choice = choice
        self.start = len(path.text)
        self.text = bytearray(path.text)
        self._ids = [*path.ids]
        self._ends = [*path.ends]
        self._probs: dict[int, float | None] = {}  # probabilities, by byte offset of the token's end
        self._mass = path.mass
        self._ahead = ahead
        self._unread: list[Token] = []
        self._copied: tuple[Trail, int] | None = None  # the trail copied by `follow`, and its number of ids

    def add(self, token: Token) -> None:
        """Append the next raw token. An end of sequence is not part of a path."""
        if token.end or token.id is None:
            return
        if self._ahead:
            self._unread.append(token)
            return
        self.text += token.data
        self._ids.append(token.id)
        self._ends.append(len(self.text))
        self._probs[len(self.text)] = token.prob

    def read(self, length: int | None = None) -> None:
        """Add waiting tokens to the path until the text has `length` bytes; by default, add all of them."""
        unread, self._unread, self._ahead = self._unread, [], False
        for at, token in enumerate(unread):
            if length is not None and len(self.text) >= length:
                self._unread = unread[at:]
                break
            self.add(token)
        self._ahead = length is not None

    def beyond(self, text: bytes) -> Token | None:
        """The rest of the token inside which `text` ends, with the whole token's probability.

        The result is None if the trail does not begin with `text`, or if `text` ends between two tokens.
        """
        if not self.text.startswith(text):
            return None
        place = bisect_right(self._ends, len(text))
        if place == len(self._ends) or (self._ends[place - 1] if place else 0) == len(text):
            return None
        end = self._ends[place]
        return Token(bytes(self.text[len(text) : end]), self._probs.get(end))

    def follow(self, other: Trail, at: int) -> bool:
        """Become a copy of `other` up to byte `at`. Return False if no token of `other` ends at this byte."""
        count = _count(other._ends, at)
        if count is None:
            return False
        source, known = self._copied or (None, 0)
        if source is not other or known > count:
            known = 0
            del self._ids[:], self._ends[:], self.text[:]
        self._ids += other._ids[known:count]
        self._ends += other._ends[known:count]
        self.text += other.text[len(self.text) : at]
        self._copied = other, count
        return True

    @property
    def path(self) -> Path:
        """The whole path so far."""
        return Path(bytes(self.text), tuple(self._ids), tuple(self._ends), self._mass_upto(len(self.text)))

    def _mass_upto(self, end: int) -> float:
        return self._mass * math.prod(prob for at, prob in self._probs.items() if prob is not None and at <= end)

    def shared(self, text: bytes) -> Path:
        """The longest prefix of the path, in whole tokens, that is also a prefix of `text`."""
        whole = bytes(self.text)
        if text.startswith(whole):
            return self.path
        common = len(text) if whole.startswith(text) else _common(whole, text)
        count = bisect_right(self._ends, common)
        if count and self._ends[count - 1] == len(text):  # tokens without bytes belong to later text
            count = bisect_left(self._ends, len(text)) + 1
        end = self._ends[count - 1] if count else 0
        return Path(whole[:end], tuple(self._ids[:count]), tuple(self._ends[:count]), self._mass_upto(end))


class Paths:
    """The paths of all models through one answer.

    Args:
        turns: the models with their rendered prompts.
        takes_ids: for each model, whether it is sent ids.
        same: whether all models have the same ids.
    """

    def __init__(self, turns: Sequence[RenderedPrompt], takes_ids: Sequence[bool], *, same: bool) -> None:
        self._turns = turns
        self._takes_ids = takes_ids
        self._same = same
        self._spines: dict[int, Trail] = {}
        self._trails: list[Trail] = []
        self._encoders: dict[int, Encoder] = {}

    def fresh(self) -> Paths:
        """Make empty paths of the same models for another answer."""
        return Paths(self._turns, self._takes_ids, same=self._same)

    def takes_ids(self, model: int) -> bool:
        """Test whether a model is sent ids."""
        return self._takes_ids[model]

    def begin(self, model: int, path: Path, tokens: Sequence[Token] = (), *, ahead: bool = False) -> Trail:
        """Begin a trail of a model that continues `path`. If given, `tokens` are tokens that the model would write."""
        trail = Trail(model, path, ahead=ahead, choice=bool(tokens))
        for token in tokens:
            trail.add(token)
        self._trails.append(trail)
        return trail

    def write(self, model: int, before: bytes, token: Token) -> None:
        """Record that a model's token was added to the answer after `before`, and is on that model's path."""
        if token.end or not self._takes_ids[model]:
            return
        spine = self._spines.setdefault(self._home(model), Trail(model, Path()))
        text = before + token.data
        for trail in reversed(self._trails):
            own = trail.model == model and trail.start <= len(before)
            if own and trail.text.startswith(text) and spine.follow(trail, len(text)):
                return
        if token.id is not None and bytes(spine.text) == before:
            spine.add(token)

    async def path(self, model: int, text: bytes) -> Path | None:
        """Find a model's path through a text; None if the model accepts only text or its encoding is unknown.

        Raises:
            ProviderError: the model failed.
        """
        if not self._takes_ids[model]:
            return None
        own = self._own(model, text)
        if own.text == text:
            return own
        return await self._encode(model, own, text)

    def wrote(self, model: int, path: Path) -> bool:
        """Test whether a model wrote the path itself, apart from the beginning that it was asked to continue."""
        return any(trail.model == model and trail.shared(path.text) == path for trail in self._trails)

    def beyond(self, model: int, text: bytes) -> tuple[Path, Token] | None:
        """A path that the model wrote, on which a token extends across the end of `text`.

        The model has to continue after that token, because no path that it wrote ends with `text`.

        Returns:
            The path up to the end of that token, and the part of the token after `text`. None if no such path exists,
            or if the model also wrote a path that ends with `text`.
        """
        spine, trails = self._spines.get(self._home(model)), [one for one in self._trails if one.model == model]
        written = [one for one in trails if one.start < len(text)]
        if spine is not None:
            written.append(spine)
        if not self._takes_ids[model] or any(one.shared(text).text == text for one in written):
            return None
        for trail in trails:
            if not trail.choice and (rest := trail.beyond(text)) is not None:
                path = trail.path.before(len(text) + len(rest.data))
                assert path is not None, "it is a boundary"
                return path, rest
        return None

    def follows(self, trail: Trail, text: bytes) -> bool:
        """Test whether a trail begins with a text and does not contradict the answer's ids for that text."""
        spine = self._spines.get(self._home(trail.model))
        return trail.text.startswith(text) and (
            spine is None or bytes(spine.text) != text or spine.path.ids == trail.shared(text).ids
        )

    def forget(self, text: bytes) -> None:
        """Forget the trails that have become useless because the answer begins with `text`."""
        kept, longest = list[Trail](), dict[int, Trail]()
        for trail in self._trails:
            if trail.text.startswith(text):
                kept.append(trail)
            else:  # of the other trails, only the one that agrees longest with the answer is useful
                best = longest.setdefault(trail.model, trail)
                if len(trail.shared(text).text) > len(best.shared(text).text):
                    longest[trail.model] = trail
        self._trails = [*longest.values(), *kept]

    def _home(self, model: int) -> int:
        """The index of the model under which the path is stored, which is 0 if all models have the same ids."""
        return 0 if self._same else model

    def _own(self, model: int, text: bytes) -> Path:
        """The longest path that this model, or any model with the same ids, wrote through the beginning of a text.

        Among equally long paths, the answer's path is preferred, then the model's own path, then the most probable
        path.
        """
        spine = self._spines.get(self._home(model))
        best = Path() if spine is None else spine.shared(text)
        if best.text == text:
            return best
        found = [(one, one.shared(text)) for one in self._trails if one.model == model or self._same]
        found.sort(key=lambda one: _order(one[0], one[1], model, text), reverse=True)
        return found[0][1] if found and len(found[0][1].text) > len(best.text) else best

    async def _encode(self, model: int, own: Path, text: bytes) -> Path | None:
        """Extend a path that the model wrote by encoding the rest of a text; None if that encoding is unknown."""
        sent = sendable(text)
        encoder = self._encoders.get(model)
        if encoder is None:
            turn = self._turns[model]
            encoder = self._encoders[model] = Encoder(by_ids(turn.on_path).encode, turn.lead)
        try:
            found = await encoder.upto(sent.encode(), len(sent.encode()))
        except UnsupportedError:
            return None
        if found is None:
            return None
        ends = list(found.ends)
        if len(sent.encode()) != len(text):
            offsets = _offsets(text)
            ends = [offsets[end] for end in ends]
        base = own.before(max({0, *ends}.intersection((0, *own.ends))))
        assert base is not None, "it is a boundary"
        first = bisect_right(ends, len(base.text)) if base.text else 0  # the tokens of a `lead` end at 0
        return Path(text, base.ids + found.ids[first:], base.ends + tuple(ends[first:]), base.mass)


def _order(trail: Trail, path: Path, model: int, text: bytes) -> tuple[int, bool, bool, float]:
    return len(path.text), trail.model == model, trail.start < len(text), path.mass


def _offsets(data: bytes) -> list[int]:
    """Map byte offsets in the text that can be sent (valid UTF-8), including its end, to offsets in the whole text."""
    found, at = [0], 0
    for character in data.decode("utf-8", "surrogateescape"):
        if "\udc80" <= character <= "\udcff":
            at += 1
            found[-1] = at
        else:
            found += range(at + 1, at + 1 + len(character.encode()))
            at = found[-1]
    return found


def _common(one: bytes, other: bytes) -> int:
    """The length of the common prefix of two texts, in bytes."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def _count(ends: Sequence[int], at: int) -> int | None:
    """The number of tokens before byte `at`, given the offsets of their ends; None if no token ends there."""
    if not at:
        return 0
    place = bisect_left(ends, at)
    return place + 1 if place < len(ends) and ends[place] == at else None

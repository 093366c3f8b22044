"""A model's most probable tokens at all places in a reference answer. The model is sent its own ids, or text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from cosd_api.paths import Encoded
from cosd_providers.contract import Context, IdScores, Proposal, Question, Token
from cosd_providers.errors import ResponseError, UnsupportedError
from cosd_providers.forwarding import by_given_ids, by_ids
from cosd_providers.messages import RenderedPrompt
from cosd_providers.text import last_character
from cosd_providers.usage import Usage

__all__ = ["END", "PathReading", "TextReading", "ask_after", "read", "read_draft", "read_text"]


END = Token(b"", None, end=True)
"""The end of sequence after a reference answer."""
_LISTED = 2  # number of tokens to list at each place in a path; the path's own token may be one of them


@dataclass(frozen=True, slots=True)
class PathReading:
    """The tokens that a model finds most probable along a reference answer that it is sent as ids.

    Attributes:
        choices: the model's most probable token at the place of each token of the path, and after the last token; None
            if it is unknown.
        scores: the tokens of the path and the end of sequence, with their probabilities and alternatives; empty if the
            server does not score ids.
    """

    choices: tuple[Token | None, ...]
    scores: tuple[Token, ...] = ()

    def answers(self, ids: Sequence[int]) -> dict[tuple[int, ...], Token | None]:
        """Return the known choices, each indexed by the ids before it."""
        return {tuple(ids[:count]): one for count, one in enumerate(self.choices) if one is not None}


@dataclass(frozen=True, slots=True)
class TextReading:
    """The tokens that a model finds most probable along a reference answer that it is sent as text.

    Attributes:
        tokens: the tokens of the model's own encoding of the text, joined to whole characters, followed by the end of
            sequence. They have no ids and no probabilities.
        starts: byte offset of each token.
        choices: the token that the model would write at the place of each token; None if it is unknown.
    """

    tokens: tuple[Token, ...]
    starts: tuple[int, ...]
    choices: tuple[Token | None, ...]

    @classmethod
    def of(cls, text: bytes, proposals: Sequence[Proposal | None]) -> TextReading:
        """Create the reading of a text from a model's proposals at all boundaries of its own encoding."""
        known: dict[int, Token | None] = {0: None, len(text): None}
        last = 0
        for at, proposal in enumerate(proposals, 1):
            if proposal is not None:
                last = proposal.start
                known[last] = proposal.tokens[0]
            elif at < len(
                proposals
            ):  # without a proposal, the offset of a boundary is unknown, except that the last is the text's end
                known[last] = None
        starts = sorted(known)
        tokens = [Token(text[start:end], None) for start, end in pairwise(starts)]
        return cls((*tokens, END), tuple(starts), tuple([known[start] for start in starts]))

    def certain(self) -> TextReading:
        """Return the reading without the choices at places that follow white space.

        At each place, the model was asked to continue the text up to that place. If this text ends in white space, the
        model may encode the white space differently from how it would write it.
        """
        known = [None if self._is_doubtful(at) else choice for at, choice in enumerate(self.choices)]
        return replace(self, choices=tuple(known))

    def _is_doubtful(self, at: int) -> bool:
        return at > 0 and last_character(self.tokens[at - 1].data).isspace()

    def questions(self) -> dict[int, Question]:
        """Return questions about the places after white space, indexed by the place at which each question begins."""
        found, first = dict[int, Question](), 0
        for at in range(1, len(self.tokens)):
            if not self._is_doubtful(at):
                first = at
                continue
            data = [token.data or b" " for token in self.tokens[first : at + 1]]  # a space represents the end
            found[first] = Question(self.starts[first], tuple(data), word=True)
        return found

    def with_answers(self, answers: Mapping[int, Proposal | None]) -> TextReading:
        """Return `certain()` with choices from the answers to `questions`.

        The choices after an answer's first token that differs from the text are not used.
        """
        choices = [*self.certain().choices]
        for first, answer in answers.items():
            for at, token in enumerate(answer.tokens if answer is not None else (), first):
                if at > first and not self._is_doubtful(at):
                    break
                choices[at] = token
                if (token.data, token.end) != (self.tokens[at].data, self.tokens[at].end):
                    break
        return replace(self, choices=tuple(choices))


async def read_text(turn: RenderedPrompt, text: bytes, *, listed: int = 0, usage: Usage) -> list[Proposal | None]:
    """Request a model's proposals at all boundaries of its own encoding of a text.

    Args:
        turn: the model and its prompt.
        text: the text.
        listed: number of alternative tokens to list with each proposal.
        usage: record to which requests and tokens are added.

    Raises:
        ProviderError: the server failed.
    """
    also: dict[str, Any] = {"alternatives": listed} if listed else {}  # some providers do not accept the keyword
    return await turn.provider.propose(Context(turn.prompt, text), None, usage=usage, **also)


async def read_draft(turn: RenderedPrompt, text: bytes, *, usage: Usage) -> TextReading:
    """Read a text with a draft that is sent text. Places after white space need one more request.

    Raises:
        ProviderError: the server failed.
    """
    reading = TextReading.of(text, await read_text(turn, text, usage=usage))
    questions = reading.questions()
    if not questions:
        return reading
    answers = await turn.provider.propose(Context(turn.prompt, text), [*questions.values()], usage=usage)
    return reading.with_answers(dict(zip(questions, answers, strict=True)))


async def read(
    turn: RenderedPrompt, text: bytes, path: Encoded, *, end: bool, listed: int | None = None, usage: Usage
) -> PathReading:
    """Read a path in one scoring request, or place by place if the server does not score ids.

    Args:
        turn: the model and its prompt.
        text: the text of the path.
        path: the model's own ids of the text.
        end: whether the place after the text is read, too.
        listed: number of tokens to list with each token of the path; if given, the server must score ids.
        usage: record to which requests and tokens are added.

    Raises:
        UnsupportedError: `listed` is given, but the server does not score ids.
        ProviderError: the server failed.
    """
    provider = turn.on_path
    can = (await provider.describe()).capabilities
    # Unless the server reports the end's probability, its lists do not show whether the end is the most probable token.
    able = isinstance(provider, IdScores) and can.score and can.score_top_k >= _LISTED and can.end_prob
    if able or listed is not None:
        try:
            context = Context(turn.prompt, text, path.ids)
            found = await by_given_ids(provider).score_ids(
                context, 0, alternatives=max(_LISTED, listed or 0), end=end, usage=usage
            )
        except UnsupportedError:  # a wrapper has the method even if the provider that it wraps does not
            if listed is not None:
                raise
        else:
            if [token.id for token in found[: len(path.ids)]] != [*path.ids] or len(found) != len(path.ids) + end:
                words = "score_ids() gave other tokens than the ids that it was asked about"
                raise ResponseError(words, endpoint=provider.name)
            pieces = [text[path.offset(at) : path.offset(at + 1)] for at in range(len(path.ids))]
            scores = [replace(token, data=data) for token, data in zip(found, pieces, strict=False)]
            scores += found[len(scores) :]
            choices = [_chosen(token) for token in scores]
            return PathReading((*choices, *([] if end else [None])), tuple(scores))
    places = {path.ids[:count]: text[: path.offset(count)] for count in range(len(path.ids) + end)}
    answers = await ask_after(turn, places, usage=usage)
    return PathReading((*answers.values(), *([] if end else [None])))


async def ask_after(
    turn: RenderedPrompt, places: Mapping[tuple[int, ...], bytes], *, usage: Usage
) -> dict[tuple[int, ...], Token | None]:
    """Ask a model for its most probable token after each sequence of ids; `places` maps the ids to their text.

    Raises:
        ProviderError: the server failed.
    """
    contexts = [Context(turn.prompt, text, ids) for ids, text in places.items()]
    found = await by_ids(turn.on_path).next_tokens(contexts, usage=usage)
    return dict(zip(places, found, strict=True))


def _chosen(token: Token) -> Token | None:
    """Return the most probable token at the place of a scored token; None if it is unknown.

    If several tokens are equally probable, return the scored token.
    """
    if token.prob is None:
        return None
    first, *others = sorted((token, *token.alternatives), key=lambda one: -(one.prob or 0.0))
    return replace(first, alternatives=tuple(replace(one, alternatives=()) for one in others))

"""A model's most probable tokens at all places in a reference answer. The model is sent its own ids, or text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

from cosd_api.paths.encoding import Encoded
from cosd_providers.contract import Context, IdScores, Proposal, Question, Token
from cosd_providers.errors import ResponseError, UnsupportedError
from cosd_providers.forwarding import by_given_ids, by_ids
from cosd_providers.messages import RenderedPrompt
from cosd_providers.text import last_character
from cosd_providers.usage import Usage

__all__ = ["END", "ForcedModel", "ReferenceReading"]

END = Token(b"", None, end=True)
"""The end of sequence after a reference answer."""
_LISTED = 2  # number of tokens to list at each place in a path; the path's own token may be one of them


@dataclass(frozen=True)
class ReferenceReading:
    """The tokens that a model finds most probable along a reference answer.

    Attributes:
        tokens: the tokens of the model's own encoding of the reference, followed by the end of sequence, all without
            probabilities. If the model is sent text, they are joined to whole characters and have no ids.
        choices: the token that the model would write at the place of each token; None if it is unknown.
        scores: the tokens of the reference with their probabilities and alternatives; empty if they were not scored.
    """

    tokens: tuple[Token, ...]
    choices: tuple[Token | None, ...]
    scores: tuple[Token, ...] = ()

    @classmethod
    def of(cls, text: bytes, proposals: Sequence[Proposal | None]) -> ReferenceReading:
        """Create the reading of a text from a model's proposals at all boundaries of its own encoding."""
        known: dict[int, Token | None] = {0: None, len(text): None}
        last = 0
        for at, proposal in enumerate(proposals, 1):
            if proposal is not None:
                last = proposal.start
                known[last] = proposal.tokens[0]
            elif at < len(proposals):  # the offset of this boundary is unknown; the last boundary is the text's end
                known[last] = None
        starts = sorted(known)
        tokens = [Token(text[start:end], None) for start, end in pairwise(starts)]
        return cls((*tokens, END), tuple([known[start] for start in starts]))

    @cached_property
    def starts(self) -> list[int]:
        """The byte offset of each token."""
        return [*accumulate((len(token.data) for token in self.tokens[:-1]), initial=0)]

    @cached_property
    def at(self) -> dict[int, Token]:
        """The known choices, by byte offset."""
        return {start: one for start, one in zip(self.starts, self.choices, strict=True) if one is not None}

    @property
    def answers(self) -> dict[tuple[int, ...], Token | None]:
        """The known choices of a model that is sent ids, by the ids before the place."""
        ids = [token.id or 0 for token in self.tokens]
        return {tuple(ids[:count]): one for count, one in enumerate(self.choices) if one is not None}

    def answer(self, question: Question) -> Sequence[Token] | None:
        """Return the tokens that answer a question about the reference; None if the reading does not contain them all.

        As long as the model would write the reference itself, its choices at the next places are its next tokens.
        """
        wanted, first, tokens = b"".join(question.tokens), bisect_left(self.starts, question.start), list[Token]()
        if self.starts[first : first + 1] != [question.start]:
            return None
        for own, choice in zip(self.tokens[first:], self.choices[first:], strict=True):
            if choice is None:
                return None
            tokens.append(choice)
            goes_on = wanted.startswith(choice.data) and len(wanted) > len(choice.data)
            if choice.end or not (question.word and goes_on):
                return tokens  # the answer ends, differs from the reference, or covers the whole question
            if choice.data != own.data:
                return None
            wanted = wanted[len(choice.data) :]
        return None

    def certain(self) -> ReferenceReading:
        """Return the reading of a text without the choices at places that follow white space.

        At each place, the model was asked to continue the text up to that place. If this text ends in white space, the
        model may encode the white space differently from how it would write it.
        """
        known = [None if self._is_doubtful(at) else choice for at, choice in enumerate(self.choices)]
        return replace(self, choices=tuple(known))

    def _is_doubtful(self, at: int) -> bool:
        return at > 0 and last_character(self.tokens[at - 1].data).isspace()

    def questions(self) -> dict[int, Question]:
        """Return questions about the places after white space, indexed by the place at which each question begins."""
        found, first, starts = dict[int, Question](), 0, self.starts
        for at in range(1, len(self.tokens)):
            if not self._is_doubtful(at):
                first = at
                continue
            data = [token.data or b" " for token in self.tokens[first : at + 1]]  # a space represents the end
            found[first] = Question(starts[first], tuple(data), word=True)
        return found

    def with_answers(self, answers: Mapping[int, Proposal | None]) -> ReferenceReading:
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


@dataclass(frozen=True, slots=True)
class ForcedModel:
    """A model that is asked about a reference. All methods raise `ProviderError` if the server fails.

    Attributes:
        turn: the model and its prompt.
        usage: record to which requests and tokens are added.
        ends: further ids that end an answer, because they end an answer of the other model.
    """

    turn: RenderedPrompt
    usage: Usage
    ends: frozenset[int] = frozenset()

    async def propose(
        self, text: bytes, questions: Sequence[Question] | None = None, *, listed: int = 0
    ) -> list[Proposal | None]:
        """Ask a model that is sent text; by default, at all boundaries of its own encoding of the text."""
        also: dict[str, Any] = {"alternatives": listed} if listed else {}  # some providers do not accept the keyword
        return await self.turn.provider.propose(Context(self.turn.prompt, text), questions, usage=self.usage, **also)

    async def read_text(self, text: bytes, *, listed: int, again: bool) -> ReferenceReading:
        """Read a text with a model that is sent text; with `again`, ask about places after white space once more."""
        reading = ReferenceReading.of(text, await self.propose(text, listed=listed))
        questions = reading.questions() if again else {}
        if not questions:
            return reading
        answers = await self.propose(text, [*questions.values()])
        return reading.with_answers(dict(zip(questions, answers, strict=True)))

    async def read(self, text: bytes, path: Encoded, *, end: bool, listed: int | None = None) -> ReferenceReading:
        """Read a path in one scoring request, or place by place if the server does not score ids.

        Args:
            text: the text of the path.
            path: the model's own ids of the text.
            end: whether the place after the text is read, too.
            listed: number of tokens to list with each token of the path; if given, the server must score ids.

        Raises:
            UnsupportedError: `listed` is given, but the server does not score ids.
        """
        provider, scores = self.turn.on_path, None
        can = (await provider.describe()).capabilities
        data = [text[path.offset(at) : path.offset(at + 1)] for at in range(len(path.ids))]
        # Unless the server reports the end's probability, its lists do not show whether the end is the most probable.
        able = isinstance(provider, IdScores) and can.score and can.score_top_k >= _LISTED and can.end_prob
        if able or listed is not None:
            try:
                scores = await by_given_ids(provider).score_ids(
                    Context(self.turn.prompt, text, path.ids),
                    0,
                    alternatives=max(_LISTED, listed or 0),
                    end=end,
                    usage=self.usage,
                )
            except UnsupportedError:  # a wrapper has the method even if the provider that it wraps does not
                if listed is not None:
                    raise
        if scores is not None:
            if [one.id for one in scores[: len(data)]] != [*path.ids] or len(scores) != len(data) + end:
                words = "score_ids() gave other tokens than the ids that it was asked about"
                raise ResponseError(words, endpoint=provider.name)
            scores = [*(replace(one, data=own) for one, own in zip(scores, data, strict=False)), *scores[len(data) :]]
            choices = [self._known(_chosen(one)) for one in scores]
        else:
            places = {path.ids[:count]: text[: path.offset(count)] for count in range(len(data) + end)}
            choices = [*(await self.next_tokens(places)).values()]
        tokens = [Token(own, None, id=one) for own, one in zip(data, path.ids, strict=True)]
        return ReferenceReading((*tokens, END), (*choices, *([] if end else [None])), tuple(scores or ()))

    async def next_tokens(self, places: Mapping[tuple[int, ...], bytes]) -> dict[tuple[int, ...], Token | None]:
        """Ask for the most probable token after each sequence of ids; `places` maps the ids to their text."""
        contexts = [Context(self.turn.prompt, text, ids) for ids, text in places.items()]
        found = await by_ids(self.turn.on_path).next_tokens(contexts, usage=self.usage)
        return dict(zip(places, map(self._known, found), strict=True))

    def _known(self, token: Token | None) -> Token | None:
        """Return the token; an id that ends an answer becomes an end of sequence."""
        return replace(token, data=b"", end=True) if token is not None and token.id in self.ends else token


def _chosen(token: Token) -> Token | None:
    """Return the most probable token at the place of a scored token; None if it is unknown.

    If several tokens are equally probable, return the scored token.
    """
    if token.prob is None:
        return None
    first, *others = sorted((token, *token.alternatives), key=lambda one: -(one.prob or 0.0))
    return replace(first, alternatives=tuple(replace(one, alternatives=()) for one in others))

"""Requests to a draft and an assistant along a reference answer.

As in a fusion, each model is sent its context as ids (`cosd_api.paths`) or as text (`cosd_api.text_paths`). A walk
along the reference collects the places with unknown answers, and then asks about all of these places together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from cosd_api.alignment import LONGEST
from cosd_api.differences import Walk, asked_places, walk, walk_text
from cosd_api.forcing.reading import TextReading, ask_after
from cosd_api.paths import DraftPath, Encoder, PathUnit, next_token, next_unit
from cosd_api.settings import DEFAULT_TIE
from cosd_api.text_paths import next_text_unit, unit_question
from cosd_providers.concurrency import concurrently
from cosd_providers.contract import Context, Question, Token, WordEnds
from cosd_providers.messages import RenderedPrompt
from cosd_providers.usage import Usage

__all__ = [
    "AssistantByIds",
    "AssistantByText",
    "DraftByIds",
    "DraftByText",
    "HeldAssistant",
    "HeldDraft",
    "OwnPath",
    "known_end",
]


def known_end(token: Token, end_ids: frozenset[int]) -> Token:
    """Return the token. If its id is among `end_ids`, convert it to an end of sequence."""
    return replace(token, data=b"", end=True) if token.id in end_ids else token


@dataclass(frozen=True, slots=True)
class OwnPath:
    """A path that begins with tokens of the reference and continues with the tokens that the draft would write instead.

    Attributes:
        path: tokens of the reference, followed by the draft's own tokens and an end of sequence.
        wrong: index of the draft's first own token.
        written: index after the draft's last own token.
    """

    path: DraftPath
    wrong: int
    written: int

    @property
    def ended(self) -> bool:
        """True if the draft would end its answer here. If False, the continuation after the path is unknown."""
        return self.path.tokens[self.written - 1].end

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids of the path, without the end of sequence that follows the draft's own tokens."""
        return tuple([token.id or 0 for token in self.path.tokens[: self.written]])


class HeldDraft(Protocol):
    """The draft model, asked to continue its own paths."""

    async def go_on(self, paths: Iterable[OwnPath]) -> dict[int, list[Token | None]]:
        """Ask the draft for further tokens after each of its own paths.

        Returns:
            The tokens after each path, indexed by `OwnPath.wrong`. None as the last token means that no more are known.

        Raises:
            ProviderError: the server failed.
        """
        ...


class _Draft:
    """A draft model.

    Args:
        turn: the model and its prompt.
        usage: record to which requests and tokens are added.
    """

    def __init__(self, turn: RenderedPrompt, usage: Usage) -> None:
        self._turn, self._usage = turn, usage


class DraftByIds(_Draft):
    """A draft that accepts ids. One batch of requests asks it for one more token after each path."""

    async def go_on(self, paths: Iterable[OwnPath]) -> dict[int, list[Token | None]]:
        """See `HeldDraft`."""
        asked = [*paths]
        found = await ask_after(self._turn, {one.ids: bytes(one.path.text) for one in asked}, usage=self._usage)
        return {one.wrong: [found[one.ids]] for one in asked}


class DraftByText(_Draft):
    """A draft that accepts only text. Each path needs one request."""

    async def go_on(self, paths: Iterable[OwnPath]) -> dict[int, list[Token | None]]:
        """See `HeldDraft`."""
        asked = [*paths]
        found = await concurrently([partial(self._written, one) for one in asked])
        return {one.wrong: [*tokens, None] for one, tokens in zip(asked, found, strict=True)}

    async def _written(self, own: OwnPath) -> list[Token]:
        """Return all tokens that the draft writes after a path.

        The draft is sent the reference up to the place where the path leaves it, so it must first write its own tokens
        again. If it writes different tokens this time, the result is empty.
        """
        tokens, before = list[Token](), own.path.tokens[own.wrong : own.written]
        context = Context(self._turn.prompt, bytes(own.path.text[: own.path.offset(own.wrong)]))
        written = self._turn.provider.generate(context, max_tokens=LONGEST, usage=self._usage)
        async with aclosing(written) as items:
            async for item in items:
                if isinstance(item, Token):
                    tokens.append(item)
        again = [(one.data, one.end) for one in tokens[: len(before)]]
        return tokens[len(before) :] if again == [(one.data, one.end) for one in before] else []


class HeldAssistant(Protocol):
    """The assistant, asked what it would write in the units of a path."""

    async def unit(self, path: DraftPath, first: int) -> PathUnit:
        """Find the unit that begins at index `first` of a path that ends with an end of sequence.

        Raises:
            ProviderError: the server that encodes texts failed.
        """
        ...

    def walk(self, path: DraftPath, unit: PathUnit, *, ended: bool) -> Walk | None:
        """Compare the assistant's tokens with a unit; None if the assistant must be asked first (`ask`).

        Args:
            path: the path.
            unit: the unit, for which `PathUnit.judged` must be true.
            ended: whether the answer really ends with the path. If False, its continuation is unknown.
        """
        ...

    async def ask(self) -> bool:
        """Ask about the places for which `walk` lacked the assistant's tokens; return False if there were none.

        Raises:
            ProviderError: the server failed.
        """
        ...


class AssistantByIds:
    """An assistant that accepts ids and is asked at the boundaries of its own tokens.

    Args:
        turn: the model and its prompt.
        encoder: the assistant's encoder; None if it shares the draft's token ids.
        answers: the tokens that are already known, each indexed by the assistant's own ids before it; None if the
            assistant gave no answer.
        end_ids: ids that end an answer of either model; empty if the models have different token ids.
        usage: record to which requests and tokens are added.
    """

    def __init__(
        self,
        turn: RenderedPrompt,
        encoder: Encoder | None,
        answers: Mapping[tuple[int, ...], Token | None],
        *,
        end_ids: frozenset[int],
        usage: Usage,
    ) -> None:
        self._turn, self._encoder, self._end_ids, self._usage = turn, encoder, end_ids, usage
        self._answers: dict[tuple[int, ...], Token | None] = {}
        self._missing: dict[tuple[int, ...], bytes] = {}
        self._learn(answers)

    def _learn(self, answers: Mapping[tuple[int, ...], Token | None]) -> None:
        for ids, token in answers.items():
            self._answers[ids] = None if token is None else known_end(token, self._end_ids)

    async def unit(self, path: DraftPath, first: int) -> PathUnit:
        """See `HeldAssistant`."""
        if self._encoder is None:
            return next_token(path, first)
        unit = await next_unit(path, first, self._encoder)
        assert unit is not None  # because the path ends with an end of sequence
        return unit

    def walk(self, path: DraftPath, unit: PathUnit, *, ended: bool) -> Walk | None:  # noqa: ARG002
        """See `HeldAssistant`."""
        walked = walk(path, unit, unit.end + 1, self._answers, DEFAULT_TIE)
        if walked.missing is None:
            return walked
        places = asked_places(unit, unit.end + 1)
        self._missing |= {ids: bytes(path.text[:at]) for at, ids in places if ids not in self._answers}
        return None

    async def ask(self) -> bool:
        """See `HeldAssistant`."""
        missing, self._missing = self._missing, {}
        if missing:
            self._learn(await ask_after(self._turn, missing, usage=self._usage))
        return bool(missing)


class AssistantByText:
    """An assistant that accepts only text and is asked for its tokens from the beginning of a unit.

    As long as the assistant would write the reference itself, its reading of the reference already contains its tokens,
    and no further question is needed.

    Args:
        turn: the model and its prompt.
        text: the reference.
        reading: the assistant's reading of the reference.
        words: word ends of the assistant's tokenizer; None if the tokenizer is unknown.
        usage: record to which requests and tokens are added.
    """

    def __init__(
        self, turn: RenderedPrompt, text: bytes, reading: TextReading, words: WordEnds | None, *, usage: Usage
    ) -> None:
        self._turn, self._text, self._words, self._usage = turn, text, words, usage
        self._own = dict(zip(reading.starts, zip(reading.tokens, reading.choices, strict=True), strict=True))
        self._answers: dict[Question, tuple[Token, ...]] = {}
        self._missing: dict[Question, None] = {}

    async def unit(self, path: DraftPath, first: int) -> PathUnit:
        """See `HeldAssistant`."""
        unit = next_text_unit(path, first, self._words)
        assert unit is not None  # because the path ends with an end of sequence
        return unit

    def walk(self, path: DraftPath, unit: PathUnit, *, ended: bool) -> Walk | None:
        """See `HeldAssistant`."""
        question = unit_question(path, unit)
        tokens = self._read(question)
        if tokens is None and question not in self._answers:
            self._missing[question] = None
            return None
        tokens = self._answers[question] if tokens is None else tokens
        walked = walk_text(path, unit, len(path.text) + (not ended), tokens)
        assert walked is not None  # because the path ends with an end of sequence
        return walked

    def _read(self, question: Question) -> Sequence[Token] | None:
        """Look up the tokens that answer a question in the reading; None if the reading does not contain them all."""
        wanted, at, tokens = b"".join(question.tokens), question.start, list[Token]()
        while at in self._own:
            own, choice = self._own[at]
            if choice is None:
                return None
            tokens.append(choice)
            rest = wanted[at - question.start :]
            if choice.end or not (rest.startswith(choice.data) and len(rest) > len(choice.data)):
                return tokens  # the answer ends, differs from the reference, or covers the whole question
            if choice.data != own.data:
                return None
            at += len(own.data)
        return None

    async def ask(self) -> bool:
        """See `HeldAssistant`."""
        missing, self._missing = [*self._missing], {}
        if missing:
            context = Context(self._turn.prompt, self._text)
            proposals = await self._turn.provider.propose(context, missing, usage=self._usage)
            for question, proposal in zip(missing, proposals, strict=True):
                self._answers[question] = () if proposal is None else proposal.tokens
        return bool(missing)

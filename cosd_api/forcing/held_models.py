"""Requests to a draft and an assistant along a reference answer, after ids or after texts.

Each model is asked as in a fusion: after ids (`cosd_api.paths`) or after texts (`cosd_api.text_paths`). A walk along
the reference collects the places that are unknown, and then asks about all of them together.
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
    """Return the token, as an end of sequence if its id is among `end_ids`."""
    return replace(token, data=b"", end=True) if token.id in end_ids else token


@dataclass(frozen=True, slots=True)
class OwnPath:
    """A path that leaves the reference: from one token on, it consists of the draft's own tokens.

    Attributes:
        path: the tokens of the reference, then the draft's own tokens, then an end of sequence.
        wrong: index of the draft's first own token.
        written: index after the draft's last own token.
    """

    path: DraftPath
    wrong: int
    written: int

    @property
    def ended(self) -> bool:
        """True if the draft would end there. If False, the path's end of sequence marks an unknown continuation."""
        return self.path.tokens[self.written - 1].end

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids of the path, without the end of sequence after the draft's own tokens."""
        return tuple([token.id or 0 for token in self.path.tokens[: self.written]])


class HeldDraft(Protocol):
    """The draft model."""

    async def go_on(self, paths: Iterable[OwnPath]) -> dict[int, list[Token | None]]:
        """Ask for the draft's further tokens after its own paths.

        Returns:
            The tokens after each path, by `OwnPath.wrong`. A None in a list means that no token is known from there on.

        Raises:
            ProviderError: the server failed.
        """
        ...


class _Draft:
    """A draft model.

    Args:
        turn: the model and its prompt.
        usage: the usage to which requests and tokens are added.
    """

    def __init__(self, turn: RenderedPrompt, usage: Usage) -> None:
        self._turn, self._usage = turn, usage


class DraftByIds(_Draft):
    """A draft that takes ids: a batch asks it for one more token after each path."""

    async def go_on(self, paths: Iterable[OwnPath]) -> dict[int, list[Token | None]]:
        """See `HeldDraft`."""
        asked = [*paths]
        found = await ask_after(self._turn, {one.ids: bytes(one.path.text) for one in asked}, usage=self._usage)
        return {one.wrong: [found[one.ids]] for one in asked}


class DraftByText(_Draft):
    """A draft that takes text only: one request for each path lets it continue the reference."""

    async def go_on(self, paths: Iterable[OwnPath]) -> dict[int, list[Token | None]]:
        """See `HeldDraft`."""
        asked = [*paths]
        found = await concurrently([partial(self._written, one) for one in asked])
        return {one.wrong: [*tokens, None] for one, tokens in zip(asked, found, strict=True)}

    async def _written(self, own: OwnPath) -> list[Token]:
        """All tokens that the draft writes after a path; none if this time it does not write the path itself."""
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
    """The assistant."""

    async def unit(self, path: DraftPath, first: int) -> PathUnit:
        """Find the unit that begins at index `first` of a path, which must have an end.

        Raises:
            ProviderError: the server that encodes texts failed.
        """
        ...

    def walk(self, path: DraftPath, unit: PathUnit, *, ended: bool) -> Walk | None:
        """Compare the assistant's tokens with a unit; None if the assistant has to be asked first.

        Args:
            path: the path.
            unit: the unit; it must be one that is judged.
            ended: whether the path really ends. If False, its end of sequence marks an unknown continuation.
        """
        ...

    async def ask(self) -> bool:
        """Ask about the places that were unknown to `walk`; return False if there were none.

        Raises:
            ProviderError: the server failed.
        """
        ...


class AssistantByIds:
    """An assistant that takes ids, asked at the boundaries of its own tokens.

    Args:
        turn: the model and its prompt.
        encoder: encoder of the assistant; None if it has the draft's ids.
        answers: the answers that are already known, by the assistant's own ids of the answer up to that point; None if
            the assistant has no answer there.
        end_ids: ids that end an answer of either model; empty if the models have different ids.
        usage: the usage to which requests and tokens are added.
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
        assert unit is not None  # the path has an end
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
    """An assistant that takes text only, asked for its tokens from the beginning of a unit.

    No question is needed as long as the assistant would write the reference: its reading of the reference then contains
    the answer.

    Args:
        turn: the model and its prompt.
        text: the reference.
        reading: the assistant's reading of the reference.
        words: word ends of the assistant's tokenizer, if that is known.
        usage: the usage to which requests and tokens are added.
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
        assert unit is not None  # the path has an end
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
        assert walked is not None  # the path has an end
        return walked

    def _read(self, question: Question) -> Sequence[Token] | None:
        """Look up the answer to a question in the reading, as far as it matters; None if the reading lacks it."""
        wanted, at, tokens = b"".join(question.tokens), question.start, list[Token]()
        while at in self._own:
            own, choice = self._own[at]
            if choice is None:
                return None
            tokens.append(choice)
            rest = wanted[at - question.start :]
            if choice.end or not (rest.startswith(choice.data) and len(rest) > len(choice.data)):
                return tokens  # the answer ends, differs, or covers the question
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

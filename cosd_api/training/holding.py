"""Two models held to one reference answer over their APIs: what is asked, and the samples that come of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from cosd_api.alignment import Unit
from cosd_api.paths import Encode, Encoded, Encoder
from cosd_api.training.dataset import DeferralSample, Example, ExampleSamples
from cosd_api.training.likelihoods import deferral_samples
from cosd_api.training.path_forcing import PathForcing
from cosd_api.training.reading import PathReading, ask_after, read
from cosd_api.training.teacher_forcing import TeacherForcing
from cosd_providers.concurrency import concurrently
from cosd_providers.contract import Context, HiddenStates, Piece, Proposal, State, Token
from cosd_providers.errors import UnsupportedError
from cosd_providers.messages import RenderedPrompt
from cosd_providers.same_ids import by_ids
from cosd_providers.usage import Usage

__all__ = ["Wanted", "hold_by_ids", "hold_by_text"]

Turns = tuple[RenderedPrompt, RenderedPrompt]
"""The draft and the assistant, each with its prompt."""
Ledgers = tuple[Usage, Usage]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Settings of what is sampled.

    Attributes:
        unit: the unit that is judged.
        same: whether the models have the same ids.
        end_ids: ids that end either of them, if they have the same.
        listed: other tokens to list, for deferral samples; None without such.
        states: whether deferral samples have hidden states.
    """

    unit: Unit
    same: bool = False
    end_ids: frozenset[int] = frozenset()
    listed: int | None = None
    states: bool = False


async def hold_by_ids(turns: Turns, example: Example, wanted: Wanted, ledgers: Ledgers) -> ExampleSamples:
    """Hold both models to a reference, each asked after its own ids of it.

    One scoring request to each, and others for places that are not on a model's own encoding of the reference: what the
    draft would write in place of it, and what the assistant would write there.

    Raises:
        ProviderError: a server failed.
    """
    draft, assistant = turns
    text = example.answer.encode()
    encoders = [Encoder(_remembered(by_ids(turn.provider).encode)) for turn in turns]
    own = await encoders[0].upto(text, len(text))
    if own is None:  # its tokenizer changes the text: there is no path through it
        return ExampleSamples(example=example, samples=(), skipped=1)
    theirs = own if wanted.same else await encoders[1].upto(text, len(text))
    listed = wanted.listed
    reads = [partial(read, draft, text, own, end=example.ends, listed=listed, usage=ledgers[0])]
    if theirs is not None:
        also = None if listed is None else 0
        reads.append(partial(read, assistant, text, theirs, end=example.ends, listed=also, usage=ledgers[1]))
    readings = await concurrently(reads)
    answers = {} if theirs is None else readings[1].answers(theirs.ids)
    encoder = None if wanted.same else encoders[1]
    forcing = PathForcing(
        _pieces(text, own), readings[0].choices, answers, encoder, ends=example.ends, end_ids=wanted.end_ids
    )

    asks = (partial(ask_after, turn, usage=ledger) for turn, ledger in zip(turns, ledgers, strict=True))
    samples, skipped = await forcing.samples(*asks)
    found = ExampleSamples(example=example, samples=samples, skipped=skipped)
    if listed is None:
        return found
    placed = (_placed(readings[0], own), _placed(readings[1], own))
    scores = (readings[0].scores, readings[1].scores)
    return _with_deferral(found, deferral_samples(placed, scores, listed=listed))


def _pieces(text: bytes, path: Encoded) -> list[Piece]:
    return [Piece(one, text[path.offset(at) : path.offset(at + 1)]) for at, one in enumerate(path.ids)]


def _placed(reading: PathReading, path: Encoded) -> list[Proposal | None]:
    """The choices of a reading, each with its byte offset."""
    pairs = enumerate(reading.choices)
    return [None if token is None else Proposal(path.offset(count), (token,)) for count, token in pairs]


def _remembered(encode: Encode) -> Encode:
    """The same encoding, which is asked for once for each text."""
    known: dict[str, Sequence[Piece]] = {}

    async def remembered(text: str) -> Sequence[Piece]:
        if text not in known:
            known[text] = await encode(text)
        return known[text]

    return remembered


async def hold_by_text(turns: Turns, example: Example, wanted: Wanted, ledgers: Ledgers) -> ExampleSamples:
    """Hold both models to a reference, at least one of which is asked after texts alone.

    One scoring request to each, and one more to the assistant for the draft's boundaries inside its own tokens.

    Raises:
        ProviderError: a server failed.
    """
    text = example.answer.encode()
    pairs = [*zip(turns, ledgers, (wanted.listed or 0, 0), strict=True)]
    mine, theirs = await concurrently([partial(_proposals, turn, text, ledger, more) for turn, ledger, more in pairs])
    forcing = TeacherForcing(text, mine, theirs, unit=wanted.unit, ends=example.ends)
    if forcing.missing:
        asks = turns[1]
        answers = await asks.provider.propose(Context(asks.prompt, text), forcing.missing, usage=ledgers[1])
        forcing.add_answers(answers)
    samples, skipped = forcing.samples()
    found = ExampleSamples(example=example, samples=samples, skipped=skipped)
    if wanted.listed is None and not wanted.states:
        return found
    scored = await concurrently([partial(_scores, turn, text, ledger, example.ends) for turn, ledger, _ in pairs])
    states = await _hidden_states(turns[0], text, ledgers[0]) if wanted.states else None
    both = (scored[0], scored[1])
    return _with_deferral(found, deferral_samples((mine, theirs), both, listed=wanted.listed or 0, states=states))


def _with_deferral(found: ExampleSamples, deferral: tuple[tuple[DeferralSample, ...], int]) -> ExampleSamples:
    samples, others = deferral
    return found.model_copy(update={"deferral": samples, "deferral_skipped": others})


async def _proposals(turn: RenderedPrompt, text: bytes, ledger: Usage, listed: int) -> list[Proposal | None]:
    also = {"alternatives": listed} if listed else {}  # a provider need not know the keyword
    return await turn.provider.propose(Context(turn.prompt, text), None, usage=ledger, **also)


async def _scores(turn: RenderedPrompt, text: bytes, ledger: Usage, end: bool) -> list[Token]:
    if end:
        try:
            return await turn.provider.score(Context(turn.prompt, text), end=True, usage=ledger)
        except UnsupportedError:  # the probability of an end: that place is left out
            pass
    return await turn.provider.score(Context(turn.prompt, text), usage=ledger)


async def _hidden_states(turn: RenderedPrompt, text: bytes, ledger: Usage) -> dict[int, State]:
    assert isinstance(turn.provider, HiddenStates)  # as its capabilities say
    return await turn.provider.hidden_states(Context(turn.prompt, text), usage=ledger)

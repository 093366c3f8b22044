"""Teacher forcing of two models over their APIs: ask both along a reference, and make samples from their answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from cosd_api.alignment import Unit
from cosd_api.forcing.held_models import (
    AssistantByIds,
    AssistantByText,
    DraftByIds,
    DraftByText,
    HeldAssistant,
    HeldDraft,
)
from cosd_api.forcing.likelihoods import deferral_samples
from cosd_api.forcing.path_forcing import PathForcing
from cosd_api.forcing.reading import END, PathReading, TextReading, read, read_draft, read_text
from cosd_api.forcing.samples import DeferralSample, Example, ExampleSamples
from cosd_api.forcing.teacher_forcing import TeacherForcing
from cosd_api.paths import Encode, Encoded, Encoder
from cosd_providers.concurrency import concurrently
from cosd_providers.contract import Context, HiddenStates, Piece, Proposal, State, Token
from cosd_providers.errors import UnsupportedError
from cosd_providers.forwarding import by_ids
from cosd_providers.messages import RenderedPrompt
from cosd_providers.tokenizers import words_of
from cosd_providers.usage import Usage

__all__ = ["WantedSamples", "hold_by_tokens", "hold_on_paths"]

Turns = tuple[RenderedPrompt, RenderedPrompt]
"""The draft and the assistant, each with its prompt."""
Ledgers = tuple[Usage, Usage]


@dataclass(frozen=True, slots=True)
class WantedSamples:
    """Settings that say which samples to collect.

    Attributes:
        unit: the unit that is judged.
        same: whether the models share the same token ids.
        end_ids: ids that end an answer of either model; empty if the models have different token ids.
        listed: number of alternative tokens to list in deferral samples; None if no lists are wanted.
        states: whether deferral samples should contain hidden states.
    """

    unit: Unit
    same: bool = False
    end_ids: frozenset[int] = frozenset()
    listed: int | None = None
    states: bool = False


async def hold_on_paths(
    turns: Turns, example: Example, wanted: WantedSamples, ledgers: Ledgers, takes_ids: tuple[bool, bool]
) -> ExampleSamples:
    """Teacher-force both models along a reference. As in a fusion, each is sent its own ids, or text.

    Each model needs one scoring request. Further requests are needed if the draft would write something other than the
    reference, or if a unit does not begin at a token boundary of the assistant's own encoding.

    Args:
        turns: the draft and the assistant, each with its prompt.
        example: the prompt and the reference.
        wanted: the samples to collect.
        ledgers: records of usage to which the requests and tokens of the draft and of the assistant are added.
        takes_ids: whether the draft and the assistant are sent ids. Deferral samples require that both models are sent
            ids.

    Raises:
        ProviderError: a server failed.
    """
    text, listed = example.answer.encode(), wanted.listed
    encoders = [
        Encoder(_remembered(by_ids(turn.on_path).encode), turn.lead) if takes else None
        for turn, takes in zip(turns, takes_ids, strict=True)
    ]
    own = None if encoders[0] is None else await encoders[0].upto(text, len(text))
    if takes_ids[0] and own is None:  # the draft's tokenizer changes the text, so it has no encoding of the reference
        return ExampleSamples(example=example, samples=(), skipped=1)
    theirs = None if encoders[1] is None else own if wanted.same else await encoders[1].upto(text, len(text))

    async def read_own(model: int, path: Encoded | None, more: int | None) -> PathReading | TextReading:
        turn, usage = turns[model], ledgers[model]
        if not takes_ids[model] and model == 0:
            return await read_draft(turn, text, usage=usage)
        if not takes_ids[model]:
            return TextReading.of(text, await read_text(turn, text, usage=usage)).certain()
        if path is None:  # the assistant's tokenizer changes the text, so the assistant cannot be asked along it
            return PathReading(())
        return await read(turn, text, path, end=example.ends, listed=more, usage=usage)

    jobs = [partial(read_own, 0, own, listed), partial(read_own, 1, theirs, None if listed is None else 0)]
    mine, other = await concurrently(jobs)
    assistant: HeldAssistant
    if isinstance(other, TextReading):
        assistant = AssistantByText(turns[1], text, other, await words_of(turns[1].provider), usage=ledgers[1])
    else:
        answers = {} if theirs is None else other.answers(theirs.ids)
        encoder = None if wanted.same else encoders[1]
        assistant = AssistantByIds(turns[1], encoder, answers, end_ids=wanted.end_ids, usage=ledgers[1])
    tokens: Sequence[Token]
    draft: HeldDraft
    if isinstance(mine, TextReading):
        tokens, draft = mine.tokens, DraftByText(turns[0], ledgers[0])
    else:
        assert own is not None  # because `mine` is the reading of `own`
        tokens, draft = _tokens(text, own), DraftByIds(turns[0], ledgers[0])
    forcing = PathForcing(
        tokens,
        mine.choices,
        draft,
        assistant,
        same=wanted.same,
        ends=example.ends,
        end_ids=wanted.end_ids,
    )
    samples, skipped = await forcing.samples()
    found = ExampleSamples(example=example, samples=samples, skipped=skipped)
    if listed is None or own is None or theirs is None:
        return found
    assert isinstance(mine, PathReading) and isinstance(other, PathReading)  # because both models accept ids
    return _with_deferral(
        found,
        deferral_samples((_placed(mine, own), _placed(other, theirs)), (mine.scores, other.scores), listed=listed),
    )


def _tokens(text: bytes, path: Encoded) -> list[Token]:
    """Return the tokens of a path through a text, followed by the end of sequence."""
    spelled = (text[path.offset(at) : path.offset(at + 1)] for at in range(len(path.ids)))
    return [*(Token(data, None, id=one) for data, one in zip(spelled, path.ids, strict=True)), END]


def _placed(reading: PathReading, path: Encoded) -> list[Proposal | None]:
    """Convert the choices of a reading to proposals at their byte offsets."""
    pairs = enumerate(reading.choices)
    return [None if token is None else Proposal(path.offset(count), (token,)) for count, token in pairs]


def _remembered(encode: Encode) -> Encode:
    """Wrap an encoder so that it encodes each text only once."""
    known: dict[str, Sequence[Piece]] = {}

    async def remembered(text: str) -> Sequence[Piece]:
        if text not in known:
            known[text] = await encode(text)
        return known[text]

    return remembered


async def hold_by_tokens(turns: Turns, example: Example, wanted: WantedSamples, ledgers: Ledgers) -> ExampleSamples:
    """Teacher-force both models along a reference. The models are sent text and compared token by token.

    Each model needs one scoring request. The assistant needs a second one if a token of the draft ends inside a token
    of the assistant.

    Raises:
        ProviderError: a server failed.
    """
    text = example.answer.encode()
    pairs = [*zip(turns, ledgers, (wanted.listed or 0, 0), strict=True)]
    mine, theirs = await concurrently(
        [partial(read_text, turn, text, listed=more, usage=ledger) for turn, ledger, more in pairs]
    )
    forcing = TeacherForcing(TextReading.of(text, mine), TextReading.of(text, theirs), ends=example.ends)
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


async def _scores(turn: RenderedPrompt, text: bytes, ledger: Usage, end: bool) -> list[Token]:
    if end:
        try:
            return await turn.provider.score(Context(turn.prompt, text), end=True, usage=ledger)
        except UnsupportedError:  # the server does not report the end's probability, so there is no sample for the end
            pass
    return await turn.provider.score(Context(turn.prompt, text), usage=ledger)


async def _hidden_states(turn: RenderedPrompt, text: bytes, ledger: Usage) -> dict[int, State]:
    assert isinstance(turn.provider, HiddenStates)  # its capabilities have been checked
    return await turn.provider.hidden_states(Context(turn.prompt, text), usage=ledger)

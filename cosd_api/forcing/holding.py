"""Teacher forcing of two models over their APIs: ask both along a reference, and make samples from their answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from cosd_api.alignment import Unit
from cosd_api.decoding.readers import ByText, Literal, OwnIds, Reader, SameIds
from cosd_api.forcing.reading import HeldModel, ReferenceReading
from cosd_api.forcing.recital import Recital
from cosd_api.forcing.samples import DeferralSample, Example, ExampleSamples, state_in_text
from cosd_api.paths import Encode, Encoder
from cosd_api.settings import DEFAULT_TIE
from cosd_providers.concurrency import concurrently
from cosd_providers.contract import Context, HiddenStates, Piece, State, Token
from cosd_providers.errors import UnsupportedError
from cosd_providers.forwarding import by_ids
from cosd_providers.messages import RenderedPrompt
from cosd_providers.text import readable
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
    draft, assistant = (HeldModel(turn, usage, wanted.end_ids) for turn, usage in zip(turns, ledgers, strict=True))
    encoders = [
        Encoder(_remembered(by_ids(turn.on_path).encode), turn.lead) if takes else None
        for turn, takes in zip(turns, takes_ids, strict=True)
    ]
    mine, theirs = [None if one is None else await one.upto(text, len(text)) for one in encoders]
    if takes_ids[0] and mine is None:  # the draft's tokenizer changes the text, so it has no encoding of the reference
        return ExampleSamples(example=example, samples=(), skipped=1)
    theirs = mine if wanted.same else theirs

    async def read_draft() -> ReferenceReading:
        if mine is None:
            return await draft.read_text(text)
        return await draft.read(text, mine, end=example.ends, listed=listed)

    async def read_assistant() -> ReferenceReading | None:
        if not takes_ids[1]:
            return ReferenceReading.of(text, await assistant.propose(text)).certain()
        if theirs is None:  # the assistant's tokenizer changes the text, so the assistant cannot be asked along it
            return None
        return await assistant.read(text, theirs, end=example.ends, listed=None if listed is None else 0)

    own, other = await concurrently([read_draft, read_assistant])
    assert own is not None
    reader: Reader
    if wanted.same:
        reader = SameIds(1, DEFAULT_TIE)
    elif encoders[1] is not None:
        reader = OwnIds(1, encoders[1], DEFAULT_TIE)
    else:
        reader = ByText(1, turns[1].provider)
    samples, skipped = await Recital(draft, own, assistant, other, reader, ends=example.ends).samples()
    found = ExampleSamples(example=example, samples=samples, skipped=skipped)
    if listed is None or other is None:
        return found
    return _with_deferral(found, (own, other), (own.scores, other.scores), listed=listed)


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
    text, listed = example.answer.encode(), wanted.listed
    draft, assistant = both = [HeldModel(turn, usage) for turn, usage in zip(turns, ledgers, strict=True)]
    proposed = await concurrently([partial(draft.propose, text, listed=listed or 0), partial(assistant.propose, text)])
    own, other = (ReferenceReading.of(text, one) for one in proposed)
    samples, skipped = await Recital(draft, own, assistant, other, Literal(1, 0), ends=example.ends).samples()
    found = ExampleSamples(example=example, samples=samples, skipped=skipped)
    if listed is None and not wanted.states:
        return found
    scores = await concurrently([partial(_scores, model, text, end=example.ends) for model in both])
    states = None
    if wanted.states:
        assert isinstance(turns[0].provider, HiddenStates)  # its capabilities have been checked
        states = await turns[0].provider.hidden_states(Context(turns[0].prompt, text), usage=ledgers[0])
    return _with_deferral(found, (own, other), (scores[0], scores[1]), listed=listed or 0, states=states)


async def _scores(model: HeldModel, text: bytes, *, end: bool) -> list[Token]:
    context = Context(model.turn.prompt, text)
    if end:
        try:
            return await model.turn.provider.score(context, end=True, usage=model.usage)
        except UnsupportedError:  # the server does not report the end's probability, so there is no sample for the end
            pass
    return await model.turn.provider.score(context, usage=model.usage)


def _with_deferral(
    found: ExampleSamples,
    readings: tuple[ReferenceReading, ReferenceReading],
    scores: tuple[Sequence[Token], Sequence[Token]],
    *,
    listed: int,
    states: Mapping[int, State] | None = None,
) -> ExampleSamples:
    """Add a sample for each token of a reference that occurs in both models' encodings.

    Args:
        found: the samples so far.
        readings: the readings of the draft and of the assistant. The draft's choices also list alternatives.
        scores: the tokens of the reference, with their probabilities, in the draft's encoding and in the assistant's.
        listed: maximum number of alternative tokens to list with each of the draft's choices.
        states: the draft's hidden states, by byte offset; None if the samples should not contain any.
    """
    mine, theirs = (reading.at for reading in readings)
    read = {(start, token.data, token.end): token.prob for start, token in _placed(scores[1])}
    samples: list[DeferralSample] = []
    for start, token in _placed(scores[0]):
        key = token.data, token.end
        p, q = token.prob, read.get((start, *key))
        ours, other = mine.get(start), theirs.get(start)
        if p is None or q is None or ours is None or other is None or ours.prob is None:
            continue
        if states is not None and start not in states:
            continue
        others = [one.prob for one in ours.alternatives[:listed] if one.prob]
        samples.append(
            DeferralSample(
                start=start,
                draft=readable(ours.data),
                listed=(ours.prob, *others),
                p=p,
                q=q,
                handed=(other.data, other.end) == key != (ours.data, ours.end),
                state=None if states is None else state_in_text(states[start]),
            )
        )
    more = {"deferral": tuple(samples), "deferral_skipped": len(scores[0]) - len(samples)}
    return found.model_copy(update=more)


def _placed(tokens: Sequence[Token]) -> Iterator[tuple[int, Token]]:
    """Pair each token with its byte offset."""
    starts = accumulate((len(token.data) for token in tokens), initial=0)
    return zip(starts, tokens, strict=False)

"""Teacher forcing of two models over their APIs: ask both along a reference, and make samples from their answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from cosd_api.decoding.readers import ByText, Literal, OwnIds, Reader, SameIds
from cosd_api.decoding.route import Route, Routes
from cosd_api.forcing.reading import ForcedModel, ReferenceReading
from cosd_api.forcing.samples import DeferralSample, Example, ExampleSamples, state_in_text
from cosd_api.forcing.teacher_forcing import TeacherForcing
from cosd_api.paths.encoding import Encode, Encoder
from cosd_api.settings import DEFAULT_TIE
from cosd_providers.concurrency import concurrently
from cosd_providers.contract import Context, HiddenStates, Piece, Provider, State, Token
from cosd_providers.errors import UnsupportedError
from cosd_providers.forwarding import by_ids
from cosd_providers.messages import RenderedPrompt
from cosd_providers.text import readable
from cosd_providers.usage import Usage

__all__ = ["WantedSamples", "teacher_force"]

Turns = tuple[RenderedPrompt, RenderedPrompt]
"""The draft and the assistant, each with its prompt."""
Ledgers = tuple[Usage, Usage]


@dataclass(frozen=True, slots=True)
class WantedSamples:
    """Settings that say which samples to collect.

    Attributes:
        end_ids: ids that end an answer of either model; empty if the models have different token ids.
        listed: number of alternative tokens to list in deferral samples; None if no lists are wanted.
        states: whether deferral samples should contain hidden states.
    """

    end_ids: frozenset[int] = frozenset()
    listed: int | None = None
    states: bool = False


async def teacher_force(
    turns: Turns, example: Example, wanted: WantedSamples, ledgers: Ledgers, routes: Routes
) -> ExampleSamples:
    """Teacher-force both models along a reference. As in a fusion, each is sent its own ids, or text.

    Each model needs one scoring request. Further requests are needed if the draft would write something other than the
    reference, or if a unit does not begin at a token boundary of the assistant's own encoding.

    Args:
        turns: the draft and the assistant, each with its prompt.
        example: the prompt and the reference.
        wanted: the samples to collect. Deferral samples require that the models have the same ids, or are compared
            token by token as text.
        ledgers: records of usage to which the requests and tokens of the draft and of the assistant are added.
        routes: the way in which the models are decoded. Hidden states require the route `"literal"`.

    Raises:
        ProviderError: a server failed.
    """
    text, listed = example.answer.encode(), wanted.listed
    draft, assistant = [ForcedModel(turn, usage, wanted.end_ids) for turn, usage in zip(turns, ledgers, strict=True)]
    encoders = [
        Encoder(_remembered(by_ids(turn.on_path).encode), turn.lead) if takes else None
        for turn, takes in zip(turns, routes.by_ids, strict=True)
    ]
    paths = [None if one is None else await one.upto(text, len(text)) for one in encoders]
    if encoders[0] is not None and paths[0] is None:  # its tokenizer changes the text: it cannot recite the reference
        return ExampleSamples(example=example, samples=(), skipped=1)

    async def read_draft() -> ReferenceReading:
        if paths[0] is not None:
            return await draft.read(text, paths[0], end=example.ends, listed=listed)
        return await draft.read_text(text, listed=listed or 0, again=not routes.literal)

    async def read_assistant() -> ReferenceReading | None:
        path = paths[0] if routes.same_ids else paths[1]
        if path is not None:
            return await assistant.read(text, path, end=example.ends, listed=None if listed is None else 0)
        if encoders[1] is not None:  # its tokenizer changes the text, so that it cannot be asked along it
            return None
        reading = ReferenceReading.of(text, await assistant.propose(text))
        return reading if routes.literal else reading.certain()

    own, other = await concurrently([read_draft, read_assistant])
    assert own is not None
    reader = _reader(routes.assistants[0], encoders[1], turns[1].provider)
    samples, skipped = await TeacherForcing(draft, own, assistant, other, reader, ends=example.ends).samples()
    found = ExampleSamples(example=example, samples=samples, skipped=skipped)
    if other is None or (listed is None and not wanted.states):
        return found
    scores, states = (own.scores, other.scores), None
    if routes.literal:
        mine, theirs = await concurrently([partial(_scores, one, text, end=example.ends) for one in (draft, assistant)])
        scores = mine, theirs
    if wanted.states:
        provider = turns[0].provider
        assert isinstance(provider, HiddenStates)  # its capabilities have been checked
        states = await provider.hidden_states(Context(turns[0].prompt, text), usage=ledgers[0])
    return _with_deferral(found, (own, other), scores, listed=listed or 0, states=states)


def _reader(route: Route, encoder: Encoder | None, provider: Provider) -> Reader:
    """The way in which the assistant reads the draft's path."""
    if encoder is not None:
        return SameIds(1, DEFAULT_TIE) if route == "ids" else OwnIds(1, encoder, DEFAULT_TIE)
    return Literal(1, 0) if route == "literal" else ByText(1, provider)


def _remembered(encode: Encode) -> Encode:
    """Wrap an encoder so that it encodes each text only once."""
    known: dict[str, Sequence[Piece]] = {}

    async def remembered(text: str) -> Sequence[Piece]:
        if text not in known:
            known[text] = await encode(text)
        return known[text]

    return remembered


async def _scores(model: ForcedModel, text: bytes, *, end: bool) -> tuple[Token, ...]:
    context = Context(model.turn.prompt, text)
    if end:
        try:
            return tuple(await model.turn.provider.score(context, end=True, usage=model.usage))
        except UnsupportedError:  # the server does not report the end's probability, so there is no sample for the end
            pass
    return tuple(await model.turn.provider.score(context, usage=model.usage))


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

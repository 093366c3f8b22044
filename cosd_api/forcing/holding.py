"""Teacher forcing of two models over their APIs: ask both along a reference, and make samples from their answers."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from cosd_api.alignment import Unit, same
from cosd_api.differences import ties
from cosd_api.forcing.by_words import AssistantByIds, AssistantByText, WordForcing
from cosd_api.forcing.reading import HeldModel, ReferenceReading
from cosd_api.forcing.samples import DeferralSample, Example, ExampleSamples, Label, Sample, state_in_text
from cosd_api.paths import Encode, Encoder
from cosd_api.settings import DEFAULT_TIE
from cosd_providers.concurrency import concurrently
from cosd_providers.contract import Context, HiddenStates, Piece, Question, State, Token
from cosd_providers.errors import UnsupportedError
from cosd_providers.forwarding import by_ids
from cosd_providers.messages import RenderedPrompt
from cosd_providers.text import readable
from cosd_providers.tokenizers import words_of
from cosd_providers.usage import Usage

__all__ = ["WantedSamples", "hold_by_tokens", "hold_on_paths", "questions_inside", "token_samples"]

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
    if wanted.same:
        assert other is not None  # because the models have one path
        choices = await _with_missing(assistant, text, other, ends=example.ends)
        samples, skipped = token_samples(own, choices, ends=example.ends)
    else:
        judge: AssistantByIds | AssistantByText
        if encoders[1] is not None:
            judge = AssistantByIds(assistant, encoders[1], other)
        else:
            assert other is not None
            judge = AssistantByText(assistant, other, text, await words_of(turns[1].provider))
        samples, skipped = await WordForcing(draft, own, judge, ends=example.ends).samples()
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


async def _with_missing(
    model: HeldModel, text: bytes, reading: ReferenceReading, *, ends: bool
) -> Sequence[Token | None]:
    """Return the choices of a reading by ids; ask for those that its scores do not show."""
    ids = tuple([token.id or 0 for token in reading.tokens[:-1]])
    unknown = [at for at, one in enumerate(reading.choices) if one is None and (ends or at < len(ids))]
    if not unknown:
        return reading.choices
    found = await model.next_tokens({ids[:at]: text[: reading.starts[at]] for at in unknown})
    return [found.get(ids[:at], one) for at, one in enumerate(reading.choices)]


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
    choices = other.at
    missing = questions_inside(own, choices, ends=example.ends)
    if missing:
        for question, answer in zip(missing, await assistant.propose(text, missing), strict=True):
            choices |= {} if answer is None else {question.start: answer.tokens[0]}
    samples, skipped = token_samples(own, [choices.get(start) for start in own.starts], ends=example.ends)
    found = ExampleSamples(example=example, samples=samples, skipped=skipped)
    if listed is None and not wanted.states:
        return found
    scores = await concurrently([partial(_scores, model, text, end=example.ends) for model in both])
    states = None
    if wanted.states:
        assert isinstance(turns[0].provider, HiddenStates)  # its capabilities have been checked
        states = await turns[0].provider.hidden_states(Context(turns[0].prompt, text), usage=ledgers[0])
    return _with_deferral(found, (own, other), (scores[0], scores[1]), listed=listed or 0, states=states)


def questions_inside(draft: ReferenceReading, known: Container[int], *, ends: bool) -> list[Question]:
    """Return questions about the places of the draft's tokens that are not among the byte offsets in `known`."""
    places = zip(draft.starts, draft.tokens, draft.choices, strict=True)
    return [
        Question(start, (choice.data,))
        for start, token, choice in places
        if choice is not None and start not in known and (ends or not token.end)
    ]


async def _scores(model: HeldModel, text: bytes, *, end: bool) -> list[Token]:
    context = Context(model.turn.prompt, text)
    if end:
        try:
            return await model.turn.provider.score(context, end=True, usage=model.usage)
        except UnsupportedError:  # the server does not report the end's probability, so there is no sample for the end
            pass
    return await model.turn.provider.score(context, usage=model.usage)


def token_samples(
    draft: ReferenceReading, choices: Sequence[Token | None], *, ends: bool
) -> tuple[tuple[Sample, ...], int]:
    """Compare two models at each token of a reference (section 3.2 and equations 1, 2, 4 and 7 of the paper).

    Tokens are compared by id, where an id is known, or else by text.

    Args:
        draft: the draft's reading of the reference.
        choices: the assistant's choice at the place of each of the draft's tokens; None if it is unknown.
        ends: whether the answer must end after the reference. If False, the place after the reference is not judged.

    Returns:
        Samples of all places that can be judged, in text order, and the number of all other places.
    """
    found, skipped = list[Sample](), 0
    text, is_by_ids = b"".join(token.data for token in draft.tokens), draft.tokens[0].id is not None
    for start, token, mine, theirs in zip(draft.starts, draft.tokens, draft.choices, choices, strict=True):
        if token.end and not ends:
            break
        if mine is None or theirs is None or mine.prob is None or theirs.prob is None:
            skipped += 1
            continue
        right = same(mine, token) or (is_by_ids and ties(mine, token.id, 0.0))  # in a tie, the reference wins
        own = token if right else mine
        agreed = same(own, theirs) or (is_by_ids and ties(theirs, None if own.end else own.id, DEFAULT_TIE))
        label: Label | None = 0 if right else 1 if same(theirs, token) and not agreed else None
        data = own.data if agreed else theirs.data
        reference = text[start : start + max(len(token.data), 0 if right else len(data))]
        texts = [readable(one) for one in (own.data, data, reference)]
        found.append(Sample(mine.prob, theirs.prob, label, agreed, start, *texts))
    return tuple(found), skipped


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

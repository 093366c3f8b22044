"""SAFE: the models average at the places where all of them cut the text, if they do not agree anyway.

::

    1   the first model, the drafter, writes `ahead` tokens: t_1, t_2, ...                          `write`
    2   all other models, the verifiers, encode the answer with these tokens                        `_encode`
    3   t_j is a *place* if a token of every verifier's encoding begins where t_j begins
    4   there each verifier's *own token* is the token that begins; the drafter's is t_j            `DraftAhead.own`
    5   t_j is kept if every verifier's most probable token there is its own token, or if the
        mean over all models of the probability of their own tokens exceeds 1/2                     `_decided`
    6   else E = w_1 M_1 + w_2 M_2 + ... over the tokens that are among the `listed` most
        probable of any model                                                                       `SafePlace.means`
    7   if max E < 1/2, each token of the drafter's vocabulary with E > 0.1 gets, too, the E of
        all other tokens that begin with it                                                         `sharpened`
    8   the token with the largest E is written. If it is t_j the next token is decided; else the
        other tokens written ahead are thrown away, and the drafter writes again                    `settled`, `write`

M_i is the distribution of model i after its own encoding of the text before the place, which is the beginning of the
encoding in step 2 (for a model that takes no ids, after the text alone); the drafter's is its distribution after its
own path. If a token c is not among the `listed` most probable tokens of model i, **M_i(c)** is *looked up*
(`_look_up`): model i encodes the text before the place and c; M_i(c) is the probability of the first of its tokens
after that text. This token is c or, if c is not in its vocabulary, the beginning of c; if the model lists the token,
the listed probability counts. M_i(c) is 0 if no token of that encoding begins there, because model i would never write
c there, and if c holds bytes that are no characters, which cannot be sent. A looked-up probability is never more than
the `listed` tokens of the model leave over: in rare cases a look-up reads the text before the place as other tokens
than those after which the list was made. A token is in the drafter's vocabulary if it is among its `listed` tokens, or
a look-up finds it whole.

Only probabilities that can matter are looked up. An unknown probability lies between 0 and the larger of two numbers:
the mass that the model's list leaves over, and the probabilities that it lists for beginnings of c. So each E has
bounds.

Of equal E, t_j wins, then the end of sequence, then the first in the order of bytes. A character of several tokens is
one token, with the least of their probabilities, and no alternatives. The end of sequence is a token: its place is the
end of the text. `weights` weigh the means in 5 and 6; the paper's are equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from cosd_api.alignment import Unit
from cosd_api.checks import check_count
from cosd_api.decoding.commands import Contender
from cosd_api.decoding.passage import Passage
from cosd_api.decoding.writer import AnswerWriter
from cosd_api.methods.base import Models
from cosd_api.methods.cost import FINER, ROUNDS, Assumptions, Bounds, Cost, Plan, Reading
from cosd_api.methods.lists import ROUNDING, Key, key_of, lists_needed
from cosd_api.methods.mean import SURE, MeanChoice
from cosd_api.methods.safe_place import DraftAhead, Encoding, SafePlace, settled, sharpened
from cosd_api.methods.weighted import Weighted
from cosd_providers.concurrency import concurrently
from cosd_providers.contract import Question, Token
from cosd_providers.errors import UnsupportedError
from cosd_providers.text import sendable

_ASKED = 20  # tokens to request, at least: a listed token need not be looked up
_MIXED = 0.1  # of the tokens, by assumption
_LOOKED_UP = 4  # tokens at such a place, by assumption


@dataclass(frozen=True, kw_only=True)
class Safe(Weighted):
    """Averaging across tokenizers, at the places where all models would cut the text (SAFE, arXiv 2510.15346).

    It takes two or more models with any tokenizers, each of which encodes text, lists its most probable tokens and
    scores text. The first one writes ahead, and the others are asked where their own tokens begin. The answer streams
    token by token.

    Attributes:
        weights: of the models, in their order; equal by default, as in the paper. Only their ratios count.
            `"route"` weighs the models by the prompt, as `Route` does.
        tau: the temperature of these weights by the prompt.
        ahead: tokens that the first model writes before the other models encode the text. Their cuts depend on the text
            that follows, so this number is a part of the definition.
        listed: each model's most probable tokens that are candidates.

    Raises:
        SettingError: a setting is invalid.
    """

    name: ClassVar[str] = "safe"
    decides: ClassVar[str] = "the mean of the models' probabilities, where all of them cut the text"
    ordered: ClassVar[bool] = True

    ahead: int = 5
    listed: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("ahead", self.ahead)
        check_count("listed", self.listed)

    def examine(self, models: Models, unit: Unit | None) -> tuple[str, ...]:
        """Refuse a model whose encoding or distribution is not shown; see `Method.examine`."""
        lists_needed(models, self.name, others=self.listed - 1)
        for name, info in models:
            hint = 'method="cosd", the default, works with such a model.'
            if not info.capabilities.tokenize:
                missing = "does not encode text, and 'safe' averages where all models cut the text"
                hint = f"Give the model's tokenizer: connect(url, tokenizer=...). {hint}"
            elif not info.capabilities.score:
                missing = "does not report the probability of a given text, by which 'safe' looks up what is not listed"
            else:
                continue
            raise UnsupportedError(f"the {name} {missing}", endpoint=info.endpoint, hint=hint)
        return super().examine(models, unit)

    async def write(self, writer: AnswerWriter) -> None:
        """Write one answer to its end."""
        before: Passage | None = None
        while not writer.over:
            passage = await writer.continuation(
                0, writer.text, max_tokens=min(self.ahead, writer.left), alternatives=self._asked - 1, after=before
            )
            ahead, before = DraftAhead.of(writer.text, passage), passage
            for at, token in enumerate(passage.tokens):
                choice = await self._chosen(writer, ahead, at)
                writer.write([choice.token], choice.model, number=passage.number, segment=choice.segment)
                if writer.over or key_of(choice.token) != key_of(token):
                    before = None
                    break
            else:
                writer.end_with(passage)

    @property
    def _asked(self) -> int:
        """Tokens to request in each place."""
        return max(self.listed, _ASKED)

    async def _chosen(self, writer: AnswerWriter, ahead: DraftAhead, at: int) -> MeanChoice:
        """Steps 2 to 8 at one token; repeated if a model was lost in between."""
        while True:
            heard = [*writer.models]
            choice = await self._decided(writer, ahead, at)
            if choice is not None and heard == writer.models:
                return choice

    async def _decided(self, writer: AnswerWriter, ahead: DraftAhead, at: int) -> MeanChoice | None:
        """Decide about one token; None if a model was lost."""
        drafted, heard = ahead.tokens[at], [*writer.models]
        if len(heard) == 1:
            return _standing(drafted, "no other model is heard")
        await self._encode(writer, ahead)
        own = {model: ahead.own(model, at) for model in writer.models}
        for model, key in own.items():
            if key is None:
                return _standing(drafted, f"no token of the {writer.name(model)} begins there")
        await self._ask(writer, ahead, at)
        if heard != writer.models:
            return None
        place = SafePlace(
            writer.text,
            {model: key for model, key in own.items() if key is not None},
            {model: ahead.lists[model, at] for model in heard},
            self.listed,
            self.shares(writer.count, heard),
        )
        if place.agreed:
            return place.kept("every other model would write its own token there")
        sure, mean = SURE * (1 + ROUNDING), place.own_mean
        if mean.low <= sure < mean.high:
            await self._look_up(writer, place, place.own_unknown)
            mean = place.own_mean
        if mean.low > sure:
            return place.kept(f"mean probability of the models' own tokens {mean.low:.2g} > 0.5")
        while (best := settled(sharpened(place.means, place.members))) is None and heard == writer.models:
            await self._look_up(writer, place, place.unknown)
        return None if best is None else place.choice(best, writer.count)

    async def _encode(self, writer: AnswerWriter, ahead: DraftAhead) -> None:
        """Step 2: each verifier's encoding of the text, with all tokens that were written ahead."""

        async def ask(model: int) -> Encoding | None:
            return await writer.tokens(model, ahead.text)

        left = [model for model in writer.models[1:] if model not in ahead.encodings]
        for model, encoding in (await writer.ask_all(ask, left)).items():
            ahead.encodings[model] = encoding
            if encoding is None:
                words = f"the {writer.name(model)} could not tell how it encodes a text"
                writer.warn(f"{words}: there the draft's tokens stand")

    async def _ask(self, writer: AnswerWriter, ahead: DraftAhead, at: int) -> None:
        """Ask the verifiers for their distributions at this place and at the later places."""
        verifiers = writer.models[1:]
        left = range(at, len(ahead.tokens))
        places = [place for place in left if all(ahead.own(model, place) is not None for model in verifiers)]

        async def ask(model: int) -> None:
            missing = [place for place in places if (model, place) not in ahead.lists]
            questions: list[Question] = []
            for place in missing:
                own = ahead.own(model, place)
                assert own is not None, "it is a place"
                questions.append(Question(ahead.starts[place], (own[0],)))
            if questions:
                found = await writer.propose(model, ahead.text, questions, alternatives=self._asked - 1)
                for place, proposal in zip(missing, found, strict=True):
                    ahead.lists[model, place] = None if proposal is None else proposal.tokens[0]

        await writer.ask_all(ask, verifiers)

    async def _look_up(self, writer: AnswerWriter, place: SafePlace, cells: Iterable[tuple[int, Key]]) -> None:
        """Look up the probabilities of some tokens by some models."""
        wanted: dict[int, list[Key]] = {}
        for model, key in cells:
            wanted.setdefault(model, []).append(key)

        async def ask(model: int) -> None:
            await concurrently([partial(_look_up, writer, place, model, key) for key in wanted[model]])

        await writer.ask_all(ask, [*wanted])

    def cost(self, plan: Plan, model: int, prompt: Reading) -> Cost:
        """Rounds of the first model, places of the other models, and look-ups; see `Method.cost`."""
        n = plan.max_tokens
        looked_up = n * _MIXED * _LOOKED_UP
        expected = looked_up + (n / self.ahead + n * _MIXED if model == 0 else n)
        candidates = 1 + self.listed * plan.models
        high = n * (self.ahead + candidates * FINER) * ROUNDS
        tokens = Bounds(
            prompt.least + 1,
            expected * (prompt.expected + n / 2 + 1) + n,
            high * (prompt.most + FINER * (n + self.ahead)),
        )
        return self.with_weights(Cost(Bounds(1, expected, high), tokens, expected + n), prompt)

    def assumptions(self, plan: Plan) -> Assumptions:  # noqa: ARG002
        """The basis of `cost`."""
        words = Assumptions(
            f"max_tokens tokens; the first model writes {self.ahead} of them in a request; the others are asked about "
            f"each, in a request of its own that reads all before it; {_MIXED:.0%} of them averaged, for which each "
            f"model looks up {_LOOKED_UP} tokens and the first one writes again",
            f"every token is another one than was written ahead, and each model looks up all candidates; what is asked "
            f"takes at most {ROUNDS} requests",
        )
        return self.with_measure(words)


async def _look_up(writer: AnswerWriter, place: SafePlace, model: int, key: Key) -> None:
    """Look up a model's probability of a token that it does not list, or of its own first token of that text.

    Raises:
        ProviderError: the model failed.
    """
    data, end = key
    first: bytes | None = data
    if sendable(data).encode() != data:
        first = None
    elif not end:
        encoding = await writer.tokens(model, place.text + data)
        first = None if encoding is None else encoding.get(len(place.text))
    told = None if first is None else place.told(model).get((first, end))
    if first is None:
        prob = 0.0
    elif told is not None:
        prob = told
    else:
        scored = await writer.score_behind(model, place.text, data, end=end)
        prob = (scored[-1 if end else 0].prob if scored else None) or 0.0
        prob = min(prob, place.rest(model))
    place.known[model, key] = prob
    if not model:
        place.whole[key] = first == data


def _standing(drafted: Token, reason: str) -> MeanChoice:
    """The drafter's token, about which no model was asked."""
    return MeanChoice.of(drafted, 0, [Contender((-1,), drafted.data, drafted.end)], reason)

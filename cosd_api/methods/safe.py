"""SAFE: if a token of every model begins at a place and the models disagree, their distributions are averaged.

::

    1   the first model, the drafter, writes `ahead` tokens: t_1, t_2, ...                          `write`
    2   all other models, the verifiers, encode the answer together with these tokens               `_encode`
    3   the position of t_j is a *place* if a token begins there in every verifier's encoding
    4   a model's *own token* at a place is the token that begins there; the drafter's is t_j       `DraftAhead.own`
    5   t_j is kept if every verifier's most probable token at the place is its own token, or if
        the probabilities of the models' own tokens have a mean above 1/2                           `_decided`
    6   otherwise, E = w_1 M_1 + w_2 M_2 + ... is computed over the tokens that are among the
        `listed` most probable tokens of any model                                                  `SafePlace.means`
    7   if max E < 1/2, then for each token c in the drafter's vocabulary with E > 0.1, the E of
        all other tokens that begin with c is added to the E of c                                   `sharpened`
    8   the token with the largest E is written. If it is t_j, the next token is decided;
        otherwise, the other tokens written ahead are thrown away, and the drafter writes again     `settled`, `write`

M_i is the next-token distribution of model i at the place, after the tokens before the place as the model encoded them
in step 2. If the model's server accepts no ids, M_i is the distribution after the text before the place. For the
drafter, M_i is the distribution after the tokens that it wrote itself.

If a token c is not among the `listed` most probable tokens of model i, **M_i(c)** is *looked up* (`_look_up`): model i
encodes the text before the place followed by c, and M_i(c) is the probability of the first token that begins at the
place. This token is c or, if c is not in the model's vocabulary, the beginning of c. If the model's list contains this
token, the listed probability is used. M_i(c) is 0 if no token of the encoding begins at the place, because model i
would then never write c there. It is also 0 if c contains bytes that are not whole characters, because such bytes
cannot be sent. A look-up may encode the text before the place differently from the request that returned the list. A
looked-up probability is therefore limited to 1 minus the sum of the model's listed probabilities. A token is in the
drafter's vocabulary if it is among the drafter's `listed` tokens, or if a look-up encodes it as one token.

Only probabilities that can matter are looked up. An unknown probability is at least 0. It is at most 1 minus the sum of
the listed probabilities, or the largest listed probability of a token with which c begins, whichever is larger. So each
E has a lower and an upper bound.

If several E are equal, t_j has priority, then the end of sequence, then the token whose bytes sort first. A character
that consists of several tokens counts as one token without alternatives, with the lowest of their probabilities. The
end of sequence is a token whose place is the end of the text. The means in steps 5 and 6 are weighted by `weights`; in
the paper, all weights are equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

from cosd_api.alignment import Unit
from cosd_api.checks import check_count
from cosd_api.decoding.commands import Contender
from cosd_api.decoding.model import Model
from cosd_api.decoding.passage import Passage
from cosd_api.decoding.program import Answer
from cosd_api.methods.cost import FINER, ROUNDS, Assumptions, Bounds, Cost, Plan, Reading
from cosd_api.methods.lists import ROUNDING, Key
from cosd_api.methods.mean import SURE, MeanChoice
from cosd_api.methods.needs import Models, RoleNeeds
from cosd_api.methods.safe_place import DraftAhead, SafePlace, settled, sharpened
from cosd_api.methods.weighted import Weighted
from cosd_providers.contract import Question, Token
from cosd_providers.errors import UnsupportedError
from cosd_providers.text import sendable

_ASKED = 20  # the smallest number of tokens to request in a list; listed tokens need not be looked up
_MIXED = 0.1  # the assumed share of places where distributions are averaged
_LOOKED_UP = 4  # the assumed number of tokens that are looked up at a place where distributions are averaged


@dataclass(frozen=True, kw_only=True)
class Safe(Weighted):
    """SAFE: averaging across tokenizers, at places where a token of every model begins (arXiv 2510.15346).

    The method needs two or more models with any tokenizers. Each model must encode text, list its most probable tokens
    and score text. The first model writes ahead. The other models are asked at places where a token of every model
    begins. If they do not agree with the first model, the token with the largest mean probability is written. The
    answer streams token by token.

    Attributes:
        weights: the weights of the models, in the order of the models; numbers of at least 0, not all 0. Only their
            ratios count. None weighs all models equally, as in the paper; `"route"` weighs them by the
            perplexity of the prompt.
        tau: the temperature of the weights for `weights="route"`, above 0.
        ahead: the number of tokens that the first model writes before the other models encode the text, at least 1.
            This number affects the answer, because the encoding of a text also depends on the text that follows.
        listed: the number of each model's most probable tokens that are candidates, at least 1.

    Raises:
        SettingError: a setting is invalid.
    """

    name: ClassVar[str] = "safe"
    decides: ClassVar[str] = "the mean of the models' probabilities, where all of them cut the text"
    ordered: ClassVar[bool] = True

    needs: ClassVar[RoleNeeds] = {"models": ("lists",)}

    ahead: Annotated[int, check_count] = 5
    listed: Annotated[int, check_count] = 10

    @property
    def least_listed(self) -> int:
        """The number of other tokens that a model must be able to list with each token."""
        return self.listed - 1

    def examine(self, models: Models, unit: Unit | None) -> tuple[str, ...]:
        """Refuse a model that does not encode text, list tokens or score text; see `Method.examine`."""
        warnings = super().examine(models, unit)
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
        return warnings

    async def write(self, answer: Answer, *models: Model) -> None:
        """Write one answer."""
        before: Passage | None = None
        while True:
            tokens = min(self.ahead, answer.left)
            passage = await models[0].write(tokens, until=lambda _: False, listed=self._asked - 1, after=before)
            ahead, before = DraftAhead.of(passage), passage
            for at in range(len(passage.tokens)):
                choice = await self._chosen(answer, ahead, at)
                if not answer.choose(choice.token, models[choice.model], choice.segment, passage, at):
                    before = None
                    break
            else:
                answer.end_if_stuck(passage)

    @property
    def _asked(self) -> int:
        """The number of tokens to list at each place."""
        return max(self.listed, _ASKED)

    async def _chosen(self, answer: Answer, ahead: DraftAhead, at: int) -> MeanChoice:
        """Run steps 2 to 8 for one token; repeat them if a model is lost meanwhile."""
        while True:
            heard = answer.models
            choice = await self._decided(answer, ahead, at)
            if choice is not None and heard == answer.models:
                return choice

    async def _decided(self, answer: Answer, ahead: DraftAhead, at: int) -> MeanChoice | None:
        """Run steps 2 to 8 for one token; return None if a model was lost meanwhile."""
        drafted, heard = ahead.tokens[at], answer.models
        if len(heard) == 1:
            return _standing(drafted, "no other model is heard")
        await self._encode(answer, ahead)
        own = {model.index: ahead.own(model.index, at) for model in answer.models}
        for model, key in own.items():
            if key is None:
                return _standing(drafted, f"no token of the {answer.name(model)} begins there")
        await self._ask(answer, ahead, at)
        if heard != answer.models:
            return None
        place = SafePlace(
            answer.text,
            {model: key for model, key in own.items() if key is not None},
            {model.index: ahead.lists[model.index, at] for model in heard},
            self.listed,
            self.shares([model.index for model in heard]),
        )
        if place.agreed:
            return place.kept("every other model would write its own token there")
        sure, mean = SURE * (1 + ROUNDING), place.own_mean
        if mean.low <= sure < mean.high:
            await self._look_up(answer, place, place.own_unknown)
            mean = place.own_mean
        if mean.low > sure:
            return place.kept(f"mean probability of the models' own tokens {mean.low:.2g} > 0.5")
        while (best := settled(sharpened(place.means, place.members))) is None and heard == answer.models:
            await self._look_up(answer, place, place.unknown)
        return None if best is None else place.choice(best, answer.count)

    async def _encode(self, answer: Answer, ahead: DraftAhead) -> None:
        """Step 2: let each verifier encode the text, including all tokens that were written ahead."""
        left = [model for model in answer.models[1:] if model.index not in ahead.encodings]
        for model, encoding in (await answer.all(partial(Model.tokens, text=ahead.text), left)).items():
            ahead.encodings[model.index] = encoding
            if encoding is None:
                words = f"the {model.name} could not tell how it encodes a text"
                answer.warn(f"{words}: the draft's tokens are kept there")

    async def _ask(self, answer: Answer, ahead: DraftAhead, at: int) -> None:
        """Ask the verifiers for their distributions at this place, and at all later places of this round."""
        verifiers = answer.models[1:]
        left = range(at, len(ahead.tokens))
        places = [place for place in left if all(ahead.own(model.index, place) is not None for model in verifiers)]

        async def ask(model: Model) -> None:
            missing = [place for place in places if (model.index, place) not in ahead.lists]
            questions: list[Question] = []
            for place in missing:
                own = ahead.own(model.index, place)
                assert own is not None, "it is a place"
                questions.append(Question(ahead.starts[place], (own[0],)))
            if questions:
                found = await model.propose(ahead.text, questions, listed=self._asked - 1)
                for place, proposal in zip(missing, found, strict=True):
                    ahead.lists[model.index, place] = None if proposal is None else proposal.tokens[0]

        await answer.all(ask, verifiers)

    async def _look_up(self, answer: Answer, place: SafePlace, cells: Iterable[tuple[int, Key]]) -> None:
        """Look up the probability of each given token for the given model."""
        wanted: dict[int, list[Key]] = {}
        for model, key in cells:
            wanted.setdefault(model, []).append(key)

        async def ask(model: Model) -> None:
            await model.several(partial(_look_up, place, model), wanted[model.index])

        await answer.all(ask, [model for model in answer.models if model.index in wanted])

    def cost(self, plan: Plan, model: int, prompt: Reading) -> Cost:
        """Forecast the cost of one answer at one model; see `Method.cost`."""
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

    def assumptions(self, plan: Plan) -> Assumptions:
        """Describe in words what `cost` assumes."""
        words = Assumptions(
            f"{plan.max_tokens} tokens; the first model writes {self.ahead} of them in a request; the others are "
            f"asked about each, in a request of its own that reads all before it; {_MIXED:.0%} of them averaged, for "
            f"which each model looks up {_LOOKED_UP} tokens and the first one writes again",
            f"every token is another one than was written ahead, and each model looks up all candidates; what is asked "
            f"takes at most {ROUNDS} requests",
        )
        return self.with_measure(words)


async def _look_up(place: SafePlace, model: Model, key: Key) -> None:
    """Look up a model's probability of a token that it does not list, which is M_i(c) in the module's docstring.

    Raises:
        ProviderError: the model failed.
    """
    data, end = key
    first: bytes | None = data
    if sendable(data).encode() != data:
        first = None
    elif not end:
        encoding = await model.tokens(place.text + data)
        first = None if encoding is None else encoding.get(len(place.text))
    told = None if first is None else place.told(model.index).get((first, end))
    if first is None:
        prob = 0.0
    elif told is not None:
        prob = told
    else:
        scored = await model.score_behind(data, end=end)
        prob = (scored[-1 if end else 0].prob if scored else None) or 0.0
        prob = min(prob, place.rest(model.index))
    place.known[model.index, key] = prob
    if not model.index:
        place.whole[key] = first == data


def _standing(drafted: Token, reason: str) -> MeanChoice:
    """Keep the drafter's token without asking any other model about it."""
    return MeanChoice.of(drafted, 0, [Contender((-1,), drafted.data, drafted.end)], reason)

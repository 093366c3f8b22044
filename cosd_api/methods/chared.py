"""CharED (arXiv 2407.11009): the answer is written byte by byte; each byte has the largest weighted mean probability.

::

    1   a model lists its `listed` most probable next tokens if it has no branches at the
        end of the text, or if one of its tokens may end there                               `Branches.asked`
    2   the strings that a model may write next are kept in a table of byte strings (its
        branches), each with a probability mass; the masses sum to 1                         `Branches`
    3   the mass of a symbol (a byte, or the end of sequence) is the mass of all strings
        that begin with it; its probability is the weighted mean of its masses over the
        models                                                                               `_step`
    4   the symbol with the largest mean is written
    5   each model keeps only the strings that begin with this symbol, and removes the
        symbol from them; the masses are scaled to sum to 1 again                            `Branches.follow`
    6   the end of sequence ends the answer; otherwise the steps continue at 1 if a model
        has to be asked, and at 3 if not

**Branches.** A string in a table is the part of a token that is not yet written. The empty string means *a token ends
here*; its mass is the mass of the tokens that end where the text ends. If this mass exceeds `ENDS`, both kinds of
branches are kept: the longer tokens stay in the table, and the mass of the ended tokens is distributed over the model's
next tokens (step 1). The model lists its next tokens after the id of the token that ended. If its server accepts no
ids, the text is encoded again instead. If the mass is at most `ENDS`, the empty string is dropped. Equal strings form
one branch, wherever their tokens began. A branch is removed if it does not begin with the byte that is written. A model
that has no branches left is asked at the end of the text, as it was at the beginning.

**Lists.** The probabilities that a model lists are divided by their sum, so unlisted tokens have no probability. Lists
contain only tokens of whole characters, and the end of sequence. If the most probable token is one character that
consists of several tokens, it has no alternatives. Such a token counts as certain, and a warning reports how often this
happened. If such a character remains incomplete, which happens only before the end of sequence, the end of sequence is
written after its bytes.

**Characters.** A model can read only whole characters, so no model is asked inside a character. A model that loses its
last branch inside a character does not contribute until the character is complete. The mean is then taken over the
other models, at least one of which still has branches.

**Ties.** If several symbols have equal means, the symbol that the first model finds most probable is written. If that
model finds several of them equally probable, the second model decides, and so on. If symbols are still equal, the end
of sequence is preferred, then the lowest byte. Means or probabilities count as equal if they differ only by a rounding
error.

**Tokens.** A token of the answer is the text between two places where a model is asked, in whole characters; the end of
sequence is a token, too. A token is streamed as soon as its bytes are known, because it needs no further request.
`max_tokens` counts these tokens. It also limits the requests to each model, because no model is asked more than once
for a token.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, ClassVar

from cosd_api.checks import check_count
from cosd_api.decoding.commands import Contender, DecidedSegment
from cosd_api.decoding.model import Model
from cosd_api.decoding.passage import Passage
from cosd_api.decoding.program import Answer
from cosd_api.methods.cost import FINER, Assumptions, Bounds, Cost, Plan, Reading
from cosd_api.methods.lists import ROUNDING, Key, probs_of
from cosd_api.methods.mean import inverse
from cosd_api.methods.needs import RoleNeeds
from cosd_api.methods.weighted import Weighted
from cosd_providers.contract import Token
from cosd_providers.text import readable, whole

ENDS = 1e-3
"""The mass of "a token ends here" above which a model is asked for its next tokens."""

LEAST = 20
"""The smallest allowed value of `listed`."""

END: Key = (b"", True)
_HERE: Key = (b"", False)  # the branch that means "a token ends here"
_PARTS = 4  # the largest number of raw tokens in one character


@dataclass(frozen=True, kw_only=True)
class CharED(Weighted):
    """CharED: each byte of the answer is the byte with the largest weighted mean probability (arXiv 2407.11009).

    This is a baseline of the CoSD paper. It needs two or more models with any tokenizers. Each model must list its most
    probable tokens, including the end of sequence, and receives one request for each token of the answer.

    Attributes:
        weights: the weights of the models, in the order of the models; numbers of at least 0, not all 0. Only their
            ratios count. None weighs all models equally; `"route"` weighs them by the perplexity of the prompt.
        tau: the temperature of the weights for `weights="route"`, above 0.
        listed: the number of most probable tokens that each model lists, at least 20. All other tokens are treated as
            having probability 0.

    Raises:
        SettingError: a setting is invalid.
    """

    name: ClassVar[str] = "chared"
    decides: ClassVar[str] = "the mean of the models' probabilities of the next byte"

    needs: ClassVar[RoleNeeds] = {"models": ("lists",)}

    listed: Annotated[int, partial(check_count, least=LEAST)] = LEAST

    @property
    def least_listed(self) -> int:
        """The number of other tokens that a model must be able to list with each token."""
        return self.listed - 1

    async def write(self, answer: Answer, *models: Model) -> None:
        """Write one answer."""
        branches = {model.index: Branches() for model in answer.models}
        alone = 0
        try:
            while True:
                alone += await self._ask(answer, branches)
                self._write_token(answer, models, branches)
        finally:
            if alone:
                words = f"{alone} times a model listed a single token, as with one character of several tokens"
                answer.warn(f"{words}: it counts as certain")

    async def _ask(self, answer: Answer, branches: dict[int, Branches]) -> int:
        """Step 1: ask the models for their next tokens, and remove models that have failed from `branches`.

        Returns:
            The number of models that listed only one token although its probability is below 1.
        """

        async def ask(model: Model) -> Passage:
            passage = await model.write(1, until=lambda _: False, listed=self.listed - 1, inside=False)
            if passage.tokens:
                await model.begun(passage.tokens[0].alternatives)
            return passage

        alone = 0
        for model, passage in (
            await answer.all(ask, [one for one in answer.models if branches[one.index].due])
        ).items():
            if not passage.tokens:
                answer.end_if_stuck(passage)
                continue
            [token] = passage.tokens
            alone += not token.alternatives and token.prob != 1
            branches[model.index].asked(token, self.listed, passage.number)
        for lost in {*branches}.difference(model.index for model in answer.models):
            del branches[lost]
        return alone

    def _write_token(self, answer: Answer, models: Sequence[Model], branches: Mapping[int, Branches]) -> None:
        """Steps 3 to 6: write one token, which ends at the next place where a model has to be asked."""
        data, steps = b"", list[ByteStep]()
        while True:
            here = self._step(branches, data)
            steps.append(here)
            data += here.symbol[0]
            for one in branches.values():
                one.follow(here.symbol)
            if here.symbol == END or (whole(data) == len(data) and _settled(branches.values())):
                break
        model, segment = _record(answer.count, data, steps)
        probs = [one.probs[model].get(one.symbol, 0.0) for one in steps]
        tokens = [Token(data, min(math.prod(probs[: len(data)]), 1.0))] if data else []
        if steps[-1].symbol == END:
            tokens.append(Token(b"", min(probs[-1], 1.0), end=True, name=branches[model].end_name))
        passage = Passage(models[model], tuple(tokens), branches[model].number, None)
        answer.append(passage, segment, own=False)

    def _step(self, models: Mapping[int, Branches], before: bytes) -> ByteStep:
        """Steps 3 and 4: find the symbol with the largest mean."""
        probs = {model: one.symbols() for model, one in models.items() if one.rests}
        shares = self.shares(probs)
        symbols = sorted({symbol for found in probs.values() for symbol in found}, key=_order)
        means = {
            symbol: math.fsum(shares[model] * found.get(symbol, 0.0) for model, found in probs.items())
            for symbol in symbols
        }
        best = symbols
        for measure in (means, *probs.values()):
            most = max(measure.get(symbol, 0.0) for symbol in best)
            best = [symbol for symbol in best if measure.get(symbol, 0.0) >= most * (1 - ROUNDING)]
        rests = {model: one.likely() for model, one in models.items() if one.rests}
        return ByteStep(before, best[0], means, probs, rests)

    def cost(self, plan: Plan, model: int, prompt: Reading) -> Cost:  # noqa: ARG002
        """Forecast the cost of one answer at one model; see `Method.cost`."""
        n = plan.max_tokens
        tokens = Bounds(
            prompt.least + 1,
            n * (prompt.expected + n / 2 + 1),
            n * (prompt.most + FINER * n + _PARTS),
        )
        return self.with_weights(Cost(Bounds(1, n, n), tokens, n), prompt)

    def assumptions(self, plan: Plan) -> Assumptions:
        """Describe in words what `cost` assumes."""
        words = Assumptions(
            f"{plan.max_tokens} tokens, and for each of them a request of its own to every model, which reads all "
            "before it",
            f"the same; each of them is up to {FINER} tokens of a model",
        )
        return self.with_measure(words)


@dataclass(slots=True)
class Branches:
    """The strings that one model may write next (step 2).

    Attributes:
        rests: the masses of the strings, which sum to 1. If it is empty, the model has to be asked as soon as the text
            ends with a whole character.
        number: the number of the last request to the model.
        end_name: the name of the model's end of sequence in its latest list that contained one.
    """

    rests: dict[Key, float] = field(default_factory=dict[Key, float])
    number: int = 0
    end_name: str | None = None

    @property
    def due(self) -> bool:
        """True if the model has to be asked before the next byte is written."""
        return not self.rests or self.rests.get(_HERE, 0.0) > ENDS

    def asked(self, token: Token, listed: int, number: int) -> None:
        """Step 1: distribute the mass of the tokens that ended here over the tokens that the model listed."""
        mass = self.rests.pop(_HERE, 0.0) if self.rests else 1.0
        probs = dict([*probs_of(token).items()][:listed])
        total = math.fsum(probs.values())
        for (data, end), prob in probs.items():
            rest = (data, end or whole(data) < len(data))
            self.rests[rest] = self.rests.get(rest, 0.0) + (mass * prob / total if total else mass / len(probs))
        self.number = number
        self.end_name = next((one.name for one in (token, *token.alternatives) if one.end), self.end_name)

    def settle(self) -> None:
        """Drop the tokens that end here, unless the model has to be asked."""
        if not self.due and self.rests.pop(_HERE, None) is not None:
            self._normalise()

    def symbols(self) -> dict[Key, float]:
        """Step 3: return the mass of each possible next byte, and of the end of sequence."""
        found: dict[Key, float] = {}
        for (data, end), mass in self.rests.items():
            symbol = (data[:1], end and not data)
            found[symbol] = found.get(symbol, 0.0) + mass
        return found

    def likely(self) -> dict[Key, bytes]:
        """Return, for each symbol, the string with the largest mass among those that begin with it."""
        found: dict[Key, bytes] = {}
        for (data, end), _ in sorted(self.rests.items(), key=lambda item: (-item[1], item[0])):
            found.setdefault((data[:1], end and not data), data)
        return found

    def follow(self, symbol: Key) -> None:
        """Step 5: keep only the strings that begin with the written symbol, and remove it from them."""
        byte, end = symbol
        self.rests = {} if end else {(data[1:], ends): m for (data, ends), m in self.rests.items() if data[:1] == byte}
        self._normalise()

    def _normalise(self) -> None:
        total = math.fsum(self.rests.values())
        self.rests = {rest: mass / total for rest, mass in self.rests.items()} if total else {}


@dataclass(frozen=True, slots=True)
class ByteStep:
    """The choice of one symbol.

    Attributes:
        before: the bytes of the same token that are already written.
        symbol: the symbol that is written: a byte, or the end of sequence.
        means: the mean of every symbol.
        probs: the masses of the symbols, by model; models that have no branches are missing.
        rests: for each model and symbol, the model's most probable string that begins with the symbol.
    """

    before: bytes
    symbol: Key
    means: Mapping[Key, float]
    probs: Mapping[int, Mapping[Key, float]]
    rests: Mapping[int, Mapping[Key, bytes]]

    def favourite(self, model: int) -> Key:
        """Return the model's most probable symbol; if several are equal, the written symbol if it is one of them."""
        probs = self.probs[model]
        most = max(probs.values())
        likely = [symbol for symbol in sorted(probs, key=_order) if probs[symbol] >= most * (1 - ROUNDING)]
        return self.symbol if self.symbol in likely else likely[0]


def _settled(models: Collection[Branches]) -> bool:
    """Step 6: test whether any model has to be asked. Models that need not be asked drop their tokens that end here."""
    for one in models:
        one.settle()
    return any(one.due for one in models)


def _order(symbol: Key) -> tuple[bool, bytes]:
    """Return the sort key of a symbol; the end of sequence comes first, then the bytes in ascending order."""
    return not symbol[1], symbol[0]


def _record(count: int, data: bytes, steps: Sequence[ByteStep]) -> tuple[int, DecidedSegment]:
    """Return the model to which a token is attributed, and a record of the first symbol on which the models differ.

    A token is attributed to the first model that would have written all of it. If no model would have, the token is
    attributed to the model that finds it most probable.
    """
    heard = [model for model in steps[0].probs if all(model in one.probs for one in steps)]
    models = [model for model in heard if all(one.favourite(model) == one.symbol for one in steps)]
    if not models:
        models = [max(heard, key=lambda model: math.prod(one.probs[model].get(one.symbol, 0.0) for one in steps))]
    sources, end = tuple(model - 1 for model in models), steps[-1].symbol == END
    here = next((one for one in steps if any(one.favourite(model) != one.symbol for model in one.probs)), None)
    if here is None:
        entry = Contender(sources, data, end)
        return models[0], DecidedSegment((entry,), 0, "all models find the same most probable")
    others: dict[Key, list[int]] = {}
    for model in here.probs:
        if (favourite := here.favourite(model)) != here.symbol:
            others.setdefault(favourite, []).append(model)
    entries = [Contender(sources, data, end, *_scores(count, here, here.symbol))]
    for symbol, those in others.items():
        text = here.before + here.rests[those[0]][symbol]
        entries.append(
            Contender(tuple(model - 1 for model in those), text, symbol == END, *_scores(count, here, symbol))
        )
    second = max(mean for symbol, mean in here.means.items() if symbol != here.symbol)
    reason = f"largest mean probability: {here.means[here.symbol]:.2g} against {second:.2g}"
    if here.before:
        reason += f", after {readable(here.before)!r}"
    return models[0], DecidedSegment(tuple(entries), 0, reason)


def _scores(count: int, here: ByteStep, symbol: Key) -> tuple[tuple[float | None, ...], float]:
    """Return 1 / probability of a symbol for each model, and 1 / mean probability."""
    probs = [here.probs.get(model) for model in range(count)]
    return tuple(None if one is None else inverse(one.get(symbol, 0.0)) for one in probs), inverse(here.means[symbol])

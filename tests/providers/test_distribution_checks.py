"""The probe's checks of alternatives, of ends and of samples: each defect, on a provider that has it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from cosd_providers import Proposal, Token, UnsupportedError, probe
from cosd_providers.engines.llama_cpp import LlamaCpp
from cosd_providers.testing import ScriptedProvider, TableModel, TextModel
from fakes.llama_cpp import FakeLlamaCpp
from toys import toy_models as toys

PROMPT = "Q"
SCRIPT: dict[str, list[Any]] = {"Q": [(" The", 0.6), (" end", 0.7), (" is", 0.5), (" near", 0.9), ("", 0.8)]}


def unsure(share: float = 1.0) -> TextModel:
    """The model of a script, which might also say " or" and " not" at each place.

    Args:
        share: its own tokens get this power of their probability, as at another temperature.
    """
    model = TextModel({**SCRIPT, "~": [" or", " not"]})
    own = model.next

    def next_(ids: Sequence[int]) -> list[float]:
        probs = [value**share for value in own(ids)]
        rest = 1 - sum(probs)
        for data, part in ((b" or", 0.6), (b" not", 0.4)):
            probs[model.tokens.index(data)] += rest * part
        return probs

    model.next = next_
    return model


@dataclass
class Faulty(ScriptedProvider):
    """A provider that is wrong in one way."""

    fault: str = ""

    async def generate(self, *args: Any, **options: Any) -> AsyncGenerator[Any, None]:
        sampled = options.get("temperature") == 1
        if sampled and self.fault == "greedy":
            options["temperature"] = 0
        if sampled and self.fault == "unseeded":
            options["seed"] = self.requests
        if sampled and self.fault == "scaled":
            self.model = unsure(2)
        try:
            async for item in super().generate(*args, **options):
                yield self.wrong(item, **options) if isinstance(item, Token) else item
        finally:
            self.model = unsure()

    def wrong(self, token: Token, *, max_tokens: int, temperature: int = 0, **options: Any) -> Token:
        if self.fault == "order":
            return replace(token, alternatives=token.alternatives[::-1])
        if self.fault == "changing" and token.alternatives and max_tokens > 1:
            return replace(token, data=token.data.upper())
        return replace(token, prob=None) if self.fault == "silent" and temperature else token

    async def propose(self, *args: Any, **options: Any) -> list[Proposal | None]:
        found = await super().propose(*args, **options)
        wrong = self.fault == "propose" and options.get("alternatives")
        return [one and replace(one, tokens=tuple(map(moved, one.tokens))) if wrong else one for one in found]

    async def score(self, *args: Any, **options: Any) -> list[Token]:
        found = await super().score(*args, **options)
        if options.get("alternatives") and self.fault == "score":
            found = [moved(one) for one in found]
        if options.get("end") and self.fault == "end":
            found[-1] = replace(found[-1], prob=0.3)
        return found[:-1] if options.get("end") and self.fault == "no end" else found


def moved(token: Token) -> Token:
    """The same token with the probabilities of its alternatives moved by one."""
    probs = [one.prob for one in token.alternatives]
    others = zip(token.alternatives, [*probs[1:], 0.4], strict=True) if probs else ()
    return replace(token, alternatives=tuple(replace(one, prob=prob) for one, prob in others))


async def test_a_provider_without_faults() -> None:
    report = await probe(Faulty(unsure()), prompt=PROMPT)
    assert report["alternatives"].value == "drafts, proposals, scores"
    assert report["alternatives"].seen == "equal in proposals at 5 of 5 places, scores at 4 of 4 places"
    assert (report["scored_end"].value, report["scored_end"].seen) == (True, "0.8, and 0.8 among the proposals there")
    assert report["sampling"].value is True
    assert "the most probable token, of 0.5, was drawn" in report["sampling"].seen
    lines = str(report).splitlines()
    assert any(line.startswith("other tokens       drafts, proposals, scores: equal in") for line in lines)
    assert any(line.startswith("end of a text      scored: 0.8, and 0.8 among") for line in lines)
    assert any(line.startswith("sampling           yes, seeded: the most probable") for line in lines)
    assert any(line.startswith("hidden states      no: the server does not report them") for line in lines)


class Mistaken(ScriptedProvider):
    """A provider whose states of a text are not those of its drafts."""

    async def hidden_states(self, *args: Any, **options: Any) -> Any:
        return {at: [2.0, 1.0, 0.0] for at in await super().hidden_states(*args, **options)}


@pytest.mark.parametrize(
    ("make", "value", "words"),
    [
        (lambda: ScriptedProvider(unsure(), states=toys.state), True, "3 numbers, equal in both at 5 of 5 places"),
        (lambda: Mistaken(unsure(), states=toys.state), False, "3 numbers, equal in both at 0 of 5 places"),
        (lambda: ScriptedProvider(unsure(), states=lambda _: [1.0, 2.0]), False, "equal in both at 5 of 5 places"),
        (
            lambda: ScriptedProvider(unsure(), states=lambda ids: [0.0] * (1 + len(ids))),
            False,
            "not all have 1 numbers",
        ),
        (lambda: ScriptedProvider(TextModel({}), states=toys.state), None, "the answer was too short"),
    ],
)
async def test_hidden_states(make: Callable[[], Any], value: object, words: str) -> None:
    report = await probe(make(), prompt=PROMPT)
    assert report["hidden_states"].value is value
    assert words in report["hidden_states"].seen


@pytest.mark.parametrize(
    ("fault", "line", "words"),
    [
        ("order", "alternatives", "an alternative is more probable than"),
        ("changing", "alternatives", "a draft with alternatives differs from a draft without them"),
        ("propose", "alternatives", "equal to the alternatives of drafts in proposals at 0 of"),
        ("score", "alternatives", "scores at 0 of"),
        ("end", "scored_end", "0.3, and 0.8 among the proposals there"),
        ("no end", "scored_end", "the end is missing"),
        ("greedy", "sampling", "was drawn 16 of 16 times"),
        ("unseeded", "sampling", "one seed draws different tokens"),
        ("scaled", "sampling", "drawn tokens are not the model's own"),
        ("silent", "sampling", "the probabilities of 16 of 16 drawn tokens are not the model's own"),
    ],
)
async def test_a_provider_that_is_wrong(fault: str, line: str, words: str) -> None:
    report = await probe(Faulty(unsure(), fault=fault, states=toys.state), prompt=PROMPT)
    assert report[line].value is False
    assert words in report[line].seen
    assert report.can_draft
    assert {one.name for one in report.lines if one.value is False} <= {line, "after_ids"}  # it takes no ids


@pytest.mark.parametrize(
    ("make", "line", "value", "words"),
    [
        (lambda: ScriptedProvider(unsure(), top_k=0), "alternatives", False, "drafts may list some"),
        (lambda: ScriptedProvider(unsure(), top_k=0), "scored_end", True, "0.8, and 0.8 among"),
        (lambda: ScriptedProvider(unsure(), end_prob=False), "scored_end", False, "its probability is not reported"),
        (lambda: ScriptedProvider(unsure(), sampling=False), "sampling", False, "it is not known to draw"),
        (lambda: ScriptedProvider(TextModel({"Q": ["a", "b", "c", "d"]})), "sampling", None, "the model is confident"),
        (lambda: ScriptedProvider(TextModel({})), "alternatives", None, "the answer was too short"),
        (lambda: ScriptedProvider(TextModel({})), "scored_end", None, "the answer was too short"),
        (lambda: ScriptedProvider(endless()), "scored_end", True, "0.1, and 0.1 among"),
        (lambda: ScriptedProvider(endless(), top_k=1), "scored_end", True, "0.1, and proposals leave 0.2 for it"),
    ],
)
async def test_what_is_not_offered_or_cannot_be_found_out(
    make: Callable[[], Any], line: str, value: object, words: str
) -> None:
    report = await probe(make(), prompt=PROMPT)
    assert report[line].value is value
    assert words in report[line].seen


def endless() -> TableModel:
    """A model that never ends where its most probable token is taken."""
    return TableModel([b"Q", b" a", b" b", b""], lambda ids: [0.0, 0.6, 0.2, 0.1], end_ids=(3,))


async def test_a_scorer_that_refuses_the_end() -> None:
    class Refusing(ScriptedProvider):
        async def score(self, *args: Any, **options: Any) -> list[Token]:
            if options.get("end"):
                raise UnsupportedError("not the end", endpoint=self.name)
            return await super().score(*args, **options)

    line = (await probe(Refusing(unsure()), prompt=PROMPT))["scored_end"]
    assert (line.value, line.seen) == (False, "not the end")


async def test_a_server() -> None:
    server = FakeLlamaCpp(unsure())
    async with server.client() as client:
        report = await probe(LlamaCpp("http://gpu1:8080", http_client=client), prompt=PROMPT)
    assert report["alternatives"].value == "drafts, proposals, scores"
    assert report["scored_end"].value is True
    assert report["sampling"].value is True

"""The probe's checks of samples, hidden states and allowed tokens: each defect, on a provider that has it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from cosd_providers import Token, probe
from cosd_providers.engines.llama_cpp import LlamaCpp
from cosd_providers.testing import ScriptedProvider, TextModel
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

    def wrong(self, token: Token, *, temperature: int = 0, **options: Any) -> Token:
        return replace(token, prob=None) if self.fault == "silent" and temperature else token


async def test_a_provider_without_faults() -> None:
    report = await probe(Faulty(unsure()), prompt=PROMPT)
    assert report["sampling"].value is True
    assert "the most probable token, of 0.5, was drawn" in report["sampling"].seen
    lines = str(report).splitlines()
    assert any(line.startswith("sampling           yes, seeded: the most probable") for line in lines)
    assert any(line.startswith("hidden states      no: the server does not report them") for line in lines)
    limited = str(await probe(ScriptedProvider(unsure(), top_k=2, finds_allowed=False), prompt=PROMPT))
    assert "\nstructured answers only of its 3 most probable tokens\n" in limited


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


class Misled(ScriptedProvider):
    """A provider that finds a token with a probability that cannot be right."""

    async def list_allowed(self, *args: Any, **options: Any) -> list[Token]:
        return [Token(b" x", 0.9)]


@pytest.mark.parametrize(
    ("make", "line", "value", "words"),
    [
        (lambda: ScriptedProvider(unsure(), sampling=False), "sampling", False, "it is not known to draw"),
        (lambda: ScriptedProvider(TextModel({"Q": ["a", "b", "c", "d"]})), "sampling", None, "the model is confident"),
        (lambda: ScriptedProvider(unsure(), top_k=1), "allowed", True, "' not' was found, of 0.16"),
        (lambda: ScriptedProvider(unsure()), "allowed", None, "it has no such token"),
        (lambda: Misled(unsure(), top_k=1), "allowed", False, "' x' was found, of 0.9"),
        (lambda: ScriptedProvider(unsure(), top_k=2, finds_allowed=False), "allowed", 3, "listed"),
        (lambda: ScriptedProvider(unsure(), top_k=0, finds_allowed=False), "allowed", False, "only its own token"),
    ],
)
async def test_what_is_not_offered_or_cannot_be_found_out(
    make: Callable[[], Any], line: str, value: object, words: str
) -> None:
    report = await probe(make(), prompt=PROMPT)
    assert report[line].value is value
    assert words in report[line].seen


async def test_a_server() -> None:
    server = FakeLlamaCpp(unsure())
    async with server.client() as client:
        report = await probe(LlamaCpp("http://gpu1:8080", http_client=client), prompt=PROMPT)
    assert report["sampling"].value is True

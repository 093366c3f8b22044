"""The OpenAI-compatible adapter does what every adapter has to do, against llama-cpp-python, its echo included."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import anyio
import pytest

from cosd_providers import Token, Usage
from cosd_providers.contract import Context
from cosd_providers.engines import OpenAICompatible
from naive.plain_http import MODELS, PlainLlamaCppPython, Raw
from support.conformance import ENDLESS, PROMPTS, Conformance, Subject, leave
from support.served import Served


class TestOpenAICompatible(Conformance):
    tolerance = 1e-2  # it is compiled for the machine that it runs on, and so computes in another order

    @pytest.fixture(params=["singles", "echo"])
    def given(
        self,
        plain: Mapping[str, PlainLlamaCppPython],
        served: Mapping[str, Served],
        request: pytest.FixtureRequest,
    ) -> Callable[[str], Subject]:
        self.served = served

        def given(name: str) -> Subject:
            options: Any = {"dialect": "llama-cpp-python", "strategy": request.param, "tokenizer": MODELS / name}
            return Subject(partial(OpenAICompatible, plain[name].url, **options), plain[name])

        return given

    def close(self, subject: Subject, ours: Sequence[Token], theirs: Sequence[Raw], *, sure: bool = True) -> None:
        """A token that ends within a character shows its whole ones alone: equal texts, and where both part, tokens.

        The last model has such tokens: a space with the first bytes of an emoji.
        """
        if subject.plain.name != "reciter":
            super().close(subject, ours, theirs, sure=sure)
            return
        mine, other = parts(ours), parts(theirs)
        text, expected = (b"".join(token.data for token in tokens) for tokens in (ours, theirs))
        assert text.startswith(expected) or expected.startswith(text)
        for span in {*mine} & {*other}:
            if mine[span] is not None and other[span] is not None:
                assert mine[span] == pytest.approx(other[span], abs=self.tolerance)
        assert {*mine} & {*other} or len(ours) < 3

    @pytest.mark.parametrize(("model", "prompt"), PROMPTS[:2])
    async def test_alternatives(self, subject: Callable[[str], Subject], model: str, prompt: str) -> None:
        """Not of the last model, whose tokens cannot be told apart (see `close`)."""
        await super().test_alternatives(subject, model, prompt)

    @pytest.mark.parametrize("how", ["close", "cancel"])
    async def test_the_server_sees_a_cancellation(self, subject: Callable[[str], Subject], how: str) -> None:
        """It tells of it in its log, and nowhere else."""
        server, seen = self.served["sums"], "Disconnected from client"
        before = server.log(10**6).count(seen)
        async with OpenAICompatible(server.url, dialect="llama-cpp-python") as provider:
            await provider.describe()
            with anyio.move_on_after(60):
                while True:  # a busy machine may let a small model finish before its server hears of it
                    draft: Any = subject("sums").make().generate(Context(ENDLESS, b""), max_tokens=400, usage=Usage())
                    await leave(draft, how)
                    with anyio.move_on_after(5):
                        while server.log(10**6).count(seen) == before:  # noqa: ASYNC110
                            await anyio.sleep(0.01)
                        return
        pytest.fail("in a minute the server heard of no draft that was left, or too late, every time")


def parts(tokens: Sequence[Token | Raw]) -> dict[tuple[int, int], float | None]:
    """The probability of each token by where it stands."""
    found, at = {}, 0
    for token in tokens:
        found[at, at + len(token.data)] = token.prob
        at += len(token.data)
    return found

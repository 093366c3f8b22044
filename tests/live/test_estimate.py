"""The forecast for a token of an answer, against what the servers billed."""

from __future__ import annotations

import pytest

from cosd_api.apps.demo.servers import Three
from support.every_method import LINES, PROMPTS, Line

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

NEAR = 3
"""The largest factor between a forecast and a bill."""

ONE_TOKENIZER = ("cosd by tokens", "match")
"""Lines that need models with the same ids."""
SERVED = [line for line in LINES if line.name != "defer by states"]  # it needs other servers: see test_co_llm
METHODS = {getattr(line.method, "name", line.method): line for line in reversed(SERVED)}
"""The first line of each method."""


@pytest.mark.parametrize(
    ("line", "count"),
    [
        *((line, 3) for line in METHODS.values()),
        *(pytest.param(line, 4, marks=pytest.mark.extended) for line in SERVED),
    ],
    ids=str,
)
async def test_a_token_bills_about_what_was_forecast(line: Line, count: int, three: Three) -> None:
    """Before the first answer, by the forecast for an answer of 16 tokens; then by what was learned."""
    urls = {**three, "facts": three.words} if line.name in ONE_TOKENIZER else {**three}
    forecast, billed, learned = 0.0, 0, 0.0
    async with line.fusion(urls.__getitem__) as fresh, line.fusion(urls.__getitem__) as fusion:
        for prompt in PROMPTS[:count]:
            result = await fusion.generate(prompt, **line.answer)
            bill = sum(usage.billed_tokens for usage in result.usage.values())
            before = await fresh.estimate(prompt, length=16)
            forecast += before.per_token * len(result.tokens)
            learned += (await fusion.estimate(prompt)).billed_tokens.expected
            assert before.billed_tokens.low <= bill <= before.billed_tokens.high
            billed += bill
    assert 1 / NEAR < forecast / billed < NEAR
    assert 1 / NEAR < learned / billed < NEAR

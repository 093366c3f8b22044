"""What a probe says of a live server, held against what the same server answers plainly: for every kind of server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from cosd_providers import Card, probe
from plain import Plain

__all__ = ["printed", "probed", "shape"]

TEXT = Path(__file__).parents[1] / "docs/probe.md"

#: What the small models answer shortly.
PROMPT = "Q: What is the capital of Brazil?\nA:"

DRAFTED = 16


async def probed(plain: Plain, **options: Any) -> Card:
    """The card of a server without faults; what every such card has to say is checked here.

    Args:
        plain: the server, asked plainly.
        options: of `connect`.
    """
    card = await probe(plain.url, prompt=PROMPT, **options)
    found = {line.name: line.value for line in card.lines}
    assert (card.endpoint, card.model) == (plain.url, plain.name)
    assert found["models"] == (plain.name,)
    assert found["context"] in (None, plain.context)
    assert found["logprobs"] is True
    assert isinstance(found["depth"], int) and found["depth"] >= 5
    assert found["probabilities"] == "raw"
    assert found["whole"] in (True, None)
    assert found["bytes"] in (True, None)
    assert found["propose"] is True
    raws = plain.after(PROMPT, DRAFTED)
    assert str(len(raws)) in card["draft"].seen
    assert card["propose"].seen.startswith("equal at 6 of 6 places")
    if raws[-1].end:
        assert found["end"] is not None
    if found["score"]:
        own = [raw for raw in raws if not raw.end]
        assert card["score"].seen == f"equal at {len(own)} of {len(own)} tokens"
    assert card.can_draft
    assert card.can_assist
    assert max(map(len, str(card).splitlines())) <= 80
    assert card.spent.completion_tokens < 300
    assert Card.model_validate_json(card.model_dump_json()) == card
    return card


def printed(engine: str) -> str:
    """The card of a server of this kind in docs/probe.md, as the command has printed it."""
    blocks = re.findall(r"```\n\$ cosd probe \S+\n(.*?)```", TEXT.read_text(encoding="utf-8"), re.DOTALL)
    [block] = [block for block in blocks if re.search(f": {re.escape(engine)}[ ,]", block.partition("\n")[0])]
    return str(block)


def shape(text: str) -> list[str]:
    """The words of a card: numbers and URLs differ, and where lines are broken by them."""
    text = re.sub(r"http://\S+: (\S+) \S+, model", r"URL: \1 VERSION, model", text)
    return re.sub(r"\d[\d.,]*", "N", text).split()

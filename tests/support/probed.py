"""A probe's report on a live server, held against plain requests to it: for every kind of server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from cosd_providers import ProbeReport, probe
from naive.plain_http import Plain

TEXTS = (Path(__file__).parents[2] / "docs/probe.md", Path(__file__).with_suffix(".md"))

#: What the small models answer shortly.
PROMPT = "Q: What is the capital of Brazil?\nA:"

DRAFTED = 16


async def probed(plain: Plain, **options: Any) -> ProbeReport:
    """The report of a server without faults; what every such report has to say is checked here.

    Args:
        plain: the server, asked plainly.
        options: of `connect`.
    """
    report = await probe(plain.url, prompt=PROMPT, **options)
    found = {line.name: line.value for line in report.lines}
    assert (report.endpoint, report.model) == (plain.url, plain.name)
    assert found["context"] in (None, plain.context)
    assert found["logprobs"] is True
    assert isinstance(found["depth"], int) and found["depth"] >= 5
    assert found["probabilities"] == "raw"
    assert found["whole"] in (True, None)
    assert found["bytes"] in (True, None)
    assert found["propose"] is True
    assert found["after_ids"] is (report.vocabulary is not None)
    assert (report.tie is None) is (report.vocabulary is None)
    raws = plain.after(PROMPT, DRAFTED)
    assert str(len(raws)) in report["draft"].seen
    assert report["propose"].seen.startswith("equal at 6 of 6 places")
    if raws[-1].end:
        assert found["end"] is not None
    if found["score"]:
        own = [raw for raw in raws if not raw.end]
        assert report["score"].seen == f"equal at {len(own)} of {len(own)} tokens"
    assert report.can_draft
    assert report.can_assist
    assert max(map(len, str(report).splitlines())) <= 80
    assert report.spent.completion_tokens < 400
    assert ProbeReport.model_validate_json(report.model_dump_json()) == report
    return report


def printed(engine: str) -> str:
    """The report of a server of this kind in docs/probe.md or probed.md, as the command has printed it."""
    text = "".join(path.read_text(encoding="utf-8") for path in TEXTS)
    blocks = re.findall(r"```\n\$ cosd probe \S+\n(.*?)```", text, re.DOTALL)
    [block] = [block for block in blocks if re.search(f": {re.escape(engine)}[ ,]", block.partition("\n")[0])]
    return str(block)


def shape(text: str) -> list[str]:
    """The words of a report: numbers and URLs differ, and where lines are broken by them."""
    text = re.sub(r"http://\S+: (\S+) \S+, model", r"URL: \1 VERSION, model", text)
    return re.sub(r"\d[\d.,]*", "N", text).split()

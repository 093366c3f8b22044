"""`debug_a_fusion.py`: what it says of a result is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cosd_api import RuleVerifier, fuse_sync
from cosd_api.apps.demo.servers import Pair
from cosd_providers import ProviderError
from cosd_providers.testing import Fault, ScriptedProvider
from support.scripts import run_script


def fused(tmp_path: Path, **settings: Any) -> Path:
    """A result that was kept: the draft was sure of " Rome" to 0.6, and the assistant says " Lima" there."""
    draft = ScriptedProvider.from_texts({"Q": [" The", (" Rome", 0.6), "."], "Q The Lima": ["!"]})
    assistant = ScriptedProvider.from_texts({"Q": [" The", (" Lima", 0.9), "."]})
    path = tmp_path / "result.json"
    made = fuse_sync("Q", draft=draft, **{"assistant": assistant, **settings})
    path.write_text(made.model_dump_json(), encoding="utf-8")
    return path


@pytest.mark.live
def test_what_decided_and_who_cost_what(pair: Pair) -> None:
    ran = run_script("debug_a_fusion", "--draft", pair.sums, "--assistant", pair.facts)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(" The capital of Peru is Lima and the total is 42.\n")
    reason = r"0\.\d+ < 0\.9 and 0\.\d+ > 1 x 0\.\d+"
    replaced = rf"! 0\.\d{{4}} 0\.\d{{4}}  '.+'   assistant's, for the draft's '.+': {reason}"
    rows = [line for line in ran.out.splitlines() if line.startswith("!")]
    first, *others = rows
    assert re.fullmatch(replaced, first)
    assert "  ' L" in first  # the beginning of Lima, or all of it
    assert all(re.fullmatch(rf"{replaced}|! 0\.\d{{4}} 0\.\d{{4}}  '.+'", row) for row in others)
    assert "  (end)\n" in ran.out
    unsure = sum(line.startswith(("!", "?")) for line in ran.out.splitlines())
    replacements = sum("for the draft's" in row for row in rows)
    counts = rf"^tokens: \d+, contestable: {unsure}, replacements: {replacements}$"
    assert re.search(counts, ran.out, re.MULTILINE)
    for name, model in (("draft", "sums"), ("assistant", "facts")):
        line = rf"^{name} \({model} on llama\.cpp\): requests [1-9]\d*, tokens billed [1-9]\d*, busy for "
        assert re.search(line, ran.out, re.MULTILINE)


@pytest.mark.live
def test_a_draft_that_is_trusted_too_much(pair: Pair) -> None:
    servers = ("--draft", pair.sums, "--assistant", pair.facts)
    ran = run_script("debug_a_fusion", *servers, "--alpha", 0)
    assert "Lima and" not in ran.out
    found = re.search(r"^try: an alpha above (\S+) takes '.+' in place of '.+', ", ran.out, re.MULTILINE)
    assert found is not None
    assert "contestable: 0, replacements: 0" in ran.out
    alpha = float(found[1]) + 0.01
    more = run_script("debug_a_fusion", *servers, "--alpha", alpha).out
    assert more.splitlines()[0] != ran.out.splitlines()[0]
    assert re.search(r"replacements: [1-9]\d*$", more, re.MULTILINE)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, 'try: ask="all" shows the assistant'),
        ({"verifier": RuleVerifier.paper()}, "try: no word of the assistant could count"),
        (
            {"verifier": RuleVerifier.paper(), "ask": "all"},
            "try: an alpha above 0.6 takes ' Lima' in place of ' Rome', after which",
        ),
        ({"verifier": RuleVerifier.paper(), "ask": "all"}, "0.6000 0.9000  ' Rome'   not ' Lima': 0.6 >= 0.5"),
        ({"verifier": RuleVerifier(alpha=0.7, beta=1.6)}, "? 0.6000 0.9000  ' Rome'   not ' Lima': "),
        ({"verifier": RuleVerifier(alpha=0.7, beta=1.6)}, "try: a beta below 1.5 takes ' Lima' in place of ' Rome', "),
        ({"verifier": RuleVerifier(alpha=0.7)}, "! 0.6000 0.9000  ' Lima'   assistant's, for the draft's ' Rome': "),
        ({"verifier": RuleVerifier(alpha=0.7), "max_tokens": 2}, "try: many replacements"),
        ({"max_tokens": 2}, "try: the answer is incomplete: max_tokens"),
    ],
)
def test_hints(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    ran = run_script("debug_a_fusion", "--result", fused(tmp_path, **settings))
    assert (ran.code, ran.err) == (0, "")
    assert words in ran.out


def test_no_hint_without_a_reason(tmp_path: Path) -> None:
    settings = {"verifier": RuleVerifier(alpha=0.7), "ask": "all"}
    told = run_script("debug_a_fusion", "--result", fused(tmp_path, **settings)).out
    assert "judged by RuleVerifier(" in told
    assert "try: " not in told


def test_an_assistant_that_was_gone(tmp_path: Path) -> None:
    gone = ScriptedProvider.from_texts({}, faults=[Fault(ProviderError("gone away"))])
    settings = {"verifier": RuleVerifier(alpha=0.7), "on_assistant_error": "draft"}
    ran = run_script("debug_a_fusion", "--result", fused(tmp_path, assistant=gone, **settings))
    assert "UNVERIFIED: an assistant was gone" in ran.out
    assert "warning: assistant failed" in ran.out


def test_a_file_that_is_no_result(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("secret", encoding="utf-8")
    ran = run_script("debug_a_fusion", "--result", path)
    words = f"error: {path} is not a result: cosd fuse --json and model_dump_json() write one\n"
    assert (ran.code, ran.out, ran.err) == (1, "", words)

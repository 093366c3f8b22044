"""`cosd train-deferral`: from samples to a gate that `cosd fuse` takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cosd_api import DeferralVerifier, Example, Samples, train_deferral
from cosd_providers.testing import ScriptedProvider
from fakes.commands import HEADER, SERVERS, Scripted, cosd, lines, words

#: Behind "Q" the draft of `scripted` writes " b" with p = 0.2, and the assistant " c" with q = 0.8.
EXAMPLES = [{"prompt": "Q", "answer": " a c."}, {"prompt": "Q", "answer": " a c", "ends": False}]
LISTED = HEADER | {"unit": "token", "listed": 3}
KEPT = {"start": 0, "draft": " a", "listed": [0.9, 0.05], "p": 0.9, "q": 0.1, "handed": False}
HANDED = {"start": 2, "draft": " b", "listed": [0.3, 0.25], "p": 0.1, "q": 0.9, "handed": True}


def row(at: int, *places: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {"prompt": f"Q{at}", "answer": " a"}
    return {"key": Example(**fields).key, **fields, "samples": [], "skipped": 0, "deferral": [*places]}


def test_from_samples_to_a_gate(tmp_path: Path) -> None:
    found, gate = lines(tmp_path / "s.jsonl", LISTED, *(row(at, KEPT, HANDED) for at in range(6))), tmp_path / "g.json"
    result = cosd("train-deferral", found, "-o", str(gate))
    assert result.exit_code == 0, words(result)
    training = train_deferral(Samples.load(found))
    assert result.stdout == training.report() + "\n"
    assert "on held-out examples at 50.0% of all tokens, at 100.0% of the tokens to be handed over" in words(result)
    assert result.stderr == f"cosd: wrote {gate}\n"
    assert DeferralVerifier.load(gate) == training.gate
    assert "sk-secret" not in gate.read_text() + result.output
    again = cosd("train-deferral", found, "-o", str(tmp_path / "again.json"))
    assert (again.stdout, (tmp_path / "again.json").read_bytes()) == (result.stdout, gate.read_bytes())


def test_a_gate_of_few_collected_examples_decides(scripted: Scripted, tmp_path: Path) -> None:
    examples, kept, gate = lines(tmp_path / "e.jsonl", *EXAMPLES), tmp_path / "s.jsonl", str(tmp_path / "gate.json")
    shared: dict[str, Any] = {"tokens": [" a", " b", " c", "."]}  # of one tokenizer
    scripted.providers["http://draft"] = ScriptedProvider.from_texts(
        {**shared, "Q": [" a", (" b", 0.2)], "Q a c": ["."]}
    )
    scripted.providers["http://one"] = ScriptedProvider.from_texts({**shared, "Q": [" a", (" c", 0.8), "."]})
    options = ("--unit", "token", "--listed", "3")
    collected = cosd("collect", examples, *SERVERS, *options, "-o", str(kept))
    assert collected.exit_code == 0, words(collected)
    result = cosd("train-deferral", str(kept), "-o", gate)
    assert result.exit_code == 0, words(result)
    assert "2 examples: 6 tokens, 2 of which the assistant would have written" in words(result)
    assert "note: eta was chosen on the examples that the gate was trained on" in words(result)
    assert (Samples.load(kept).listed, Samples.load(kept).unit) == (3, "token")
    fused = scripted("Q", "--unit", "token", "--method", "defer", "--set", f"gate={gate}")
    assert fused.stdout == " a c.\n"


def test_a_gate_of_hidden_states(scripted: Scripted, tmp_path: Path) -> None:
    examples, kept, gate = lines(tmp_path / "e.jsonl", *EXAMPLES), tmp_path / "s.jsonl", str(tmp_path / "gate.json")
    shared: dict[str, Any] = {"tokens": [" a", " b", " c", "."]}
    scripted.providers["http://draft"] = ScriptedProvider.from_texts(
        {**shared, "Q": [" a", (" b", 0.2)], "Q a c": ["."]}, states=lambda ids: [float(len(ids)), float(len(ids) == 2)]
    )
    # Where the draft is right, the assistant is less sure, so that a gate that is always open is worse.
    sure = [(" a", 0.6), (" c", 0.8), (".", 0.6)]
    scripted.providers["http://one"] = ScriptedProvider.from_texts({**shared, "Q": sure})
    collected = cosd("collect", examples, *SERVERS, "--hidden-states", "--unit", "token", "-o", str(kept))
    assert collected.exit_code == 0, words(collected)
    result = cosd("train-deferral", str(kept), "--hidden-states", "-o", gate)
    assert result.exit_code == 0, words(result)
    assert "Gate over hidden states of 2 numbers" in words(result)
    assert (Samples.load(kept).listed, Samples.load(kept).hidden_states) == (None, 2)
    fused = scripted("Q", "--unit", "token", "--method", "defer", "--set", f"gate={gate}")
    assert fused.stdout == " a c.\n"
    wrong = cosd("train-deferral", gate, "-o", str(tmp_path / "g.json"))
    assert "is a Co-LLM gate, which cosd fuse --method defer --set gate=FILE takes" in words(wrong)
    mixed = cosd("train-deferral", str(kept), "-o", str(tmp_path / "g.json"))
    assert "the samples hold no lists of the draft's tokens" in words(mixed)


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        ([HEADER, row(0, KEPT, HANDED)], (), "collect them with listed=10 (cosd collect --listed 10)"),
        ([LISTED, row(0, KEPT | {"listed": []})], (), "line 2: deferral.0.listed"),
        ([LISTED, row(0, KEPT | {"p": 2})], (), "line 2: deferral.0.p"),
        (EXAMPLES, (), "is not a file of samples and was not changed: cosd collect writes samples to a new file, from"),
        ([LISTED, row(0, KEPT, HANDED)], ("--folds", "1"), "--folds"),
        ([{"kind": "deferral"}], (), "is a deferral gate, which cosd fuse --method defer --set gate=FILE takes"),
    ],
)
def test_wrong_usage(tmp_path: Path, rows: list[Any], options: tuple[str, ...], said: str) -> None:
    gate = tmp_path / "gate.json"
    result = cosd("train-deferral", lines(tmp_path / "data.jsonl", *rows), "-o", str(gate), *options)
    assert result.exit_code in (1, 2)
    assert said in words(result)
    assert result.stdout == ""
    assert not gate.exists()

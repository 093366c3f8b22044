"""`examples/langchain_chain.py`, as a user runs it."""

from __future__ import annotations

import pytest

from cosd_api.apps.demo.servers import Pair
from support.scripts import run_script


def test_help_says_what_is_taken() -> None:
    ran = run_script("langchain_chain", "--help")
    assert (ran.code, ran.err) == (0, "")
    words = " ".join(ran.out.split())
    for role in ("draft", "assistant"):
        assert f"--{role} URL" in words
        assert f"COSD_{role.upper()}_URL" in words


def test_an_endpoint_that_is_missing_is_wrong_usage() -> None:
    ran = run_script("langchain_chain", "--assistant", "http://127.0.0.1:9")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith("the following arguments are required: --draft\n")


def test_what_is_no_url_is_said_so() -> None:
    ran = run_script("langchain_chain", "--draft", "gpu1:8080", "--assistant", "http://127.0.0.1:9")
    assert ran.code == 1
    assert "'gpu1:8080' is not a URL; did you mean 'http://gpu1:8080'?" in ran.err


@pytest.mark.live
def test_a_chain_answers(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSD_DRAFT_URL", pair.sums)
    monkeypatch.setenv("COSD_ASSISTANT_URL", pair.facts)
    ran = run_script("langchain_chain", "Peru", "Japan")
    assert ran.code == 0
    answers = [line.strip() for line in ran.out.splitlines()]
    assert answers == [f"The capital of {where} and the total is 42." for where in ("Peru is Lima", "Japan is Tokyo")]
    assert "of the draft kept, replaced " in ran.err
    assert "sums+facts: " in ran.err

"""The scripts for one prompt, over real models: what they print is the answer, and what they say of it is so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from cosd_api.apps.demo.servers import Pair, Three
from fakes import tgi as stand_in_tgi
from fakes.tgi import LlamaModel, StandInTgi
from fakes.vllm import FakeVllm
from support.scripts import on_loopback, run_script

pytestmark = pytest.mark.live

ANSWER = " The capital of Peru is Lima and the total is 42.\n"
KEY = "sk-quite-secret"


@pytest.fixture(autouse=True)
def nothing_breaks_the_document() -> Iterator[None]:
    """TGI is asked and answers as its document says."""
    stand_in_tgi.VIOLATIONS.clear()
    yield
    assert stand_in_tgi.VIOLATIONS == []


@pytest.fixture
def refuser() -> Iterator[tuple[str, list[str | None]]]:
    """A hosted API that takes no key, and repeats the one that it was given; and what it was given."""
    given: list[str | None] = []

    def handle(request: httpx.Request) -> httpx.Response:
        key = request.headers.get("authorization")
        given.append(key)
        message = f"Incorrect API key provided: {(key or '').removeprefix('Bearer ')}."
        return httpx.Response(401, json={"error": {"message": message, "code": "invalid_api_key"}})

    with on_loopback(handle) as url:
        yield url, given


def test_two_vllm_hosts(behind: dict[str, LlamaModel]) -> None:
    hosts = [FakeVllm(behind[name], context=512, beginning=name == "facts") for name in ("sums", "facts")]
    with on_loopback(hosts[0].handle) as draft, on_loopback(hosts[1].handle) as assistant:
        ran = run_script("two_vllm_hosts", "--draft", draft, "--assistant", assistant)
    assert (ran.code, ran.out) == (0, ANSWER)
    assert re.match(r"'.+' became ' L\w*': 0\.\d+ < 0\.9 and 0\.\d+ > 1 x 0\.\d+\n", ran.err)
    assert re.search(r"\n[1-9]\d% of the draft kept, \d+\.\d s\n$", ran.err)
    assert all(any(path == "/v1/completions" for path, _ in host.requests) for host in hosts)


def test_two_vllm_hosts_that_are_none(pair: Pair) -> None:
    ran = run_script("two_vllm_hosts", "--draft", pair.sums, "--assistant", pair.facts)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"error: {pair.sums}: this does not look like vLLM.")


def test_a_laptop_and_a_remote_assistant(pair: Pair) -> None:
    ran = run_script("llama_cpp_laptop", "--draft", pair.sums, "--assistant", pair.facts)
    assert (ran.code, ran.out) == (0, ANSWER)
    assert "of which 0 were not verified; words of the remote model: 1; requests to it: " in ran.err


@pytest.mark.extended
def test_a_laptop_whose_assistant_is_out_of_reach(pair: Pair) -> None:
    ran = run_script("llama_cpp_laptop", "--draft", pair.sums, "--assistant", "http://127.0.0.1:9")
    assert ran.code == 0
    assert ran.out.endswith(" and the total is 42.\n")  # what the laptop knows by itself
    unchecked = re.search(r"of which (\d+) were not verified;", ran.err)
    assert unchecked is not None
    assert int(unchecked[1]) > 0
    assert "requests to it: 0, " in ran.err
    assert "note: assistant failed before this answer began" in ran.err


@pytest.mark.parametrize("prefill", [True, False])
def test_a_tgi_host(pair: Pair, behind: dict[str, LlamaModel], prefill: bool) -> None:
    model = behind["facts"]
    host = StandInTgi(model, beginning=model.beginning, max_input=500, max_total=512, prefill=prefill)
    with host.serve() as url:
        ran = run_script("tgi_host", "--draft", pair.sums, "--assistant", url)
    assert (ran.code, ran.out) == (0, ANSWER)
    assert re.match(r"places that TGI was asked about: [1-9]\d* by '", ran.err)
    sent = [path for path, _ in host.requests if path.startswith("/generate")]
    told = re.search(r"^assistant: requests (\d+), ", ran.err, re.MULTILINE)
    assert told is not None
    assert 0 < int(told[1]) <= len(sent)


@pytest.mark.parametrize("engine", ["openai", "llama.cpp"])
def test_a_hosted_draft(pair: Pair, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSD_API_KEY_127_0_0_1", KEY)
    url = f"{pair.sums}/v1"
    ran = run_script("hosted_draft", "--draft", url, "--model", "sums", "--engine", engine, "--assistant", pair.facts)
    assert (ran.code, ran.out) == (0, ANSWER)
    assert re.match(r"an answer of 128 tokens: the host will bill about [1-9]\d+ tokens\n", ran.err)
    assert re.search(r"\nbilled: {'draft': [1-9]\d+, 'assistant': [1-9]\d+}; ended by stop ", ran.err)


def test_a_hosted_draft_within_a_budget(pair: Pair) -> None:
    ran = run_script("hosted_draft", "--draft", pair.sums, "--assistant", pair.facts, "--max-billed-tokens", 60)
    assert ran.code == 0
    assert ANSWER.startswith(ran.out.rstrip("\n"))
    assert "ended by budget ('max_billed_tokens')" in ran.err


@pytest.mark.parametrize("arguments", [["--key-variable", "HOST_KEY"], []])
def test_a_hosted_draft_that_takes_no_key(
    pair: Pair, refuser: tuple[str, list[str | None]], arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, given = refuser
    monkeypatch.setenv("HOST_KEY" if arguments else "COSD_API_KEY_127_0_0_1", KEY)
    ran = run_script("hosted_draft", *arguments, "--draft", url, "--engine", "openai", "--assistant", pair.facts)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"error: {url}: ")
    assert "key" in ran.err
    assert KEY not in ran.err
    assert set(given) == {f"Bearer {KEY}"}


def test_a_hosted_draft_without_its_key() -> None:
    servers = ("--draft", "http://127.0.0.1:9", "--assistant", "http://127.0.0.1:9")
    ran = run_script("hosted_draft", *servers, "--key-variable", "HOST_KEY")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith("error: the environment has no variable HOST_KEY, or it is empty\n")


def test_three_assistants(three: Three) -> None:
    assistants = [part for url in three.values() for part in ("--assistant", url)]
    ran = run_script("three_assistants", "--draft", three.sums, *assistants)
    assert (ran.code, ran.out) == (0, " The capital of Peru is Lima. The sum is 42. In French it is fromage.\n")
    first, *said = ran.err.splitlines()[:4]
    assert re.fullmatch(r"'.+' became ' L\w*', the word of assistant 2", first)
    assert said[0].startswith("    assistant 1: ")
    assert said[0].endswith(", both agree")  # the draft's own model
    assert said[1].startswith("    assistant 2: ' L")
    assert said[2].startswith("    assistant 3: ")
    assert re.search(r"', the word of assistant 3\n", ran.err)
    assert [line for line in ran.err.splitlines() if line.startswith("assistant 3 (words): ")] != []


def test_two_chat_models(pair: Pair) -> None:
    ran = run_script("two_chat_models", "--draft", pair.sums, "--assistant", pair.facts)
    question, answer = ran.out.splitlines()
    assert ran.code == 0
    assert question.startswith("> In Peru a book costs 17")
    assert answer.strip() == ANSWER.strip()
    assert re.search(r" became ' L\w*': ", ran.err)


def test_messages_of_one_model(pair: Pair) -> None:
    question = "In Peru a book costs 17 and a pen costs 25. Name the capital and the total."
    ran = run_script("persona", question, "--persona", "Be brief.", "--draft", pair.sums, "--assistant", pair.facts)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("> Be brief.\n")
    ran = run_script("private_document", question, "--draft", pair.sums, "--assistant", pair.facts)
    assert (ran.code, ran.err) == (0, "")
    assert [line.partition(":")[0].strip() for line in ran.out.splitlines()][1:] == ["draft alone", "together"]


def test_two_chat_models_over_several_turns(pair: Pair) -> None:
    questions = (
        "What is the capital of Japan?",
        "In Peru a book costs 17 and a pen costs 25. Name the capital and the total.",
    )
    ran = run_script("two_chat_models", *questions, "--draft", pair.sums, "--assistant", pair.facts)
    assert ran.code == 0
    asked, first, again, second = ran.out.splitlines()
    assert (asked, again) == (f"> {questions[0]}", f"> {questions[1]}")
    assert "Tokyo" in first
    assert "Lima" in second
    assert "42" in second


def test_two_chat_models_one_of_which_is_given_its_template(pair: Pair, tmp_path: Path) -> None:
    template = tmp_path / "form.jinja"
    template.write_text("{% for m in messages %}Q: {{ m['content'] }}\nA:{% endfor %}", encoding="utf-8")
    servers = ("--draft", pair.sums, "--assistant", pair.facts)
    ran = run_script("two_chat_models", *servers, "--draft-template", template)
    assert (ran.code, ran.out.splitlines()[1].strip()) == (0, ANSWER.strip())
    ran = run_script("two_chat_models", *servers, "--draft-template", tmp_path / "none.jinja")
    assert (ran.code, ran.out) == (1, "")
    assert "none.jinja' cannot be read" in ran.err

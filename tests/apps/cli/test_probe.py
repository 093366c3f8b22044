"""`cosd probe`: what it prints, what it saves, and how it fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from cosd_api.apps.demo.servers import Pair
from cosd_providers import ConnectError, ProbeReport
from cosd_providers.probe import Line
from fakes.commands import cosd, words
from support.probed import printed, shape

GOOD = ProbeReport(
    endpoint="http://good",
    engine="vllm",
    model="m",
    lines=(
        Line(name="lists", value=True, asked="two prompts", seen="both"),
        Line(name="after_ids", value=True, asked="ids", seen="equal at 72 of 72 places"),
    ),
    can_draft=True,
    can_assist=True,
    encoding="e",
    vocabulary="v",
    tie=0.0031,
)
TEXTUAL = "http://textual"
UNJUDGED = 'text without spaces is judged only if the tokenizer is given, connect(url, tokenizer=...) (unit="word").'
REPORTS: Mapping[str, ProbeReport | Exception] = {
    "http://good": GOOD,
    "http://same": GOOD.model_copy(update={"endpoint": "http://same", "tie": 0.01}),
    TEXTUAL: GOOD.model_copy(update={"endpoint": TEXTUAL, "vocabulary": None}),
    "http://other": GOOD.model_copy(update={"endpoint": "http://other", "encoding": "f", "vocabulary": "w"}),
    "http://silent": GOOD.model_copy(
        update={"endpoint": "http://silent", "encoding": None, "vocabulary": None, "can_assist": False}
    ),
    "http://bad": GOOD.model_copy(
        update={"endpoint": "http://bad", "can_draft": False, "can_assist": False, "draft_lacks": ("no \x1b[31m",)}
    ),
    "http://away": ConnectError("no connection", endpoint="http://away"),
    "http://odd": ValueError("the URL is odd"),
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments of each probe, in order: URLs, models, engines and prompts."""
    calls: list[Any] = []

    async def stand_in(url: str, *, prompt: str, model: str | None, engine: str | None) -> ProbeReport:
        calls.append((url, model, engine, prompt))
        found = REPORTS[url]
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr("cosd_api.apps.cli.probe.probe", stand_in)
    return calls


def run(*names: str, options: Sequence[str] = ()) -> Result:
    return cosd("probe", *(f"http://{name}" for name in names), *options)


@pytest.mark.usefixtures("asked")
def test_one_server() -> None:
    result = run("good")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"{GOOD}\n"
    assert "\nas a draft         yes\nas an assistant    yes\n" in result.stdout


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(
    ("names", "words"),
    [
        (
            ("good", "same"),
            'ids to ids, because both servers take and show ids and have the same ids (unit="token"). Ties: tie=0.01.',
        ),
        (
            ("good", "textual"),
            f"from space to space, because {TEXTUAL} cannot be asked after ids; {UNJUDGED}",
        ),
        (
            ("good", "other"),
            (
                "word by word, on the assistant's own ids, because both servers take and show ids and have different "
                'ones (unit="word"; unit="literal" is equation 3 as printed). Ties: tie=0.0031.'
            ),
        ),
        (
            ("good", "silent"),
            f"from space to space, because http://silent cannot be asked after ids; {UNJUDGED}",
        ),
        (
            ("textual", "good"),
            (
                "word by word, on the assistant's own ids; the draft continues text, because http://textual cannot be "
                'asked after ids (unit="word").'
            ),
        ),
        (
            ("good", "same", "other", "textual"),
            (
                "assistant 1: ids to ids; assistant 2: word by word, on the assistant's own ids; assistant 3: from "
                f"space to space, because {TEXTUAL} cannot be asked after ids; {UNJUDGED}"
            ),
        ),
    ],
)
def test_the_route_of_each_assistant(names: tuple[str, ...], words: str) -> None:
    result = run(*names)
    assert result.exit_code == 0
    assert " ".join(result.stdout.rpartition("Together: ")[2].split()) == words
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.usefixtures("asked")
def test_a_server_that_cannot_be_used() -> None:
    result = run("good", "bad")
    assert result.exit_code == 1
    assert "as a draft         no \\x1b[31m\n" in result.stdout
    assert "\x1b" not in result.stdout


@pytest.mark.usefixtures("asked")
def test_a_server_that_is_away_keeps_no_other_from_being_probed() -> None:
    result = run("away", "good")
    assert result.exit_code == 1
    assert result.stderr == "cosd: http://away: no connection\n"
    assert result.stdout == f"{GOOD}\n"


def test_models_prompts_and_files(asked: list[Any], tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("a.json", "b.json")]
    options = ["--model", "one", "--model", "two", "--prompt", "P", "--save", files[0], "--save", files[1]]
    assert run("good", "same", options=options).exit_code == 0
    assert asked == [("http://good", "one", None, "P"), ("http://same", "two", None, "P")]
    assert [ProbeReport.load(path).endpoint for path in files] == ["http://good", "http://same"]


def test_engines(asked: list[Any]) -> None:
    assert run("good", "same", options=["--engine", "vllm", "--engine", "tgi"]).exit_code == 0
    assert [call[2] for call in asked] == ["vllm", "tgi"]


def test_an_engine_that_nobody_knows() -> None:
    result = cosd("probe", "http://gpu1", "--engine", "vLLM")
    assert result.exit_code == 2
    assert "Invalid value for --engine: there is no engine 'vLLM'; did you mean 'vllm'?" in words(result)


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Missing argument"),
        (("odd",), "the URL is odd"),
        (("good", "same", "--model", "m"), "1 given for 2 URLs: give one for each"),
        (("good", "--save", "no/such/folder"), "no/such/folder: No such file or directory"),
        (("good", "same", "--engine", "vllm"), "1 given for 2 URLs: give one for each"),
        (("good", "same", "--save", "f"), "1 given for 2 URLs: give one for each"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], said: str) -> None:
    at = next((n for n, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    result = cosd("probe", *(f"http://{name}" for name in arguments[:at]), *arguments[at:])
    assert result.exit_code == 2
    assert said in words(result)


@pytest.mark.live
def test_on_live_servers_it_prints_what_the_readme_says(pair: Pair) -> None:
    result = cosd("probe", pair.facts)
    assert (result.exit_code, result.stderr) == (0, "")
    assert shape(result.stdout) == shape(printed("llama.cpp"))
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.live
def test_on_live_servers_of_two_models(pair: Pair) -> None:
    result = cosd("probe", pair.sums, pair.facts)
    assert result.exit_code == 0
    assert 'unit="word"' in words(result)


@pytest.mark.live
@pytest.mark.usefixtures("no_waiting")
def test_a_server_that_is_not_there() -> None:
    result = cosd("probe", "http://127.0.0.1:9")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("cosd: http://127.0.0.1:9: no connection")
    assert result.stderr.count("\n") == 1

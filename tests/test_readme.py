"""What README.md and docs/ show works as it is printed there: programs, commands, names, links."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import pytest
from opentelemetry import trace
from opentelemetry.trace import TracerProvider
from typer.core import TyperGroup
from typer.main import get_command

import cosd_api
import cosd_providers
from cosd_api.apps.cli.entry import app
from cosd_api.apps.demo.servers import Pair, Three
from cosd_api.settings import AnswerOptions, FusionOptions
from cosd_providers.connect import ADAPTERS
from cosd_providers.engines.openai.dialects import DIALECTS
from fakes.commands import cosd
from support import printed
from support.drawn import partly
from support.printed import FENCE

ROOT = Path(__file__).resolve().parents[1]
TEXTS = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}
#: In programs that tests/live/test_gateway.py runs.
NOT_HERE = ("http://127.0.0.1:8000/v1",)


def programs() -> Iterator[object]:
    for name, text in TEXTS.items():
        blocks = [block for block in printed.programs(text) if not any(words in block for words in NOT_HERE)]
        yield from (pytest.param(block, id=f"{name}-{number}") for number, block in enumerate(blocks))


def traced_by(patch: pytest.MonkeyPatch, provider: TracerProvider) -> None:
    """Lets a provider make the spans until the test is over."""
    patch.setattr(trace, "get_tracer", provider.get_tracer)


@pytest.mark.live
@pytest.mark.parametrize("program", list(programs()))
def test_programs_run(
    program: str, three: Three, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert any(words in program for words in ("sys.argv", "http://gpu1:8080", "bundled_pair()"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["first.py", three.sums, three.facts])
    traces = "set_tracer_provider" in program
    if traces:  # it can be set once in a process, and stays
        monkeypatch.setattr(trace, "set_tracer_provider", lambda one: traced_by(monkeypatch, one))
    code = program
    for at, url in enumerate(three.values(), 1):
        code = code.replace(f"http://gpu{at}:8080", url)
    exec(compile(code, "<the text>", "exec", dont_inherit=True), {"__name__": "__main__"})
    shown = capsys.readouterr().out
    if traces:
        spans = [line.split(" {")[0] for line in shown.splitlines()]
        assert spans[-2:] == ["invoke_workflow cosd", "answer a customer"]
        assert "text_completion facts" in spans
    if any(words in program for words in ("In Peru", "In {}", "In {country}")):
        # A prompt of raw text is gone on from behind a space; an answer to messages has none before it.
        space = "" if '"role"' in program or "langchain" in program else " "
        assert shown.startswith(f"{space}The capital of Peru is Lima and the total is 42.\n")
    elif "cheese" in program:
        three_parts = " The capital of Peru is Lima. The sum is 42. In French it is fromage.\n"
        assert shown.startswith((three_parts, "token\n The sum is 42 and the French word for cheese is fromage.\n"))
    elif "Fusion.load(" in program:
        assert shown == "kind='rule' alpha=1.0 beta=1.0 {'max_tokens': 100}\n"
    else:
        assert "capital of Brazil is Bras" in shown or "as a draft         yes" in shown


def test_programs_are_there() -> None:
    assert len(list(programs())) >= 5


@pytest.mark.live
@pytest.mark.usefixtures("no_waiting")
def test_what_goes_wrong_is_caught_by_the_program_that_shows_it(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = (block for _, block in FENCE.findall(TEXTS["docs/errors.md"]) if "except ProviderError" in block)
    for url, timeout, words in (
        ("http://127.0.0.1:9", 60, "http://127.0.0.1:9: no connection"),
        (pair.sums, 1e-9, "None\n"),
    ):
        code = program.replace("http://gpu1:8080", url).replace("http://gpu2:8080", pair.facts)
        assert "timeout=60" in code
        exec(compile(code.replace("timeout=60", f"timeout={timeout}"), "<the text>", "exec", dont_inherit=True), {})
        assert capsys.readouterr().out.startswith(words)


def commands_of(text: str) -> list[list[str]]:
    """The words of every `cosd ...` in a page's blocks, comments left out."""
    found: list[list[str]] = []
    for language, block in FENCE.findall(text):
        if not language:
            lines = block.replace("\\\n", " ").split("\n")
            starts = [line.partition("&&")[2].strip() if "&&" in line else line for line in lines]
            told = [start.removeprefix("$ ") for start in starts]
            found += [shlex.split(line, comments=True) for line in told if line.startswith("cosd ")]
    return found


def commands() -> list[list[str]]:
    """Those of all pages."""
    return [words for text in TEXTS.values() for words in commands_of(text)]


# These run until they are stopped, or want a server that only one page has: they have tests of their own.
ELSEWHERE = ("servers", "demo", "probe", "serve")


@pytest.mark.live
@pytest.mark.parametrize("name", partly([name for name, text in TEXTS.items() if commands_of(text)]))
def test_commands_run(name: str, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", "examples")
    prompt = "Q: In Peru a book costs 17 and a pen costs 25. Name the capital and the total.\nA:"
    for words in commands_of(TEXTS[name]):
        if words[1] not in ELSEWHERE:
            given = [
                word.replace("http://gpu1:8080", pair.sums).replace("http://gpu2:8080", pair.facts) for word in words
            ]
            ended = cosd(*given[1 : given.index("<") if "<" in given else None], input=prompt if "<" in given else "")
            assert ended.exit_code == 0, (words, ended.output)


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_commands_are_taken(words: list[str]) -> None:
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    command = group.commands[words[1]]
    given = words[2 : words.index("<") if "<" in words else None]
    command.make_context("cosd", given)  # raises for an option that there is not, and for a value that it does not take


def test_commands_are_there() -> None:
    assert {words[1] for words in commands()} >= {"fuse", "probe", "servers"}


def test_targets_of_make_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    known = {*re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE)}
    for name, text in {**TEXTS, "CONTRIBUTING.md": (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")}.items():
        told = re.findall(r"(?:`|^)make ((?:[a-z][a-z-]*\b ?)+)", text, re.MULTILINE)
        assert {target for words in told for target in words.split()} - known == set(), name


def test_options_that_are_named_in_prose_exist() -> None:
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    commands = [command.make_context("cosd", [], resilient_parsing=True).command for command in group.commands.values()]
    known = {option for command in commands for one in command.params for option in one.opts}
    for name in ("README.md", "docs/cli.md", "docs/trace.md", "docs/training.md"):
        named = set(re.findall(r"`(--[a-z-]+)`", TEXTS[name]))
        assert named - known - {"--help", "--no-class-weights"} == set(), name


def rows(text: str, title: str) -> list[list[str]]:
    """The cells of the table whose first title this is."""
    lines = text.split("\n")
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {title} |"))
    table = lines[start + 2 : lines.index("", start)]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]


def shown(page: str, title: str) -> set[str]:
    """The names in the first column of a table."""
    return {name for row in rows(TEXTS[page], title) for name in re.findall(r"`(\w+)`", row[0])}


def test_settings_are_those_of_a_fusion() -> None:
    page = "docs/settings.md"
    assert shown(page, "setting of `Fusion`") == {"draft", "assistant", *get_type_hints(FusionOptions)}
    assert shown(page, "setting of an answer") == get_type_hints(AnswerOptions).keys()


def test_errors_are_those_that_there_are() -> None:
    listed = shown("docs/errors.md", "error")
    known = {name for name in (*cosd_providers.__all__, *cosd_api.__all__) if name.endswith("Error")}
    assert listed == known - {"BudgetTimeoutError", "FusionError", "ProviderError", "StatusError"}


@pytest.mark.parametrize("name", ["README.md", "docs/servers.md"])
def test_every_engine_is_in_the_table_of_servers(name: str) -> None:
    cells = " ".join(row[0] for row in rows(TEXTS[name], "server (`engine`)"))
    engines = re.findall(r"\(`[^)]*\)", cells)
    shown = {engine for words in engines for engine in re.findall(r"`([^`]+)`", words)}
    assert shown - {*ADAPTERS, *DIALECTS} == set()
    assert ADAPTERS.keys() <= shown


def test_links_of_every_text_lead_somewhere() -> None:
    """Links to files and headings, in all Markdown files of the repository."""
    folders = ("docs", "examples", "benchmarks", "providers", "tests")
    texts = [*ROOT.glob("*.md"), *(path for folder in folders for path in (ROOT / folder).rglob("*.md"))]
    assert {ROOT / name for name in ("README.md", "CONTRIBUTING.md", "docs/exact.md")} <= {*texts}
    assert {path.relative_to(ROOT).as_posix(): dead for path in texts if (dead := printed.dead_links(path))} == {}

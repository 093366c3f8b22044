"""`cosd collect`: what it counts, what it keeps, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from cosd_api import Samples
from cosd_api.apps.training.evaluation import places_of
from cosd_providers import ConnectError, ContextLengthError
from cosd_providers.testing import Fault, ScriptedProvider
from fakes.commands import Scripted, cosd, start_scripted, words
from support.drawn import partly

posix = pytest.mark.skipif(os.name == "nt", reason="signals and terminals of POSIX")


@pytest.fixture
def scripted(scripted: Scripted) -> Scripted:
    """With the same tokens for both."""
    shared: dict[str, list[Any]] = {"tokens": [" a", " b", " c", "."]}
    draft: dict[str, list[Any]] = {"Q": [" a", (" b", 0.2)], "Q a c": ["."]}
    assistant: dict[str, list[Any]] = {"Q": [" a", (" c", 0.8), "."]}
    scripted.providers["http://draft"] = ScriptedProvider.from_texts({**shared, **draft})
    scripted.providers["http://one"] = ScriptedProvider.from_texts({**shared, **assistant}, name="one")
    return scripted


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    path = tmp_path / "examples.jsonl"
    lines = [{"prompt": "Q", "answer": " a c."}, {"prompt": "Q", "answer": " a b"}, {"prompt": "R", "answer": " a"}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "samples.jsonl"


def collect(examples: Path, output: Path, *more: str, assistants: tuple[str, ...] = ("one",)) -> Result:
    given = [option for name in assistants for option in ("--assistant", f"http://{name}")]
    return cosd("collect", str(examples), "-o", str(output), "--draft", "http://draft", *given, *more)


def test_what_was_counted_and_what_is_kept(scripted: Scripted, examples: Path, output: Path) -> None:
    done = collect(examples, output)
    assert (done.exit_code, done.stderr) == (0, f"cosd: wrote {output}\n")
    samples = Samples.load(output)
    label = [place.label for place in places_of(samples)]
    lines = [line.split(None, 1) for line in done.stdout.splitlines()]
    assert [(int(count), words.split(":")[0]) for count, words in lines] == [
        (3, "examples"),
        (samples.positions, "places where both models were compared"),
        (samples.agreeing, "agreeing"),
        (len(label) - sum(label), "labelled 0"),
        (sum(label), "labelled 1"),
        (samples.dropped, "dropped"),
        (samples.skipped, "skipped"),
        (0, "failed"),
        (3, "requests to the draft"),
        (3, "requests to the assistant"),
    ]
    assert sum(label) > 0 and samples.agreeing > 0


def test_a_second_run_asks_only_what_is_missing(scripted: Scripted, examples: Path, output: Path) -> None:
    collect(examples, output)
    with examples.open("a") as file:
        file.write('{"prompt": "S", "answer": " a"}\n')
    done = collect(examples, output)
    assert "4 examples, 3 of them there already\n" in done.stdout and "1 requests to the draft" in done.stdout
    assert scripted.providers["http://draft"].requests == 4


def test_a_server_that_fails(scripted: Scripted, examples: Path, output: Path) -> None:
    fault = Fault(ConnectError("refused", endpoint="http://one"), request=2)
    scripted.providers["http://one"].faults = [fault]
    done = collect(examples, output, "--concurrency", "1")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == (
        f"cosd: finished examples are in {output}: run the same command again to resume\n"
        "cosd: at example 2 of the given examples\ncosd: http://one: refused\n"
    )
    assert len(Samples.load(output).examples) == 1


def test_an_example_that_is_left_out(scripted: Scripted, examples: Path, output: Path) -> None:
    fault = Fault(ConnectError("refused", endpoint="http://one"), request=2)
    scripted.providers["http://one"].faults = [fault]
    done = collect(examples, output, "--concurrency", "1", "--on-error", "skip")
    assert (done.exit_code, done.stderr) == (
        0,
        f"cosd: left out example 2: http://one: refused\ncosd: wrote {output}\n",
    )
    assert "1 failed" in done.stdout
    assert len(Samples.load(output).examples) == 2


def test_an_example_that_is_too_long(scripted: Scripted, examples: Path, output: Path) -> None:
    fault = Fault(ContextLengthError("it does not fit", endpoint="http://one"), request=1)
    scripted.providers["http://one"].faults = [fault]
    assert collect(examples, output, "--concurrency", "1").stderr.endswith(
        "cosd: cosd collect --on-error skip leaves out examples that are too long\n"
        "cosd: at example 1 of the given examples\ncosd: http://one: it does not fit\n"
    )


def test_notes_are_on_stderr(scripted: Scripted, examples: Path, output: Path) -> None:
    scripted.providers["http://one"].end_prob = False
    assert "cosd: note: assistant does not report the probability of its end" in collect(examples, output).stderr


def test_an_endpoint_that_cannot_be_asked(scripted: Scripted, examples: Path, output: Path) -> None:
    scripted.providers["http://one"].probs = False
    done = collect(examples, output)
    assert done.exit_code == 1
    assert "cosd: scripted:: the assistant reports no probabilities of its tokens" in done.stderr
    assert not output.exists()


def test_two_assistants(scripted: Scripted, examples: Path, output: Path) -> None:
    done = collect(examples, output, assistants=("one", "two"))
    assert done.exit_code == 2
    assert "samples compare two models, but there are 2 assistants" in words(done)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "is empty: give lines such as"),
        ('{"prompt": "Q"}\n', "line 1: the field 'answer' is missing"),
        ('{"prompt": "Q", "answer": " a"}\nQ\n', "line 2: invalid JSON"),
        ('{"kind": "cosd-samples"}\n', "is a file of samples, which cosd train-tree and cosd tune take. Give examples"),
        (None, "No such file"),
    ],
)
def test_no_examples(scripted: Scripted, examples: Path, output: Path, content: str | None, expected: str) -> None:
    if content is None:
        examples.unlink()
    else:
        examples.write_text(content)
    done = collect(examples, output)
    assert (done.exit_code, done.stdout) == (2, "")
    assert expected in words(done)
    assert scripted.providers["http://draft"].requests == 0


def test_a_file_that_is_not_ours_stays_as_it_is(scripted: Scripted, examples: Path) -> None:
    before = examples.read_bytes()
    done = collect(examples, examples)
    assert done.exit_code == 2
    assert "is not a file of samples and was not changed" in words(done)
    assert examples.read_bytes() == before


def test_a_file_that_cannot_be_written(scripted: Scripted, examples: Path, tmp_path: Path) -> None:
    done = collect(examples, tmp_path / "no" / "samples.jsonl")
    assert done.exit_code == 2
    assert "cannot be written: No such file" in words(done)


@posix
def test_interrupted(examples: Path, output: Path) -> None:
    command = ("collect", str(examples), "-o", str(output), "--concurrency", "1")
    with start_scripted(command=command, draft="faults=[Fault(None, request=3)]") as process:
        while not output.exists() or output.read_bytes().count(b"\n") < 2:  # the second example hangs
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=10)
    assert (process.returncode, out) == (130, b"")
    assert errors.decode() == f"cosd: finished examples are in {output}: run the same command again to resume\n"
    assert len(Samples.load(output).examples) == 1


@posix
@pytest.mark.parametrize("terminal", partly([True, False]))
def test_progress_is_shown_on_a_terminal_only(examples: Path, output: Path, terminal: bool) -> None:
    ours, theirs = os.openpty() if terminal else os.pipe()
    command = ("collect", str(examples), "-o", str(output))
    with start_scripted(command=command, stderr=theirs, environment={"TERM": "xterm"}) as process:
        os.close(theirs)
        out = process.stdout.read()
    seen = os.read(ours, 100_000)
    os.close(ours)
    assert (b"asking about examples" in seen) == terminal
    assert b"asking" not in out and b"3 examples\n" in out

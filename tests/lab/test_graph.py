"""The graph of steps: killed anywhere it goes on; a key changes with what decides a result, and with nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.lab import graph
from benchmarks.lab.graph import Graph, Step, digest

ROOT = Path(__file__).parents[2]


class Killed(BaseException):
    """The process was killed."""


class Life:
    """Counts what is done to the disk, and ends after some of it."""

    left = 10**9

    @classmethod
    def breathe(cls) -> None:
        cls.left -= 1
        if cls.left < 0:
            raise Killed


def write(folder: Path, settings: Mapping[str, str], **inputs: Path) -> None:
    """The step's letter behind the texts of its inputs; goes on where it was."""
    file = folder / "text"
    whole = "".join((one / "text").read_text() for _, one in sorted(inputs.items())) + settings["letter"]
    there = file.read_text() if file.exists() else ""
    assert whole.startswith(there)
    for at in range(len(there), len(whole)):
        Life.breathe()
        with file.open("a") as opened:
            opened.write(whole[at])
    Life.breathe()


def rewrite(folder: Path, settings: Mapping[str, str], **inputs: Path) -> None:
    """The same; begins anew."""
    (folder / "text").unlink(missing_ok=True)
    write(folder, settings, **inputs)


@contextmanager
def mortal(monkeypatch: pytest.MonkeyPatch, left: int) -> Iterator[None]:
    """Let the process die after some operations, also while the graph writes that a step is finished."""

    def dying(path: Path, target: Path) -> Path:
        Life.breathe()
        found = replace(path, target)
        Life.breathe()
        return found

    replace = Path.replace
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", dying)
        patched.setattr(os, "fsync", lambda _: Life.breathe())
        patched.setattr(Life, "left", left)
        yield


@st.composite
def goals(draw: st.DrawFn) -> list[Step]:
    """Steps in an order in which each has inputs among those before."""
    steps: list[Step] = []
    for at in range(draw(st.integers(1, 5))):
        before = draw(st.lists(st.sampled_from(steps), unique=True, max_size=3)) if steps else []
        inputs = {f"x{number}": one for number, one in enumerate(before)}
        steps.append(Step(f"step {at}", draw(st.sampled_from([write, rewrite])), {"letter": f"<{at}>"}, inputs))
    return steps


@given(goals(), st.lists(st.integers(0, 40), max_size=8))
def test_goes_on_after_any_kill(goals: list[Step], kills: list[int]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch, TemporaryDirectory() as one, TemporaryDirectory() as other:
        whole = Graph(Path(one))
        finished: set[str] = set()
        begun: list[str] = []
        mine = Graph(Path(other), lambda line: begun.append(line.split(": ")[1]))
        for left in [*kills, 10**9]:
            begun.clear()
            with mortal(monkeypatch, left):
                try:
                    for step in goals:
                        mine.finish(step)
                except Killed:
                    pass
            assert not finished & {*begun}, "a finished step was made again"
            finished = {step.name for step in goals if mine.state(step) == "done"}
        for step in goals:
            expected = (whole.finish(step) / "text").read_text()
            assert (mine.finish(step) / "text").read_text() == expected
            assert mine.measured(step) is not None


def test_the_list_says_what_is_to_come(tmp_path: Path) -> None:
    first = Step("first", write, {"letter": "a"})
    second = Step("second", write, {"letter": "b"}, {"first": first})
    third = Step("third", write, {"letter": "c"}, {"first": first, "second": second})
    made = Graph(tmp_path)
    assert [(one.name, state) for one, state in made.listing([third, second])] == [
        ("first", "to come"),
        ("second", "to come"),
        ("third", "to come"),
    ]
    made.finish(second)
    made.path(third).mkdir()
    assert made.measured(third) is None
    assert [(one.name, state) for one, state in made.listing([third])] == [
        ("first", "done"),
        ("second", "done"),
        ("third", "begun"),
    ]
    made.finish(third)
    assert [one.name for one, _ in made.listing([third])] == ["third"]  # what is behind it is not needed any more
    assert (made.path(third) / "text").read_text() == "aabc"


def test_keys_change_with_settings_inputs_and_work() -> None:
    first = Step("first", write, {"letter": "a"})
    several = [
        first,
        Step("first", write, {"letter": "b"}),
        Step("first", rewrite, {"letter": "a"}),
        Step("first", write, {"letter": "a"}, {"x": first}),
        Step("first", write, {"letter": "a"}, {"y": first}),
        Step("first", write, {"letter": "a"}, {"y": Step("first", write, {"letter": "b"})}),
        Step("first", write, {"letter": "a"}, code=[Path(graph.__file__)]),
    ]
    assert len({step.key for step in several}) == len(several)
    assert Step("another name", write, {"letter": "a"}, seconds=3).key == first.key
    with pytest.raises(TypeError):
        digest({"a": object()})


def test_keys_change_with_code_but_not_with_words(tmp_path: Path) -> None:
    def key(name: str, source: str) -> str:
        path = tmp_path / f"{name}.py"
        path.write_text(source)
        return Step("step", write, code=[path]).key

    plain = key("a", "def f(x):\n    return x + 1\n")
    assert key("b", '"""Words."""\n\ndef f( x ):  # words\n    "Words."\n    return (x + 1)\n') == plain
    assert key("c", "def f(x):\n    return x + 2\n") != plain
    assert key("d", "def f(x):\n    return x + True\n") != plain
    assert key("e", "def f(x):\n    return 'x + 1'\n") != plain
    assert key("f", "def f(x):\n    return None\n") != key("g", "def f(x):\n    return\n")


PROGRAM = """
import os, signal, sys
from pathlib import Path
from benchmarks.lab.graph import Graph, Step

def slow(folder, settings):
    file = folder / "lines"
    with file.open("a") as opened:
        opened.write("line\\n")
        opened.flush()
        if file.read_text().count("line") < 3:
            os.kill(os.getpid(), signal.SIGKILL)

Graph(Path(sys.argv[1])).finish(Step("slow", slow))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
def test_goes_on_after_sigkill(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    command = [sys.executable, str(script), str(tmp_path / "results")]
    runs = [subprocess.run(command, check=False, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}) for _ in range(4)]
    codes = [run.returncode for run in runs]
    assert codes == [-signal.SIGKILL, -signal.SIGKILL, 0, 0]
    [lines] = (tmp_path / "results").glob("*/lines")
    assert lines.read_text().count("line") == 3

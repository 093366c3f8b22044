"""A graph of steps keyed by content: what is finished is never made again, and what was interrupted goes on.

The key of a step is a hash of all that decides its result: the function that it runs, its settings, the keys of its
inputs and the code. Comments, docstrings and formatting are not part of the code. A step writes into a folder that is
named by its key; a file `step.json`, which appears there in one piece, says that it is finished. A step that was killed
finds in its folder what it had written, and either goes on or writes it again.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

__all__ = ["Graph", "State", "Step", "Work", "code_digest", "digest"]

Work = Callable[..., None]
"""Writes the result of a step: `work(folder, settings, **inputs)`, with the folders of its inputs by their names."""

State = Literal["done", "begun", "to come"]

_FINISHED = "step.json"


@dataclass(frozen=True, eq=False)
class Step:
    """One step.

    Attributes:
        name: for people; it is no part of the key, so that equal steps have one result whatever they are called.
        work: a function on module level, which is killed at any byte and called again without harm.
        settings: what it is to do, as JSON.
        inputs: steps that have to be finished before.
        code: further files of Python that decide its result, beside the module of `work`.
        seconds: its duration, estimated.
        alone: whether it measures times, so that no other step may run meanwhile.
    """

    name: str
    work: Work
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    inputs: Mapping[str, Step] = field(default_factory=dict[str, "Step"])
    code: Sequence[Path] = ()
    seconds: float = 0.0
    alone: bool = False

    @property
    def kind(self) -> str:
        """The name of its function."""
        return str(self.work.__name__)

    @cached_property
    def key(self) -> str:
        """SHA-256 (hex) of all that decides the result."""
        module = Path(inspect.getfile(self.work))
        decides = {
            "work": f"{self.work.__module__}.{self.work.__qualname__}",
            "settings": self.settings,
            "inputs": {name: step.key for name, step in self.inputs.items()},
            "code": sorted({code_digest(one) for one in (module, *self.code)}),
        }
        return digest(decides)


class Graph:
    """The steps and their results in a folder.

    Args:
        folder: where results are; made when the first step runs.
        say: called with a line for each step that begins.
    """

    def __init__(self, folder: Path, say: Callable[[str], None] = lambda _: None) -> None:
        self.folder = folder
        self._say = say

    def path(self, step: Step) -> Path:
        """The folder of a step's result."""
        return self.folder / f"{step.kind}-{step.key[:16]}"

    def state(self, step: Step) -> State:
        """Find out how far a step is."""
        if (self.path(step) / _FINISHED).exists():
            return "done"
        return "begun" if self.path(step).exists() else "to come"

    def finish(self, step: Step) -> Path:
        """The folder of a step's result, which is made now if it is not there: its missing inputs first."""
        path = self.path(step)
        if self.state(step) == "done":
            return path
        found = {name: self.finish(one) for name, one in step.inputs.items()}
        self._say(f"{'goes on' if self.state(step) == 'begun' else 'begins'}: {step.name}")
        path.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        step.work(path, step.settings, **found)
        seconds = time.monotonic() - began
        record = {"name": step.name, "key": step.key, "settings": step.settings, "seconds": seconds}
        _write_whole(path / _FINISHED, json.dumps(record | {"ended": time.time()}, indent=1))
        return path

    def measured(self, step: Step) -> float | None:
        """Seconds that a finished step has taken, since it went on for the last time; None if it is not finished."""
        return self._record(step)["seconds"] if self.state(step) == "done" else None

    def busy(self, steps: Iterable[Step]) -> float:
        """Seconds in which at least one of these finished steps was made."""
        ends = [(float(one["ended"]), float(one["seconds"])) for one in map(self._record, steps)]
        total, until = 0.0, -math.inf
        for begin, end in sorted((end - seconds, end) for end, seconds in ends):
            total += max(0.0, end - max(begin, until))
            until = max(until, end)
        return total

    def _record(self, step: Step) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.path(step) / _FINISHED).read_text(encoding="utf-8"))
        return found

    def listing(self, goals: Sequence[Step]) -> Iterator[tuple[Step, State]]:
        """All steps that the goals need, each once and behind its inputs, with their states.

        Inputs of a finished step are not needed any more.
        """
        seen: set[str] = set()

        def visit(step: Step) -> Iterator[tuple[Step, State]]:
            if step.key in seen:
                return
            seen.add(step.key)
            state = self.state(step)
            if state != "done":
                for one in step.inputs.values():
                    yield from visit(one)
            yield step, state

        for goal in goals:
            yield from visit(goal)


def digest(value: Any) -> str:
    """SHA-256 (hex) of a value as JSON.

    Raises:
        TypeError: it is not JSON.
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _write_whole(path: Path, text: str) -> None:
    """Write a file that is there whole or not at all, whenever the process or the machine stops."""
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


_REGISTERED: Mapping[str, str] = {
    # ways.py: `cosd` is the paper's rule by name, as the library's default, which it was, became another rule.
    "35e0086619b33f0edee19b9ecf29422e8da13b3ab5d0a6c155c22957f5d949f6": (
        "b8dfd47624d4eb7cc32cd3693b68f58cbea211918a55c743d3f2868dca38f4bb"
    ),
    # likelihoods.py: the same, and the gates that never open have the beta in words that they had by default.
    "54138f78b2c3d41bdb220f7d38774d53cddbf55cb3ffc6231afd2da05b3a5a09": (
        "7d6c642aa0a5a7124d15fb4da739e8f9eaeeab99872136a7b95102bfe8c98d5a"
    ),
}
"""Digests as they were registered, by those of sources that had to change in order to mean the same as before.

A further change of such a source has a digest of its own, which is not here, and so is a change of the protocol.
"""


def code_digest(path: Path) -> str:
    """SHA-256 (hex) of a file of Python without its words and its formatting, the same for all versions of Python.

    A source that changed in order to mean the same counts as it was registered.
    """
    found = _digest_of(path.read_text(encoding="utf-8"))
    return _REGISTERED.get(found, found)


@cache
def _digest_of(source: str) -> str:
    return digest(_plain(ast.parse(source)))


def _plain(node: Any) -> Any:
    """A syntax tree as JSON, without docstrings, places and empty fields."""
    if isinstance(node, ast.AST):
        fields = {name: _plain(value) for name, value in ast.iter_fields(node) if value not in (None, [])}
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            fields["body"] = [_plain(one) for one in node.body if not _is_text(one)]
        return [type(node).__name__, fields]
    return [_plain(one) for one in node] if isinstance(node, list) else repr(node)


def _is_text(node: ast.stmt) -> bool:
    """Test whether a statement is a text that nobody uses: a docstring, or one below a name."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)

"""A graph of steps keyed by content: finished steps are never repeated, and interrupted steps resume.

The key of a step is a hash of everything that decides its result: the function that it runs, its settings, the keys of
its inputs, and the code. Comments, docstrings and formatting do not count as code. A step writes its result into a
folder that is named after its key. The file `step.json`, which is written atomically, marks the step as finished. If a
step is killed and runs again, it finds its partial results in the folder, and either resumes or writes them again.
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
"""A function that writes the result of a step: `work(folder, settings, **inputs)`. The inputs are folders, by name."""

State = Literal["done", "begun", "to come"]

_FINISHED = "step.json"


@dataclass(frozen=True, eq=False)
class Step:
    """One step of the graph.

    Attributes:
        name: a name for human readers. It is not part of the key, so equal steps share one result whatever their names.
        work: a module-level function that can be killed at any time and called again safely.
        settings: the settings of the work, as JSON.
        inputs: steps that must be finished first.
        code: further Python files that decide the result, in addition to the module of `work`.
        seconds: estimated duration.
        alone: whether the step measures times, so that no other step may run meanwhile.
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
        """The name of the step's function."""
        return str(self.work.__name__)

    @cached_property
    def key(self) -> str:
        """SHA-256 (hex) of everything that decides the result."""
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
        folder: the folder of the results; created when the first step runs.
        say: a function that is called with a line of text at the beginning of each step.
    """

    def __init__(self, folder: Path, say: Callable[[str], None] = lambda _: None) -> None:
        self.folder = folder
        self._say = say

    def path(self, step: Step) -> Path:
        """The folder of a step's result."""
        return self.folder / f"{step.kind}-{step.key[:16]}"

    def state(self, step: Step) -> State:
        """The state of a step."""
        if (self.path(step) / _FINISHED).exists():
            return "done"
        return "begun" if self.path(step).exists() else "to come"

    def finish(self, step: Step) -> Path:
        """Return the folder of a step's result; if it is missing, first run the missing inputs and the step."""
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
        """The seconds from a finished step's last start to its end; None if the step is not finished."""
        return self._record(step)["seconds"] if self.state(step) == "done" else None

    def busy(self, steps: Iterable[Step]) -> float:
        """The number of seconds during which at least one of these finished steps was running."""
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
        """Yield all steps that the goals need, each once and after its inputs, with their states.

        The inputs of a finished step are left out, because they are no longer needed.
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
        TypeError: the value cannot be written as JSON.
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _write_whole(path: Path, text: str) -> None:
    """Write a file atomically, even if the process or the machine stops."""
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


_REGISTERED: Mapping[str, str] = {
    # ways.py: `cosd` specifies the paper's rule explicitly, because the library's default rule has changed.
    "35e0086619b33f0edee19b9ecf29422e8da13b3ab5d0a6c155c22957f5d949f6": (
        "b8dfd47624d4eb7cc32cd3693b68f58cbea211918a55c743d3f2868dca38f4bb"
    ),
    # likelihoods.py: as for ways.py; also, the gates that never open specify the beta that was once the default.
    "54138f78b2c3d41bdb220f7d38774d53cddbf55cb3ffc6231afd2da05b3a5a09": (
        "7d6c642aa0a5a7124d15fb4da739e8f9eaeeab99872136a7b95102bfe8c98d5a"
    ),
}
"""The registered digests of sources that had to change to keep their meaning, by the digest of the changed source.

Any further change of such a source gives a digest that is not in this mapping, so it counts as a change of the
protocol.
"""


def code_digest(path: Path) -> str:
    """SHA-256 (hex) of a Python file without docstrings, comments and formatting, the same in all Python versions.

    For a source that changed only to keep its meaning, this is the registered digest.
    """
    found = _digest_of(path.read_text(encoding="utf-8"))
    return _REGISTERED.get(found, found)


@cache
def _digest_of(source: str) -> str:
    return digest(_plain(ast.parse(source)))


def _plain(node: Any) -> Any:
    """A syntax tree as JSON, without docstrings, positions and empty fields."""
    if isinstance(node, ast.AST):
        fields = {name: _plain(value) for name, value in ast.iter_fields(node) if value not in (None, [])}
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            fields["body"] = [_plain(one) for one in node.body if not _is_text(one)]
        return [type(node).__name__, fields]
    return [_plain(one) for one in node] if isinstance(node, list) else repr(node)


def _is_text(node: ast.stmt) -> bool:
    """Test whether a statement is only a string: a docstring, or a string below a name."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)

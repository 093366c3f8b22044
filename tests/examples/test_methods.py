"""The tutorial of examples/methods: its program runs as it is printed."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from cosd_api import SettingError, fuse
from cosd_api.apps.demo.servers import Pair
from cosd_api.methods.base import EXAMPLES, method_named
from cosd_providers import ConnectError
from cosd_providers.testing import Fault, ScriptedProvider
from fakes.commands import cosd
from support.method_files import AT, FOLDER
from support.printed import FENCE, dead_links, programs

PAGE = FOLDER / "README.md"
TEXT = PAGE.read_text(encoding="utf-8")
[PROGRAM] = programs(TEXT)


@pytest.fixture
def hand_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "hand_over.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    return "hand_over.py:HandOver"


def models(**faults: Any) -> dict[str, Any]:
    draft = ScriptedProvider.from_texts(
        {"Q": [(" a", 0.9), (" b", 0.4), (" c", 0.9)], "Q a x": [(" d", 0.9), (".", 0.8)]}
    )
    return {"draft": draft, "assistant": ScriptedProvider.from_texts({"Q a": [" x"], "Q a x": [" y"]}, **faults)}


async def test_the_program_of_the_tutorial(hand_over: str) -> None:
    result = await fuse("Q", **models(), method=hand_over)
    assert (result.text, [one.source for one in result.tokens][:3]) == (" a x d.", ["draft", "assistant", "draft"])
    assert [one.reason for one in result.segments][:2] == ["the draft is confident", "the draft is not confident"]
    assert result.trace.replay() == result.text
    assert sum(len(one.candidates[0].text) for one in result.segments) == len(result.text)
    down = models(faults=[Fault(ConnectError("gone"))])
    result = await fuse("Q", **down, method=hand_over, on_assistant_error="draft")
    assert (result.text, result.segments[-1].reason) == (" a b c", "no other model is heard")


@pytest.mark.live
def test_the_commands_of_the_tutorial(hand_over: str, pair: Pair) -> None:
    assert hand_over in TEXT
    [block] = [block for language, block in FENCE.findall(TEXT) if not language]
    text = block.replace("http://gpu1:8080", pair.sums).replace("http://gpu2:8080", pair.facts)
    piped, explain = text.splitlines()
    (_, prompt), (_, *fuse_words) = [shlex.split(part) for part in piped.split("|")]
    fused = cosd(*fuse_words, input=prompt.replace("\\n", "\n"))
    explained = cosd(*shlex.split(explain)[1:])
    assert fused.exit_code == explained.exit_code == 0, fused.output + explained.output
    words = " ".join(explained.output.split())
    assert "the draft is confident" in words and "the draft is not confident" in words
    assert "Lima and the total is 42." in fused.output


def test_the_page_has_every_file_and_no_dead_link() -> None:
    assert dead_links(PAGE) == []
    assert {one.name for one in FOLDER.glob("*.py")} == {one.partition(":")[0] for one in EXAMPLES.values()}
    assert all(f"[{file.partition(':')[0]}]" in TEXT for file in EXAMPLES.values())


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_old_name_is_refused_with_its_new_path(name: str) -> None:
    with pytest.raises(SettingError) as found:
        method_named(name)
    words = f"the method {name!r} is now a file of the repository"
    assert str(found.value) == f"{words}: in a clone, give examples/methods/{EXAMPLES[name]}"
    assert method_named(AT[name]).name == name


def test_the_files_stand_on_public_names_alone() -> None:
    public = {"cosd_api", "cosd_api.extend", "cosd_providers", "cosd_providers.contract"}
    for file in FOLDER.glob("*.py"):
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("from cosd_")]
        assert {line.split()[1] for line in lines} <= public

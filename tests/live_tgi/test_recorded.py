"""The recorded answers are those of TGI's model server. With COSD_TGI_RECORD=1, they are written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from naive.plain_http import PlainTgi
from tgi_cpu.recorded import FILE, NAMES, make, requests, shortened
from tgi_cpu.servers import serve

WRITE = os.environ.get("COSD_TGI_RECORD")


def test_the_recorded_answers(places: tuple[Path, Path], tmp_path: Path) -> None:
    found: dict[str, list[Any]] = {}
    for name in NAMES:
        make(name, tmp_path / name)
    with serve(*places, NAMES, tmp_path) as servers:
        for name, server in servers.items():
            plain = PlainTgi(server.url)
            asked = [{"inputs": text, "parameters": fields} for text, fields in requests(name)]
            found[name] = [shortened(plain.post("/generate", one)) for one in asked]
    if WRITE:
        lines = [f"{json.dumps(name)}: [\n{_lines(answers)}\n]" for name, answers in found.items()]
        FILE.write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")
    recorded = json.loads(FILE.read_text(encoding="utf-8"))
    for name, answers in found.items():
        for answer, expected in zip(answers, recorded[name], strict=True):
            assert _rounded(answer) == _rounded(expected)


def _lines(answers: list[Any]) -> str:
    return ",\n".join(json.dumps(one, ensure_ascii=False, separators=(",", ":")) for one in answers)


def _rounded(answer: Any) -> Any:
    """An answer whose numbers are equal within the noise of machines."""
    if isinstance(answer, dict):
        return {key: _rounded(value) for key, value in answer.items()}
    if isinstance(answer, list):
        return [_rounded(one) for one in answer]
    return pytest.approx(answer, abs=5e-3) if isinstance(answer, float) else answer

"""Modules that are imported at first, and those that wait until they are used. `make bench ARGS=imports` times them."""

from __future__ import annotations

import subprocess
import sys

import pytest

import cosd_api
import cosd_api.apps.comparison
import cosd_api.apps.training
import cosd_api.extend
import cosd_api.types
import cosd_providers
from cosd_providers import engines

RECORDS = (cosd_api.types, cosd_api.apps.comparison, cosd_api.apps.training)
ANSWERING = ("cosd_api.decoding.program", "cosd_api.likelihood", "cosd_api.methods.cosd")
LATER = (
    "cosd_api.apps.demo",
    "cosd_api.apps.gateway",
    "cosd_api.apps.langchain",
    "cosd_api.apps.report",
    "cosd_api.apps.training",
    "cosd_providers.probe.report",
    "cosd_providers.probe.run",
    "cosd_providers.testing",
)
ADAPTERS = ("cosd_providers.engine", "cosd_providers.engines.openai.adapter", "cosd_providers.engines.tgi")
TOOLS = (
    "aiohttp",
    "jinja2",
    "langchain_core",
    "matplotlib",
    "numpy",
    "prometheus_client",
    "sklearn",
    "starlette",
    "tiktoken",
    "tokenizers",
    "uvicorn",
    "typer",
)

VERSION = """
import contextlib, io, sys
sys.argv = ["cosd", {!r}]
from cosd_api.apps.cli import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main()
"""


def imported(code: str) -> set[str]:
    """The modules that a fresh interpreter has imported after some code."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("code", "later"),
    [
        ("import cosd_providers", ("cosd_api", *ADAPTERS, *TOOLS)),
        ("import cosd_api", (*ANSWERING, *LATER, *ADAPTERS, *TOOLS)),
        pytest.param(VERSION.format("--version"), (*LATER, *ADAPTERS, *TOOLS[:-1]), marks=pytest.mark.extended),
        (VERSION.format("--help"), (*LATER, *ADAPTERS, *TOOLS[:-1])),
    ],
    ids=["providers", "import", "--version", "--help"],
)
def test_what_is_used_later_is_imported_later(code: str, later: tuple[str, ...]) -> None:
    found = imported(code)
    assert "cosd_providers.connect" in found
    assert sorted(found.intersection(later)) == []


@pytest.mark.parametrize("face", [cosd_api, *RECORDS, cosd_api.extend, cosd_providers, engines])
def test_every_public_name_is_there(face: object) -> None:
    names: list[str] = face.__all__  # type: ignore[attr-defined]
    assert names == sorted(names, key=lambda name: (not name.isupper(), name.lower())) or len(names) == len(set(names))
    assert all(getattr(face, name) is not None for name in names)
    with pytest.raises(AttributeError, match="has no attribute 'fuze'"):
        face.fuze  # type: ignore[attr-defined]  # noqa: B018


def test_the_probe_is_a_function_whatever_was_imported_before() -> None:
    code = "import cosd_providers.probe.report, cosd_providers; print(callable(cosd_providers.probe))"
    assert "True" in imported(code)

"""The container file, the compose file and the release workflow: what can be seen in them without running them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from typer.core import TyperGroup
from typer.main import get_command

from cosd_api.apps.cli.entry import app

ROOT = Path(__file__).resolve().parents[1]


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_the_gateway_of_the_compose_file_is_a_command_of_ours() -> None:
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    gateway = read("compose.yaml")["services"]["gateway"]
    found = group.commands["serve"].make_context("cosd", ["--host", "0.0.0.0", *gateway["command"]])
    assert (found.params["draft"], found.params["assistant"]) == ("http://draft:8080", ["http://assistant:8080"])


def test_the_gateway_may_write_nothing_and_has_no_rights() -> None:
    services = read("compose.yaml")["services"]
    assert all(one["read_only"] for one in services.values())
    assert services["gateway"]["cap_drop"] == ["ALL"]
    assert services["gateway"]["ports"] == ["127.0.0.1:8000:8000"]
    lines = (ROOT / "Containerfile").read_text(encoding="utf-8").splitlines()
    assert "USER 65532:65532" in lines
    assert any(line.startswith("HEALTHCHECK") for line in lines)


def test_a_release_is_published_without_a_kept_token() -> None:
    workflow = read(".github/workflows/release.yml")
    assert workflow[True]["push"]["tags"] == ["v*"]  # YAML 1.1 reads `on` as true
    assert workflow["permissions"] == {}
    assert workflow["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert {workflow["jobs"][name]["needs"] for name in ("publish", "image")} == {"build"}
    text = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    assert "PYPI" not in text and "password: ${{ secrets.GITHUB_TOKEN }}" in text


def test_a_release_runs_what_was_seen() -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    used = re.findall(r"uses: (.+)", text)
    assert len(used) == 10
    for one in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", one), one

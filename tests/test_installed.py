"""The wheel in an environment that holds nothing but the wheel and what it declares."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

import cosd_api
from support.shipped import ROOT, Environment, build_sdist, build_wheel, install

pytestmark = pytest.mark.extended

#: Imports every module of the two packages but those of the extras, and tells where they come from.
IMPORT_ALL = """
import importlib, json, pkgutil, sys
found = {}
for face in ("cosd_api", "cosd_providers"):
    package = importlib.import_module(face)
    found[face] = package.__file__
    for module in pkgutil.walk_packages(package.__path__, f"{face}."):
        if not module.name.startswith(tuple(sys.argv[1:])):
            found[module.name] = importlib.import_module(module.name).__file__
print(json.dumps(found))
"""

#: Fuses as the README does, with models that need no server.
FUSE = """
from cosd_api import fuse_sync
from cosd_providers.testing import ScriptedProvider
draft = ScriptedProvider.from_texts({"Q:": [" The", (" Rome", 0.3)]})
assistant = ScriptedProvider.from_texts({"Q: The": [(" Lima", 0.9)]})
print(fuse_sync("Q:", draft=draft, assistant=assistant))
"""

#: Reads a tokenizer, a chat template and a tree, and writes a settings file.
SAVE = """
from cosd_api import Fusion, TreeVerifier, connect
draft = connect("http://gpu:1", engine="openai", tokenizer="tokenizer.json", chat_template="{{ messages }}")
Fusion(draft=draft, assistant="http://gpu:2", verifier=TreeVerifier.load("tree.json")).save("fusion.yaml")
"""

#: What the extras are for.
EXTRAS = (
    "cosd_api.apps.gateway.answering",
    "cosd_api.apps.gateway.routes",
    "cosd_api.apps.gateway.idle_connections",
    "cosd_api.apps.gateway.metrics",
    "cosd_api.apps.gateway.server",
    "cosd_api.apps.langchain",
    "cosd_api.telemetry.otel",
    "cosd_providers.http.fast",
)

#: The same, as LangChain's model.
CHAIN = FUSE.replace("from cosd_api import fuse_sync", "from cosd_api.apps.langchain import CoSDLLM").replace(
    'fuse_sync("Q:", draft=draft, assistant=assistant)', 'CoSDLLM(draft=draft, assistant=assistant).invoke("Q:")'
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    return build_wheel(build_sdist(folder), folder)


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """`pip install .`"""
    return install(wheel, tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def full(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """`pip install ".[demo]"`"""
    return install(wheel, tmp_path_factory.mktemp("full"), "demo")


@pytest.mark.parametrize("which", ["bare", "full"])
def test_every_module_is_the_wheels_own(which: str, request: pytest.FixtureRequest) -> None:
    made: Environment = request.getfixturevalue(which)
    at_once = ("cosd_api.__main__", "cosd_api.apps.demo._serve")  # run when they are imported
    outside = ("langchain", "gateway", "telemetry")
    others = (name for name in EXTRAS if any(part in name for part in outside))
    left_out = (*at_once, *(EXTRAS if which == "bare" else others))
    done = made.run("python", "-c", IMPORT_ALL, *left_out)
    assert done.stderr == ""
    found: dict[str, str] = json.loads(done.stdout)
    assert {"cosd_api", "cosd_api.fusion", "cosd_providers", "cosd_providers.engines.llama_cpp"} <= set(found)
    assert "cosd_api.apps.cli.entry" in found
    assert [file for file in found.values() if not Path(file).is_relative_to(made.packages)] == []


@pytest.mark.parametrize("name", ["providers", "tests", "examples"])
def test_no_plain_name_is_taken(bare: Environment, name: str) -> None:
    done = bare.run("python", "-c", f"import {name}")
    assert f"ModuleNotFoundError: No module named {name!r}" in done.stderr


def test_it_fuses_without_any_extra(bare: Environment) -> None:
    done = bare.run("python", "-W", "error", "-c", FUSE)
    assert (done.stdout, done.stderr) == (" The Lima\n", "")


def test_what_needs_no_server_needs_no_extra(bare: Environment) -> None:
    for command in (("--version",), ("fuse", "--help")):
        assert bare.run("cosd", *command).returncode == 0
    done = bare.run("cosd", "train-tree", str(ROOT / "examples/samples.jsonl"), "-o", "tree.json")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "cosd: wrote tree.json")
    shutil.copy(ROOT / "tests/models/sums/tokenizer.json", bare.desk)
    done = bare.run("python", "-W", "error", "-c", SAVE)
    assert (done.returncode, done.stderr) == (0, "")
    assert "tree" in (bare.desk / "fusion.yaml").read_text(encoding="utf-8")


def test_langchain_with_its_extra(wheel: Path, tmp_path: Path) -> None:
    done = install(wheel, tmp_path, "langchain").run("python", "-W", "error", "-c", CHAIN)
    assert (done.stdout, done.stderr) == (" The Lima\n", "")


def test_langchain_without_its_extra_says_what_to_install(bare: Environment) -> None:
    done = bare.run("python", "-c", "from cosd_api.apps.langchain import ChatCoSD")
    words = 'cosd_api.apps.langchain needs LangChain: pip install ".[langchain]" in a clone of the repository'
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: {words}"


def test_the_gateway_without_its_extra_says_what_to_install(bare: Environment, full: Environment) -> None:
    install_it = 'needs a web server: pip install ".[gateway]" in a clone of the repository'
    done = bare.run("python", "-c", "from cosd_api.apps.gateway import Gateway")
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: cosd_api.apps.gateway.Gateway {install_it}"
    done = full.run("cosd", "serve")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"the gateway {install_it}" in " ".join(done.stderr.replace("│", " ").split())  # in a frame


def test_help_and_version(full: Environment) -> None:
    helped = full.run("cosd", "--help")
    assert (helped.returncode, helped.stderr) == (0, "")
    assert all(name in helped.stdout for name in ("fuse", "demo", "servers"))
    printed = rf"cosd-api {re.escape(cosd_api.__version__)} \((aiohttp|httpx) [0-9.]+, (asyncio|uvloop [0-9.]+)\)\n"
    for command in (("cosd", "--version"), ("python", "-m", "cosd_api", "--version")):
        assert re.fullmatch(printed, full.run(*command).stdout)


@pytest.mark.live
def test_the_demo_runs_from_anywhere(full: Environment) -> None:
    done = full.run("cosd", "demo", "--questions", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert "In Peru a book costs 17 and a pen costs 25." in done.stdout
    assert "sums, asking facts" in done.stdout
    assert list(full.desk.iterdir()) == []  # nor is anything left there

"""What every script of `examples/` has: help, words for what is missing or wrong, a line in the table."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from cosd_api.apps.demo.questions import sample
from cosd_api.apps.demo.servers import Three
from cosd_api.apps.training.dataset import read_examples
from support.scripts import EXAMPLES, run_script

HOSTS = [
    "hosted_draft",
    "llama_cpp_laptop",
    "persona",
    "private_document",
    "tgi_host",
    "three_assistants",
    "two_chat_models",
    "two_vllm_hosts",
]
SCRIPTS = [*HOSTS, "debug_a_fusion", "prompts_from_file"]
ROLES = ("draft", "assistant")


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_says_what_is_taken(name: str) -> None:
    ran = run_script(name, "--help")
    assert (ran.code, ran.err) == (0, "")
    words = " ".join(ran.out.split())
    for role in ROLES:
        assert f"--{role} URL" in words
        assert f"COSD_{role.upper()}_URL" in words


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_first_lines_say_how_it_is_run(name: str) -> None:
    words = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text(encoding="utf-8")))
    assert words is not None
    assert f"python examples/{name}.py" in words


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("role", ROLES)
def test_an_endpoint_that_is_missing_is_wrong_usage(name: str, role: str) -> None:
    if (name, role) == ("llama_cpp_laptop", "draft"):
        return  # the laptop itself
    other = ROLES[1 - ROLES.index(role)]
    ran = run_script(name, f"--{other}", "http://127.0.0.1:9")
    assert (ran.code, ran.out) == (2, "")
    assert f"--{role}" in ran.err.splitlines()[-1]


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_is_no_url_is_said_so(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run_script(name, "--draft", "gpu1:8080", "--assistant", "http://127.0.0.1:9")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.endswith("error: 'gpu1:8080' is not a URL; did you mean 'http://gpu1:8080'?\n")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_server_without_a_model_is_named(
    name: str, nothing_there: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run_script(name, "--draft", nothing_there, "--assistant", nothing_there)
    assert ran.code == 1
    assert f"error: {nothing_there}: " in ran.err
    assert "Traceback" not in ran.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.live
def test_a_process_of_its_own_takes_its_servers_from_the_environment(three: Three, tmp_path: Path) -> None:
    assistants = f"{three.facts} {three.words}"
    found = os.environ | {"COSD_DRAFT_URL": three.sums, "COSD_ASSISTANT_URL": assistants, "PYTHONUTF8": "1"}
    command = [sys.executable, str(EXAMPLES / "three_assistants.py")]
    done = subprocess.run(command, cwd=tmp_path, env=found, capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stdout) == (
        0,
        " The capital of Peru is Lima. The sum is 42. In French it is fromage.\n",
    )
    assert re.search(r"' L\w*', the word of assistant 1", done.stderr)
    assert "', the word of assistant 2" in done.stderr


def test_each_has_a_line_in_the_table() -> None:
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    linked = re.findall(r"\]\(([^)]+)\)", text)
    assert {f"{name}.py" for name in SCRIPTS} <= set(linked)
    assert all((EXAMPLES / name).is_file() for name in linked)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*_model.py")), ids=lambda path: path.stem)
def test_a_model_of_an_evaluator_needs_public_names_alone(path: Path) -> None:
    """Each is a file to copy; tests/live_evaluators runs it under the evaluator itself."""
    taken = [one for one in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(one, ast.ImportFrom)]
    ours = [one for one in taken if one.module is not None and one.module.startswith("cosd_")]
    assert {one.module for one in ours} == {"cosd_api", "cosd_providers"}
    for one in ours:
        assert {name.name for name in one.names} <= {*import_module(str(one.module)).__all__}


def test_each_is_run_here() -> None:
    parts = re.compile("(small_|train_|langchain_|lm_eval_model|inspect_model).*")  # tests/examples, ...
    assert {path.stem for path in EXAMPLES.glob("*.py") if not parts.match(path.stem)} == set(SCRIPTS)


def test_the_questions_are_of_those_that_the_bundled_models_know() -> None:
    known = {question.prompt: question.answer for question in sample("mixed", 40, 5, held_out=False)}
    found = read_examples(EXAMPLES / "questions.jsonl")
    assert len(found) == 20
    assert all(known[str(one.prompt)] == one.answer for one in found)

"""The gateway, asked by LangChain, llm and lm-evaluation-harness (as docs/gateway.md shows)."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from cosd_api.apps.demo.servers import Pair
from fakes.commands import start
from support.shipped import ROOT

PAGE = (ROOT / "docs" / "gateway.md").read_text(encoding="utf-8")
SHOWN = "http://127.0.0.1:8000/v1"
TEXT = "The capital of Peru is Lima and the total is 42."


def block(language: str, word: str, page: str = PAGE) -> str:
    """The block of a page that holds a word."""
    [found] = [one for one in re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE) if word in one]
    return str(found)


@pytest.fixture(scope="module")
def url(pair: Pair) -> Iterator[str]:
    """A gateway over the bundled pair."""
    with start("serve", "--draft", pair.sums, "--assistant", pair.facts, "--port", "0") as process:
        yield process.stdout.readline().decode().strip()
        process.send_signal(signal.SIGTERM)


def test_langchain(desk: Any, url: str) -> None:
    assert TEXT in desk.run("python", "-c", block("python", "ChatOpenAI").replace(SHOWN, url))


def test_llm(desk: Any, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_USER_PATH", str(desk.folder))
    (desk.folder / "extra-openai-models.yaml").write_text(block("yaml", "model_id").replace(SHOWN, url))
    command = shlex.split(block("bash", "llm -m"))
    for more in ([], ["--no-stream"]):
        assert TEXT in desk.run(*command, *more)


@pytest.mark.parametrize("kind", ["local-completions", "local-chat-completions"])
def test_lm_eval(desk: Any, url: str, kind: str) -> None:
    page = (ROOT / "docs" / "lm-eval.md").read_text(encoding="utf-8")
    (desk.folder / "capitals.yaml").write_text(block("yaml", "task: capitals", page))
    (desk.folder / "questions.jsonl").write_text(block("json", "Peru", page))
    command = block("bash", "local-completions").replace("\\\n", " ").replace(SHOWN, url)
    if kind == "local-chat-completions":
        command = command.replace("local-completions", kind).replace("/completions", "/chat/completions")
        command += " --apply_chat_template"
    assert "|capitals|" in desk.run(*shlex.split(command))

"""`cosd serve` over the bundled models on llama.cpp, asked by OpenAI's own client."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from cosd_api import fuse_sync
from cosd_api.apps.demo.servers import Pair
from fakes.commands import start
from support.shipped import ROOT

pytestmark = pytest.mark.live

PROMPT = "Q: In Peru a book costs 17 and a pen costs 25. Name the capital and the total.\nA:"


def test_fused_text_is_the_librarys(pair: Pair) -> None:
    expected = fuse_sync(PROMPT, draft=pair.sums, assistant=pair.facts)
    messages: Any = [{"role": "user", "content": PROMPT.removeprefix("Q: ").removesuffix("\nA:")}]
    answer = fuse_sync(messages, draft=pair.sums, assistant=pair.facts).text
    with start("serve", "--draft", pair.sums, "--assistant", pair.facts, "--port", "0") as process:
        url = process.stdout.readline().decode().strip()
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            whole = client.completions.create(model="cosd", prompt=PROMPT)
            stream = client.completions.create(model="cosd", prompt=PROMPT, stream=True)
            assert whole.choices[0].text == "".join(one.choices[0].text for one in stream) == expected.text
            with openai.OpenAI(base_url=f"{pair.sums}/v1", api_key="none", max_retries=0) as alone:
                counted = alone.completions.create(model="sums", prompt=PROMPT, temperature=0, max_tokens=1).usage
            assert counted is not None and whole.usage is not None
            assert whole.usage.prompt_tokens == counted.prompt_tokens
            assert whole.usage.completion_tokens == len(expected.tokens)
            chat = client.chat.completions.create(model="cosd", messages=messages, stream=True)
            assert "".join(one.choices[0].delta.content or "" for one in chat) == answer
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"Traceback" not in errors
    assert errors.count(b'"outcome": "ok"') == 3


GATEWAY = "http://127.0.0.1:8000/v1"
PROGRAMS = [
    block
    for block in re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "docs" / "gateway.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    if GATEWAY in block and "langchain" not in block  # tests/live_evaluators runs that one
]


@pytest.fixture(scope="module")
def url(pair: Pair) -> Iterator[str]:
    """A gateway over the bundled pair."""
    with start("serve", "--draft", pair.sums, "--assistant", pair.facts, "--port", "0") as process:
        yield process.stdout.readline().decode().strip()
        process.send_signal(signal.SIGTERM)


@pytest.mark.extended
@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_programs_of_the_pages_run(program: str, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(program.replace(GATEWAY, url), "<the text>", "exec", dont_inherit=True), {"__name__": "__main__"})
    assert "The capital of Peru is Lima and the total is 42." in capsys.readouterr().out


def test_programs_are_there() -> None:
    assert PROGRAMS

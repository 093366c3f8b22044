"""`cosd serve` over the bundled models on llama.cpp, asked by OpenAI's own client."""

from __future__ import annotations

import signal
from typing import Any

import openai
import pytest

from commands import start
from cosd_api import fuse_sync
from cosd_api.demo.servers import Pair

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
            chat = client.chat.completions.create(model="cosd", messages=messages, stream=True)
            assert "".join(one.choices[0].delta.content or "" for one in chat) == answer
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"Traceback" not in errors
    assert errors.count(b'"outcome": "ok"') == 3

"""A document for the assistant alone: the draft's server never sees it, and the answer has it."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import httpx

from cosd_api import Fusion, RuleVerifier, connect
from live_real.test_null_control import say

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
FACTS = ["1987", "Ingrid Solberg", "212", "Havbris"]
EVERYWHERE = RuleVerifier(alpha=1, beta=1)


async def test_the_answer_has_what_the_assistant_alone_has_read(shorter: str, assistant: str) -> None:
    example = runpy.run_path(str(EXAMPLES / "private_document.py"))
    document, questions = example["DOCUMENT"], example["QUESTIONS"]
    sent: list[str] = []

    async def note(request: httpx.Request) -> None:
        sent.append(request.content.decode())

    found = {"alone": 0, "together": 0}
    async with httpx.AsyncClient(event_hooks={"request": [note]}, timeout=120) as client:
        draft, knows = connect(shorter, http_client=client), connect(assistant, system=f"Answer briefly.\n\n{document}")
        for name, verifier in (("alone", RuleVerifier(alpha=0)), ("together", EVERYWHERE)):
            async with Fusion(draft=draft, assistant=knows, verifier=verifier) as fusion:
                for question, fact in zip(questions, FACTS, strict=True):
                    result = await fusion.generate([{"role": "user", "content": question}], max_tokens=48)
                    assert result.settings.contexts == "ids"
                    found[name] += fact in result.text
                    say(f"{name}: {question} {' '.join(result.text.split())}")
    assert found["alone"] == 0
    assert found["together"] >= 3
    assert sent
    assert not any(part in body for body in sent for part in ("Answer briefly", "Its best known bread is called"))


def test_the_examples(shorter: str, assistant: str) -> None:
    servers = ["--draft", shorter, "--assistant", assistant]
    for name in ("private_document", "persona"):
        command = [sys.executable, str(EXAMPLES / f"{name}.py"), *servers]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert (ran.returncode, ran.stderr) == (0, "")
        say(ran.stdout)
        assert ran.stdout.count(">") >= 2

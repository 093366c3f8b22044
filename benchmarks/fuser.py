"""A process that writes fused answers for `genuine.py`, with the library of any checkout.

The script imports nothing else of this repository than the library's public names, so that it runs with older versions.
It reads one job a line, as JSON, and answers each with one line.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

import anyio

from cosd_api import Fusion, FusionResult, RuleVerifier


async def main() -> None:
    """Write answers until standard input closes; a fusion stays open for later jobs with the same servers and rule."""
    fusions: dict[tuple[Any, ...], Fusion] = {}
    async with AsyncExitStack() as stack:
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            job = json.loads(line)
            key = (job["draft"], job["assistant"], *job["rule"])
            if key not in fusions:
                alpha, beta = job["rule"]
                rule = RuleVerifier(alpha=alpha, beta=beta)
                fusion = Fusion(draft=job["draft"], assistant=job["assistant"], verifier=rule)
                fusions[key] = await stack.enter_async_context(fusion)
            print(json.dumps(await _answer(fusions[key], job["prompt"], job["tokens"])), flush=True)


async def _answer(fusion: Fusion, prompt: Any, tokens: int) -> dict[str, Any]:
    began, processor = time.perf_counter(), time.process_time()
    result: FusionResult = await fusion.generate(prompt, max_tokens=tokens)
    seconds, busy = time.perf_counter() - began, time.process_time() - processor
    draft, assistant = (result.usage[name] for name in ("draft", "assistant"))
    return {
        "seconds": seconds,
        "tokens": len(result.tokens),
        "client": busy,
        "kept": result.kept_tokens or 0,
        "replaced": result.replaced_tokens or 0,
        "drafted": result.drafted_tokens,
        "questions": result.assistant_requests,
        "read": (draft.prompt_tokens - draft.cached_tokens, assistant.prompt_tokens - assistant.cached_tokens),
        "text": result.text,
    }


if __name__ == "__main__":
    anyio.run(main)

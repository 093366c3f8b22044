r"""Two vLLM hosts write one answer: one drafts, and the other is asked where the draft is unsure.

    vllm serve SOME/MODEL --port 8000                     # on each of the two hosts
    export COSD_DRAFT_URL=http://gpu1:8000 COSD_ASSISTANT_URL=http://gpu2:8000
    python examples/two_vllm_hosts.py "Once upon a time"

The draft writes every token, so use the faster host for it. The answer goes to standard output as it arrives, and all
other output to standard error. If a host requires a key, set ``COSD_API_KEY_GPU1=...``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from cosd_api import Fusion, connect
from cosd_providers import ProviderError

PROMPT = "Q: In Peru a book costs 17 and a pen costs 25. Name the capital and the total.\nA:"  # for the bundled models


async def answer(prompt: str, draft: str, assistant: str, max_tokens: int) -> None:
    # Naming the engine saves a request; connect(url) alone detects it.
    writer, adviser = connect(draft, engine="vllm"), connect(assistant, engine="vllm")
    async with (
        Fusion(draft=writer, assistant=adviser) as fusion,
        fusion.stream(prompt, max_tokens=max_tokens) as stream,
    ):
        async for token in stream:  # each token is final
            print(token.text, end="", flush=True)
        print()
        result = stream.result
    for token in result.tokens:
        if token.replaced is not None:
            print(f"{token.replaced!r} became {token.text!r}: {token.reason}", file=sys.stderr)
    print(f"{result.acceptance_rate:.0%} of the draft kept, {result.timings.total:.1f} s", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description="Two vLLM hosts write one answer.")
    parser.add_argument("prompt", nargs="?", default=PROMPT, help="raw text to continue")
    for role, job in (("draft", "writes"), ("assistant", "is asked where the draft is unsure")):
        url = os.environ.get(f"COSD_{role.upper()}_URL")
        more = f"the host that {job}; or set COSD_{role.upper()}_URL"
        parser.add_argument(f"--{role}", metavar="URL", default=url, required=not url, help=more)
    parser.add_argument("--max-tokens", type=int, default=256, metavar="N", help="limit for the answer (256)")
    try:
        asyncio.run(answer(**vars(parser.parse_args())))
    except (ProviderError, ValueError) as error:  # the message names the host, the failure and a remedy
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()

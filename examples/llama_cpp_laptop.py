r"""A laptop drafts, and a bigger remote model is asked only where the laptop's model is unsure.

    llama-server -m small.gguf --port 8080                # on the laptop
    export COSD_ASSISTANT_URL=https://gpu.example.com COSD_API_KEY_GPU_EXAMPLE_COM=...
    python examples/llama_cpp_laptop.py "Once upon a time"

The remote model is slow, so the laptop keeps writing while it waits. If the remote model becomes unreachable,
``on_assistant_error="draft"`` lets the laptop continue alone, and the result marks the tokens that were not verified.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from cosd_api import Fusion, connect
from cosd_providers import ProviderError

PROMPT = "Q: In Peru a book costs 17 and a pen costs 25. Name the capital and the total.\nA:"  # for the bundled models


async def answer(prompt: str, draft: str, assistant: str) -> None:
    laptop = connect(draft, engine="llama.cpp")
    remote = connect(assistant, timeout=20)  # any engine; counts as unreachable after 20 seconds without a byte
    async with Fusion(draft=laptop, assistant=remote, on_assistant_error="draft") as fusion:
        result = await fusion.generate(prompt)
    print(result.text)
    unverified = sum(not token.verified for token in result.tokens)
    asked = result.usage["assistant"]
    print(
        f"tokens: {len(result.tokens)}, of which {unverified} were not verified; words of the remote model: "
        f"{result.replacements}; requests to it: {asked.requests}, tokens billed there: {asked.billed_tokens}",
        file=sys.stderr,
    )
    for warning in result.warnings:
        print(f"note: {warning}", file=sys.stderr)


def main() -> None:
    found = {role: os.environ.get(f"COSD_{role.upper()}_URL") for role in ("draft", "assistant")}
    parser = argparse.ArgumentParser(description="A laptop drafts, and a remote model is asked where it is unsure.")
    parser.add_argument("prompt", nargs="?", default=PROMPT, help="raw text to continue")
    parser.add_argument(
        "--draft",
        metavar="URL",
        default=found["draft"] or "http://127.0.0.1:8080",
        help="llama.cpp's server on the laptop; or set COSD_DRAFT_URL (http://127.0.0.1:8080)",
    )
    parser.add_argument(
        "--assistant",
        metavar="URL",
        default=found["assistant"],
        required=not found["assistant"],
        help="server of the remote model; or set COSD_ASSISTANT_URL",
    )
    try:
        asyncio.run(answer(**vars(parser.parse_args())))
    except (ProviderError, ValueError) as error:  # the message names the server, the failure and a remedy
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()

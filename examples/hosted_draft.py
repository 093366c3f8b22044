r"""A hosted, OpenAI-compatible API drafts, and your own server assists. The cost is estimated beforehand, and limited.

    export COSD_API_KEY_API_TOGETHER_XYZ=...              # for https://api.together.xyz; sent to no other host
    python examples/hosted_draft.py --draft https://api.together.xyz --model SOME/MODEL --assistant http://gpu2:8080

The key comes from the environment. On the command line, every user of the machine could read it, and the shell's
history would store it. ``--key-variable TOGETHER_API_KEY`` names an existing variable.
The host must report token probabilities and continue partial answers; docs/servers.md lists such services.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from cosd_api import Fusion, connect
from cosd_providers import Provider, ProviderError

PROMPT = "Q: In Peru a book costs 17 and a pen costs 25. Name the capital and the total.\nA:"  # for the bundled models


async def answer(prompt: str, hosted: Provider, assistant: str, max_billed_tokens: int) -> None:
    async with Fusion(draft=hosted, assistant=assistant) as fusion:
        bill = (await fusion.estimate(prompt, max_tokens=128)).endpoints["draft"].billed_tokens
        print(f"an answer of 128 tokens: the host will bill about {bill.expected} tokens", file=sys.stderr)
        # The limit applies to both servers together. When it is reached, the answer ends with the text verified so far.
        result = await fusion.generate(prompt, max_tokens=128, max_billed_tokens=max_billed_tokens, on_budget="end")
    print(result.text)
    billed = {name: usage.billed_tokens for name, usage in result.usage.items()}
    print(f"billed: {billed}; ended by {result.finish_reason} ({result.stop_reason!r})", file=sys.stderr)
    for warning in result.warnings:
        print(f"note: {warning}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description="A hosted API drafts, and your own server assists.")
    parser.add_argument("prompt", nargs="?", default=PROMPT, help="raw text to continue")
    for role, words in (("draft", "the hosted API"), ("assistant", "your own server")):
        url = os.environ.get(f"COSD_{role.upper()}_URL")
        more = f"{words}; or set COSD_{role.upper()}_URL"
        parser.add_argument(f"--{role}", metavar="URL", default=url, required=not url, help=more)
    parser.add_argument("--model", help="model on the host")
    parser.add_argument("--engine", help="the host's dialect: openai, together, ...; well-known hosts are recognised")
    parser.add_argument(
        "--key-variable", metavar="NAME", help="environment variable with the host's key; default COSD_API_KEY_<HOST>"
    )
    parser.add_argument(
        "--max-billed-tokens", type=int, default=20_000, metavar="N", help="limit for both servers together (20000)"
    )
    args = parser.parse_args()
    if args.key_variable and not os.environ.get(args.key_variable):
        parser.error(f"the environment has no variable {args.key_variable}, or it is empty")
    key = os.environ[args.key_variable] if args.key_variable else None
    try:
        hosted = connect(args.draft, engine=args.engine, model=args.model, api_key=key)
        asyncio.run(answer(args.prompt, hosted, args.assistant, args.max_billed_tokens))
    except (ProviderError, ValueError) as error:  # the message names the host, the failure and a remedy, never a key
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()

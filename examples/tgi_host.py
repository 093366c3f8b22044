r"""A TGI host (Hugging Face's text-generation-inference) as the assistant of any other server.

    text-generation-launcher --model-id SOME/MODEL --enable-prefill-logprobs
    export COSD_DRAFT_URL=http://gpu1:8080 COSD_ASSISTANT_URL=http://tgi:3000
    python examples/tgi_host.py "Once upon a time"

TGI accepts one prompt per request, so every place needs its own request; several requests run at the same time. If TGI
runs with ``--enable-prefill-logprobs``, it first scores the whole text in one request, which makes some of these
requests unnecessary. TGI can also draft, but it continues only text and hides the probability of the end of sequence,
so let the other server draft.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from cosd_api import Fusion, connect
from cosd_providers import Limits, ProviderError

PROMPT = "Q: In Peru a book costs 17 and a pen costs 25. Name the capital and the total.\nA:"  # for the bundled models


async def answer(prompt: str, draft: str, assistant: str, concurrency: int) -> None:
    tgi = connect(assistant, engine="tgi", limits=Limits(concurrency=concurrency))  # further requests wait
    async with Fusion(draft=draft, assistant=tgi) as fusion:
        result = await fusion.generate(prompt)
    print(result.text)
    ways = ", ".join(f"{count} by {way!r}" for way, count in result.usage["assistant"].strategies.items())
    print(f"places that TGI was asked about: {ways or 'none, the draft was confident everywhere'}", file=sys.stderr)
    for name, usage in result.usage.items():
        print(f"{name}: requests {usage.requests}, tokens billed {usage.billed_tokens}", file=sys.stderr)
    for warning in result.warnings:
        print(f"note: {warning}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description="A TGI host as assistant of any other server.")
    parser.add_argument("prompt", nargs="?", default=PROMPT, help="raw text to continue")
    for role, words in (("draft", "the server that writes"), ("assistant", "the TGI host")):
        url = os.environ.get(f"COSD_{role.upper()}_URL")
        more = f"{words}; or set COSD_{role.upper()}_URL"
        parser.add_argument(f"--{role}", metavar="URL", default=url, required=not url, help=more)
    parser.add_argument("--concurrency", type=int, default=8, metavar="N", help="requests to TGI at the same time (8)")
    try:
        asyncio.run(answer(**vars(parser.parse_args())))
    except (ProviderError, ValueError) as error:  # the message names the server, the failure and a remedy
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()

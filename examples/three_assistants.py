r"""One draft and three assistants; if several would replace a word, the most confident one does.

    export COSD_DRAFT_URL=http://gpu1:8080
    export COSD_ASSISTANT_URL="http://law:8080 http://medicine:8080 http://code:8080"     # separated by spaces
    python examples/three_assistants.py "Once upon a time"

The script prints the answer and, for each replaced word, the texts of all assistants. All assistants are asked at the
same time about every place where the draft is unsure, so three assistants cost about three times as much as one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence

from cosd_api import Fusion
from cosd_providers import ProviderError

PROMPT = "Q: Name the capital of Peru, add 17 and 25, and translate cheese into French.\nA:"  # for the bundled models


async def answer(prompt: str, draft: str, assistants: Sequence[str]) -> None:
    # Continue without an assistant that fails; the default, "raise", ends the answer with the error.
    async with Fusion(draft=draft, assistant=assistants, on_assistant_error="draft") as fusion:
        result = await fusion.generate(prompt)
    print(result.text)
    for token in result.tokens:
        if token.replaced is not None:
            print(f"{token.replaced!r} became {token.text!r}, the word of {token.source}", file=sys.stderr)
            for said in token.decisions:
                print(f"    {said.assistant}: {said.text!r}, {said.reason}", file=sys.stderr)
    for endpoint in result.assistants:
        usage = result.usage[endpoint.name]
        print(f"{endpoint.name} ({endpoint.model}): {usage.billed_tokens} tokens billed", file=sys.stderr)
    for warning in result.warnings:
        print(f"note: {warning}", file=sys.stderr)


def main() -> None:
    draft, assistants = os.environ.get("COSD_DRAFT_URL"), os.environ.get("COSD_ASSISTANT_URL", "").split()
    parser = argparse.ArgumentParser(description="One draft and three assistants.")
    parser.add_argument("prompt", nargs="?", default=PROMPT, help="raw text to continue")
    parser.add_argument(
        "--draft", metavar="URL", default=draft, required=not draft, help="server of the draft; or COSD_DRAFT_URL"
    )
    parser.add_argument(
        "--assistant",
        metavar="URL",
        action="append",
        required=not assistants,
        help="server of an assistant, once for each; or COSD_ASSISTANT_URL, separated by spaces",
    )
    args = parser.parse_args()
    try:
        asyncio.run(answer(args.prompt, args.draft, args.assistant or assistants))
    except (ProviderError, ValueError) as error:  # the message names the server, the failure and a remedy
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()

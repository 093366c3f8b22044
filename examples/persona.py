r"""Give one of two chat models a persona; both models write the answer.

    export COSD_DRAFT_URL=http://gpu1:8080 COSD_ASSISTANT_URL=http://gpu2:8080
    python examples/persona.py "Describe the sea."

The persona applies only to this answer and only to the draft; as usual, the assistant is asked where the draft is
unsure.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence

from cosd_api import Fusion
from cosd_providers import ProviderError

PERSONAS = ["You are a pirate captain. Talk like a pirate.", "You are a patient teacher of small children."]
QUESTION = "Describe the sea in two sentences."


async def describe(question: str, personas: Sequence[str], draft: str, assistant: str) -> None:
    async with Fusion(draft=draft, assistant=assistant) as fusion:
        for persona in personas:
            messages = [{"role": "user", "content": question}]
            result = await fusion.generate(messages, own={"draft": persona}, max_tokens=64)
            print(f"> {persona}\n{' '.join(result.text.split())}")


def main() -> None:
    parser = argparse.ArgumentParser(description="One of two chat models is given a persona.")
    parser.add_argument("question", nargs="?", default=QUESTION, help="what the user says")
    parser.add_argument("--persona", metavar="TEXT", action="append", help="a persona; may be repeated")
    for role, job in (("draft", "is given the persona"), ("assistant", "is asked where the draft is unsure")):
        url = os.environ.get(f"COSD_{role.upper()}_URL")
        more = f"the server that {job}; or set COSD_{role.upper()}_URL"
        parser.add_argument(f"--{role}", metavar="URL", default=url, required=not url, help=more)
    args = parser.parse_args()
    try:
        asyncio.run(describe(args.question, args.persona or PERSONAS, args.draft, args.assistant))
    except (ProviderError, ValueError, OSError) as error:  # the message names the server, the failure and a remedy
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()

r"""Let only one of two chat models read a document; both models write the answer.

    export COSD_DRAFT_URL=http://gpu1:8080 COSD_ASSISTANT_URL=http://laptop:8080
    python examples/private_document.py "In which year was the bakery founded?"

The document is sent only to the assistant's server. The draft's server sees only the words that the assistant
contributes to the answer. For each question, the script prints the draft's own answer and the fused one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from cosd_api import Fusion, RuleVerifier, connect
from cosd_providers import ProviderError

DOCUMENT = """Nordlys Bakery is in Bergen, in Norway. It was founded in 1987 by Ingrid Solberg.
It has 212 employees. Its best known bread is called Havbris."""
QUESTIONS = [
    "In which year was Nordlys Bakery founded?",
    "Who founded Nordlys Bakery?",
    "How many employees does Nordlys Bakery have?",
    "What is the best known bread of Nordlys Bakery called?",
]


async def answer(questions: Sequence[str], document: str, draft: str, assistant: str) -> None:
    knows = connect(assistant, system=f"Answer in one sentence, from this document.\n\n{document}")
    # alpha = beta = 1 asks everywhere, so that the more confident model decides, above all about names and numbers.
    everywhere, never = RuleVerifier(alpha=1, beta=1), RuleVerifier(alpha=0)
    async with (
        Fusion(draft=draft, assistant=knows, verifier=everywhere) as together,
        Fusion(draft=draft, assistant=knows, verifier=never) as alone,
    ):
        for question in questions:
            messages = [{"role": "user", "content": question}]
            print(f"> {question}")
            for name, fusion in (("draft alone", alone), ("together", together)):
                result = await fusion.generate(messages, max_tokens=48)
                print(f"{name:>12}: {' '.join(result.text.split())}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Two chat models answer from a document that one of them reads.")
    parser.add_argument("questions", nargs="*", default=QUESTIONS, help="one question each")
    parser.add_argument("--document", metavar="FILE", help="a text file; by default a few invented facts")
    for role, job in (("draft", "writes, without the document"), ("assistant", "reads the document")):
        url = os.environ.get(f"COSD_{role.upper()}_URL")
        more = f"the server that {job}; or set COSD_{role.upper()}_URL"
        parser.add_argument(f"--{role}", metavar="URL", default=url, required=not url, help=more)
    args = parser.parse_args()
    try:
        document = Path(args.document).read_text(encoding="utf-8") if args.document else DOCUMENT
        asyncio.run(answer(args.questions, document, args.draft, args.assistant))
    except (ProviderError, ValueError, OSError) as error:  # the message names the server, the failure and a remedy
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()

r"""Two chat models with different templates in one conversation; each answer is printed as it arrives.

    export COSD_DRAFT_URL=http://gpu1:8080 COSD_ASSISTANT_URL=http://gpu2:8080
    python examples/two_chat_models.py "Who wrote Faust?" "And when?"

Each model reads the messages through its own chat template, and both continue the same answer. The servers render the
templates. If a server cannot do that, use ``--draft-template`` or ``--assistant-template`` to name a ``.jinja`` file or
the model's ``tokenizer_config.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence

from cosd_api import Fusion, connect
from cosd_providers import Provider, ProviderError

QUESTIONS = ["In Peru a book costs 17 and a pen costs 25. Name the capital and the total."]  # for the bundled models


async def talk(questions: Sequence[str], system: str | None, draft: Provider, assistant: Provider) -> None:
    messages = [{"role": "system", "content": system}] if system else []
    async with Fusion(draft=draft, assistant=assistant) as fusion:
        for question in questions:
            print(f"> {question}")
            messages.append({"role": "user", "content": question})
            async with fusion.stream(messages) as stream:
                async for token in stream:
                    print(token.text, end="", flush=True)
            print()
            messages.append({"role": "assistant", "content": stream.result.text})
            for token in stream.result.tokens:
                if token.replaced is not None:
                    print(f"{token.replaced!r} became {token.text!r}: {token.reason}", file=sys.stderr)
            for warning in stream.result.warnings:
                print(f"note: {warning}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description="Two chat models with different templates hold one conversation.")
    parser.add_argument("questions", nargs="*", default=QUESTIONS, help="what the user says, turn by turn")
    parser.add_argument("--system", metavar="TEXT", help="a system message")
    for role, job in (("draft", "writes"), ("assistant", "is asked where the draft is unsure")):
        url = os.environ.get(f"COSD_{role.upper()}_URL")
        more = f"the server that {job}; or set COSD_{role.upper()}_URL"
        parser.add_argument(f"--{role}", metavar="URL", default=url, required=not url, help=more)
        parser.add_argument(
            f"--{role}-template", metavar="FILE", help=f"the {role}'s chat template, with the extra chat"
        )
    args = parser.parse_args()
    try:
        draft = connect(args.draft, chat_template=args.draft_template)
        assistant = connect(args.assistant, chat_template=args.assistant_template)
        asyncio.run(talk(args.questions, args.system, draft, assistant))
    except (ProviderError, ValueError, OSError) as error:  # the message names the server, the failure and a remedy
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()

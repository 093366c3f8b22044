r"""A LangChain chain of a prompt template, a fusion as the model, and a parser; prints the answer as it arrives.

    pip install ".[langchain]"
    export COSD_DRAFT_URL=http://gpu1:8080 COSD_ASSISTANT_URL=http://gpu2:8080
    python examples/langchain_chain.py Peru Japan

To use a fusion in an existing chain, change only the line that creates the model.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from cosd_api.apps.langchain import ChatCoSD
from cosd_providers import ProviderError

TEMPLATE = "In {country} a book costs 17 and a pen costs 25. Name the capital and the total."  # for the bundled models


def answer(countries: Sequence[str], draft: str, assistant: str, max_tokens: int) -> None:
    prompt = ChatPromptTemplate.from_messages([("human", TEMPLATE)])
    model = ChatCoSD(draft=draft, assistant=assistant, max_tokens=max_tokens)
    chain = prompt | model | StrOutputParser()
    for country in countries:
        for text in chain.stream({"country": country}):
            print(text, end="", flush=True)
        print()

    message = model.invoke(prompt.invoke({"country": countries[-1]}))  # no parser, to get a message with metadata
    fused, usage = message.response_metadata["cosd"], message.usage_metadata
    print(f"{fused['acceptance_rate']:.0%} of the draft kept, replaced {fused['replacements']} times", file=sys.stderr)
    print(
        f"{message.response_metadata['model_name']}: {usage and usage['total_tokens']} tokens billed", file=sys.stderr
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="A LangChain chain whose model is a fusion.")
    parser.add_argument("countries", nargs="*", default=["Peru"], help="values for the template")
    for role, job in (("draft", "writes"), ("assistant", "is asked where the draft is unsure")):
        url = os.environ.get(f"COSD_{role.upper()}_URL")
        more = f"the server that {job}; or set COSD_{role.upper()}_URL"
        parser.add_argument(f"--{role}", metavar="URL", default=url, required=not url, help=more)
    parser.add_argument("--max-tokens", type=int, default=256, metavar="N", help="limit for the answer (256)")
    try:
        answer(**vars(parser.parse_args()))
    except (ProviderError, ValueError) as error:  # the message names the server, the failure and a remedy
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()

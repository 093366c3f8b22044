r"""Answer a file of prompts, several at a time. An interrupted run resumes where it stopped.

    python examples/prompts_from_file.py prompts.txt answers.jsonl --draft http://gpu1:8080 --assistant http://gpu2:8080

The file has one prompt per line, with ``\n`` for a line break inside a prompt. In a file named ``*.jsonl``, each line
is an object with a ``prompt`` (a text or a list of messages). The answers are written as one JSON object per line, in
the order of the prompts, while later prompts are still in progress. If a prompt fails, its line contains the error, and
the other prompts continue. The next run appends the missing answers; if two lines have the same ``number``, the later
one counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from cosd_api import Fusion, FusionResult, SettingError
from cosd_providers import ProviderError

BEGINNING = b'{"number": '  # every line of the answers begins like this


def read_prompts(path: Path) -> list[Any]:
    lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    if path.suffix != ".jsonl":
        return [line.rstrip("\r").replace("\\n", "\n") for line in lines]
    prompts: list[Any] = []
    for line in lines:
        try:
            prompts.append(json.loads(line)["prompt"])
        except (ValueError, KeyError, TypeError):
            words = f'{path}: object {len(prompts) + 1} has no "prompt"'
            raise ValueError(words) from None
    return prompts


def as_message(prompt: Any) -> Any:
    """Turn a text into a user message; return a conversation unchanged."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def answered(path: Path, prompts: Sequence[Any]) -> set[int]:
    """Return the numbers of the answered prompts, and remove a last line that a crash has cut off."""
    *whole, cut = path.read_bytes().split(b"\n") if path.exists() else [b""]
    if not all(line.startswith(BEGINNING) for line in whole) or cut[: len(BEGINNING)] != BEGINNING[: len(cut)]:
        raise ValueError(f"{path} does not hold answers; name another file")
    if cut:
        os.truncate(path, path.stat().st_size - len(cut))
    last = {row["number"]: row for row in map(json.loads, whole)}
    return {n for n, row in last.items() if "text" in row and prompts[n - 1 : n] == [row.get("prompt")]}


def as_row(number: int, prompt: Any, result: FusionResult | ProviderError | SettingError) -> dict[str, Any]:
    row: dict[str, Any] = {"number": number, "prompt": prompt}
    if isinstance(result, FusionResult):
        return row | {"text": result.text, "finish_reason": result.finish_reason}
    return row | {"error": str(result), "retryable": getattr(result, "retryable", False)}


def billed_by(result: FusionResult | ProviderError | SettingError) -> int:
    """The number of billed tokens of an answer or of a failed attempt."""
    made = result if isinstance(result, FusionResult) else getattr(result, "partial", None)
    return sum(usage.billed_tokens for usage in made.usage.values()) if made is not None else 0


async def answer(args: argparse.Namespace) -> str | None:
    """Answer the prompts that have no answer yet; return a message if some are still unanswered."""
    prompts = read_prompts(args.prompts)
    done = answered(args.answers, prompts)
    missing = [number for number in range(1, len(prompts) + 1) if number not in done]
    print(f"{len(prompts)} prompts, {len(done)} of them answered already", file=sys.stderr)
    count = failed = billed = 0
    async with Fusion(draft=args.draft, assistant=args.assistant) as fusion:
        await fusion.estimate("Hello")  # if a server is down, fail once rather than for every prompt
        results = fusion.map(
            (as_message(prompts[number - 1]) if args.chat else prompts[number - 1] for number in missing),
            concurrency=args.concurrency,
            on_error="return",
            max_tokens=args.max_tokens,
            timeout=args.timeout,
        )
        with args.answers.open("a", encoding="utf-8", errors="backslashreplace") as file:
            async with aclosing(results):  # leaving the loop cancels the answers in progress
                async for result in results:
                    row = as_row(missing[count], prompts[missing[count] - 1], result)
                    count += 1
                    failed += "error" in row
                    billed += billed_by(result)
                    print(json.dumps(row, ensure_ascii=False), file=file, flush=True)
                    print(f"{count} of {len(missing)}, {failed} failed, {billed} tokens billed", file=sys.stderr)
                    if args.budget is not None and billed >= args.budget:
                        break
    if count < len(missing):
        return f"the budget is spent; start again for the {len(missing) - count} prompts that are left"
    return f"{failed} failed, see {args.answers}; start again to ask for them again" if failed else None


def main() -> None:
    parser = argparse.ArgumentParser(description="A file of prompts becomes a file of answers.")
    prompts = Path(__file__).with_name("prompts.txt")
    parser.add_argument(
        "prompts",
        nargs="?",
        type=Path,
        default=prompts,
        help="file of prompts (prompts.txt in the folder of this program)",
    )
    parser.add_argument(
        "answers", nargs="?", type=Path, default=Path("answers.jsonl"), help="file of answers (answers.jsonl)"
    )
    parser.add_argument("--chat", action="store_true", help="send prompts as user messages to two chat models")
    for role in ("draft", "assistant"):
        url = os.environ.get(f"COSD_{role.upper()}_URL")
        words = f"a server; or set COSD_{role.upper()}_URL"
        parser.add_argument(f"--{role}", metavar="URL", default=url, required=not url, help=words)
    parser.add_argument("--concurrency", type=int, default=8, metavar="N", help="answers at the same time (8)")
    parser.add_argument("--max-tokens", type=int, default=256, metavar="N", help="limit for each answer (256)")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="for each answer; no limit by default")
    parser.add_argument("--budget", type=int, metavar="N", help="stop after this many billed tokens")
    try:
        missing = asyncio.run(answer(parser.parse_args()))
    except (ProviderError, ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted; start again to resume")
    sys.exit(missing)  # None exits with code 0


if __name__ == "__main__":
    main()

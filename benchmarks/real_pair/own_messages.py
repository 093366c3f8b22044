"""The scenario *own messages*: only the assistant has a document, as its system message. No training is needed.

    python -m benchmarks.real_pair.own_messages            # ask; run it again to resume
    python -m benchmarks.real_pair.own_messages --page     # print the table of the kept answers

Both models are `numbers`, which knows few facts. Each document states the facts of three products.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import anyio

from benchmarks.real_pair.arithmetic import calculation
from benchmarks.real_pair.cells import Cell, served
from benchmarks.real_pair.kept import RESULTS
from benchmarks.real_pair.outcomes import Answered, apart, uncached
from benchmarks.real_pair.questions import family_of, is_right, joined
from benchmarks.real_pair.world import ATTRIBUTES, PRODUCTS, product_part
from benchmarks.report import Table
from cosd_api import Average, CoSD, Example, Fusion, RuleVerifier
from cosd_api.apps.comparison.journal import AnswerUsage
from cosd_api.extend import Method

WORK = Path(__file__).parent / "work"
DOCUMENTS, IN_EACH, MAX_TOKENS = 12, 3, 64
DRAFT, ASSISTANT = "without the document", "with the document"
_ALONE = CoSD(verifier=RuleVerifier(alpha=0))
WAYS: Mapping[str, Method] = {
    DRAFT: _ALONE,
    ASSISTANT: _ALONE,
    "cosd": CoSD(verifier=RuleVerifier(alpha=0.5, beta=0.5)),
    "cosd-0.9-1": CoSD(verifier=RuleVerifier(alpha=0.9, beta=1)),
    "cosd-1-1": CoSD(verifier=RuleVerifier(alpha=1, beta=1)),
    "average": Average(),
}


@dataclass(frozen=True)
class Asked:
    """A question, and the document that states the fact it asks for."""

    example: Example
    document: str


def asked() -> Iterator[Asked]:
    """All questions: for each product, its facts, one fact combined with a calculation, and one calculation alone."""
    rng = random.Random("own messages")
    numbers = rng.sample(range(PRODUCTS), DOCUMENTS * IN_EACH)
    for first in range(0, len(numbers), IN_EACH):
        products = numbers[first : first + IN_EACH]
        facts = [[product_part(one, attribute, rng, held=True) for attribute in ATTRIBUTES] for one in products]
        document = " ".join(part.answer for several in facts for part in several)
        for several in facts:
            two = [rng.choice(several), calculation(rng, "test")]
            rng.shuffle(two)
            for parts in ([one] for one in several):
                yield Asked(joined(parts), document)
            yield Asked(joined(two), document)
            yield Asked(joined([calculation(rng, "test")]), document)


async def answer_all(seed: int, share: float) -> None:
    """Ask the questions that the journal has no answers to."""
    journal = WORK / f"own-messages-{seed}.jsonl"
    WORK.mkdir(exist_ok=True)
    known = {(one.way, one.question) for one in _read(journal)}
    several = [*asked()]
    several = several[: round(share * len(several))]
    limiter = anyio.CapacityLimiter(3)
    cell = Cell({"numbers": 1.0}, {"numbers": 1.0}, ())

    async def one(way: str, fusion: Fusion, given: Asked) -> None:
        messages = given.example.prompt
        owner = "draft" if way == ASSISTANT else "assistant"
        async with limiter:
            began = time.monotonic()
            result = await fusion.generate(messages, own={owner: given.document}, max_tokens=MAX_TOKENS)
        line = Answered(
            way=way,
            question=given.example.key,
            family=family_of(given.example),
            group=given.example.group or "",
            right=is_right(given.example, result.text),
            uncached=uncached(map(AnswerUsage.of, result.usage.values())),
            seconds=time.monotonic() - began,
            text=result.text,
        )
        with journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(line)) + "\n")

    with served(cell, seed) as urls:
        for way, method in WAYS.items():
            fusing = Fusion(draft=urls[0], assistant=urls[1], method=method)
            async with fusing as fusion, anyio.create_task_group() as group:
                for given in several:
                    if (way, given.example.key) not in known:
                        group.start_soon(one, way, fusion, given)
    kept(seed).write_bytes(lzma.compress(journal.read_bytes(), preset=9))


def kept(seed: int) -> Path:
    """The file that contains the kept answers."""
    return RESULTS / f"own-messages-{seed}.jsonl.xz"


def _read(path: Path) -> list[Answered]:
    if not path.exists():
        return []
    data = path.read_bytes()
    text = (lzma.decompress(data) if path.suffix == ".xz" else data).decode()
    return [Answered(**json.loads(line)) for line in text.splitlines()]


def table(seed: int = 1) -> Table:
    """Right answers by family, with the differences from each model."""
    return apart("A document that the assistant alone has", _read(kept(seed)), (DRAFT, ASSISTANT))


def main() -> None:
    """Ask the questions, and print the table."""
    parser = argparse.ArgumentParser("python -m benchmarks.real_pair.own_messages", description=main.__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--share", type=float, default=1.0, help="share of the questions to ask, in (0, 1]")
    parser.add_argument("--page", action="store_true", help="print the kept results without asking")
    given = parser.parse_args()
    if not given.page:
        anyio.run(partial(answer_all, given.seed, given.share))
    print(table(given.seed).markdown())


if __name__ == "__main__":
    main()

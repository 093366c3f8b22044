"""The seam: rules that might prevent errors at the point where a replaced token meets the draft's own words.

    python -m benchmarks.real_pair.seam            # try the rules on development questions, with a one-page decoder
    python -m benchmarks.real_pair.seam --test     # try the chosen candidate on test questions
    python -m benchmarks.real_pair.seam --page     # print the tables of the kept answers

The decoder is independent of the library: it works only on ids, sends one question at a time, and drafts again after
each replacement. It therefore implements each rule exactly as the rule is defined.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx

from benchmarks.real_pair.arithmetic import Split
from benchmarks.real_pair.cells import CELLS, served
from benchmarks.real_pair.kept import RESULTS
from benchmarks.real_pair.outcomes import Answered, outcomes_of, points
from benchmarks.real_pair.questions import FAMILIES, family_of, is_right, question_of, questions
from benchmarks.report import Cell, Table
from cosd_api import Example, Fusion, RuleVerifier
from cosd_api.apps.comparison.statistics import Joint

ITEMS = {"facts": 60, "numbers": 60, "both": 120}
"""The number of questions on which the rules are tried, by family."""
MAX_TOKENS = 64


_SURE, _LISTED = 0.9, 20


@dataclass(frozen=True)
class Listed:
    """A token that a model wrote.

    Attributes:
        token: the token's id.
        text: its text.
        listed: the probabilities of the 20 most probable tokens, by id.
    """

    token: int
    text: str
    listed: dict[int, float]


@dataclass(frozen=True)
class SeamRule:
    """A rule for one token of the draft.

    Attributes:
        alpha: the assistant is asked if the draft's probability p is below this value.
        beta: the assistant's token replaces the draft's only if q > beta * p.
        floor: a further condition for a replacement: q must be at least this value.
        after: whether the assistant is always asked about the token after a replaced one, because the draft computed
            the probability of that token for a text that it would not have written.
        whole: whether the assistant is also asked about all further tokens of a word or number in which a token was
            replaced.
        named: alpha for tokens that begin with a digit or a capital letter; None if they have no alpha of their own.
        margin: a further condition for a replacement: q must be above beta * p by more than this value.
        mean: whether, if neither model gives its token a probability of 0.9, the token with the highest mean of both
            models' probabilities is taken instead, of those that both list among their first 20.
    """

    alpha: float
    beta: float
    floor: float = 0.0
    after: bool = False
    whole: bool = False
    named: float | None = None
    margin: float = 0.0
    mean: bool = False

    def asks(self, p: float, text: str, *, fresh: bool, inside: bool) -> bool:
        """Test whether the assistant is asked about a token.

        Args:
            p: the draft's probability of its token.
            text: the token's text.
            fresh: whether the previous token was replaced.
            inside: whether an earlier token of the same word was replaced.
        """
        first = text.strip()[:1]
        named = self.named is not None and (first.isdigit() or first.isupper())
        alpha = self.named if named and self.named is not None else self.alpha
        return p < alpha or (self.after and fresh) or (self.whole and inside and text[:1].isalnum())

    def chosen(self, own: Listed, other: Listed) -> int:
        """The token that is taken, given the draft's and the assistant's most probable tokens."""
        p, q = own.listed[own.token], other.listed[other.token]
        if self.mean and max(p, q) < _SURE:
            both = {one: own.listed[one] + other.listed[one] for one in own.listed if one in other.listed}
            return max(both, key=lambda one: both[one], default=own.token)
        return other.token if q > self.beta * p + self.margin and q >= self.floor else own.token


RULES = {
    "(.5, .5)": SeamRule(0.5, 0.5),
    "(.5, 1)": SeamRule(0.5, 1),
    "(.5, .5), q >= .5": SeamRule(0.5, 0.5, floor=0.5),
    "(.5, .5), and the token after": SeamRule(0.5, 0.5, after=True),
    "(.5, .5), words to their end": SeamRule(0.5, 0.5, whole=True),
    "(.5, 1), and the token after": SeamRule(0.5, 1, after=True),
    "(.5, 1), words to their end": SeamRule(0.5, 1, whole=True),
    "(.9, 1)": SeamRule(0.9, 1),
    "(1, 1)": SeamRule(1.01, 1),
    "(.5, 1), names and numbers (.97, 1)": SeamRule(0.5, 1, named=0.97),
    "(.9, 1), q > p + .1": SeamRule(0.9, 1, margin=0.1),
    "(.9, 1), the mean if both are unsure": SeamRule(0.9, 1, mean=True),
}
"""The rules by name. With alpha = 1.01, the assistant is also asked about tokens of probability 1."""
ALONE = "the draft alone"
BASE, CANDIDATE = "(.9, 1)", "(.9, 1), the mean if both are unsure"
"""The default, and the rule that was chosen on development questions to be compared with it on test questions."""
SHUFFLED = "(.9, 1), the assistant reads another question"
"""The name of the control, in which the assistant reads the next question of the family."""
WORDS = "(.9, 1), whole words, by the library"
"""The name of the runs that judge words, as for models with different ids; only the library can do that."""


class Server:
    """A llama.cpp server that is sent token ids."""

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self._client, self._url = client, url

    async def _post(self, path: str, **body: Any) -> Any:
        answer = await self._client.post(self._url + path, json=body)
        answer.raise_for_status()
        return answer.json()

    async def prompt(self, question: str) -> list[int]:
        """The ids of a user's question, formatted by the chat template."""
        said = await self._post("/apply-template", messages=[{"role": "user", "content": question}])
        return await self.ids(said["prompt"])

    async def ids(self, text: str) -> list[int]:
        """The ids of a text; names of special tokens become special tokens."""
        found: list[int] = (await self._post("/tokenize", content=text, add_special=False, parse_special=True))[
            "tokens"
        ]
        return found

    async def draft(self, ids: Sequence[int], count: int) -> list[Listed]:
        """The greedy continuation of `ids`."""
        asked = {"prompt": ids, "n_predict": count, "n_probs": _LISTED, "temperature": 0, "samplers": ["temperature"]}
        found = (await self._post("/completion", **asked))["completion_probabilities"]
        return [
            Listed(
                one["id"],
                one.get("token", ""),
                {other["id"]: math.exp(other["logprob"]) for other in (*one["top_logprobs"], one)},
            )
            for one in found
        ]

    async def text(self, ids: Sequence[int]) -> str:
        """The text that the ids encode."""
        found: str = (await self._post("/detokenize", tokens=[*ids]))["content"]
        return found


async def decode(
    draft: Server, assistant: Server, question: str, rule: SeamRule, end: int, other: str = ""
) -> tuple[str, int, int]:
    """The answer fused by a rule, the number of questions to the assistant, and the number of replacements.

    If `other` is given, the assistant reads that question instead, as a control.
    """
    prompt = await draft.prompt(question)
    read = await assistant.prompt(other or question)
    out: list[int] = []
    asked = replaced = 0
    fresh = inside = False
    while len(out) < MAX_TOKENS and end not in out:
        found = await draft.draft([*prompt, *out], MAX_TOKENS - len(out))
        changed = False
        for one in found:
            inside = inside and one.text[:1].isalnum()
            choice = one.token
            if rule.asks(one.listed[one.token], one.text, fresh=fresh, inside=inside):
                asked += 1
                answer = await assistant.draft([*read, *out], 1)
                if answer and answer[0].token != one.token:
                    choice = rule.chosen(one, answer[0])
                    replaced += choice != one.token
            out.append(choice)
            fresh = changed = choice != one.token
            inside = inside or changed
            if changed or choice == end:
                break
        if not changed:
            break
    return await draft.text([one for one in out if one != end]), asked, replaced


@dataclass(frozen=True)
class Tried:
    """One answer that was written by a rule."""

    rule: str
    draft: str
    question: str
    family: str
    text: str
    right: bool
    asked: int
    replaced: int


async def tried(seed: int, share: float, *, test: bool) -> None:
    """Try all rules on development questions, or two on test questions, with either specialist as the draft.

    Kept answers are not asked for again.
    """
    split: Split = "test" if test else "development"
    several = questions(split, {family: round(share * count) for family, count in ITEMS.items()})
    path = kept_rules(seed, test=test)
    found = read_tried(path)
    rules = {one: RULES[one] for one in (CANDIDATE, BASE)}
    if not test:
        rules = {ALONE: SeamRule(0, 1), **RULES, SHUFFLED: RULES[BASE]}
    with served(CELLS["complementary"], seed) as urls:
        async with _clients(urls) as (first, second):
            [end] = await first.ids("<|im_end|>")
            for label, rule in rules.items():
                for name, draft, assistant in (("products", first, second), ("numbers", second, first)):
                    known = {one.question for one in found if (one.rule, one.draft) == (label, name)}
                    left = [one for one in several if one.key not in known]
                    if not left:
                        continue
                    began = time.monotonic()
                    shuffled = label == SHUFFLED
                    found += await _answers(name, draft, assistant, label, rule, left, end, shuffled=shuffled)
                    write_tried(path, found)
                    print(f"{name} drafts, {label}: {time.monotonic() - began:.0f} s", flush=True)
        if test:
            return
        for name, order in (("products", urls), ("numbers", urls[::-1])):
            known = {one.question for one in found if (one.rule, one.draft) == (WORDS, name)}
            found += await _by_words(name, *order, [one for one in several if one.key not in known])
            write_tried(path, found)


async def _by_words(name: str, draft: str, assistant: str, several: Sequence[Example]) -> list[Tried]:
    """Answers written by the library, which judges whole words."""
    rule = RuleVerifier(alpha=0.9, beta=1)
    found: list[Tried] = []
    async with Fusion(draft=draft, assistant=assistant, unit="word", verifier=rule) as fusion:
        answers = fusion.map([one.prompt for one in several], max_tokens=MAX_TOKENS, concurrency=3)
        async for result in answers:
            example, text = several[len(found)], result.text
            asked = len({token.unit for token in result.tokens if token.asked})
            right = is_right(example, text)
            found.append(
                Tried(WORDS, name, example.key, family_of(example), text, right, asked, result.replacements or 0)
            )
    return found


def kept_rules(seed: int = 1, *, test: bool = False) -> Path:
    """The file with the answers to development questions, or to test questions."""
    return RESULTS / f"seam-{'test-' if test else ''}{seed}.jsonl.xz"


def read_tried(path: Path) -> list[Tried]:
    """The answers in a file; an empty list if it does not exist."""
    if not path.exists():
        return []
    return [Tried(**json.loads(line)) for line in lzma.decompress(path.read_bytes()).splitlines()]


def write_tried(path: Path, found: Sequence[Tried]) -> None:
    """Write answers to a file."""
    path.parent.mkdir(exist_ok=True)
    text = "".join(json.dumps(asdict(one)) + "\n" for one in found)
    path.write_bytes(lzma.compress(text.encode(), preset=9))


async def _answers(
    name: str,
    draft: Server,
    assistant: Server,
    label: str,
    rule: SeamRule,
    several: Sequence[Example],
    end: int,
    *,
    shuffled: bool = False,
) -> list[Tried]:
    found: list[Tried] = []
    limiter = anyio.CapacityLimiter(3)
    others = [*several[1:], several[0]] if shuffled else None

    async def one(at: int, example: Example) -> None:
        other = question_of(others[at]) if others else ""
        async with limiter:
            text, asked, replaced = await decode(draft, assistant, question_of(example), rule, end, other)
        right = is_right(example, text)
        found.append(Tried(label, name, example.key, family_of(example), text, right, asked, replaced))

    async with anyio.create_task_group() as group:
        for at, example in enumerate(several):
            group.start_soon(one, at, example)
    return found


@asynccontextmanager
async def _clients(urls: Sequence[str]) -> AsyncGenerator[list[Server]]:
    async with httpx.AsyncClient(timeout=300) as client:
        yield [Server(client, url) for url in urls]


def rules_table(found: Sequence[Tried]) -> Table:
    """For each rule, right answers in per cent, and the numbers of questions and replacements per answer."""
    rows: list[list[Any]] = []
    for name in dict.fromkeys(one.draft for one in found):
        for label in dict.fromkeys(one.rule for one in found):
            mine = [one for one in found if (one.draft, one.rule) == (name, label)]
            if not mine:
                continue
            shares = [
                f"{100 * sum(one.right for one in some) / len(some):.0f}" if some else ""
                for some in ([one for one in mine if one.family == family] for family in FAMILIES[:3])
            ]
            means = (sum(one.asked for one in mine) / len(mine), sum(one.replaced for one in mine) / len(mine))
            rows.append([name, label, *shares, *(f"{one:.1f}" for one in means)])
    return Table(
        "Rules at the seam, on development questions", ["drafts", "rule", *FAMILIES[:3], "asked", "replaced"], rows
    )


def candidate_table(found: Sequence[Tried]) -> Table:
    """Right answers of the candidate and of the default in per cent, and the difference with its interval."""
    groups, rows = {one.key: one.group or one.key for one in questions("test")}, list[list[Cell]]()
    for name in dict.fromkeys(one.draft for one in found if one.rule == BASE):  # which is asked after the candidate
        several = [
            Answered(one.rule, one.question, one.family, groups[one.question], one.right, 0)
            for one in found
            if one.draft == name
        ]
        outcomes = outcomes_of(several, [BASE])
        apart = Joint(outcomes, [CANDIDATE]).difference(CANDIDATE, BASE)
        total = len(outcomes.questions)
        shares = [f"{100 * sum(outcomes.right[one].values()) / total:.1f}" for one in (BASE, CANDIDATE)]
        rows.append([name, str(total), *shares, f"{apart.counts.won}:{apart.counts.lost}", points(apart)])
    columns = ["drafts", "questions", BASE, CANDIDATE, "won:lost", "difference"]
    return Table("The candidate, on test questions", columns, rows)


def main() -> None:
    """Try the rules, keep the answers, and print the table."""
    parser = argparse.ArgumentParser("python -m benchmarks.real_pair.seam", description=main.__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--share", type=float, default=1.0, help="share of the questions, in (0, 1]")
    parser.add_argument("--test", action="store_true", help="try the candidate and the default on test questions")
    parser.add_argument("--page", action="store_true", help="print the kept results without trying rules")
    given = parser.parse_args()
    if not given.page:
        anyio.run(partial(tried, given.seed, given.share, test=given.test))
    print(rules_table(read_tried(kept_rules(given.seed))).markdown())
    print(candidate_table(read_tried(kept_rules(given.seed, test=True))).markdown())


if __name__ == "__main__":
    main()

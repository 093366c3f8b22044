"""Everything that the adapters send, pinned: a JSON file beside this module for each engine and way of asking it.

The stand-ins of the other tests answer. A file has the method, the path and the body of each request, by the call that
sent it; those of one call are sorted, since many are sent at once. Fields that all requests to a path have in common
stand apart, under `always`. Headers are left out, and keys with them.

A change of what is sent fails with a diff. If it is meant, `make wire` writes the files anew (and removes those that
belong to no case): look at the difference before you commit it.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cosd_api import Fusion, RuleVerifier
from cosd_providers import DraftEnd, Question, Token, Usage
from cosd_providers.contract import Alive, Context, HiddenStates
from fakes import tgi as stand_in_tgi
from fakes.wired import ANSWER, HELLO, KEY, OTHER, SUBJECTS, Subject, Wire

HERE = Path(__file__).parent
WRITES = os.environ.get("COSD_WIRE") == "write"  # read here: no test sees such a variable (see tests/conftest.py)

TEXT = b" one two three 4"
WORDS = [Question(at, (data,), word=True) for at, data in ((0, b" one"), (4, b" two"), (8, b" three"), (14, b" 4"))]
TOKENS = [Question(at, tokens) for at, tokens in ((4, (b" two", b" three")), (8, (b" three",)), (16, (b"",)))]
FUSED = {"text": " one 2 three four five six seven eight", "conversation": "Hi all of you"}


# What is asked: only these functions call `generate`, `propose`, `score` and the methods for hidden states.


async def draft(provider: Any, prompt: str = "Q:", text: bytes = b"", limit: int = 5, **more: Any) -> tuple[bytes, Any]:
    """The text of a draft, and what continues it."""
    items: list[Token | DraftEnd] = [
        item async for item in provider.generate(Context(prompt, text), max_tokens=limit, usage=Usage(), **more)
    ]
    *_, end = items
    assert isinstance(end, DraftEnd)
    return b"".join(item.data for item in items if isinstance(item, Token)), end.continuation


async def propose(
    provider: Any, questions: Sequence[Question] | None, prompt: str = "Q:", text: bytes = TEXT, alternatives: int = 0
) -> None:
    await provider.propose(Context(prompt, text), questions, alternatives=alternatives, usage=Usage())


async def score(provider: Any, **more: Any) -> None:
    await provider.score(Context("Q:", TEXT), usage=Usage(), **more)


async def draft_states(provider: Any) -> None:
    async for _ in provider.generate_with_states(Context("Q:", b" one"), max_tokens=3, usage=Usage()):
        pass


async def states(provider: Any) -> None:
    await provider.hidden_states(Context("Q:", TEXT), usage=Usage())


# Cases.


async def describe(subject: Subject, wire: Wire) -> None:
    provider = subject.provider(wire)
    wire.of("describe")
    await provider.describe()
    if isinstance(provider, Alive):
        wire.of("check_alive")
        await provider.check_alive()


async def known(subject: Subject, wire: Wire, **options: Any) -> tuple[Any, Any]:
    """An adapter that knows its server, and the server's abilities."""
    provider = subject.provider(wire, **options)
    wire.of("describe")
    able = (await provider.describe()).capabilities
    wire.sent.clear()
    return provider, able


async def drafts(subject: Subject, wire: Wire) -> None:
    provider, able = await known(subject, wire)
    wire.of("fresh")
    text, continuation = await draft(provider, limit=2)
    if able.continues:
        wire.of("continued")
        await draft(provider, text=text, continuation=continuation)
        wire.of("from text")
        await draft(provider, text=b" one 2")
        wire.of("split characters")
        await draft(provider, "Café:")
    if able.top_k:
        wire.of("alternatives")
        await draft(provider, alternatives=3)
    if able.sampling:
        wire.of("drawn")
        await draft(provider, limit=2, temperature=1, seed=7)


async def proposals(subject: Subject, wire: Wire, strategy: str | None) -> None:
    options = {} if strategy is None else {"strategy": strategy}
    provider, able = await known(subject, wire, scripts=OTHER, **options)
    wire.of("words")
    await propose(provider, WORDS)
    wire.of("one word")
    await propose(provider, WORDS[1:2])
    if able.probs:
        wire.of("tokens")
        await propose(provider, TOKENS, alternatives=2)
    if able.tokenize or able.score:
        wire.of("boundaries")
        await propose(provider, None, alternatives=2)


async def scores(subject: Subject, wire: Wire) -> None:
    provider, _ = await known(subject, wire)
    wire.of("text")
    await score(provider)
    wire.of("alternatives and the end")
    await score(provider, alternatives=3, end=True)


async def tokenizes(subject: Subject, wire: Wire) -> None:
    provider, _ = await known(subject, wire)
    wire.of("tokenize")
    await provider.tokenize(TEXT.decode())


async def chats(subject: Subject, wire: Wire) -> None:
    provider, _ = await known(subject, wire)
    wire.of("render")
    turn = await provider.render_prompt(HELLO)
    wire.of("draft")
    await draft(turn.provider, turn.prompt)
    wire.of("propose")
    await propose(turn.provider, [Question(2, (b" there",), word=True)], turn.prompt, b"Hi there")


async def hidden(subject: Subject, wire: Wire) -> None:
    provider, _ = await known(subject, wire)
    assert isinstance(provider, HiddenStates)
    wire.of("draft")
    await draft_states(provider)
    wire.of("text")
    await states(provider)


async def by_ids(subject: Subject, wire: Wire) -> None:
    provider, able = await known(subject, wire)
    assert able.ids
    wire.of("draft")
    ids: list[int] = []
    start = Context("Q:", b"", ())
    async for item in provider.generate(start, max_tokens=4, alternatives=1, usage=Usage()):
        if isinstance(item, Token):
            assert item.id is not None
            ids.append(item.id)
    wire.of("next_tokens")
    places = [Context("Q:", b"", tuple(ids[:count])) for count in (0, 2, 3)]
    await provider.next_tokens(places, usage=Usage())
    wire.of("score_ids")
    await provider.score_ids(Context("Q:", b"", tuple(ids)), 1, alternatives=2, end=True, usage=Usage())
    wire.of("encode and decode")
    await provider.encode(" one two")
    await provider.decode(ids)


async def fusions(subject: Subject, wire: Wire, *, shared: bool) -> None:
    roles: dict[str, Any] = {
        role: subject.provider(wire, scripts, shared=shared, url=f"http://{role}:8000")
        for role, scripts in (("draft", ANSWER), ("assistant", OTHER))
    }
    async with Fusion(verifier=RuleVerifier.paper(), draft_length=4, **roles) as fusion:
        asked: dict[str, Any] = {"text": "Q:", **({"conversation": HELLO} if "chat" in subject.more else {})}
        for call, prompt in asked.items():
            wire.of(call)
            result = await fusion.generate(prompt, max_tokens=12)
            assert result.text == FUSED[call]


Case = Callable[[Subject, Wire], Awaitable[None]]
MORE: Mapping[str, Case] = {
    "score": scores,
    "tokenize": tokenizes,
    "chat": chats,
    "hidden_states": hidden,
    "ids": by_ids,
    "fusion_one_tokenizer": partial(fusions, shared=True),
    "fusion_two_tokenizers": partial(fusions, shared=False),
}


def cases() -> Iterator[tuple[str, Case, Subject]]:
    """Every case, with the name of its file."""
    for subject in SUBJECTS:
        ways = {"describe": describe, "draft": drafts}
        ways |= {f"propose_{way or 'default'}": partial(proposals, strategy=way) for way in subject.strategies}
        for way, case in {**ways, **{name: MORE[name] for name in subject.more}}.items():
            yield f"{subject.name}.{way}", case, subject


CASES = [pytest.param(name, case, subject, id=name) for name, case, subject in cases()]


@pytest.mark.parametrize(("name", "case", "subject"), CASES)
async def test_what_is_sent(name: str, case: Case, subject: Subject) -> None:
    stand_in_tgi.VIOLATIONS.clear()
    wire = Wire()
    await case(subject, wire)
    assert stand_in_tgi.VIOLATIONS == []
    file, sent = HERE / f"{name}.json", str(wire)
    assert KEY not in sent
    if WRITES:
        file.write_text(sent, encoding="utf-8")
    pinned = file.read_text(encoding="utf-8") if file.exists() else ""
    if sent != pinned:
        lines = difflib.unified_diff(pinned.splitlines(), sent.splitlines(), file.name, "what is sent now", lineterm="")
        pytest.fail("\n".join([*lines, "", "If that is meant: make wire"]), pytrace=False)


def test_every_file_belongs_to_a_case() -> None:
    surplus = {file.stem for file in HERE.glob("*.json")} - {name for name, *_ in cases()}
    if WRITES:
        for name in surplus:
            (HERE / f"{name}.json").unlink()
        return
    assert surplus == set(), "make wire removes these"

"""The route of each assistant, by what the servers can do, the method and the unit."""

from __future__ import annotations

from typing import Any

import pytest

from cosd_api.alignment import Unit
from cosd_api.decoding.route import Routes, in_words

case = pytest.param
WRITES: Any = {"judges": False, "own_paths": True}
STATES: Any = {"judges": False, "own_paths": False}


@pytest.mark.parametrize(
    ("draft", "assistants", "unit", "method", "expected"),
    [
        case("ids", ["same"], "token", {}, Routes("ids", ("ids",)), id="same ids"),
        case("ids", ["same", "same"], "token", {}, Routes("ids", ("ids", "ids")), id="same ids, two assistants"),
        case("ids", ["ids"], "word", {}, Routes("ids", ("own",)), id="different ids"),
        case("ids", ["text"], "word", {}, Routes("ids", ("text",)), id="a text-only assistant"),
        case("text", ["ids"], "word", {}, Routes("text", ("own",)), id="a text-only draft"),
        case("text", ["text"], "word", {}, Routes("text", ("text",)), id="text only"),
        case("ids", ["same", "ids", "text"], "word", {}, Routes("ids", ("ids", "own", "text")), id="mixed"),
        case("text", ["ids", "text"], "word", {}, Routes("text", ("own", "text")), id="mixed, and a text-only draft"),
        case("ids", ["ids"], "token", {}, Routes("text", ("literal",)), id="tokens of other ids"),
        case("ids", ["same", "ids"], "token", {}, Routes("text", ("literal",) * 2), id="tokens, not all shared"),
        case("text", ["text"], "token", {}, Routes("text", ("literal",)), id="tokens of text-only servers"),
        case("ids", ["ids"], "literal", {}, Routes("text", ("literal",)), id="literal by choice"),
        case("ids", ["same"], "token", STATES, Routes("text", ("literal",)), id="hidden states need text"),
        case("ids", ["ids"], "word", STATES, Routes("text", ("literal",)), id="hidden states, different ids"),
        case("ids", ["same"], "word", WRITES, Routes("ids", ("ids",)), id="every model writes the same ids"),
        case("ids", ["same", "ids"], "word", WRITES, Routes("ids", ("own", "own")), id="every model on its own path"),
        case("ids", ["text"], "word", WRITES, Routes("ids", ("text",)), id="one model writes text"),
        case("text", ["ids"], "token", WRITES, Routes("text", ("own",)), id="the first model writes text"),
    ],
)
def test_routes_follow_from_what_the_servers_can_do(
    draft: str, assistants: list[str], unit: Unit, method: dict[str, bool], expected: Routes
) -> None:
    takes_ids = [one != "text" for one in [draft, *assistants]]
    shares = [one == "same" for one in assistants]
    found = Routes.of(takes_ids, shares, unit=unit, **{"judges": True, "own_paths": False, **method})
    assert found == expected
    assert found.by_ids == tuple(one in ("ids", "own") for one in (found.draft, *found.assistants))
    assert [found.same_ids, found.by_words, found.literal].count(True) == 1


@pytest.mark.parametrize(
    ("routes", "words"),
    [
        (Routes("ids", ("ids", "ids")), "ids to ids"),
        (Routes("ids", ("own",)), "word by word, on the assistant's own ids"),
        (Routes("text", ("text", "text")), "from space to space"),
        (Routes("text", ("literal",)), "token by token after the text (equation 3 as printed)"),
        (Routes("text", ("own",)), "word by word, on the assistant's own ids; the draft continues text"),
        (Routes("ids", ("ids", "text")), "one: ids to ids; two: from space to space"),
    ],
)
def test_routes_in_words(routes: Routes, words: str) -> None:
    names = ["draft", "one", "two"][: 1 + len(routes.assistants)]
    assert routes.in_words(names) == words
    assert in_words(routes.named(names, without=range(2))) == "the draft alone"

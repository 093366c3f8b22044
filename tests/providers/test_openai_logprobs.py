"""Tokens get their bytes, however a server shows them and however an answer is cut into events."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cosd_providers import ResponseError, Token
from cosd_providers.engines.openai.logprobs import TokenAligner, spells
from cosd_providers.engines.openai.wire import Completion
from cosd_providers.greedy import Position
from cosd_providers.text import merge

Tokens = Sequence[tuple[str, str]]
"""The text of each token, and its string."""


def event(tokens: Tokens, finish: str | None = None, **more: Any) -> Completion:
    """Tokens in the legacy shape, each with probability one half."""
    strings = [string for _, string in tokens]
    logprobs = {"tokens": strings, "token_logprobs": [-0.6931471805599453] * len(tokens)}
    text = "".join(text for text, _ in tokens)
    return Completion.model_validate(
        {"text": text, "logprobs": logprobs if tokens else None, "finish_reason": finish, **more}
    )


def spelt(*events: Completion, ends: set[str | int] | None = None) -> list[Position]:
    spelling = TokenAligner("http://gpu", set() if ends is None else ends)
    return [position for one in events for position in spelling.feed(one)]


def shown(positions: Sequence[Position]) -> list[bytes | str | None]:
    """The bytes of each; `"open"` and `"end"` for those without."""
    picks = [position.pick for position in positions]
    return ["end" if pick.token.end else "open" if pick.open else pick.token.data for pick in picks]


PLAIN = [(" The", " The"), (" cap", " cap"), ("ital", "ital"), (".", ".")]
EXPECTED = [b" The", b" cap", b"ital", b"."]


@given(st.lists(st.integers(0, 4), max_size=4), st.booleans(), st.booleans())
def test_any_cut_into_events_gives_the_same(cuts: list[int], stripped: bool, end: bool) -> None:
    tokens = [(text, string.strip() if stripped else string) for text, string in PLAIN] + [("", "</s>")] * end
    marks = [0, *sorted(cuts), len(tokens)]
    events = [event(tokens[a:b]) for a, b in pairwise(marks)]
    assert shown(spelt(*events, event([], "stop"))) == [*EXPECTED, "end"]
    assert shown(spelt(event(tokens, "stop"))) == [*EXPECTED, "end"]


def test_a_text_that_has_lost_a_space_that_its_token_has() -> None:
    assert shown(spelt(event([("The", " The"), (" a", " a")], "length"))) == [b"The", b" a"]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("strings", [("", "ü"), ("\ufffd", "\ufffd"), ("", "")])
def test_a_character_in_turn(strings: tuple[str, str], together: bool) -> None:
    tokens = [("a", "a"), ("", strings[0]), ("ü", strings[1]), ("b", "b"), ("", "</s>")]
    events = [event(tokens, "stop")] if together else [*(event([token]) for token in tokens), event([], "stop")]
    assert shown(spelt(*events)) == [b"a", "open", "ü".encode(), b"b", "end"]


def test_a_character_that_is_cut_off_stays_open() -> None:
    assert shown(spelt(event([("a", "a"), ("", "")], "length"))) == [b"a", "open"]
    assert shown(spelt(event([("a", "a"), ("\ufffd", "\ufffd")], "length"))) == [b"a", "open"]


def test_bytes_that_are_no_characters_are_never_shown() -> None:
    for tokens in ([("\ufffd", "\ufffd"), ("a", "a")], [("\ufffd", ""), ("a", "a")]):
        positions = spelt(event(tokens, "stop"))
        assert b"".join(position.pick.token.data for position in positions) == b"a"
    raw = [("\ufffd", "bytes:\\xff"), ("a", "a")]
    assert shown(spelt(event(raw, "stop"))) == [b"\xff", b"a", "end"]


@pytest.mark.parametrize("lost", [1, 2, 5])
@pytest.mark.parametrize("string", ["", "\ufffd"])
def test_spaces_before_bytes_that_are_no_characters(lost: int, string: str) -> None:
    tokens = [(" ", " "), (" ", " "), ("\ufffd" * lost, string), ("a", "a")]
    expected = [b" ", b" ", "open", b"a"]
    assert shown(spelt(event(tokens, "length"))) == expected
    assert shown(spelt(*(event([token]) for token in tokens))) == expected


def test_bytes_that_the_server_tells() -> None:
    content = [
        {"token": "\ufffd", "bytes": [0xE4, 0xB8], "logprob": 0.0},
        {"token": "\ufffd", "bytes": [0x80], "logprob": 0.0},
        {"token": "a", "bytes": [97], "logprob": 0.0},
    ]
    whole = Completion.model_validate({"text": "一a", "logprobs": {"content": content}, "finish_reason": "length"})
    assert shown(spelt(whole)) == [b"\xe4\xb8", b"\x80", b"a"]


def test_a_special_token_in_the_middle_has_no_bytes() -> None:
    assert shown(spelt(event([("", "<|x|>"), ("b", "b"), ("c", "c")], "length"))) == ["open", b"b", b"c"]


def test_a_special_token_inside_a_character() -> None:
    tokens = [("", ""), ("", "<|x|>"), ("", ""), ("一", "")]
    assert shown(spelt(event(tokens, "length"))) == ["open", "open", "open", "一".encode()]
    assert shown(spelt(*(event([token]) for token in tokens), event([], "length")))[-1] == "一".encode()


def test_ends_are_learned() -> None:
    ends: set[str | int] = set()
    [_, end] = spelt(event([("a", "a"), ("", "</s>")], "stop"), ends=ends)
    assert (end.pick.token.end, end.pick.token.name) == (True, "</s>")
    assert end.pick.token.prob == pytest.approx(0.5)
    assert ends == {"</s>"}
    logprobs = {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{"a": -1.0, "</s>": -1.0, "": -2.0}]}
    [position] = spelt(Completion.model_validate({"text": "a", "logprobs": logprobs}), ends=ends)
    end_choice, open_choice = position.top
    assert (end_choice.token.end, end_choice.token.name, end_choice.open) == (True, "</s>", False)
    assert (open_choice.token.end, open_choice.open) == (False, True)
    assert len({choice.id for choice in (position.pick, *position.top)}) == 3


def test_an_end_that_is_not_shown_has_no_probability() -> None:
    [_, end] = spelt(event([("a", "a")]), event([], "stop"))
    assert (end.pick.token.end, end.pick.token.prob, end.pick.token.name) == (True, None, None)


def test_hidden_parts_of_a_character_make_its_probability_unknown() -> None:
    part = {"id": 96, "token": "\ufffd", "bytes": [161], "logprob": -0.1}
    entry = {"id": 96, "token": "á", "bytes": [195, 161], "logprob": -0.1, "top_logprobs": [part]}
    plain = {"id": 9, "token": ".", "bytes": [46], "logprob": 0.0}
    content = [entry, {**plain, "top_logprobs": [plain]}]
    answer = Completion.model_validate({"text": "á.", "logprobs": {"content": content}, "finish_reason": "length"})
    [hidden, shown_whole] = spelt(answer)
    assert (hidden.pick.token.data, hidden.pick.token.prob) == ("á".encode(), None)
    assert (shown_whole.pick.token.data, shown_whole.pick.token.prob) == (b".", 1.0)


def test_a_text_without_tokens_is_an_error() -> None:
    with pytest.raises(ResponseError, match="http://gpu: the tokens of the answer do not spell its text"):
        spelt(event([]), Completion.model_validate({"text": "abc", "finish_reason": "stop"}))


@pytest.mark.parametrize("rest", [" ", ".", "\u3002\u3002", " \ufffd"])
def test_text_of_a_token_that_is_not_shown_after_a_cut(rest: str) -> None:
    """As in llama.cpp's whole answers over the chat route: " " is the front of a token that begins an emoji."""
    cut = event([("a", "a"), (" b", " b")], "length")
    assert shown(spelt(cut.model_copy(update={"text": cut.text + rest}))) == [b"a", b" b"]
    for finish, more in (("stop", rest), ("length", " c and much more")):
        answer = cut.model_copy(update={"text": f"a b{more}".replace("\ufffd", ""), "finish_reason": finish})
        with pytest.raises(ResponseError, match="http://gpu: the tokens of the answer do not spell its text"):
            spelt(answer)


def test_an_answer_that_is_cut_within_a_character_after_others() -> None:
    hearts = [("", "\ufffd"), ("❤️", "\ufffd\ufe0f")] * 4
    expected = [b"a", *["open", "❤️".encode()] * 4, "open"]
    for last in (("\ufffd", "\ufffd"), ("", "")):
        assert shown(spelt(event([("a", "a"), *hearts, last], "length"))) == expected


def test_bytes_that_are_known_are_looked_ahead_at_too() -> None:
    raw = ["bytes:\\xc3", "bytes:\\xa9"]
    tokens = [("", "<s>"), ("1", "1"), ("", raw[0]), ("é", raw[1]), ("1", "1"), ("1", "1"), ("\ufffd", "bytes:\\xff")]
    found = shown(spelt(event(tokens, "length")))
    assert found == ["open", b"1", b"\xc3", b"\xa9", b"1", b"1", b"\xff"]


def test_a_space_without_a_string_before_several_spaces() -> None:
    tokens = [("", ""), ("é", ""), (" ", ""), ("  ", " "), ("a", "a")]
    spelling = TokenAligner("http://x", set(), bare=True)
    assert shown([*spelling.feed(event(tokens, "length"))]) == ["open", "é".encode(), b" ", b"  ", b"a"]


def test_that_strings_are_bare_is_remembered() -> None:
    first = event([("x", "x"), (" y", "y")])
    rest = event([("", ""), ("é", ""), (" a", "a")], "length")
    assert shown(spelt(first, rest)) == [b"x", b" y", "open", "é".encode(), b" a"]
    assert shown(spelt(rest)) == ["open", "é ".encode(), b"a"]  # no event has shown it


def test_many_characters_in_turn_that_do_not_spell_the_text_are_given_up_soon() -> None:
    looked, strings = 0, ["\ufffd!"] * 16 + ["\ufffdZ"]

    class Text(bytes):
        def __getitem__(self, key: Any) -> Any:
            nonlocal looked
            looked += 1
            assert looked < 10_000
            return super().__getitem__(key)

    assert not spells(strings, Text("é!!!".encode() * 16 + b"q"), bare=False)
    assert looked


def test_tokens_without_a_string_are_told_apart_by_their_bytes() -> None:
    top = {"bytes:\\xc3": -3.0, "bytes:\\xf0": -0.5, "b": -2.0}
    logprobs = {"tokens": ["bytes:\\xc3"], "token_logprobs": [-3.0], "top_logprobs": [top]}
    [position] = spelt(Completion.model_validate({"text": "", "logprobs": logprobs}))
    assert [choice.token.data for choice in (position.pick, *position.top)] == [b"\xc3", b"\xf0", b"b"]


# As vLLM writes it, whatever is in one event.


def decoded(tokens: Sequence[bytes]) -> str:
    return b"".join(tokens).decode("utf-8", "replace")


def verified(tokens: list[bytes], at: int) -> str:
    """vLLM's string for a token: decoded alone, or else with up to four before it, or nothing."""
    if not decoded([tokens[at]]).endswith("\ufffd"):
        return decoded([tokens[at]])
    for count in range(1, min(4, at) + 1):
        before = tokens[at - count : at]
        whole = decoded([*before, tokens[at]])
        if whole.endswith("\ufffd"):
            continue
        clean = count
        while clean and decoded([before[clean - 1]]).endswith("\ufffd"):
            clean -= 1
        prefix = decoded(before[:clean])
        same = next((n for n, (a, b) in enumerate(zip(prefix, whole, strict=False)) if a != b), len(prefix))
        return whole[same:]
    return ""


@given(st.text(st.sampled_from("aé日本語🙂🚀 \n"), min_size=1, max_size=12), st.data())
def test_tokens_are_the_same_however_they_are_grouped(text: str, data: st.DataObject) -> None:
    raw, tokens = text.encode(), list[bytes]()
    while raw:
        size = data.draw(st.integers(1, 5))
        tokens.append(raw[:size])
        raw = raw[size:]
    # Of several in one event that complete a character and have more, the bytes are sometimes ambiguous.
    assume(sum("\ufffd" in verified(tokens, at) for at in range(len(tokens))) <= 1)
    probs = [1 - n / 64 for n in range(len(tokens))]
    expected = list(merge(Token(token, prob) for token, prob in zip(tokens, probs, strict=True)))

    events, waiting = list[Completion](), list[bytes]()
    strings, values, shown = list[str](), list[float](), ""
    for at, token in enumerate(tokens):
        waiting.append(token)
        strings.append(verified(tokens, at))
        values.append(math.log(probs[at]))
        if not decoded(waiting).endswith("\ufffd"):
            shown += decoded(waiting)
            waiting.clear()
        if at == len(tokens) - 1 or data.draw(st.booleans()):
            last = "length" if at == len(tokens) - 1 else None
            logprobs = {"tokens": strings, "token_logprobs": values}
            events.append(Completion.model_validate({"text": shown, "logprobs": logprobs, "finish_reason": last}))
            strings, values, shown = [], [], ""
    spelling = TokenAligner("http://x", set())
    found = [position.pick.token for event in events for position in spelling.feed(event)]
    joined = list(merge(found))
    assert [token.data for token in joined] == [token.data for token in expected]
    assert [token.prob for token in joined] == pytest.approx([token.prob for token in expected])


# As SentencePiece's tokens look where each is decoded by itself: a space at the front is lost.

WORDS = ("a", "b", " a", " ab", "4", ".", "\n", " ", "  ", "   ", "東", " 東")


@given(st.lists(st.sampled_from((*WORDS, "é", "語")), min_size=1, max_size=10), st.data())
def test_spaces_that_strings_have_lost(said: list[str], data: st.DataObject) -> None:
    hidden = data.draw(
        st.sampled_from(("", "\ufffd"))
    )  # how a byte of a character is shown that is not in a vocabulary
    tokens: list[tuple[bytes, str, str]] = []  # its bytes, its text, its string
    for word in said:
        size = len(word.encode())
        if word in WORDS:
            tokens.append((word.encode(), word, word.removeprefix(" ")))
        else:
            parts = [bytes([byte]) for byte in word.encode()]
            tokens += [(part, word if at == size - 1 else "", hidden) for at, part in enumerate(parts)]
    cuts = [at for at in range(1, len(tokens)) if data.draw(st.booleans())]
    spans = [*pairwise((0, *cuts, len(tokens)))]
    bare = data.draw(st.sampled_from((True, None)))
    if bare is None:  # a lost space at the front shows nothing, nor do several without a string
        tokens = [(b"x", "x", "x"), (b" y", " y", "y"), *tokens]
        spans = [(0, 2), *((a + 2, b + 2) for a, b in spans)]
    spelling = TokenAligner("http://x", set(), bare=bare)
    found: list[Token] = []
    for a, b in spans:
        one = event([(text, string) for _, text, string in tokens[a:b]], "length" if b == len(tokens) else None)
        found += [position.pick.token for position in spelling.feed(one)]
    expected = merge(Token(raw, 0.5) for raw, _, _ in tokens)
    assert [token.data for token in merge(found)] == [token.data for token in expected]

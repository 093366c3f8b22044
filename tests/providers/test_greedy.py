"""Drafts and continuations: when there is enough, which of equals is taken, and what a server has to do for it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_providers import Question, ResponseError, Token, UnsupportedError
from cosd_providers.greedy import (
    Choice,
    Continuation,
    Draft,
    Position,
    answer,
    boundaries,
    check_greedy,
    check_own,
    prob,
    with_alternatives,
    within,
)
from naive import reference
from toys import toy_models as toys

END = Token(b"", 0.9, end=True)


def raw(*tokens: bytes | Token) -> list[Position]:
    """Positions at which the server is sure."""
    made = [one if isinstance(one, Token) else Token(one, 0.9) for one in tokens]
    return [Position(Choice(n, token)) for n, token in enumerate(made)]


def fed(question: Question, *tokens: bytes | Token) -> Continuation:
    chain = Continuation(question)
    chain.feed(raw(*tokens))
    return chain


def data(chain: Continuation) -> list[bytes]:
    return [token.data for token in chain.tokens]


def test_one_token_is_enough_for_a_token() -> None:
    chain = fed(Question(0, (b" a", b"b")), b" x", b"y")
    assert chain.enough
    assert data(chain) == [b" x"]
    assert chain.ids == [0]


@pytest.mark.parametrize(
    ("judged", "written", "taken"),
    [
        ([b" a", b"b"], [b" a", b"b", b"c"], 2),  # covers the unit
        ([b" a", b"b"], [b" abc", b"d"], 1),  # reaches beyond it
        ([b" a", b"b"], [b" x", b"y", b" z", b"w"], 3),  # differs, and its word goes on until it is ended
        ([b" a", b"b"], [b" x.", b"y", b"z"], 1),  # differs, and no word can go on after it
        ([b" a", b"b"], [b" x", END, b"z"], 2),  # ends
        ([b" a", b"b"], [END, b"z"], 1),
        ([b""], [END, b"z"], 1),  # both end
        ([b""], [b" x", b"y", b" z"], 3),  # the draft ends, the chain does not
        ([b" abcd"], [b" ", b"x", *[b"y"] * 9], 8),  # at most eight since the last agreement
        ([b" ", b"abcd"], [b" ", b"x", *[b"y"] * 9], 9),
        ([b" abcdefghi"], [b" ", *[bytes([n]) for n in b"abcdefghX"], b"y"], 10),
    ],
)
def test_enough_for_a_word(judged: list[bytes], written: Sequence[bytes | Token], taken: int) -> None:
    for count in range(1, taken):
        assert not fed(Question(0, tuple(judged), word=True), *written[:count]).enough
    chain = fed(Question(0, tuple(judged), word=True), *written)
    assert chain.enough
    assert len(chain.tokens) == taken


def tied(*tokens: bytes | Token, prob: float = 0.4) -> Position:
    """Equally probable tokens; the server takes the first."""
    choices = [Choice(n, t if isinstance(t, Token) else Token(t, prob)) for n, t in enumerate(tokens)]
    return Position(choices[0], choices)


@pytest.mark.parametrize("word", [False, True])
def test_of_equals_the_drafts_token_is_taken(word: bool) -> None:
    chain = Continuation(Question(0, (b" b", b"c"), word=word))
    chain.feed([tied(b" a", b" b"), tied(b"void")])
    assert data(chain) == [b" b"]
    assert chain.ids == [1]
    assert chain.enough is not word
    if word:
        chain.feed([tied(b"x", b"c")])
        assert data(chain) == [b" b", b"c"]


def test_alternatives_of_a_continuation_have_the_servers_own_pick() -> None:
    """Where the draft's token was taken of two equals, the other one is its first alternative."""
    chain = Continuation(Question(0, (b" b",)), 2)
    others = [Choice(9, Token(b"\xc3", 0.15)), Choice(8, Token(b" c", 0.1)), Choice(7, Token(b" d", 0.05))]
    position = tied(b" a", b" b")
    chain.feed([Position(position.pick, [*position.top, *others])])
    assert chain.tokens == [Token(b" b", 0.4, alternatives=(Token(b" a", 0.4), Token(b" c", 0.1)))]
    alone = Continuation(Question(0, (b" b",)))
    alone.feed([Position(position.pick, [*position.top, *others])])
    assert alone.tokens == [Token(b" b", 0.4)]


def test_of_equals_the_end_is_taken_where_the_draft_ends() -> None:
    chain = Continuation(Question(0, (b"",)))
    chain.feed([tied(b" a", Token(b"", 0.4, end=True))])
    assert chain.tokens == [Token(b"", 0.4, end=True)]
    other = Continuation(Question(0, (b"x",)))
    other.feed([tied(b"", Token(b"", 0.4, end=True))])
    assert other.tokens == []


def test_the_servers_pick_counts_elsewhere() -> None:
    chain = Continuation(Question(0, (b" bc", b" d"), word=True))
    chain.feed([tied(b" b", b" "), tied(b"x", b"c"), tied(b"y", b" d")])
    assert data(chain) == [b" b", b"x", b"y"]  # inside a token of the draft, and once they differ


def test_a_pick_that_is_not_the_most_probable() -> None:
    chain = Continuation(Question(0, (b" c",)))
    chain.feed([Position(Choice(1, Token(b" a", 0.39)), [Choice(2, Token(b" b", 0.4)), Choice(1, Token(b" a", 0.39))])])
    assert (data(chain), chain.ids) == ([b" b"], [2])


def test_an_end_of_unknown_probability_stays() -> None:
    chain = Continuation(Question(0, (b" c",)))
    chain.feed([Position(Choice(1, Token(b"", None, end=True)), [Choice(2, Token(b" b", 0.1))])])
    assert chain.tokens == [Token(b"", None, end=True)]


def test_characters_of_several_tokens() -> None:
    chain = fed(Question(0, (b"x",)), Token(b"\xf0\x9f", 0.9), Token(b"\x98", 0.2), Token(b"\x80", 0.8))
    assert chain.tokens == [Token("😀".encode(), 0.2)]
    assert chain.ids == [0, 1, 2]


def test_a_character_that_does_not_finish_is_dropped() -> None:
    chain = fed(Question(0, (b"x",)), b"a\xe4", Token(b"\xb8\x80\xe4", 0.1), b"\xb8\x80\xe4", b"\xb8\x80\xe4", b"!")
    assert chain.enough
    assert chain.tokens == [Token("a一一一".encode(), 0.1)]
    assert fed(Question(0, (b"x",)), b"\xf0", b"", b"", b"").proposal() is None


def test_tokens_without_bytes_belong_to_the_next() -> None:
    chain = fed(Question(0, (b"x",)), Token(b"", 0.2), b" a")
    assert chain.tokens == [Token(b" a", 0.2)]
    assert fed(Question(0, (b"x",)), *[b""] * 99).enough


def test_a_server_that_cannot_go_on() -> None:
    chain = fed(Question(0, (b" a", b"b"), word=True), b" a")
    assert not chain.enough
    chain.feed([])
    assert chain.enough
    assert data(chain) == [b" a"]


async def test_alternatives_of_all_answers() -> None:
    async def ask(chains: list[Continuation]) -> list[list[Position]]:
        assert [chain.alternatives for chain in chains] == [1, 1]
        return [[Position(Choice(0, Token(b" a", 0.6)), [Choice(1, Token(b" b", 0.4))])] for _ in chains]

    questions = [Question(0, (b" a",)), Question(2, (b" c",))]
    found = await answer(questions, ask, 1)
    assert [one and one.tokens for one in found] == [(Token(b" a", 0.6, alternatives=(Token(b" b", 0.4),)),)] * 2


async def test_every_question_is_asked_until_it_is_answered() -> None:
    asked: list[list[int]] = []

    async def ask(chains: list[Continuation]) -> list[list[Position]]:
        asked.append([chain.question.start for chain in chains])
        return [raw(*([b" x"] if chain.question.start < 2 else [b" x", b" y"])) for chain in chains]

    questions = [Question(0, (b" a",)), Question(1, (b" a",), word=True), Question(2, (b" a",), word=True)]
    proposals = await answer(questions, ask)
    assert asked == [[0, 1, 2], [1]]
    assert [proposal and len(proposal.tokens) for proposal in proposals] == [1, 2, 2]


def test_a_draft_keeps_its_limit() -> None:
    draft = Draft(3)
    pieces = [b"a", b"\xc3", b"\xa9", b"b", b"c"]
    given_out = [token for n, piece in enumerate(pieces) for token in draft.feed(n, Token(piece, 0.5))]
    assert [token.data for token in given_out] == [b"a", "é".encode(), b"b"]
    assert draft.ids == [0, 1, 2, 3]
    assert draft.over
    assert not draft.ended


@pytest.mark.parametrize(("limit", "ids", "ended"), [(1, [0], False), (2, [0, 1], True)])
def test_an_unfinished_character_and_the_end(limit: int, ids: list[int], ended: bool) -> None:
    draft = Draft(limit)
    assert draft.feed(0, Token(b"\xc3", 0.5)) == []
    assert len(draft.feed(1, END)) == limit
    assert (draft.ids, draft.ended, draft.over) == (ids, ended, True)


def test_boundaries() -> None:
    pieces = [b"Q", b" a\xc3", b"\xa9", b"", b"b"]
    assert [question.start for question in boundaries(pieces, 1)] == [0, 4, 5]
    assert [question.start for question in boundaries(pieces, 3)] == [2, 3]


def test_a_token_across_the_beginning_has_no_alternatives() -> None:
    others = (Token(b" x", 0.1),)
    tokens = [Token(data, 0.5, alternatives=others) for data in (b"ab", b"cd", b"e", b"\xc3", b"\xa9")]
    assert within(tokens, 3) == [Token(b"d", 0.5), Token(b"e", 0.5, alternatives=others), Token("é".encode(), 0.5)]


def test_within() -> None:
    tokens = [Token(b"Q a", 0.5), Token(b"b\xc3", 0.4), Token(b"\xa9", 0.3), Token(b"c", 0.2)]
    assert within(tokens, 1) == [Token(b" a", 0.5), Token("bé".encode(), 0.3), Token(b"c", 0.2)]
    assert within(tokens, 0)[0] == Token(b"Q a", 0.5)
    assert within(tokens, 3)[0].data == "bé".encode()


@given(toys.models(longest_merge=6), toys.prompts(), st.lists(st.sampled_from(toys.LONGER), min_size=1, max_size=5))
async def test_a_chain_is_the_references(model: toys.ToyModel, prompt: bytes, judged: list[bytes]) -> None:
    vocabulary = model.vocabulary
    start = list(vocabulary.encode(prompt))

    async def ask(chains: list[Continuation]) -> list[list[Position]]:
        return [[position(start + chain.ids)] for chain in chains]

    def position(ids: list[int]) -> Position:
        probs = model.next(ids)
        best = [n for n, prob in enumerate(probs) if prob == max(probs)]
        ends = {vocabulary.end: None if model.hides_end else max(probs)}
        choices = [Choice(n, Token(vocabulary.tokens[n], ends.get(n, probs[n]), end=n in ends)) for n in best]
        return Position(choices[0], choices)

    [proposal] = await answer([Question(0, tuple(judged), word=True)], ask)
    wishes = [reference.Tok(one, 1.0) for one in judged]
    expected = reference.generate(model, prompt, wishes, patience=3)
    for ours in proposal.tokens if proposal else ():
        theirs = next(expected)
        assert (ours.data, ours.prob, ours.end) == (theirs.data, theirs.prob, theirs.end)
    assert proposal or next(expected, None) is None


# Probabilities, and the check that decoding is greedy.


@pytest.mark.parametrize(
    ("logprob", "expected"),
    [(0.0, 1.0), (-0.0, 1.0), (1e-6, 1.0), (math.log(0.25), 0.25), (-9999.0, 0.0), (-3.4e38, 0.0)],
)
def test_probabilities(logprob: float, expected: float) -> None:
    assert prob(logprob) == pytest.approx(expected)


@pytest.mark.parametrize("logprob", [None, math.nan])
def test_none_where_there_is_none(logprob: float | None) -> None:
    assert prob(logprob) is None


@pytest.mark.parametrize(
    ("logprob", "seen", "hint"),
    [
        (None, "missing", "Does the model compute NaN there?"),
        (math.nan, "nan", "Does the model compute NaN there?"),
        (-math.inf, "-inf", "Does the model compute NaN there?"),
        (-9999.0, "-9999", "Servers show such a number for a token that is next to impossible"),
        (-1e308, r"-1e\+308", "Servers show such a number for a token that is next to impossible"),
    ],
)
def test_a_token_that_was_taken_has_a_probability(logprob: float | None, seen: str, hint: str) -> None:
    check_own(-70.0, "http://x")
    words = "http://x: the server wrote a token with no usable probability: its logarithm is"
    with pytest.raises(ResponseError, match=f"^{words} {seen}. {hint}"):
        check_own(logprob, "http://x")


@pytest.mark.parametrize(
    ("own", "top", "greedy"),
    [
        (0.4, [0.4, 0.4], True),  # a tie
        (0.4, [], True),
        (None, [0.9], True),  # an end of unknown probability
        (0.4, [None, 0.4], True),
        (0.4, [0.4 * math.exp(0.9e-4)], True),  # rounding
        (0.4, [0.4 * math.exp(1.1e-4)], False),
        (1e-30, [0.4], False),
    ],
)
def test_the_most_probable_token_up_to_rounding(own: float | None, top: list[float | None], greedy: bool) -> None:
    if greedy:
        check_greedy(own, top, "http://x")
        return
    with pytest.raises(UnsupportedError, match="http://x: the server does not take the most probable token") as caught:
        check_greedy(own, top, "http://x")
    assert "samplers, penalties, a grammar or a bias" in str(caught.value)


def test_an_alternative_that_says_the_same_as_the_token_is_left_out() -> None:
    own, same, other = Choice(1, Token(b" a", 0.6)), Choice(2, Token(b" a", 0.3)), Choice(3, Token(b" b", 0.1))
    assert with_alternatives(Position(own, [own, same, other]), 2).alternatives == (Token(b" b", 0.1),)

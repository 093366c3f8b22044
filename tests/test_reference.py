"""The reference fusion against examples worked out by hand, and against a stepwise Algorithm 1."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from naive.reference import Fires, Fused, Out, Tok, fuse, generate, rule, split, text_of
from support.drawn import decoder_examples
from toys.toy_models import (
    Model,
    ScriptedModel,
    ToyModel,
    Vocabulary,
    model_pairs,
    model_sets,
    models,
    prompts,
    stops,
    thresholds,
)

Script = dict[bytes, Mapping[bytes | None, float]]
Step = tuple[bytes | None, float]
UNITS: tuple[Literal["token", "word"], ...] = ("token", "word")
CUP, HAN = "😀".encode(), "一".encode()


def vocabulary(*longer: bytes) -> Vocabulary:
    """All bytes, some longer tokens, the end."""
    return Vocabulary((*(bytes([n]) for n in range(256)), *longer, b""), 256 + len(longer))


def path(text: bytes, *steps: Step) -> Script:
    """The script of a model that goes on from `text` by `steps`, each a token and its probability."""
    script: Script = {}
    for token, prob in steps:
        script[text] = {token: prob}
        text += token or b""
    return script


def scripted(*scripts: Script, hides_end: bool = False) -> ScriptedModel:
    """A model that follows several paths, the first that knows a text."""
    script = {text: probs for one in reversed(scripts) for text, probs in one.items()}
    longer = {token for probs in script.values() for token in probs if token and len(token) > 1}
    return ScriptedModel(vocabulary(*sorted(longer)), script, hides_end)


def run(
    draft: Model,
    *assistants: Model,
    unit: Literal["token", "word"] = "word",
    fires: Fires | None = None,
    max_tokens: int = 20,
    stop: Sequence[bytes] = (),
) -> Fused:
    """Fuse after the prompt `Q`, by the paper's rule."""
    return fuse(b"Q", draft, assistants, fires or rule(), unit=unit, max_tokens=max_tokens, stop=stop)


def shown(fused: Fused) -> list[tuple[bytes | None, int]]:
    """The tokens, shorter."""
    return [(None if out.end else out.data, out.source) for out in fused.tokens]


@pytest.mark.parametrize(
    ("p", "q", "replaced"),
    [(0.4, 0.9, True), (0.5, 0.9, False), (0.4, 0.2, False), (0.4, 0.25, True)],
)
def test_rule_is_strict_and_a_replacement_redrafts(p: float, q: float, replaced: bool) -> None:
    draft = scripted(path(b"Q", (b"x", p), (b"!", 0.9)), path(b"Qy", (b"?", 0.9)))
    fused = run(draft, scripted(path(b"Q", (b"y", q))), unit="token")
    assert fused.text == (b"y?" if replaced else b"x!")
    assert shown(fused)[-1] == (None, -1)
    assert (fused.finish_reason, fused.stop_reason, fused.replacements) == ("stop", "end", int(replaced))


@pytest.mark.parametrize("unit", UNITS)
def test_ends(unit: Literal["token", "word"]) -> None:
    going_on = scripted(path(b"Q", (b" a", 0.4)), path(b"Q a", (b" b", 0.9)))
    ending = scripted(path(b"Q", (b" a", 0.9), (None, 0.4)))
    assert shown(run(ending, going_on, unit=unit)) == [(b" a", -1), (b" b", 0), (None, -1)]
    assert shown(run(going_on, scripted(), unit=unit)) == [(None, 0)]
    silent = scripted(hides_end=True)
    assert shown(run(going_on, silent, unit=unit)) == [(b" a", -1), (b" b", -1), (None, -1)]
    assert shown(run(scripted(path(b"Q", (None, 0.4)), hides_end=True), going_on)) == [(None, -1)]


def test_words_are_compared_by_bytes() -> None:
    draft = scripted(path(b"Q", (b" Multi", 0.4), (b"-tasking", 0.4)))
    assistant = scripted(path(b"Q", (b" Multi-tasking", 0.9)))
    assert shown(run(draft, assistant)) == [(b" Multi", -1), (b"-tasking", -1), (None, -1)]
    assert shown(run(draft, assistant, unit="token"))[:1] == [(b" Multi-tasking", 0)]


def test_replacement_completes_the_word() -> None:
    draft = scripted(path(b"Q", (b" Peace", 0.4)), path(b"Q War", (b".", 0.9)))
    assistant = scripted(path(b"Q", (b" W", 0.8), (b"ar", 0.1), (b"-", 0.9)))
    fused = run(draft, assistant)
    assert shown(fused) == [(b" W", 0), (b"ar", 0), (b".", -1), (None, -1)]
    assert (fused.firings[0].p, fused.firings[0].q, fused.firings[0].replaced) == (0.4, 0.8, 1)
    hyphen = scripted(path(b"Q", (b"-", 0.8), (b"a", 0.9)))
    assert run(draft, hyphen).firings[0].tokens == (Tok(b"-", 0.8, ids=(45,)),)
    endless = scripted(path(b"Q", *[(b"a", 0.9)] * 20))
    assert len(run(draft, endless, max_tokens=30).firings[0].tokens) == 8


def test_span_is_as_sure_as_its_least_sure_token() -> None:
    draft = scripted(path(b"Q", (b" ab", 0.9), (b"cd", 0.3), (b"ef", 0.2)))
    assistant = scripted(path(b"Q", (b" a", 0.7), (b"bc", 0.6), (b"x", 0.8), (b",", 0.9)))
    fused = run(draft, assistant)
    assert (fused.firings[0].p, fused.firings[0].q, fused.firings[0].replaced) == (0.3, 0.6, 2)
    assert fused.text.startswith(b" abcx")


def test_boundary_moves_past_what_does_not_fire() -> None:
    draft = scripted(path(b"Q", (b" a", 0.9), (b"b", 0.3)))
    assistant = scripted(path(b"Q", (b" x", 0.9)), path(b"Q a", (b"z", 0.9)))
    assert shown(run(draft, assistant)) == [(b" a", -1), (b"z", 0), (None, -1)]


def test_what_reaches_beyond_the_unit_is_judged_by_the_next() -> None:
    draft = scripted(path(b"Q", (b" a", 0.3), (b" b", 0.3)))
    assistant = scripted(path(b"Q", (b" a c", 0.9)), path(b"Q a", (b" d", 0.9)))
    assert shown(run(draft, assistant))[:2] == [(b" a", -1), (b" d", 0)]


def test_units() -> None:
    def cut(before: str, *tokens: str | None) -> list[int]:
        draft = [Tok((token or "").encode(), 1.0, token is None) for token in tokens]
        return [len(unit) for unit in split(before.encode(), draft, "word")]

    assert cut("Q", "a", "b", " c", "d ", "e", "f", None) == [2, 2, 2, 1]
    assert cut("Q ", "a", "b") == [2]
    assert cut("Q", *"a" * 19) == [8, 8, 3]
    assert cut("Q", "a", "一", "b", "の", "ก", "!") == [1, 2, 1, 2]


@dataclass(frozen=True)
class Contextual:
    """A model that looks at its ids, as real ones do: another text where `ids` is not the encoding."""

    vocabulary: Vocabulary
    script: Callable[[tuple[int, ...]], tuple[bytes | None, float]]
    hides_end: bool = False

    def next(self, ids: Sequence[int]) -> Sequence[float]:
        token, prob = self.script(tuple(ids))
        probs = [0.0] * len(self.vocabulary.tokens)
        probs[self.vocabulary.end if token is None else self.vocabulary.ids[token]] = prob
        return probs


def writes_apart(ids: tuple[int, ...]) -> tuple[bytes | None, float]:
    """Writes `a` and `b` apart, then `c`; but after the one token `ab` it writes `d`."""
    follows: dict[int, bytes] = {ord("Q"): b"a", ord("a"): b"b", ord("b"): b"c", 256: b"d"}
    return (follows.get(ids[-1]), 0.4)


def test_each_model_goes_on_from_its_own_ids() -> None:
    model = Contextual(vocabulary(b"ab"), writes_apart)
    other = scripted(path(b"Q", (b"a", 0.3), (b"b", 0.3), (b"d", 0.3)))
    assert run(other, model).text == b"abc"
    assert run(other, model, unit="token").text == b"abd"
    never = rule(alpha=0)
    kept = fuse(b"Q", model, [other], never, unit="word", max_tokens=9, round_length=2)
    sent = fuse(b"Q", model, [other], never, unit="word", max_tokens=9, ids_kept=False, round_length=2)
    assert (kept.text, sent.text) == (b"abc", b"abd")


def test_ties() -> None:
    draft = scripted(path(b"Q", (b" b", 0.3), (b"c", 0.3), (None, 0.3)))
    equal: Script = {
        b"Q": {b" a": 0.5, b" b": 0.5},
        b"Q b": {b"b": 0.5, b"c": 0.5},
        b"Q bc": {b"a": 0.5, None: 0.5},
    }
    for unit in UNITS:
        assert run(draft, scripted(equal), unit=unit).replacements == 0
    larger: Script = {b"Q": {b" bc": 0.5, b" a": 0.5}}
    assert run(draft, scripted(larger)).text == b" a"


def test_several_assistants() -> None:
    draft = scripted(path(b"Q", (b" a", 0.3), (b"b", 0.2)), path(b"Q a", (b"b", 0.2)))
    low = scripted(path(b"Q", (b" x", 0.7)))
    high = scripted(path(b"Q", (b" a", 0.9), (b"y", 0.8)))
    assert shown(run(draft, low, high))[:2] == [(b" a", -1), (b"y", 1)]
    assert shown(run(draft, low, scripted(path(b"Q", (b" z", 0.7)))))[0] == (b" x", 0)


def test_characters_split_over_tokens() -> None:
    parts = [(CUP[n : n + 1], prob) for n, prob in enumerate((0.9, 0.3, 0.8, 0.7))]
    draft = scripted(path(b"Q", *parts, (b"!", 0.9)))
    assert next(generate(draft, b"Q")) == Tok(CUP, 0.3, ids=tuple(CUP))
    assert shown(run(draft, draft, max_tokens=2)) == [(CUP, -1), (b"!", -1)]
    assert shown(run(draft, scripted(path(b"Q", (HAN[:2], 0.9), (HAN[2:], 0.5)))))[0] == (HAN, 0)
    overlapping = scripted(path(b"Q", (b"a" + HAN[:2], 0.9), (HAN[2:] + HAN[:1], 0.5), (HAN[1:], 0.7)))
    assert next(generate(overlapping, b"Q")).data == b"a" + HAN * 2
    cut_off = scripted(path(b"Q", (b"\xff", 0.6), (CUP[:2], 0.9), (None, 0.4)))
    tokens = [(t.data, t.prob, t.end) for t in generate(cut_off, b"Q")]
    assert tokens == [(b"\xff", 0.6, False), (CUP[:2], 0.9, False), (b"", 0.4, True)]


def test_what_cannot_be_completed_is_dropped() -> None:
    endless = scripted(path(b"Q", (b"a\xc3", 0.9), *[(b"\xc3", 0.8)] * 9))
    assert [t.data for t in generate(endless, b"Q", patience=3)] == [b"a\xc3\xc3\xc3"]
    draft = scripted(path(b"Q", (b"x", 0.3)))
    tokens = Vocabulary((b"Q", b"x", CUP[:1], b"", b""), 4)
    follows = {0: CUP[:1], 1: None}
    stuttering = Contextual(tokens, lambda ids: (follows.get(ids[-1], b""), 0.9))
    assert list(generate(stuttering, b"Q", patience=3)) == []
    for unit in UNITS:
        assert run(draft, stuttering, unit=unit).text == b"x"


def test_tokens_without_bytes() -> None:
    tokens = Vocabulary((b"Q", b"a", b"", b""), 3)
    follows: dict[tuple[int, ...], tuple[bytes | None, float]] = {
        (0,): (b"", 0.3),
        (0, 2): (b"a", 0.8),
        (0, 2, 1): (b"", 0.4),
    }
    model = Contextual(tokens, lambda ids: follows.get(ids, (None, 0.9)))
    assert list(generate(model, b"Q")) == [Tok(b"a", 0.3, ids=(2, 1)), Tok(b"", 0.4, True, (2, 3))]


@pytest.mark.parametrize(
    ("stop", "text", "reason"),
    [
        ([b"b c"], b" a ", "b c"),  # over draft and replacement
        ([b"c,", b" c", b"b c"], b" a ", "b c"),  # the first to end, the longest of those
        ([b"Q"], b" a b c,", "end"),  # never the prompt
        ([b"b"], b" a ", "b"),
        ([b" c,"], b" a b", " c,"),
    ],
)
def test_stops(stop: list[bytes], text: bytes, reason: str) -> None:
    draft = scripted(path(b"Q", (b" a b", 0.9), (b" x", 0.3)), path(b"Q a b c", (b",", 0.9)))
    assistant = scripted(path(b"Q a b", (b" c", 0.9)))
    fused = run(draft, assistant, stop=stop)
    assert (fused.text, fused.finish_reason, fused.stop_reason) == (text, "stop", reason)


def test_stops_in_a_replacement_and_with_limits() -> None:
    draft = scripted(path(b"Q", (b" a", 0.3), (b"b", 0.3), (b"c", 0.3)))
    assistant = scripted(path(b"Q", (b" x", 0.9), (b"y", 0.9), (b"z", 0.9)))
    fused = run(draft, assistant, stop=[b"x", b"yz"])
    assert (shown(fused), fused.replacements) == ([(b" ", 0)], 1)
    assert shown(run(draft, assistant, stop=[b" xy"])) == []
    limited = run(draft, assistant, max_tokens=2)
    assert (shown(limited), limited.finish_reason) == ([(b" x", 0), (b"y", 0)], "length")
    both = run(draft, scripted(path(b"Q", (b" ab", 0.9))), max_tokens=2, stop=[b"b"])
    assert (both.text, both.finish_reason, both.stop_reason) == (b" a", "stop", "b")
    last = run(draft, scripted(path(b"Q", (b" abc", 0.9))), max_tokens=4)
    assert (len(last.tokens), last.finish_reason, last.stop_reason) == (4, "stop", "end")
    # The unit is judged up to the stop only: what differs after it is nobody's business.
    assert run(draft, scripted(path(b"Q", (b" abx", 0.9))), stop=[b"b"]).replacements == 0


def stepwise(
    prompt: bytes, draft: Model, assistant: Model, fires: Fires, max_tokens: int
) -> list[tuple[bytes, int, bool]]:
    """Algorithm 1, a token at a time."""
    answer: list[tuple[bytes, int, bool]] = []
    text, ahead = prompt, generate(draft, prompt)
    while len(answer) < max_tokens and not (answer and answer[-1][2]):
        ours = next(ahead)
        theirs = next(generate(assistant, text, [ours], patience=3))
        p, q, same = ours.prob, theirs.prob, (ours.data, ours.end) == (theirs.data, theirs.end)
        replace = not same and p is not None and q is not None and fires(p, q)
        one = theirs if replace else ours
        text += one.data
        answer.append((one.data, 0 if replace else -1, one.end))
        ahead = generate(draft, text) if replace else ahead
    return answer


@decoder_examples
@given(model_pairs(), prompts(), thresholds(), st.integers(1, 12))
def test_token_units_are_algorithm_1(
    pair: tuple[ToyModel, ToyModel], prompt: bytes, limits: tuple[float, float], max_tokens: int
) -> None:
    fused = fuse(prompt, pair[0], pair[1:], rule(*limits), unit="token", max_tokens=max_tokens)
    expected = stepwise(prompt, *pair, rule(*limits), max_tokens)
    assert [(out.data, out.source, out.end) for out in fused.tokens] == expected


@decoder_examples
@given(model_sets(longest_merge=6), prompts(), thresholds(), stops(), st.sampled_from(UNITS))
def test_limits(
    drawn: tuple[ToyModel, tuple[ToyModel, ...]],
    prompt: bytes,
    limits: tuple[float, float],
    stop: tuple[bytes, ...],
    unit: Literal["token", "word"],
) -> None:
    draft, assistants = drawn
    fused = fuse(prompt, draft, assistants, rule(*limits), unit=unit, max_tokens=12, stop=stop)
    assert len(fused.tokens) <= 12
    assert not any(out.end for out in fused.tokens[:-1])
    assert not any(one in fused.text for one in stop)
    assert all(out.data or out.end for out in fused.tokens)
    assert (fused.finish_reason == "length") == (fused.stop_reason == "max_tokens")
    assert fused.replacements == 0 or limits[0] > 0
    if not fused.replacements:
        own = [Out(t.data, -1, t.end) for t in islice(generate(draft, prompt), 12)]
        assert text_of(own).startswith(fused.text)


@decoder_examples
@given(models(), prompts())
def test_toys_are_models(model: ToyModel, prompt: bytes) -> None:
    assert model.vocabulary.decode(model.vocabulary.encode(prompt)) == prompt
    for token in islice(generate(model, prompt), 12):
        assert bool(token.data) != token.end
        assert model.vocabulary.decode(token.ids) == token.data
        assert token.prob is None or 0 < token.prob <= 1
        assert sum(bool(model.vocabulary.tokens[n]) for n in token.ids) <= model.longest_merge


@pytest.mark.extended
def test_toys_are_various() -> None:
    """What makes a fusion hard is there: agreement, ties, merges, foreign encodings, replacements, ends."""
    seen: Counter[str] = Counter()

    @settings(max_examples=1000, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(model_pairs(), prompts(), st.sampled_from(UNITS))
    def look(pair: tuple[ToyModel, ToyModel], prompt: bytes, unit: Literal["token", "word"]) -> None:
        draft, assistant = pair
        tokens = list(islice(generate(draft, prompt), 12))
        ids = [n for token in tokens for n in token.ids if n != draft.vocabulary.end]
        fused = fuse(prompt, draft, [assistant], rule(), unit=unit, max_tokens=12)
        others = islice(generate(assistant, prompt), 12)
        top = sorted(assistant.next(assistant.vocabulary.encode(prompt)))[-2:]
        seen.update(
            {
                "encodes otherwise": draft.vocabulary.encode(text_of(tokens)) != tuple(ids),
                "merges": any(len(token.ids) > 1 for token in tokens),
                "splits an emoji": any(len(token.ids) > 1 and token.data == CUP for token in tokens),
                "is not UTF-8": "\\x" in text_of(tokens).decode("utf-8", "backslashreplace"),
                "ends": tokens[-1].end,
                "goes on": len(tokens) == 12 and not tokens[-1].end,
                "ties": top[0] == top[1],
                "agrees for long": text_of(list(others)).startswith(text_of(tokens)) and len(tokens) > 9,
                "replaces twice": fused.replacements > 1,
                "replaces a word": any(len(firing.tokens) > 2 for firing in fused.firings),
                "replaces within a unit": any(firing.kept for firing in fused.firings),
                "replaces several": any(firing.replaced > 1 for firing in fused.firings),
                "replaces by the end": any(firing.tokens[0].end for firing in fused.firings),
            }
        )

    look()
    assert all(seen.values()), seen


def test_thresholds_hold_their_ends() -> None:
    assert rule(math.inf, 0.0)(1.0, 0.1)
    assert not rule(0.0, 0.0)(0.1, 1.0)
    assert not rule(0.5, math.inf)(0.1, 1.0)

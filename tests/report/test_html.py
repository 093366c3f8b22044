"""The report as a document: what is in it, and that whatever a model or a server said is text in it."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
import unicodedata
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lima
from cosd_api import (
    AgreementVerifier,
    CoLLMVerifier,
    CoolFusion,
    DeferralVerifier,
    DiffVerifier,
    FusionResult,
    MatchVerifier,
    RandomVerifier,
    RuleVerifier,
    SurpriseVerifier,
    TreeVerifier,
    fuse,
)
from cosd_api.extend import Method
from cosd_api.records import DraftToken, EndpointUsage, FusedToken, Request, TokenDecision
from cosd_api.report.decisions import judged
from cosd_api.report.html import page
from cosd_api.report.html.cards import Cards, standing
from cosd_api.report.html.charts import Corner
from cosd_api.report.html.elements import prob, script_json, seconds, visible
from cosd_api.report.html.plots import points, region, shares
from cosd_api.report.html.regions import shapes_of
from cosd_api.report.html.timeline import Row, overlap, rows
from cosd_api.settings import CustomVerifier
from cosd_api.verification import KnownVerifier
from cosd_api.verification.deferral import DeferralWeights
from cosd_api.wording import counted
from cosd_providers.errors import ConnectError
from cosd_providers.testing import Fault, ScriptedProvider
from joined import joined
from seen import Seen
from trees import trees

STATES = CoLLMVerifier(width=1, bias=0.0, weights=(1.0,), eta=0.25)
GATE = DeferralVerifier(
    listed=1,
    weights=DeferralWeights(bias=0, top=0, margin=0, entropy=0, number=0, word=0, part=0, end=0),
    eta=0.25,
)
HOSTILE = "</script><img src=x onerror=alert(1)>&amp;<!--\u2028]]>\"'"


def cards(document: str) -> dict[str, Any]:
    """What the page's script is given."""
    found: dict[str, Any] = json.loads(Seen(document).text("data"))
    return found


async def answered(**settings: Any) -> FusionResult:
    return await fuse("Q:", **{"draft": lima.draft(), "assistant": lima.assistant(), **settings})


# The whole page.


async def test_the_page_has_the_answer_and_every_section() -> None:
    result = await answered()
    reader = Seen(page(result, title="Which capital?"))
    assert reader.text("h1") == "Which capital?"
    cut = " Rome"
    assert reader.text("answer") == " The capital is" + cut + " Lima. Really.end"
    headings = ["The answer", "How sure each was", "How much of the draft was kept", "Requests over time"]
    assert all(heading in reader.texts["h2"] for heading in headings)
    assert reader.tags.count("table") == 4
    assert [text for text in reader.texts["del"] if text != "struck"] == [" Rome"]
    assert [text for text in reader.texts["ins"] if text != "underlined"] == [" Li", "ma"]


async def test_nothing_is_loaded_and_the_policy_says_so() -> None:
    document = page(await answered())
    reader = Seen(document)
    loading = {"src", "href", "srcset", "action", "data", "poster", "xlink:href", "style"}
    places = {value for _, name, value in reader.attributes if name in loading}
    assert {place for place in places if not place.startswith("#")} == {"data:,"}
    assert not re.search(r"url\((?!#hatch\))|@import", document)
    policy = next(value for tag, name, value in reader.attributes if tag == "meta" and name == "content")
    assert policy.startswith("default-src 'none'; ")
    for kind in ("style", "script"):
        text = document.rpartition(f"<{kind}>")[2].partition(f"</{kind}>")[0]
        wanted = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{wanted}'" in policy
    assert not [name for _, name, _ in reader.attributes if name.startswith("on")]


def hostile(result: FusionResult, text: str) -> FusionResult:
    """The result with `text` at every place where a model, a server or a user wrote something."""
    decision = TokenDecision(
        assistant="assistant", text=text, prob=0.9, agreed=False, fired=True, reason=text, draft_text=text,
        draft_prob=0.1, strategy=text, request=1,
    )  # fmt: skip
    gone = (DraftToken(text=text, prob=0.1), DraftToken(text=text, prob=0.1))
    token = FusedToken(
        text=text, source="assistant", replaced=text, replaced_tokens=gone, reason=text, asked=True,
        decisions=(decision,), draft_prob=0.1, assistant_prob=0.9,
    )  # fmt: skip
    kept = FusedToken(text=text, source="draft", asked=True, unit=1, decisions=(decision,), reason=text)
    endpoint = result.draft.model_copy(update={"model": text, "engine": text, "build": text, "endpoint": text})
    return result.model_copy(
        update={
            "tokens": (token, kept),
            "draft": endpoint,
            "assistants": (endpoint.model_copy(update={"name": "assistant"}),),
            "warnings": (text,),
            "stop_reason": text,
            "library_version": text,
            "settings": result.settings.model_copy(
                update={"stop": (text,), "verifier": CustomVerifier(description=text)}
            ),
        }
    )


async def test_text_that_looks_like_html_stays_text() -> None:
    result = await answered()
    document = page(hostile(result, HOSTILE), title=HOSTILE)
    reader = Seen(document)
    harmless = Seen(page(hostile(result, "harmless"), title="harmless"))
    assert reader.tags == harmless.tags
    assert "img" not in reader.tags and document.count("<script") == 2
    shown = visible(HOSTILE)
    assert shown in reader.text("answer") and shown in reader.text("h1") and shown in reader.text("title")
    assert f"“{shown}”" in json.dumps(cards(document)["tokens"][0], ensure_ascii=False).replace('\\"', '"').replace(
        "\\\\", "\\"
    )


async def test_no_text_of_a_file_hides_on_the_page_or_turns_it_around() -> None:
    text = "a\u202eb\x1b[2Jc\u2066"
    result = hostile(await answered(), text)
    first, second = result.tokens
    (decision,) = first.decisions
    odd = decision.model_copy(update={"assistant": text})
    tokens = (first.model_copy(update={"source": text, "decisions": (odd, decision)}), second)
    named = tuple(one.model_copy(update={"name": text}) for one in result.assistants)
    document = page(result.model_copy(update={"tokens": tokens, "assistants": named}), title="\u202e")
    assert not {"\u202e", "\x1b", "\u2066"} & set(document)


async def test_a_word_ends_where_the_next_token_is_another_ones() -> None:
    result = await answered()
    # As a result of before units were recorded has them: all in one.
    tokens = tuple(token.model_copy(update={"unit": 0}) for token in result.tokens)
    view = Cards(result.model_copy(update={"tokens": tokens}))
    assert [view.word(at)[1] for at in (4, 5)] == [" Lima"] * 2


async def test_credentials_are_not_shown() -> None:
    result = await answered()
    secret = result.draft.model_copy(update={"endpoint": "https://user:hunter2@host:81/v1?key=hunter2#hunter2"})
    document = page(result.model_copy(update={"draft": secret, "assistants": (secret,)}))
    assert "https://host:81/v1" in document and "hunter2" not in document


async def test_an_answer_of_2000_tokens_has_one_element_a_token() -> None:
    one = await answered()
    long = joined([one] * 200)
    small, large = (Seen(page(result)).tags for result in (joined([one] * 10), long))
    assert len(long.tokens) == 2000
    assert (large.count("ins"), large.count("del")) == (401, 201)  # and one each in the legend
    assert len(large) - len(small) < 3 * (2000 - 100)  # 600 requests, too
    answer = re.search(r'<p class="answer".*?</p>', page(long), re.DOTALL)
    assert answer is not None and len(Seen(answer[0]).tags) == 1 + 2000 + 200 + 200  # <del>, and marks of the end


async def test_a_result_without_anything_is_a_page_too() -> None:
    silent = ScriptedProvider.from_texts({"another prompt": ["x"]})
    result = await fuse("Q:", draft=silent, assistant=silent)
    bare = result.model_copy(update={"tokens": (), "requests": (), "warnings": (), "text": ""})
    reader = Seen(page(bare))
    assert "(an empty answer)" in reader.text("answer")
    assert "no record of its requests" in reader.text("main")
    assert "no assistant was asked" in reader.text("main")


# Words.


async def test_a_card_says_why_the_token_is_there() -> None:
    data = cards(page(await answered(verifier=RuleVerifier.paper())))
    lima_card = next(card for card in data["tokens"] if card["title"] == "“ Li”")
    assert (lima_card["mark"], lima_card["standing"]) == ("by assistant", "replaced")
    assert lima_card["rows"] == [
        ["draft (scripted)", "“ Rome”", "0.300"],
        ["assistant (scripted)", "“ Li”", "0.900"],
    ]
    assert lima_card["words"] == ["0.3 < 0.5 and 0.9 > 0.5 x 0.3"]
    assert lima_card["foot"][0] == "token 5, unit 4, round 1, part of “ Lima”"
    assert lima_card["foot"][-1].startswith("replaced at ")
    assert "q1" in lima_card["requests"] and set(lima_card["requests"]) <= set(data["requests"])
    rest = data["tokens"][5]
    assert rest["rows"] == [["draft (scripted)", "“ Rome”", "0.300"], ["assistant (scripted)", "“ma”", "0.800"]]
    sure = data["tokens"][0]
    assert (sure["mark"], sure["rows"]) == ("not asked", [["draft (scripted)", "“ The”", "1.000"]])
    assert sure["words"] == ["no assistant was asked: no answer could have changed it"]
    assert data["tokens"][-1]["title"] == "end of sequence"


async def test_the_cards_of_requests() -> None:
    data = cards(page(await answered()))
    assert data["requests"]["q1"]["title"] == "Question 1"
    assert data["requests"]["q1"]["words"] == ["asked about 1 place, from byte 15 of the answer on"]
    assert data["requests"]["d1"]["words"] == ["wrote 7 tokens, from byte 0 of the answer on"]


async def test_several_assistants_each_have_a_line() -> None:
    other = ScriptedProvider.from_texts({"Q: The capital is": [(" Bern", 0.95), "!"]}, name="rivers")
    result = await answered(assistant=[lima.assistant(), other], verifier=RuleVerifier.paper())
    card = next(card for card in cards(page(result))["tokens"] if card["standing"] == "replaced")
    assert [row[0] for row in card["rows"]] == ["draft (scripted)", "assistant 2 (rivers)", "assistant 1 (scripted)"]
    assert {one.outcome for one in judged(result.tokens)} == {"replaced", "outvoted"}
    assert len(card["words"]) == 2 and card["words"][0].startswith("assistant 1: 0.3 < 0.5")


@pytest.mark.parametrize(
    ("token", "wanted"),
    [
        ({"asked": False}, "sure"),
        ({"asked": True}, "open"),
        ({"asked": True, "verified": False}, "unheard"),
        ({"source": "assistant"}, "replaced"),
    ],
)
def test_standings(token: dict[str, Any], wanted: str) -> None:
    assert standing(FusedToken.model_validate({"text": "x", "source": "draft", **token})) == wanted


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "unknown"), (math.nan, "unknown"), (1, "1.000"), (0.99999, "> 0.999"), (1e-9, "< 0.001"), (0, "0.000")],
)
def test_probabilities_in_words(value: float | None, words: str) -> None:
    assert prob(value) == words


def test_times_and_counts_in_words() -> None:
    assert [seconds(time) for time in (None, 0.00149, 0.0123, 1.5, 120)] == ["–", "1.5 ms", "12 ms", "1.50 s", "120 s"]
    assert (counted(1, "token"), counted(1234, "token")) == ("1 token", "1,234 tokens")


@given(st.text())
def test_nothing_hides_in_a_text_or_turns_it_around(text: str) -> None:
    shown = visible(text)
    assert {char for char in shown if unicodedata.category(char) in {"Cc", "Cf", "Cs"}} <= set("\n\t\u200c\u200d")
    assert len(visible("\u202e\x1b\u200b\u2066\ufeff")) == 6 * 4 + 4
    if text.isprintable():
        assert shown == text


@given(st.recursive(st.text() | st.integers(), st.lists))
def test_json_in_a_script_cannot_end_it(value: object) -> None:
    written = script_json(value)
    assert not set("<>&\u2028\u2029") & set(written)
    assert json.loads(written) == value


# The plane.


def within(corners: list[Corner], p: float, q: float) -> bool:
    """Whether a point lies in a convex polygon whose corners go around it in one direction."""
    turns = [
        (x2 - x1) * (q - y1) - (y2 - y1) * (p - x1)
        for (x1, y1), (x2, y2) in zip(corners, corners[1:] + corners[:1], strict=True)
    ]
    return all(turn >= 0 for turn in turns) or all(turn <= 0 for turn in turns)


bounds = st.sampled_from([0, 0.25, 0.5, 1, 1.5, 4])
margins = st.sampled_from([0, 0.25, 0.5, 1])
verifiers = (
    st.builds(RuleVerifier, alpha=bounds, beta=bounds | st.just(math.inf))
    | st.builds(AgreementVerifier, alpha=bounds)
    | st.builds(DiffVerifier, tau=margins)
    | st.just(MatchVerifier())
)
#: Beside every bound, where a region with its edge and one without it are the same: also beside q = beta p.
ps = st.integers(0, 99).map(lambda n: (n + 0.37) / 100)
qs = st.integers(0, 99).map(lambda n: (n + 0.61) / 100)


@given(verifiers, ps, qs)
def test_the_region_is_where_the_verifier_fires(verifier: KnownVerifier, p: float, q: float) -> None:
    shapes = region(verifier)
    assert shapes is not None
    assert all(0 <= x <= 1 and 0 <= y <= 1 for shape in shapes for x, y in shape)
    assert any(within(shape, p, q) for shape in shapes) == verifier.replaces(p, q)
    assert all(len(shape) <= 4 for shape in shapes)  # lines have no corners between their ends


@given(trees(), ps, qs)
def test_the_region_of_a_tree_is_where_it_fires_but_for_narrow_strips(tree: TreeVerifier, p: float, q: float) -> None:
    thresholds = {one.threshold for one in tree.nodes if one.threshold is not None}
    shapes = region(tree)
    assert shapes is not None
    if all(abs(one - at) > 1 / 32 for one in thresholds for at in (p, q)):
        assert any(within(shape, p, q) for shape in shapes) == tree.replaces(p, q)


class Curved:
    """A verifier of one's own, whose border is a curve, with an island above it."""

    def replaces(self, p: float, q: float) -> bool:
        return 2 * p * p < q < 0.5 or (0.3 < p < 0.6 and q > 0.75)

    def contestable(self, p: float) -> bool:
        return True

    def explain(self, p: float, q: float) -> str:
        raise NotImplementedError


@given(ps, qs)
def test_a_border_may_be_a_curve(p: float, q: float) -> None:
    shapes = shapes_of(Curved())
    inside = [sum(crosses(shape, p, q)) % 2 == 1 for shape in shapes]
    narrow = 0 < 0.5 - 2 * p * p < 1 / 32  # a strip that may be missing
    if abs(2 * p * p - q) > 1e-3 and not narrow:
        assert any(inside) == Curved().replaces(p, q)


def crosses(shape: list[Corner], p: float, q: float) -> list[bool]:
    """For each side of a polygon, whether it lies above a point."""
    found: list[bool] = []
    for (x1, y1), (x2, y2) in zip(shape, shape[1:] + shape[:1], strict=True):
        found.append((x1 <= p < x2 or x2 <= p < x1) and q < y1 + (y2 - y1) * (p - x1) / (x2 - x1))
    return found


def test_the_region_of_an_unknown_verifier_is_not_known() -> None:
    assert region(CustomVerifier(description="mine")) is None


@pytest.mark.parametrize(
    ("verifier", "words"),
    [
        (
            RandomVerifier(rate=0.25, seed=3),
            (
                "a control: replaces 25 % of the differences at random (seed 3)",
                "It decides by the place, not by p and q, so",
            ),
        ),
        (SurpriseVerifier(), ("of the draft's token < 0.1 and q > 0.5 × p", "It looks at the draft's token, too, so")),
        (
            GATE,
            (
                "a trained gate: replaces where the probability of deferral > 0.25",
                "It looks at the draft's list of tokens",
            ),
        ),
        (STATES, ("a trained gate on hidden states: replaces where", "It looks at the draft's hidden state")),
    ],
    ids=lambda one: getattr(one, "kind", None),
)
async def test_a_verifier_that_looks_at_more_has_no_region(verifier: KnownVerifier, words: tuple[str, str]) -> None:
    draft = replace(lima.draft(), states=lambda ids: [float(len(ids))])
    shown = html.unescape(page(await answered(verifier=verifier, unit="token", draft=draft)))
    assert all(one in shown for one in words)
    assert region(verifier) is None


async def test_each_decision_is_one_point() -> None:
    result = await answered(ask="all", unit="word")
    found = list(judged(result.tokens))
    asked = [decision for token in result.tokens for decision in token.decisions]
    assert len(found) == len({(decision.request, decision.text, decision.draft_text) for decision in asked})
    at = {kind: (x, y) for x, y, _, kind in points(found)}
    assert at["replaced"] == (48 + 0.3 * 320, 14 + 0.1 * 320)


# Acceptance.


async def test_the_line_ends_at_the_acceptance_rate() -> None:
    result = await answered()
    windows, running = shares(result.tokens)
    assert running[-1] == pytest.approx(result.acceptance_rate)
    assert (windows[0][0], windows[-1][1]) == (0, len(result.tokens))
    start, end, share = windows[1]  # " Li" for " Rome", "ma", ".", " Really"
    assert (start, end) == (4, 8) and share == pytest.approx(2 / 3)


# The time line.

times = st.tuples(st.integers(0, 30), st.integers(0, 6))
requests = st.lists(
    st.builds(
        lambda endpoint, span: Request(
            number=1, endpoint=endpoint, kind="draft", at=0, start=span[0], first=None, end=sum(span), outcome="done"
        ),
        st.sampled_from(["draft", "assistant 1", "assistant 2"]),
        times,
    ),
    max_size=12,
)


@given(requests)
def test_the_overlap_is_when_both_are_under_way(asked: list[Request]) -> None:
    def busy(at: float, *, draft: bool) -> bool:
        return any(one.start <= at < one.end and (one.endpoint == "draft") == draft for one in asked)

    both = [at for at in range(40) if busy(at + 0.5, draft=True) and busy(at + 0.5, draft=False)]
    found = overlap(asked)
    assert [at for at in range(40) if any(start < at + 0.5 < end for start, end in found)] == both
    assert sum(end - start for start, end in found) == len(both)


@given(requests)
def test_no_bar_covers_another(asked: list[Request]) -> None:
    found = rows(asked, ["draft", "assistant 1"])
    assert [row.endpoint for row in found][:2] == ["draft", "assistant 1"]
    drawn = [one for row in found for lane in row.lanes for one in lane]
    assert sorted(map(repr, drawn)) == sorted(map(repr, asked))
    for row in found:
        assert all(one.endpoint == row.endpoint for lane in row.lanes for one in lane)
        for lane in row.lanes:
            assert all(before.end <= after.start for before, after in pairwise(lane))


def test_an_endpoint_that_was_not_asked_has_its_row() -> None:
    assert rows([], ["draft", "assistant"]) == [Row("draft", [[]]), Row("assistant", [[]])]


def with_requests(result: FusionResult, *spans: tuple[str, float, float]) -> FusionResult:
    """The result as if these requests had been all: endpoint, start, end."""
    asked = tuple(
        Request(number=at, endpoint=who, kind="draft", at=0, start=a, first=None, end=b, outcome="done")
        for at, (who, a, b) in enumerate(spans)
    )
    return result.model_copy(update={"requests": asked})


@pytest.mark.parametrize(("waited", "told"), [(0.1, False), (5.0, True)])
async def test_a_wait_before_the_first_request_is_told_and_not_drawn(waited: float, told: bool) -> None:
    reader = Seen(page(with_requests(await answered(), ("draft", waited, waited + 1.0))))
    assert ("without any request, are not shown" in reader.text("main")) == told


async def test_the_sentence_on_the_overlap() -> None:
    result = with_requests(await answered(), ("draft", 0.0, 0.3), ("assistant", 0.2, 0.4), ("draft", 0.38, 0.5))
    sentence = "Of 200 ms in which an assistant was asked, the draft was working during 120 ms (60%)."
    assert sentence in Seen(page(result)).text("main")


async def test_costs_are_summed() -> None:
    result = await answered()
    usage = {name: EndpointUsage(requests=at, prompt_tokens=1000 * at) for name, at in (("draft", 2), ("assistant", 3))}
    text = Seen(page(result.model_copy(update={"usage": usage}))).text("main")
    assert "together505,000" in text.replace("–", "")


async def test_names_of_endpoints_are_those_of_the_result() -> None:
    view = Cards(await answered())
    assert (view.who("draft"), view.who("nobody")) == ("draft (scripted)", "nobody")


async def chosen(method: str | Method = "cool", **more: Any) -> FusionResult:
    scripts: Any = [{"Q:": [" a", (" b", 0.2), "."]}, {"Q:": [" a", (HOSTILE, 0.4), "!"], "Q: a b": [(".", 0.5)]}]
    return await fuse("Q:", models=[ScriptedProvider.from_texts(script) for script in scripts], method=method, **more)


@pytest.mark.parametrize("method", ["cool", "rerank", CoolFusion(rerank=True)])
async def test_a_method_that_chooses_shows_what_it_chose_from(method: str | Method) -> None:
    result = await chosen(method)
    document = page(result)
    shown = Seen(document)
    assert "Segments" in shown.text("h2")
    assert "Disagreements" not in shown.text("h2")
    assert "write and choose" in shown.text("header")
    segment = next(one for one in result.segments if len(one.candidates) > 1)
    assert segment.reason in shown.text("td")
    assert "<img" not in document
    for at, token in enumerate(result.tokens):
        card = Cards(result).token(at)
        assert card.mark == f"by {token.source}"
        assert card.words == (result.segments[token.unit].reason,)
        assert len(card.rows) == len(result.segments[token.unit].candidates)
    keys = [request["title"].split()[0] for request in cards(document)["requests"].values()]
    assert {"Draft", "Score"} == set(keys)
    assert "scored; the first model and others" in shown.text("p")


async def test_a_method_whose_models_agree_has_no_table_of_choices() -> None:
    model = ScriptedProvider.from_texts({"Q:": [" a", " b"]})
    shown = Seen(page(await fuse("Q:", models=[model, model], method="cool")))
    assert "2 of 2 segments: all models wrote the same." in shown.text("p")


async def test_an_answer_without_a_failed_model_is_marked() -> None:
    failing = ScriptedProvider.from_texts({"Q:": [" a", " c"]}, faults=[Fault(ConnectError("gone"), request=2)])
    first = ScriptedProvider.from_texts({"Q:": [" a", " b"]})
    result = await fuse("Q:", models=[first, failing], method="cool", on_assistant_error="draft")
    assert [token.verified for token in result.tokens] == [True, False, False]
    shown = Seen(page(result))
    assert "without a model that had failed" in shown.text("li")


async def test_draws_that_replace_a_draft_token_have_a_table_and_no_sentence_about_agreement() -> None:
    shown = Seen(page(await answered(**lima.sampled())))
    assert "Disagreements" not in shown.text("h2")
    assert "wrote the same" not in shown.text("p")
    assert "drawn from what the assistant finds more probable" in shown.text("td")
    assert "3 of 4 segments: the draft's token was kept." in shown.text("p")


async def test_parts_of_characters_and_ties() -> None:
    result = await answered(ask="all")
    part = FusedToken(text="", source="draft", raw="f09f", id=7, asked=True)
    decision = TokenDecision(
        assistant="assistant", text=" b", prob=0.3, agreed=True, fired=False, tied=True, draft_text=r"\x8c\x8d",
        draft_prob=0.4, reason="a tie: the assistant finds both as probable",
    )  # fmt: skip
    rest = FusedToken(text="\U0001f30d", source="draft", raw="8c8d", id=8, asked=True, unit=1, decisions=(decision,))
    settings = result.settings.model_copy(update={"contexts": "ids", "unit": "token", "tie": 0.02})
    document = page(result.model_copy(update={"tokens": (part, rest), "settings": settings, "ties": 1}))
    first, second = cards(document)["tokens"]
    assert (first["title"], second["title"]) == (r"“\xf0\x9f”", "“\U0001f30d”")
    assert "bytes f09f" in first["foot"] and "bytes 8c8d" in second["foot"]
    assert second["words"] == ["a tie: the assistant finds both as probable"]
    reader = Seen(document)
    assert reader.text("answer") == "\U0001f30d"
    for words in ("ids to ids; 1 tie within 0.02; ", "a tie"):
        assert words in document
    assert "point tied" in document and "verdict tied" in document

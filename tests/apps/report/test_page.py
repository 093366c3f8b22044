"""The report as a document: what is in it, and that whatever a model or a server said is text in it."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import unicodedata
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import (
    CoolFusion,
    FusionResult,
    RuleVerifier,
    fuse,
)
from cosd_api.apps.report.cards import Cards, standing
from cosd_api.apps.report.page import page
from cosd_api.apps.report.phrases import prob, seconds, visible
from cosd_api.apps.report.terminal import judged
from cosd_api.apps.report.timeline_chart import Row, rows
from cosd_api.common.wording import counted
from cosd_api.extend import Method
from cosd_api.records import DraftToken, EndpointUsage, FusedToken, Request, TokenDecision
from cosd_api.settings import CustomVerifier
from cosd_providers.errors import ConnectError
from cosd_providers.testing import Fault, ScriptedProvider
from support.seen import Seen
from toys import lima
from toys.joined import joined

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
    headings = ["The answer", "Requests over time", "Disagreements", "Cost", "Endpoints", "How it was made"]
    assert reader.texts["h2"] == headings
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


async def test_an_answer_without_disagreements_says_so() -> None:
    model = ScriptedProvider.from_texts({"Q:": [" a", " b"]})
    shown = Seen(page(await answered(draft=model, assistant=model, ask="all")))
    assert "Every assistant wrote the same as the draft wherever it was asked." in shown.texts["p"]


async def test_parts_of_characters_and_ties() -> None:
    result = await answered(ask="all")
    part = FusedToken(text="", source="draft", raw="f09f", id=7, asked=True)
    decision = TokenDecision(
        assistant="assistant", text=" b", prob=0.3, agreed=True, fired=False, tied=True, draft_text=r"\x8c\x8d",
        draft_prob=0.4, reason="a tie: the assistant finds both as probable",
    )  # fmt: skip
    rest = FusedToken(text="\U0001f30d", source="draft", raw="8c8d", id=8, asked=True, unit=1, decisions=(decision,))
    settings = result.settings.model_copy(
        update={"routes": {"draft": "ids", "assistant": "ids"}, "unit": "token", "tie": 0.02}
    )
    document = page(result.model_copy(update={"tokens": (part, rest), "settings": settings, "ties": 1}))
    first, second = cards(document)["tokens"]
    assert (first["title"], second["title"]) == (r"“\xf0\x9f”", "“\U0001f30d”")
    assert "bytes f09f" in first["foot"] and "bytes 8c8d" in second["foot"]
    assert second["words"] == ["a tie: the assistant finds both as probable"]
    reader = Seen(document)
    assert reader.text("answer") == "\U0001f30d"
    for words in ("ids to ids; 1 tie within 0.02; ", "a tie"):
        assert words in document
    assert "verdict tied" in document

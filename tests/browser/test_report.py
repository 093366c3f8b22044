"""The report in a browser: what a reader with a pointer, with a keyboard, without colour and without scripts gets."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from PIL import Image
from playwright.sync_api import Page

from browser.opened import Open, Opened
from cosd_api import Fusion, FusionResult, fuse_sync
from cosd_api.apps.demo.questions import sample
from cosd_api.apps.demo.servers import Pair
from cosd_api.apps.report.phrases import visible
from cosd_providers.testing import ScriptedProvider, ScriptToken
from toys.joined import joined

PERU = "In Peru a book costs 17 and a pen costs 25. Name the capital and the total."
HOSTILE = (
    '</script><img src="http://127.0.0.1:9/x" onerror="document.title=`run`"><script>document.title=`run`</script>'
)


def marked(opened: Opened, selector: str) -> bool:
    return bool(opened.page.eval_on_selector(selector, "element => element.classList.contains('on')"))


# The pointer and the keyboard.


def test_the_card_of_a_word_that_was_replaced(report: Open, result: FusionResult) -> None:
    opened = report(result)
    assert opened.card() == ""
    opened.page.hover("ins >> nth=0")
    lines = opened.card().splitlines()
    assert lines[:2] == ["“ Li”", "by assistant"]
    assert "draft (scripted)\t“ Rome”\t0.300" in lines
    assert "assistant (scripted)\t“ Li”\t0.900" in lines
    assert "0.3 < 0.9 and 0.9 > 1 x 0.3" in lines
    assert "token 5, unit 4, round 1, part of “ Lima”" in lines
    assert lines[-1].startswith("replaced at ") and "final at" in lines[-1]
    assert opened.page.get_attribute("ins >> nth=0", "aria-describedby") == "card"
    assert marked(opened, '[data-r="q1"]') and marked(opened, '[data-r="d1"]')
    opened.page.hover("h1")
    assert opened.card() == "" and not marked(opened, '[data-r="q1"]')


def test_the_card_of_a_word_that_nobody_was_asked_about(report: Open, result: FusionResult) -> None:
    opened = report(result)
    opened.page.hover('[data-t="0"]')
    assert opened.card().splitlines()[:2] == ["“ The”", "not asked"]
    assert "no answer could have changed it" in opened.card()
    opened.page.hover('[data-t="9"]')
    assert opened.card().splitlines()[0] == "end of sequence"


def test_there_is_one_card_and_it_is_inside_the_window(report: Open, long: FusionResult) -> None:
    opened = report(long, viewport={"width": 500, "height": 600})
    for at in (0, 4, 37, 114, 1999):
        opened.page.locator(f'[data-t="{at}"]').scroll_into_view_if_needed()
        opened.page.hover(f'[data-t="{at}"]')
        box, token = (opened.page.locator(one).bounding_box() for one in ("#card", f'[data-t="{at}"]'))
        assert box is not None and token is not None
        assert box["x"] >= 0 and box["x"] + box["width"] <= 500
        assert box["y"] + box["height"] <= 600
        assert box["y"] >= token["y"] + token["height"] or box["y"] + box["height"] <= token["y"]  # beside the word
    assert opened.count(".card") == 1


def test_the_card_can_be_gone_into_and_closed(report: Open, result: FusionResult) -> None:
    opened = report(result)
    opened.page.hover("ins >> nth=0")
    opened.page.hover("#card .foot")
    assert opened.card().startswith("“ Li”")
    opened.page.keyboard.press("Escape")
    assert opened.card() == ""


def test_the_keyboard_alone(report: Open, result: FusionResult) -> None:
    opened = report(result)
    press = opened.page.keyboard.press
    press("Tab")
    assert opened.card().startswith("“ The”")
    press("ArrowRight")
    assert opened.card().startswith("“ cap”")
    press("ArrowDown")
    assert opened.card().startswith("“ Li”")  # the next disagreement
    assert opened.page.evaluate("document.activeElement.dataset.t") == "4"
    press("End")
    assert opened.card().startswith("end of sequence")
    press("ArrowRight")
    assert opened.card().startswith("end of sequence")  # there is no more
    press("ArrowUp")
    assert opened.card().startswith("“ Li”")
    press("Escape")
    assert opened.card() == ""
    press("Home")
    assert opened.card().startswith("“ The”")
    press("Tab")  # one stop for the whole answer: the next is the time line
    assert opened.card().startswith("Draft 1\n") and "wrote 7 tokens" in opened.card()
    press("ArrowRight")
    assert opened.card().startswith("Question 1\n")
    assert opened.count("#answer .near") == 2  # the words that came of it
    press("Shift+Tab")
    assert opened.card().startswith("“ The”")  # where it was left


def test_the_pointer_leaves_the_card_to_the_keyboard(report: Open, result: FusionResult) -> None:
    opened = report(result)
    opened.page.click('[data-t="4"]')
    opened.page.hover('[data-t="0"]')
    assert opened.card().startswith("“ The”")
    opened.page.hover("h1")
    assert opened.card().startswith("“ Li”")
    opened.page.click("h1")
    assert opened.card() == ""


def test_a_row_of_the_table_leads_to_its_word(report: Open, result: FusionResult) -> None:
    opened = report(result)
    opened.page.click('a[data-go="4"]')
    assert opened.page.evaluate("document.activeElement.dataset.t") == "4"
    assert opened.card().startswith("“ Li”")


# What it looks like.


def test_marks_without_colour(report: Open, result: FusionResult) -> None:
    opened = report(result, forced_colors="active")
    style = "element => getComputedStyle(element).textDecorationLine"
    assert opened.page.eval_on_selector("#answer del", style) == "line-through"
    assert opened.page.eval_on_selector("#answer ins", style) == "underline"
    assert opened.page.is_visible("#answer .end")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_its_ground(report: Open, result: FusionResult, scheme: str) -> None:
    """WCAG 2.2, 1.4.3: a contrast of 4.5, in both schemes."""
    opened = report(result.model_copy(update={"warnings": ("a warning",)}), color_scheme=scheme)
    opened.page.hover("ins >> nth=0")
    for selector in ("#answer", "#answer del", "#answer ins", ".note", ".warning", "#card .foot", "#card .mark", "th"):
        assert contrast(opened.page, selector) >= 4.5, selector


def contrast(page: Page, selector: str) -> float:
    """Between the colour of an element's text and the nearest ground behind it."""
    colours = page.eval_on_selector(
        selector,
        """element => {
            const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
            let ground = element;
            while (ground.parentElement && (numbers(getComputedStyle(ground).backgroundColor)[3] ?? 1) === 0)
                ground = ground.parentElement;
            return [getComputedStyle(element).color, getComputedStyle(ground).backgroundColor].map(numbers);
        }""",
    )
    bright, dark = sorted((luminance(colour[:3]) for colour in colours), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def luminance(colour: list[float]) -> float:
    linear = [c / 12.92 if c <= 0.04045 else math.pow((c + 0.055) / 1.055, 2.4) for c in (v / 255 for v in colour)]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_a_narrow_window_scrolls_no_way_but_down(report: Open, result: FusionResult) -> None:
    opened = report(result, viewport={"width": 360, "height": 700})
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 360


def test_copying_the_answer_gives_the_answer(report: Open, result: FusionResult) -> None:
    opened = report(result)
    opened.page.evaluate("getSelection().selectAllChildren(document.getElementById('answer'))")
    assert opened.page.evaluate("getSelection().toString()") == result.text


def test_without_scripts_the_answer_and_the_drawings_are_there(report: Open, result: FusionResult) -> None:
    opened = report(result, java_script_enabled=False)
    assert opened.page.inner_text("#answer").split() == ["The", "capital", "is", "Rome", "Lima.", "Really.end"]
    for selector in ("#answer del", "#answer ins >> nth=0", "#timeline .bar", "#timeline .finals"):
        assert opened.page.locator(selector).first.is_visible(), selector
    assert "0.3 < 0.9 and 0.9 > 1 x 0.3" in opened.page.inner_text("main")  # the table
    assert not opened.page.is_visible(".scripted") and not opened.page.is_visible("#card")


def test_it_can_be_printed(report: Open, result: FusionResult) -> None:
    opened = report(result, color_scheme="dark")
    opened.page.hover("ins >> nth=0")
    opened.page.emulate_media(media="print", color_scheme="dark")
    assert not opened.page.is_visible("#card")
    assert contrast(opened.page, "#answer") > 15
    assert opened.page.pdf().startswith(b"%PDF")


# What is not to happen.


def test_text_that_looks_like_html_stays_text(report: Open) -> None:
    texts: dict[str, list[ScriptToken]] = {"Q:": [" a", (HOSTILE, 0.2)], "Q: a\u202eb</p>": ["."]}
    draft = ScriptedProvider.from_texts(texts, name="<b>draft</b>")
    other = ScriptedProvider.from_texts({"Q: a": [("\u202eb</p>", 0.9)]}, name="</title><script>document.title=`run`")
    opened = report(fuse_sync("Q:", draft=draft, assistant=other, unit="token"), title=HOSTILE)
    assert opened.page.title() == visible(HOSTILE)
    assert opened.page.text_content("del") == HOSTILE
    assert opened.page.text_content("ins") == "\\u202eb</p>"
    assert (opened.count("script"), opened.count("img"), opened.count("main b")) == (2, 0, 0)
    opened.page.hover("ins >> nth=0")
    assert HOSTILE in opened.card() and opened.count("#card img") == 0


def test_the_policy_lets_nothing_out(report: Open, result: FusionResult) -> None:
    """What would be asked for, if something did get into the page: the listeners of these tests hear it too."""
    opened = report(result)
    opened.page.evaluate(
        """async () => {
            let count = 0;
            const heard = new Promise((resolve) => {
                document.addEventListener("securitypolicyviolation", () => { count += 1; if (count === 3) resolve(); });
            });
            const image = new Image();
            image.src = "http://127.0.0.1:9/image";
            document.body.append(image);
            await fetch("http://127.0.0.1:9/fetched").catch(() => null);
            const script = document.createElement("script");
            script.textContent = "document.title = 'run'";
            document.body.append(script);
            await heard;
        }"""
    )
    blocked = [complaint for complaint in opened.complaints if complaint.startswith("policy: ")]
    assert {"policy: http://127.0.0.1:9/image", "policy: http://127.0.0.1:9/fetched", "policy: inline"} <= set(blocked)
    assert opened.page.title() == "A question"
    opened.complaints.clear()
    opened.requests.clear()


# 2,000 tokens.


def layouts(page: Page) -> float:
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    metrics: dict[str, Any] = session.send("Performance.getMetrics")
    session.detach()
    return next(float(one["value"]) for one in metrics["metrics"] if one["name"] == "LayoutCount")


def test_2000_tokens_are_no_more_work_to_show_than_ten(report: Open, result: FusionResult, long: FusionResult) -> None:
    """Counts, not seconds: as many layouts to show a card on a long page as on a short one, and few to open it."""
    taken = []
    for one in (result, long):
        opened = report(one)
        before = layouts(opened.page)
        for at in range(10):
            opened.page.dispatch_event(f'[data-t="{at}"]', "pointerover", {"bubbles": True})
            assert opened.card() != ""
        taken.append(layouts(opened.page) - before)
        assert before < 100  # the parser lays out as it goes, but not for each token
    assert taken[1] <= taken[0] + 10
    assert opened.count("#answer > *") == 2000 + 200
    assert opened.page.evaluate("document.getElementsByTagName('*').length") < 4 * 2000
    opened.page.keyboard.press("Tab")
    for _ in range(30):
        opened.page.keyboard.press("ArrowDown")
    assert opened.page.evaluate("document.activeElement.dataset.t") == "294"
    assert opened.card().startswith("“ Li”")


# A real answer.


@pytest.mark.live
def test_the_picture_of_a_report(report: Open, pair: Pair, pytestconfig: pytest.Config, tmp_path: Path) -> None:
    """The picture docs/report.png: `make test-browser ARGS="-k picture --picture docs/report.png"` makes it again."""
    prompts = [question.prompt for question in sample("mixed", 6, seed=6)]
    texts = [PERU, *(prompt.removeprefix("Q: ").removesuffix("\nA:") for prompt in prompts)]
    path = Path(pytestconfig.getoption("--picture") or tmp_path / "report.png")
    title = "Seven questions to the bundled pair, one after another"
    opened = report(joined(answers(pair, texts)), title=title, viewport={"width": 1200, "height": 900})
    opened.page.hover("#answer del + ins >> nth=3")
    assert "by assistant" in opened.card() and "assistant (facts)" in opened.card()
    last = opened.page.locator("section", has=opened.page.locator("#timeline")).bounding_box()
    assert last is not None
    clip = {"x": 0, "y": 0, "width": 1200, "height": last["y"] + last["height"] + 16}
    shot = Image.open(io.BytesIO(opened.page.screenshot(full_page=True, clip=clip)))
    shot.convert("RGB").quantize(256, kmeans=2, dither=Image.Dither.NONE).save(path, optimize=True)
    assert path.stat().st_size < 250_000


def answers(pair: Pair, texts: Sequence[str]) -> list[FusionResult]:
    """The bundled pair's, as messages; the servers are known before the first one."""

    async def ask_all() -> list[FusionResult]:
        async with Fusion(draft=pair.sums, assistant=pair.facts, ask="all") as fusion:
            await fusion.generate(messages("What is 3 plus 4?"))
            return [await fusion.generate(messages(text)) for text in texts]

    with start_blocking_portal() as portal:
        return portal.call(ask_all)


def messages(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_a_cancelled_request_is_hatched(report: Open, result: FusionResult) -> None:
    first, *others = result.requests
    cut = result.model_copy(update={"requests": (first.model_copy(update={"outcome": "cancelled"}), *others)})
    opened = report(cut)
    assert opened.count("#timeline .bar.cancelled .broken") == 1
    opened.page.hover("#timeline .bar.cancelled")
    assert opened.card().splitlines()[:2] == ["Draft 1", "cancelled"]

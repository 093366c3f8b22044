"""The page about a comparison in a browser."""

from __future__ import annotations

from browser.opened import Open
from toys.sample_comparison import page, sample_comparison

HOSTILE = '</script><img src="http://127.0.0.1:9/x" onerror="document.title=`run`">'


def test_the_page_is_laid_out_and_nothing_of_it_runs(report: Open) -> None:
    """The fixture fails where the page asked for anything, broke its policy or complained."""
    opened = report(page(sample_comparison(HOSTILE)))
    assert opened.page.title() == "Does it help to fuse these models?"
    assert opened.count("#frontier .spot") == 5
    plot = opened.page.locator("#frontier").first.bounding_box()
    assert plot is not None and plot["width"] > 700 and plot["height"] > 300


def test_on_a_narrow_window_tables_scroll_and_the_page_does_not(report: Open) -> None:
    opened = report(page(sample_comparison()), viewport={"width": 500, "height": 800})
    wide = opened.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1]

"""The page about a comparison in a browser."""

from __future__ import annotations

from browser.opened import Open
from cosd_api.comparison.page import comparison_page
from sample_comparison import EXAMPLES, sample_comparison

HOSTILE = '</script><img src="http://127.0.0.1:9/x" onerror="document.title=`run`">'


def test_the_page_is_laid_out_and_nothing_of_it_runs(report: Open) -> None:
    """The fixture fails where the page asked for anything, broke its policy or complained."""
    opened = report(comparison_page(sample_comparison(HOSTILE), examples=EXAMPLES, title=HOSTILE))
    assert opened.page.title() == HOSTILE
    assert opened.count("#frontier .spot") == 5 and opened.count("svg.calibration") == 2
    plot, table = (opened.page.locator(one).first.bounding_box() for one in ("#frontier", "table"))
    assert plot is not None and table is not None
    assert plot["width"] > 700 and plot["height"] > 300 and table["width"] <= 1240


def test_on_a_narrow_window_tables_scroll_and_the_page_does_not(report: Open) -> None:
    opened = report(comparison_page(sample_comparison(), examples=EXAMPLES), viewport={"width": 500, "height": 800})
    wide = opened.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1]

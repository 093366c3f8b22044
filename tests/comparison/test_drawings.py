"""Drawings of a comparison's page."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from cosd_api.comparison.drawings import accuracy_bar, calibration_plot, frontier_plot, places_bar, share
from cosd_api.comparison.statistics import Estimated, wilson
from sample_comparison import sample_comparison


def test_the_plot_shows_every_contestant_with_a_bill() -> None:
    plot = frontier_plot(sample_comparison())
    titles = [one.text for one in plot.iter("title")]
    assert sorted(title.partition(":")[0] for title in titles if title) == [
        "assistant",
        "cosd",
        "cosd, reversed",
        "draft",
        "random gate",
    ]
    assert "cosd: 80.0 % (37.6 % to 96.4 %), 40 tokens" in titles
    names = [one for one in plot.iter("text") if one.get("class") == "name"]
    places = [(float(one.get("x", "")), float(one.get("y", ""))) for one in names]
    assert len(names) == 5 and len(set(places)) == 5
    (line,) = [one for one in plot.iter("path") if one.get("class") == "frontier" and "V" in one.get("d", "")]
    assert re.fullmatch(r"M[\d.]+ [\d.]+H[\d.]+V[\d.]+", line.get("d", ""))
    assert "oracle: 60.0 %" in [one.text for one in plot.iter("text")]


def test_of_many_contestants_only_those_that_matter_are_named() -> None:
    found = sample_comparison()
    more = [found["random gate"].model_copy(update={"name": f"method {at}"}) for at in range(30)]
    plot = frontier_plot(found.model_copy(update={"standings": (*found.standings, *more)}))
    assert sorted(one.text or "" for one in plot.iter("text") if one.get("class") == "name") == [
        "assistant",
        "cosd",
        "draft",
    ]
    assert len([*plot.iter("title")]) == 35


def test_small_drawings() -> None:
    bar = accuracy_bar(wilson(3, 4), 0.5)
    (dot,) = bar.iter("circle")
    assert float(dot.get("cx", "")) == pytest.approx(2 + 0.75 * 136)
    assert not [*accuracy_bar(Estimated(math.nan, 0, 1), math.nan).iter("circle")]
    counts = sample_comparison()["cosd"].replaced
    assert counts is not None
    parts = {one.get("class"): float(one.get("width", "")) for one in places_bar(counts).iter("rect")}
    assert parts == pytest.approx({"part assistant": 91.4, "part draft": 45.7, "part neither": 22.9}, abs=0.05)


def test_a_calibration_shows_each_bin() -> None:
    found = sample_comparison()
    plot = calibration_plot("draft", found.calibration["draft"])
    titles = [one.text for one in plot.iter("title")]
    assert titles == [
        "1 answer: 0.0 % right, mean probability 0.30",
        "1 answer: 0.0 % right, mean probability 0.80",
        "1 answer: 100.0 % right, mean probability 0.90",
    ]
    assert "Calibration of the draft: 33.3 % right, 66.7 % by its own account" in ElementTree.tostring(plot).decode()


def test_shares_in_words() -> None:
    assert (share(0.1234), share(None), share(math.nan)) == ("12.3 %", "–", "–")

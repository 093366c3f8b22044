"""Accuracy over alpha and beta: as text, and as a picture."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cosd_api import SettingError
from cosd_api.report.heatmap import Heatmap, check_plots, drawn, heatmap, save_heatmaps

PANEL = Heatmap("right decisions", {0.25: {0.5: 0.5, 1.0: 0.25}, 0.75: {0.5: 0.9, 1.0: 1.0}}, (0.75, 0.5))


def test_text_has_alpha_to_the_right_beta_upwards_and_a_mark() -> None:
    assert heatmap(PANEL, colour=False).plain == str(PANEL)
    assert str(PANEL).split("\n") == [
        "right decisions, in % (*: best)",
        "beta",
        "   1    25.0   100.0 ",
        " 0.5    50.0   *90.0 ",
        "        0.25    0.75  alpha",
    ]


def test_colour_adds_shades_and_changes_no_character() -> None:
    plain, shaded = heatmap(PANEL, colour=False), heatmap(PANEL, colour=True)
    assert shaded.plain == plain.plain
    assert not plain.spans
    assert [str(span.style) for span in shaded.spans] == [
        "#ffffff on #00204d",  # the lowest
        "#000000 on #ffea46",  # the highest
        "#ffffff on #666970",
        "bold #000000 on #ffea46",  # 0.9: nearly the highest, and recommended
    ]


def test_values_that_are_all_alike_and_a_beta_without_end() -> None:
    panel = Heatmap("t", {1.0: {0.5: 1.0, float("inf"): 1.0}}, (1.0, 0.5))
    assert heatmap(panel, colour=True).plain.split("\n")[2:4] == [" inf   100.0 ", " 0.5  *100.0 "]
    assert len(drawn([panel]).axes) == 1


def test_pairs_that_were_not_tried_are_blank() -> None:
    panel = Heatmap("t", {0.5: {0.5: 0.25}, 0.9: {1.0: 1.0}}, (0.9, 1.0))
    assert (panel.alphas, panel.betas) == ([0.5, 0.9], [0.5, 1.0])
    text = heatmap(panel, colour=True)
    assert text.plain.split("\n")[2:] == [
        "   1          *100.0 ",
        " 0.5    25.0         ",
        "         0.5     0.9  alpha",
    ]
    assert [str(span.style) for span in text.spans] == ["bold #000000 on #ffea46", "#ffffff on #00204d"]
    [axes] = drawn([panel]).axes
    assert {(*one.get_position(), one.get_text()) for one in axes.texts} == {(0, 0, "25.0"), (1, 1, "100.0")}


def test_a_picture_holds_every_value_the_axes_and_the_frame(tmp_path: Path) -> None:
    other = Heatmap("right answers", PANEL.values, (0.25, 1.0))
    figure = drawn([PANEL, other])
    left, right = figure.axes
    assert (left.get_xlabel(), left.get_ylabel()) == ("alpha", "beta")
    assert left.get_title() == "right decisions, in %\nframed: best"
    assert right.get_title().startswith("right answers, in %")
    assert [text.get_text() for text in left.get_xticklabels()] == ["0.25", "0.75"]
    assert [text.get_text() for text in left.get_yticklabels()] == ["0.5", "1"]
    shown = {(*text.get_position(), text.get_text(), text.get_fontweight()) for text in left.texts}
    assert shown == {
        (0, 0, "50.0", "normal"),
        (0, 1, "25.0", "normal"),
        (1, 0, "90.0", "bold"),
        (1, 1, "100.0", "normal"),
    }
    centres = [[patch.get_bbox().x0 + 0.46, patch.get_bbox().y0 + 0.46] for patch in right.patches]  # type: ignore[attr-defined]
    assert centres == [pytest.approx([0, 1])] * 2

    save_heatmaps([PANEL, other], tmp_path / "picture")
    data = (tmp_path / "picture").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert int.from_bytes(data[16:20], "big") >= 800  # pixels across


def test_without_matplotlib_it_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SettingError, match=r'matplotlib: pip install "\.\[plots\]" in a clone'):
        check_plots()
    with pytest.raises(SettingError, match="matplotlib"):
        drawn([PANEL])

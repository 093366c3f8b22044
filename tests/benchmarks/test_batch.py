"""The section on batches: its inputs, and its rows."""

from __future__ import annotations

import json

import pytest

from benchmarks import batch
from benchmarks.report import Options
from cosd_api.batch.reply import Answerer


def test_the_lines_share_their_beginnings() -> None:
    lines = batch.mixed_lines(3, 4)
    beginnings = [one["prompt"].rpartition("Q:")[0] for one in lines]
    assert len(lines) == 12 and len({*beginnings}) == 3 and all(beginnings.count(one) == 4 for one in beginnings)
    assert beginnings != sorted(beginnings)


@pytest.mark.parametrize("repeated", [False, True])
def test_a_long_batch(repeated: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Answerer, "answer", Answerer.answer)  # as before, in the end
    batch.long_batch(20, repeated=repeated)
    looks = json.loads(capsys.readouterr().out)
    assert [count for count, _, _ in looks] == [4, 8, 12, 16, 20]
    assert all(size > 10 and rate > 0 for _, size, rate in looks)


@pytest.mark.live
@pytest.mark.extended
async def test_cached_tokens_by_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "SLOTS", 1)
    table = await batch.cached(Options(quick=True))
    assert [row[:3] for row in table.rows] == [
        [1, order, endpoint] for order in ("of the file", "alike together") * 2 for endpoint in ("draft", "assistant")
    ]

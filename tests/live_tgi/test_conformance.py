"""TGI's adapter does what every adapter has to do, against the real model server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pytest

from cosd_providers import probe
from cosd_providers.engines.tgi import Tgi
from naive.plain_http import PlainTgi
from support.conformance import Conformance, Subject


def error(status: int, message: str) -> object:
    return {"error": message, "error_type": {422: "validation", 429: "overloaded"}.get(status, "generation")}


class TestTgi(Conformance):
    @pytest.fixture
    def given(self, plain: Mapping[str, PlainTgi]) -> Callable[[str], Subject]:
        return lambda name: Subject(partial(Tgi, plain[name].url), plain[name], error=error)


async def test_what_the_probe_reports(plain: Mapping[str, PlainTgi]) -> None:
    report = await probe(plain["sums"].url)
    assert (report.engine, report.can_draft, report.can_assist) == ("tgi", True, True)

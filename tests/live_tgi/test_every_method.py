"""Every method over TGI's model server: the texts of llama.cpp, or a refusal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import pytest

from cosd_providers import Provider, connect
from naive.plain_http import PlainTgi
from support.every_method import EveryMethod


class TestTgi(EveryMethod):
    """It reads texts only, scores them, and lists five tokens, whose strings are not always their texts."""

    engine = "TGI"
    stated = ("TGI", "with `--enable-prefill-logprobs`")
    refused: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("adafuse", "average", "safe", "safe of three", "chared", "chared of three"), "does not list its"
        ),
        **dict.fromkeys(("average drawn", "cosd drawn", "speculative drawn", "switch"), "does not draw tokens"),
        **dict.fromkeys(("defer", "surprise"), "lists no other tokens"),
    }
    count = 2

    @pytest.fixture
    def found(self, plain: Mapping[str, PlainTgi]) -> Callable[[str], Provider]:
        return lambda name: connect(plain[name].url, engine="tgi")

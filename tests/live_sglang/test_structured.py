"""Structured answers on a real SGLang, which gives the probabilities of the tokens that a format allows."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from naive.plain_http import PlainSglang
from support.restricted_answers import check_formats


@pytest.mark.parametrize(("draft", "assistant"), [("facts", "facts"), ("facts", "sums"), ("reciter", "facts")])
async def test_formats_of_improbable_words(plain: Mapping[str, PlainSglang], draft: str, assistant: str) -> None:
    await check_formats(plain[draft].url, plain[assistant].url)

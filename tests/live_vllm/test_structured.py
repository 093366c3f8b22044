"""Structured answers on a real vLLM, which chooses among the tokens that a format allows."""

from __future__ import annotations

import pytest

from cosd_api.apps.demo.servers import Pair
from support.restricted_answers import check_formats


@pytest.mark.parametrize(("draft", "assistant"), [("facts", "facts"), ("facts", "sums"), ("reciter", "facts")])
async def test_formats_of_improbable_words(vllm_pair: Pair, draft: str, assistant: str) -> None:
    await check_formats(vllm_pair[draft], vllm_pair[assistant])

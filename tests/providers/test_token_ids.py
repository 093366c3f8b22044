"""Encodings behind a prompt, of servers that are asked by ids: vLLM and SGLang."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cosd_providers import Provider, UnsupportedError, Usage
from cosd_providers.contract import Context
from cosd_providers.engines.sglang import Sglang
from cosd_providers.engines.vllm import Vllm
from cosd_providers.forwarding import by_ids
from cosd_providers.testing import LanguageModel, TableModel
from fakes.sglang import StandInSglang
from fakes.vllm import FakeVllm
from support.drawn import costly
from toys.sentencepieces import Marked, sentencepiece_like

URL = "http://gpu:8000"
MODEL = Marked()
TOKENIZERS: dict[str, Any] = {
    "none": None,
    "first": sentencepiece_like("first"),
    "always": sentencepiece_like("always"),
    "legacy": sentencepiece_like(legacy=True),
}
TEXTS = st.text(st.sampled_from(" \n,.Atheé東01🚀"), max_size=8)

Made = tuple[Provider, list[list[int]]]
"""A provider, and what its server reads."""


def names(model: LanguageModel) -> dict[int, str]:
    return {n: f"<unused{n}>" for n, data in enumerate(model.tokens) if not data and n not in model.end_ids}


def vllm(tokenizer: Any, model: LanguageModel = MODEL, *, spaces: bool, strings: bool = True) -> Made:
    server = FakeVllm(model, beginning=True)
    server.spaces, server.strings, server.specials = spaces, strings, names(model)
    return Vllm(URL, tokenizer=tokenizer, http_client=server.client()), server.read


def sglang(tokenizer: Any, model: LanguageModel = MODEL, *, spaces: bool) -> Made:
    server = StandInSglang(model, beginning=len(model.tokens), specials=names(model), space=spaces)
    return Sglang(URL, tokenizer=tokenizer, http_client=server.client()), server.read


MAKERS: dict[str, Callable[..., Made]] = {
    "vLLM": vllm,
    "vLLM without strings": partial(vllm, strings=False),
    "SGLang": sglang,
}


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("server", MAKERS)
@costly(100)
@example(text=" a b")
@example(text="the")
@example(text="\n the")
@given(text=TEXTS)
async def test_an_encoding_is_the_end_of_that_of_a_longer_text(server: str, tokenizer: str, text: str) -> None:
    """No space is before it but its own, though the tokenizer puts one before every text that it encodes alone."""
    provider, read = MAKERS[server](TOKENIZERS[tokenizer], spaces=True)
    pieces = await by_ids(provider).encode(text)
    assert b"".join(piece.data for piece in pieces) == text.encode()
    for before in ("A", "\n", "0,"):
        whole, behind = MODEL.encode((" " + before + text).encode()), MODEL.encode((" " + before).encode())
        assert [piece.id for piece in pieces] == whole[len(behind) :]
    ids = tuple(piece.id for piece in pieces)
    await by_ids(provider).next_tokens([Context("0,", text.encode(), ids)], usage=Usage())
    assert [len(MODEL.tokens), *MODEL.encode((" 0," + text).encode())] in read


@pytest.mark.parametrize("server", MAKERS)
@costly(100)
@given(text=TEXTS)
async def test_a_tokenizer_that_adds_nothing_encodes_a_text_by_itself(server: str, text: str) -> None:
    provider, _ = MAKERS[server](None, spaces=False)
    assert [piece.id for piece in await by_ids(provider).encode(text)] == MODEL.encode(text.encode())


@pytest.mark.parametrize("server", MAKERS)
async def test_a_text_that_is_merged_with_an_anchor_is_encoded_behind_another(server: str) -> None:
    """Behind none of them there would be no encoding."""
    vocabulary = [b"", *(bytes([byte]) for byte in range(256)), b"\na", b"\nb", b",b"]
    model = TableModel(vocabulary, lambda _: [1.0, *[0.0] * (len(vocabulary) - 1)], end_ids=(0,))
    provider, _ = MAKERS[server](None, model, spaces=True)
    assert [piece.id for piece in await by_ids(provider).encode("ac")] == model.encode(b"ac")
    with pytest.raises(UnsupportedError, match="merges this one with what is before it"):
        await by_ids(provider).encode("bc")

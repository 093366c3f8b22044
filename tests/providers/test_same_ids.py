"""Vocabularies whose tokens cross a space between words: seen in a test text or a list, and known for every model."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from cosd_api import CoSD, fuse
from cosd_api.decoding.answer_job import AnswerJob, Run
from cosd_api.endpoints import Endpoints
from cosd_providers import ConnectError, Piece, ServerInfo, UnsupportedError
from cosd_providers.engines.llama_cpp import LlamaCpp
from cosd_providers.forwarding import Forwarding, ForwardingProvider
from cosd_providers.same_ids import vocabulary
from cosd_providers.testing import ScriptedProvider, TableModel

BYTES = (b"", *(bytes([byte]) for byte in range(256)))


def model(*words: bytes) -> TableModel:
    """A model that ends at once, with tokens for all bytes and some words."""
    tokens = [*BYTES, *words]
    return TableModel(tokens, lambda _: [1.0, *[0.0] * (len(tokens) - 1)], end_ids=(0,))


def provider(*words: bytes, ids: bool = True) -> ScriptedProvider:
    return ScriptedProvider(model(*words), ids=ids)


class LowerCase(ScriptedProvider):
    """A server whose tokenizer normalises."""

    async def encode(self, text: str) -> list[Piece]:
        return await super().encode(text.lower())


class Silent(ScriptedProvider):
    """A server that does not encode."""

    async def encode(self, text: str) -> list[Piece]:
        raise UnsupportedError("the server does not encode")


class Listed(ForwardingProvider):
    """A server whose tokens are known."""

    async def crossing_token(self) -> bytes | None:
        return b" hereinafter referred"


class Down(ScriptedProvider):
    """A server that is down."""

    async def describe(self) -> ServerInfo:
        raise ConnectError("it is down")


SINGLE = (b" the", b" of", b"  ", b"\n\n", b" +")
CROSSING: dict[str, tuple[Any, bytes | None]] = {
    "bytes": (provider(), b""),
    "words": (provider(*SINGLE), b""),
    "phrases": (provider(*SINGLE, b"at the end of the day"), b"at the end of the day"),
    "a space at the end": (provider(*SINGLE, b", "), b", "),
    "a phrase that the test text lacks": (provider(b" hereinafter referred"), b""),
    "the same with a list": (Listed(provider(b" hereinafter referred")), b" hereinafter referred"),
    "a list behind a wrapper": (ForwardingProvider(Listed(provider())), b" hereinafter referred"),
    "a text that is changed": (LowerCase(model(b"in the world"), ids=True), None),
}


@pytest.mark.parametrize("name", CROSSING)
async def test_a_token_that_crosses_a_space_is_found(name: str) -> None:
    given, crossing = CROSSING[name]
    found = await vocabulary(given, await given.describe())
    assert found is not None
    assert found.crossing == crossing


@pytest.mark.parametrize("given", [Silent(model(), ids=True), provider(ids=False), Forwarding(provider())])
async def test_without_ids_nothing_is_known(given: Any) -> None:
    assert await vocabulary(given, await given.describe()) is None


async def test_a_finding_about_spaces_makes_no_other_vocabulary() -> None:
    one, other = provider(), Listed(provider())
    first, second = [await vocabulary(given, await given.describe()) for given in (one, other)]
    assert first is not None and second is not None
    assert first == second and repr(first) == repr(second)
    assert first.crossing != second.crossing


class Searched:
    """A tokenizer of a user's own, which counts how often it is searched."""

    name, beginning, searches = "mine", 0, 0

    def __init__(self, *more: bytes) -> None:
        self.more = more

    def encode(self, text: str) -> list[Piece]:
        return [Piece(byte, bytes([byte])) for byte in text.encode()]

    def token(self, id: int) -> bytes | None:
        return bytes([id])

    def listed(self) -> list[bytes]:
        self.searches += 1
        return [b"a", *self.more]


@pytest.mark.parametrize(("more", "crossing"), [((), None), ((b"b c", b"d e"), b"b c")])
async def test_a_local_tokenizer_is_searched_once_without_a_request(more: Any, crossing: bytes | None) -> None:
    tokenizer = Searched(*more)
    found = LlamaCpp("http://127.0.0.1:1", tokenizer=tokenizer)
    for given in (found, found, Forwarding(found)):
        assert await given.crossing_token() == crossing
    assert tokenizer.searches == 1


async def test_without_a_local_tokenizer_nothing_is_searched() -> None:
    assert await LlamaCpp("http://127.0.0.1:1").crossing_token() is None
    assert await Forwarding(provider()).crossing_token() is None


PLAIN, PHRASES = (*SINGLE, b"ing"), (*SINGLE, b" in the")
ENDPOINTS: dict[str, tuple[Any, Any, tuple[bool, ...]]] = {
    "two vocabularies": ({}, [provider(*PLAIN)], (True, True)),
    "a word each": ({"unit": "word"}, [provider(*PLAIN)], (True, True)),
    "not compared by ids": ({"unit": "literal"}, [provider(*PLAIN)], (False, False)),
    "one crosses": ({}, [provider(*PLAIN), provider(*PHRASES)], (True, True, False)),
    "one takes text": ({}, [provider(*PLAIN, ids=False), provider()], (True, False, True)),
    "one normalises": ({}, [LowerCase(model(), ids=True)], (True, False)),
    "one is down": ({"spares": True}, [Down(model(), ids=True), provider()], (True, False, True)),
}


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_every_model_says_whether_words_are_apart(name: str) -> None:
    options, assistants, cuts = ENDPOINTS[name]
    async with Endpoints(provider(*SINGLE), assistants, **options) as endpoints:
        assert (await endpoints.discover()).cuts == cuts


class Kept(CoSD):
    """The default method, which keeps the last job."""

    jobs: ClassVar[list[AnswerJob]] = []

    def start(self, job: AnswerJob) -> Run:
        self.jobs.append(job)
        return super().start(job)


async def test_the_decoder_gets_to_know() -> None:
    await fuse("Q", draft=provider(*SINGLE), assistant=provider(*PHRASES), method=Kept(), max_tokens=4)
    assert tuple(Kept.jobs[-1].cuts) == (True, False)

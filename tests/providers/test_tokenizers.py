"""Local tokenizers: exact bytes of every text, and no download."""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
import tiktoken
import tiktoken.load
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, processors

from cosd_api.apps.demo.servers import Pair
from cosd_providers import Piece, UnsupportedError
from cosd_providers import tokenizers as ours
from cosd_providers.tokenizers import TEST_TEXT, Tokenizer, count, load_tokenizer
from support.drawn import partly
from toys.sentencepieces import sentencepiece_like

MODELS = Path(__file__).parents[1] / "models"
TEXTS = st.lists(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.sampled_from("  \n\t\0aZé\u0301ß▁Ġ東京한🙂👩\u200d🚀🇵🇪\u202e\ufeff\ufffd0123"),
        st.sampled_from(["</s>", "<s>", "<|endoftext|>", "<0x41>", " the", "\r\n"]),
    )
).map("".join)
SURROGATE = "a\ud800"


def unigram() -> tokenizers.Tokenizer:
    """As T5's or XLM's, with bytes."""
    pieces = [("<unk>", 0.0), *((f"<0x{byte:02X}>", -9.0) for byte in range(256))]
    pieces += [("▁", -2.0), ("▁the", -3.0), ("the", -4.0), ("é", -5.0), ("東", -5.0), ("a", -3.0)]
    made = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.add_special_tokens(["</s>"])
    return made


def encoding() -> tiktoken.Encoding:
    ranks = {bytes([byte]): byte for byte in range(256)}
    for more in (b" t", b"he", b" the", b"\xc3\xa9", b"\xf0\x9f", b"\xf0\x9f\x99", b"00"):
        ranks[more] = len(ranks)
    special = {"<|endoftext|>": 300, "</s>": 302}
    return tiktoken.Encoding(
        "small", pat_str=r"\p{N}{1,3}| ?\p{L}+|[\s\S]", mergeable_ranks=ranks, special_tokens=special
    )


SOURCES: dict[str, object] = {
    "sums": MODELS / "sums",
    "facts": str(MODELS / "facts" / "tokenizer.json"),
    "metaspace first": sentencepiece_like("first"),
    "metaspace always": sentencepiece_like("always"),
    "metaspace never": sentencepiece_like("never"),
    "legacy": sentencepiece_like(legacy=True),
    "unigram": unigram(),
    "tiktoken": encoding(),
}
LOADED = {name: load_tokenizer(source) for name, source in SOURCES.items()}


@pytest.mark.parametrize("name", LOADED)
@given(text=TEXTS)
@example(text=TEST_TEXT)
@example(text="")
@example(text=" ")
@example(text=" the the  東")
def test_pieces_join_to_the_text(name: str, text: str) -> None:
    tokenizer = LOADED[name]
    pieces = tokenizer.encode(text)
    assert b"".join(piece.data for piece in pieces) == text.encode()
    assert count(tokenizer, text) == len(pieces) + tokenizer.beginning
    for before, piece in zip([None, *pieces], pieces, strict=False):
        told = tokenizer.token(piece.id)
        put = before is None or tokenizer.token(before.id) is None  # only there may a space have been put
        if told is not None and "▁".encode() not in piece.data and piece.data != b"<0x41>":  # read as in the text
            assert piece.data == told or (put and b" " + piece.data == told)


def test_ids_are_the_library_s() -> None:
    for name in ("sums", "facts"):
        plain = tokenizers.Tokenizer.from_file(str(MODELS / name / "tokenizer.json"))
        for text in (TEST_TEXT, "the <s> 東", ""):
            ids = [piece.id for piece in LOADED[name].encode(text)]
            assert ids == plain.encode(text, add_special_tokens=False).ids
    for text in (TEST_TEXT, "the <|endoftext|> 東"):
        assert [piece.id for piece in LOADED["tiktoken"].encode(text)] == encoding().encode(text, allowed_special="all")


def test_characters_in_turn() -> None:
    assert [piece.data for piece in LOADED["tiktoken"].encode(" the🙂")] == [b" the", b"\xf0\x9f\x99", b"\x82"]
    for name in ("legacy", "unigram", "metaspace first"):
        data = [piece.data for piece in LOADED[name].encode("the ü</s>")]
        assert data[-4:] == [b" ", b"\xc3", b"\xbc", b"</s>"]


@pytest.mark.parametrize("name", LOADED)
def test_special_tokens_in_the_text_are_parsed(name: str) -> None:
    special = "<|endoftext|>" if name == "sums" else "</s>"
    [*_, last] = LOADED[name].encode(f"a{special}")
    assert last.data == special.encode()
    assert LOADED[name].token(last.id) is None


def test_single_tokens() -> None:
    assert LOADED["legacy"].token(1) is None
    assert LOADED["legacy"].token(3 + 0xE2) == b"\xe2"
    assert LOADED["legacy"].token(3 + 256) == b" "
    assert LOADED["tiktoken"].token(0xE2) == b"\xe2"
    assert LOADED["tiktoken"].token(300) is None
    assert LOADED["tiktoken"].token(301) is None  # a gap
    for tokenizer in LOADED.values():
        assert [tokenizer.token(id) for id in (-1, 10**6, 10**20)] == [None, None, None]


def test_single_byte_level_tokens() -> None:
    vocab = tokenizers.Tokenizer.from_file(str(MODELS / "sums" / "tokenizer.json")).get_vocab()
    letters = byte_level_letters()
    told = {id: bytes(map(letters.__getitem__, entry)) for entry, id in vocab.items() if set(entry) <= set(letters)}
    special = {id for entry, id in vocab.items() if entry.startswith("<|")}
    assert len(told) > 400
    assert special
    assert {id: LOADED["sums"].token(id) for id in told} == told | dict.fromkeys(special)


def byte_level_letters() -> dict[str, int]:
    """The library's own notation of each byte that occurs in a character."""
    found = dict[str, int]()
    writer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for code in [*range(0x800), *range(0x800, 0xD800, 0x40), *range(0x10000, 0x110000, 0x1000)]:
        written = "".join(part for part, _ in writer.pre_tokenize_str(chr(code)))
        found |= dict(zip(written, chr(code).encode(), strict=True))
    return found


def test_added_tokens_that_are_not_special() -> None:
    made = sentencepiece_like()
    made.add_tokens(["<think>", tokenizers.AddedToken("<|end|>", rstrip=True, normalized=False)])
    tokenizer = load_tokenizer(made)
    pieces = tokenizer.encode("the<think>the<|end|> \n the")
    assert b"".join(piece.data for piece in pieces) == b"the<think>the<|end|> \n the"
    assert b"<think>" in [piece.data for piece in pieces]
    [end] = [piece for piece in pieces if b"<|end|>" in piece.data]
    assert end.data == b"<|end|> \n "
    assert tokenizer.token(end.id) == b"<|end|>"


def test_what_the_users_own_object_cuts_is_not_cut() -> None:
    made = sentencepiece_like()
    made.enable_truncation(2)
    made.enable_padding(length=8)
    text = "the the the the"
    assert b"".join(piece.data for piece in load_tokenizer(made).encode(text)) == text.encode()
    assert made.truncation
    assert made.padding


@pytest.mark.parametrize(
    "normalizer",
    [normalizers.Lowercase(), normalizers.NFC(), normalizers.Strip(), normalizers.Replace("e", "")],
    ids=lambda one: type(one).__name__,
)
def test_a_changed_text_is_refused(normalizer: Any) -> None:
    made = tokenizers.Tokenizer.from_file(str(MODELS / "sums" / "tokenizer.json"))
    made.normalizer = normalizer
    tokenizer = load_tokenizer(made)
    assert tokenizer.encode("a=1")[0].data == b"a"
    with pytest.raises(UnsupportedError, match="changes parts of the text") as caught:
        tokenizer.encode(" THE secret e\u0301 ")
    assert "secret" not in str(caught.value)
    assert str(caught.value).endswith("Give the tokenizer that the model's server uses, or none.")


def test_what_cannot_be_encoded_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="has no token for them"):
        load_tokenizer(tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="[UNK]")))
    bare = load_tokenizer(tokenizers.Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]")))
    lossy = load_tokenizer(
        tiktoken.Encoding("x", pat_str=r"\p{L}+", mergeable_ranks=ranks_of_bytes(), special_tokens={})
    )
    for tokenizer in (bare, lossy):
        assert tokenizer.encode("a") == [Piece(tokenizer.encode("a")[0].id, b"a")]
        with pytest.raises(UnsupportedError, match="has no token for them"):
            tokenizer.encode("é b")
    assert bare.token(0) is None  # its notation of spaces cannot be seen
    for tokenizer in LOADED.values():
        with pytest.raises(ValueError, match="surrogates not allowed"):
            tokenizer.encode(SURROGATE)


def ranks_of_bytes() -> dict[bytes, int]:
    return {bytes([byte]): byte for byte in range(256)}


def test_beginning(tmp_path: Path) -> None:
    assert {name: one.beginning for name, one in LOADED.items() if one.beginning} == {"facts": 1}
    assert load_tokenizer(MODELS / "facts").beginning == 1
    both = sentencepiece_like()
    both.post_processor = processors.TemplateProcessing(
        single="<s> </s> $A </s>", pair=None, special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    assert load_tokenizer(both).beginning == 2
    assert count(load_tokenizer(both), "the") == 3

    for made, config, beginning in (
        (both, {}, 2),
        (both, {"add_bos_token": False, "bos_token": "<s>"}, 0),
        (both, {"add_bos_token": True, "bos_token": "<s>"}, 2),
        (sentencepiece_like(), {"add_bos_token": True, "bos_token": {"content": "<s>"}}, 1),
        (sentencepiece_like(), {"add_bos_token": True, "bos_token": None}, 0),
        (sentencepiece_like(), [], 0),
    ):
        made.save(str(tmp_path / "tokenizer.json"))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        assert load_tokenizer(tmp_path).beginning == beginning
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer_config.json' cannot be read as JSON"):
        load_tokenizer(tmp_path)


def test_names() -> None:
    assert LOADED["sums"].name == str(MODELS / "sums")
    assert LOADED["tiktoken"].name == "tiktoken:small"
    assert LOADED["unigram"].name == "tokenizers.Tokenizer"
    assert repr(LOADED["tiktoken"]) == "<tokenizer tiktoken:small>"


class Own:
    name = "own"
    beginning = 1

    def encode(self, text: str) -> list[Piece]:
        return [Piece(byte, bytes([byte])) for byte in text.encode()]

    def token(self, id: int) -> bytes | None:
        return bytes([id])


def test_ones_own_is_taken_as_it_is() -> None:
    own = Own()
    assert load_tokenizer(own) is own
    assert load_tokenizer(LOADED["tiktoken"]) is LOADED["tiktoken"]
    assert isinstance(own, Tokenizer)
    assert count(own, "é") == 3


class Transformers:
    backend_tokenizer = None


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (None, "'NoneType' is not a tokenizer; give a folder"),
        (3, "'int' is not a tokenizer; give a folder"),
        (Own, "'type' is not a tokenizer"),
        (Transformers(), "'Transformers' is not a tokenizer; give its `backend_tokenizer`"),
    ],
)
def test_no_tokenizer(source: object, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        load_tokenizer(source)


@pytest.mark.parametrize("name", ["gpt2", "meta-llama/Llama-3.1-8B", "https://huggingface.co/gpt2", "nowhere.json"])
def test_names_of_models_are_not_looked_up(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for source in (name, Path(name)):
        with pytest.raises(
            ValueError, match=r"is not a file or folder on this machine, and nothing is downloaded; give a folder"
        ):
            load_tokenizer(source)


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no tokenizer.json; load it with transformers' AutoTokenizer"):
        load_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    for content in (b"", b"{}", b"\xff\xfe", b'{"model": {"type": "Unknown"}}'):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"tokenizer.json' cannot be read as a tokenizer.json: ."):
            load_tokenizer(file)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache of tiktoken's, and nothing loaded before."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("DATA_GYM_CACHE_DIR", raising=False)
    monkeypatch.setattr("tiktoken.registry.ENCODINGS", {})
    return tmp_path


@pytest.mark.parametrize("name", ["gpt2", "cl100k_base", "o200k_harmony", "gpt-4o", "text-davinci-003"])
@pytest.mark.parametrize("where", ["empty", "off", "default", "old", "broken"])
def test_nothing_is_downloaded(name: str, where: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if where == "off":
        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
    if where in ("default", "old"):
        monkeypatch.delenv("TIKTOKEN_CACHE_DIR")
        monkeypatch.setattr("tempfile.tempdir", str(cache))
    if where == "old":
        monkeypatch.setenv("DATA_GYM_CACHE_DIR", str(cache))
    if where == "broken":
        for address in {address for files in ours._FILES.values() for address, _ in files}:
            key = hashlib.sha1((ours._STORE + address).encode()).hexdigest()
            (cache / key).write_bytes(b"cut of")
    kept = sorted(cache.iterdir())
    with pytest.raises(UnsupportedError, match="is not in its cache, and nothing is downloaded") as caught:
        load_tokenizer(f"tiktoken:{name}")
    encoding_name = name if name in ours._FILES else tiktoken.encoding_name_for_model(name)
    fetch = f"python -c \"import tiktoken; tiktoken.get_encoding('{encoding_name}')\""
    assert f"Download it once: {fetch} (into TIKTOKEN_CACHE_DIR)" in str(caught.value)
    assert sorted(cache.iterdir()) == kept


def test_tiktoken_s_files_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that tiktoken requests against those that are looked for in its cache."""
    asked = list[tuple[str, str]]()

    class EnoughError(Exception):
        pass

    def read(url: str, digest: str) -> bytes:
        asked.append((url, digest))
        if url.endswith("vocab.bpe"):
            return b"#version\n"
        raise EnoughError

    monkeypatch.setattr(tiktoken.load, "read_file_cached", read)
    found = dict[str, list[tuple[str, str]]]()
    for name, constructor in importlib.import_module("tiktoken_ext.openai_public").ENCODING_CONSTRUCTORS.items():
        asked.clear()
        with pytest.raises(EnoughError):
            constructor()
        found[name] = list(asked)
    known = {name: [(ours._STORE + path, digest) for path, digest in files] for name, files in ours._FILES.items()}
    assert known == found
    assert set(tiktoken.list_encoding_names()) == set(ours._FILES)


@pytest.mark.parametrize("where", ["TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR", "default", "off"])
def test_what_is_in_the_cache_is_used(
    where: str, cache: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in the cache, stored by tiktoken itself."""
    made = b"".join(line_of(bytes([byte]), byte) for byte in range(256))
    digest = hashlib.sha256(made).hexdigest()
    url = ours._STORE + "encodings/tiny.tiktoken"

    def tiny() -> dict[str, Any]:
        ranks = tiktoken.load.load_tiktoken_bpe(url, expected_hash=digest)
        return {"name": "tiny", "pat_str": r"[\s\S]", "mergeable_ranks": ranks, "special_tokens": {}}

    with pytest.MonkeyPatch.context() as patch:  # the one download
        patch.setattr(tiktoken.load, "read_file", lambda _: made)
        tiktoken.load.read_file_cached(url, digest)
    tiktoken.list_encoding_names()  # finds its plugins
    constructors = dict(tiktoken.registry.ENCODING_CONSTRUCTORS or {})
    monkeypatch.setattr(tiktoken.registry, "ENCODING_CONSTRUCTORS", constructors | {"tiny": tiny})
    with pytest.raises(
        UnsupportedError, match=r"may have to download its encoding 'tiny'. Give tiktoken.get_encoding\('tiny'\) itself"
    ):
        load_tokenizer("tiktoken:tiny")
    monkeypatch.setitem(ours._FILES, "tiny", (("encodings/tiny.tiktoken", digest),))
    if where == "off":
        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
        monkeypatch.chdir(cache)
        with pytest.raises(UnsupportedError, match="is not in its cache"):
            load_tokenizer("tiktoken:tiny")
        return
    if where != "TIKTOKEN_CACHE_DIR":
        monkeypatch.delenv("TIKTOKEN_CACHE_DIR")
    if where == "DATA_GYM_CACHE_DIR":
        monkeypatch.setenv("DATA_GYM_CACHE_DIR", str(cache))
    if where == "default":
        tmp_path = tmp_path_factory.mktemp("other")
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        shutil.copytree(cache, tmp_path / "data-gym-cache")
    assert [piece.data for piece in load_tokenizer("tiktoken:tiny").encode("é")] == [b"\xc3", b"\xa9"]


def line_of(data: bytes, rank: int) -> bytes:
    return base64.b64encode(data) + b" %d\n" % rank


def test_no_such_encoding() -> None:
    with pytest.raises(
        ValueError, match=r"no encoding 'llama' and knows no model of that name; it has cl100k_base, gpt2"
    ):
        load_tokenizer("tiktoken:llama")


@pytest.mark.live
@pytest.mark.parametrize("name", ["sums", "facts"])
def test_as_the_server_encodes(name: str, pair: Pair) -> None:
    url, tokenizer = str(getattr(pair, name)), load_tokenizer(MODELS / name)
    texts = [
        TEST_TEXT,
        "",
        " ",
        "  a\n\n b\r\n",
        "Zürich 😀👩\u200d🚀",
        "e\u0301 \ufeff\u202e",
        "</s><s> <|endoftext|>a",
        "\t1234.5",
    ]
    with httpx.Client(base_url=url, headers={"Connection": "close"}) as client:
        for text in texts:
            asked: dict[str, Any] = {"content": text, "add_special": False, "parse_special": True, "with_pieces": True}
            tokens = client.post("/tokenize", json=asked).json()["tokens"]
            theirs = [Piece(one["id"], raw(one["piece"])) for one in tokens]
            assert tokenizer.encode(text) == theirs
            asked["add_special"] = True
            assert len(client.post("/tokenize", json=asked).json()["tokens"]) == count(tokenizer, text)


def raw(piece: str | list[int]) -> bytes:
    return piece.encode() if isinstance(piece, str) else bytes(piece)


@pytest.mark.parametrize("name", partly([*LOADED], 2))
async def test_long_texts_are_encoded_alike_and_in_a_thread(name: str) -> None:
    tokenizer = LOADED[name]
    for text, long in ((TEST_TEXT, False), (TEST_TEXT * 500, True)):
        threads: list[bool] = []

        def work(tokenizer: Tokenizer, text: str, found: list[bool] = threads) -> int:
            found.append(threading.current_thread() is not threading.main_thread())
            return ours.length(tokenizer, text)

        pieces = await ours.encoded(tokenizer, text)
        assert b"".join(piece.data for piece in pieces) == text.encode()
        assert await ours.beside(work, tokenizer, text) == len(pieces)
        assert threads == [long]


def test_a_tokenizer_that_cannot_count_encodes() -> None:
    class Words:
        name, beginning = "words", 1

        def encode(self, text: str) -> list[Piece]:
            return [Piece(0, word.encode()) for word in text.split()]

        def token(self, id: int) -> bytes | None:
            return None

    assert (ours.length(Words(), "a b c"), count(Words(), "a b c")) == (3, 4)

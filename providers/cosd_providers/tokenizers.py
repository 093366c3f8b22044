"""Local tokenizers, for servers that do not encode text, or are too far away for frequent requests.

Depending on its source, a tokenizer uses the library `tokenizers` or `tiktoken` (the extra `tokenizers`). It returns
tokens with their exact bytes, or raises an error. No file is ever downloaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, cast, runtime_checkable

from anyio import to_thread

from cosd_providers.contract import Piece, Provider, ServerInfo, WordEnds, WordSplitter
from cosd_providers.errors import UnsupportedError
from cosd_providers.vocabulary import Kind, crosses_space, decode_token, kind_of, spell

if TYPE_CHECKING:
    import tiktoken
    import tokenizers

TEST_TEXT = (
    "The quick brown fox, 1234567 + 89 = 42!\n\n\tdef f(x):  return x_1**2  # naïve café — “quoted”\n"
    "Übergrößenträger Привет мир 東京都に住んでいます 한국어 🙂👩‍🚀 <|im_start|> </s>"
)
"""A text with words, numbers, code, several scripts and spaces. Models that encode it alike share a tokenizer."""

_T = TypeVar("_T")

_LONG = 1 << 16  # characters; a longer text is encoded in a thread
_WORDS = "two words"
_NAMED = "tiktoken:"
_FORMS = f'give a folder that holds tokenizer.json, that file itself, or "{_NAMED}ENCODING", e.g. "{_NAMED}cl100k_base"'

_STORE = "https://openaipublic.blob.core.windows.net/"
_R50K = ("encodings/r50k_base.tiktoken", "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930")
_P50K = ("encodings/p50k_base.tiktoken", "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069")
_CL100K = ("encodings/cl100k_base.tiktoken", "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7")
_O200K = ("encodings/o200k_base.tiktoken", "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d")
_GPT2 = (
    ("gpt-2/encodings/main/vocab.bpe", "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"),
    ("gpt-2/encodings/main/encoder.json", "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"),
)
_FILES = {
    "gpt2": _GPT2,
    "r50k_base": (_R50K,),
    "p50k_base": (_P50K,),
    "p50k_edit": (_P50K,),
    "cl100k_base": (_CL100K,),
    "o200k_base": (_O200K,),
    "o200k_harmony": (_O200K,),
}
"""The URLs and SHA-256 digests of the files that tiktoken needs for each encoding. Because tiktoken silently downloads
a file that is missing from its cache or incomplete, the cache is checked first."""


@runtime_checkable
class Tokenizer(Protocol):
    """A tokenizer that encodes like a model's server: the extension point for tokenizers from other libraries."""

    @property
    def name(self) -> str:
        """The tokenizer's name, for error messages."""
        ...

    @property
    def beginning(self) -> int:
        """The number of special tokens that the model's server adds before a prompt."""
        ...

    def encode(self, text: str) -> list[Piece]:
        """Encode a text into tokens whose bytes join to the text. No token is added, and special tokens are parsed.

        Servers also parse special tokens in prompts: the string `"</s>"` becomes the special token of that name.

        Raises:
            UnsupportedError: the tokens do not spell the text.
            ValueError: the text contains surrogates, which are not characters.
        """
        ...

    def token(self, id: int) -> bytes | None:
        """Return the raw bytes of a token, possibly part of a character; None for special tokens and unknown ids."""
        ...


@runtime_checkable
class WordTokenizer(Tokenizer, Protocol):
    """An optional protocol of tokenizers that split a text into words before they encode each word."""

    def words(self, text: str) -> Sequence[int] | None:
        """Return the ends of the words in `text`, as character offsets; None if the tokenizer does not split texts."""
        ...


def word_ends(tokenizer: Tokenizer) -> WordEnds | None:
    """Return the function with which a tokenizer finds the ends of a text's words; None if it does not split texts."""
    if not isinstance(tokenizer, WordTokenizer) or len(tokenizer.words(_WORDS) or ()) <= 1:
        return None
    return lambda text: tokenizer.words(text) or ()


async def words_of(provider: Provider) -> WordEnds | None:
    """Find the function with which a provider's model splits a text into words before encoding; None if unknown."""
    return await provider.word_splitter() if isinstance(provider, WordSplitter) else None


@runtime_checkable
class CountingTokenizer(Tokenizer, Protocol):
    """An optional protocol of tokenizers that count the tokens of a text without finding their bytes."""

    def count(self, text: str) -> int:
        """Return the number of tokens that `encode` would return."""
        ...


@runtime_checkable
class ListingTokenizer(Tokenizer, Protocol):
    """An optional protocol of tokenizers that list their vocabulary."""

    def listed(self) -> Iterable[bytes]:
        """Return the raw bytes of all tokens except special ones; empty if they are unknown."""
        ...


async def crossing(tokenizer: Tokenizer) -> bytes:
    """Find a token that crosses a space between words (`vocabulary.crosses_space`); empty if none is known."""

    def find() -> bytes:
        tokens = tokenizer.listed() if isinstance(tokenizer, ListingTokenizer) else ()
        return next(filter(crosses_space, tokens), b"")

    return await to_thread.run_sync(find)


def length(tokenizer: Tokenizer, text: str) -> int:
    """Count the tokens of a text, without added tokens."""
    return tokenizer.count(text) if isinstance(tokenizer, CountingTokenizer) else len(tokenizer.encode(text))


def count(tokenizer: Tokenizer, prompt: str) -> int:
    """Count the tokens that the server reads for `prompt`, including the special tokens that it adds."""
    return tokenizer.beginning + length(tokenizer, prompt)


async def beside(work: Callable[[Tokenizer, str], _T], tokenizer: Tokenizer, text: str) -> _T:
    """Call `work` with a tokenizer and a text, in a thread if the text is long, so as not to block the event loop."""
    if len(text) <= _LONG:
        return work(tokenizer, text)
    return await to_thread.run_sync(work, tokenizer, text)


async def encoded(tokenizer: Tokenizer, text: str) -> list[Piece]:
    """Encode a text as `Tokenizer.encode` does, without blocking the event loop."""
    return await beside(_encode, tokenizer, text)


def _encode(tokenizer: Tokenizer, text: str) -> list[Piece]:
    return tokenizer.encode(text)


def load_tokenizer(source: object) -> Tokenizer:
    """Load a tokenizer from this machine.

    Args:
        source: the path of a `tokenizer.json`, or of a folder that contains one, as saved by Hugging Face's libraries;
            `"tiktoken:<encoding>"` or `"tiktoken:<model>"`, e.g. `"tiktoken:gpt-4o"`, if tiktoken has the file in its
            cache; a `tokenizers.Tokenizer`; a `tiktoken.Encoding`; or a `Tokenizer`, which is returned unchanged.

    Raises:
        ValueError: the file is missing or unreadable, or no encoding has this name.
        TypeError: `source` has an unsupported type.
        UnsupportedError: the library is not installed, tiktoken would have to download a file, or the tokenizer cannot
            encode even a single letter.
    """
    if isinstance(source, Path):
        return _from_path(source)
    if isinstance(source, str):
        return _from_name(source.removeprefix(_NAMED)) if source.startswith(_NAMED) else _from_path(Path(source))
    if _made_by("tokenizers", "Tokenizer", source):
        return _HuggingFace("tokenizers.Tokenizer", cast("tokenizers.Tokenizer", source))
    if _made_by("tiktoken", "Encoding", source):
        return _Tiktoken(cast("tiktoken.Encoding", source))
    if isinstance(source, Tokenizer) and not isinstance(source, type):
        return source
    more = "; give its `backend_tokenizer`" if hasattr(source, "backend_tokenizer") else ""
    raise TypeError(f"{type(source).__name__!r} is not a tokenizer{more or '; ' + _FORMS}")


def _made_by(library: str, name: str, source: object) -> bool:
    """Test whether `source` is an object of a library, without importing it."""
    kind = getattr(sys.modules.get(library), name, None)
    return isinstance(kind, type) and isinstance(source, kind)


class _HuggingFace:
    """A tokenizer from the library `tokenizers`."""

    def __init__(self, name: str, tokenizer: tokenizers.Tokenizer, *, bos: bool | None = None) -> None:
        if tokenizer.truncation or tokenizer.padding:
            tokenizer = type(tokenizer).from_str(tokenizer.to_str())  # the user's own object stays unchanged
            tokenizer.no_truncation()
            tokenizer.no_padding()
        self.name = name
        self._tokenizer = tokenizer
        self._added = {id: None if one.special else one.content for id, one in _added(tokenizer).items()}
        self._kind: Kind | None = kind_of(b" a", self._encoded(" a").tokens)
        mask = self._encoded("a", special=True).special_tokens_mask
        self.beginning = 0 if bos is False else max(mask.index(0) if 0 in mask else 0, int(bos or False))

    def __repr__(self) -> str:
        return f"<tokenizer {self.name}>"

    def encode(self, text: str) -> list[Piece]:
        data = text.encode()
        found = self._encoded(text)
        pieces = spell(data, list(zip(found.ids, found.tokens, strict=True)))
        if pieces is None:
            raise _unspelled(self.name)
        return pieces

    def count(self, text: str) -> int:
        return len(self._encoded(text))

    def token(self, id: int) -> bytes | None:
        if id in self._added:
            content = self._added[id]
            return None if content is None else content.encode()
        string = self._tokenizer.id_to_token(id) if 0 <= id < 2**32 else None
        return None if string is None or self._kind is None else decode_token(self._kind, string)

    def listed(self) -> Iterable[bytes]:
        return filter(None, map(self.token, self._tokenizer.get_vocab().values()))

    def words(self, text: str) -> list[int] | None:
        splitter = self._tokenizer.pre_tokenizer
        return None if splitter is None else [end for _, (_, end) in splitter.pre_tokenize_str(text)]

    def _encoded(self, text: str, *, special: bool = False) -> tokenizers.Encoding:
        try:
            if len(text) > _LONG:  # unlike `encode`, the method for several texts lets other threads run
                return self._tokenizer.encode_batch([text], add_special_tokens=special)[0]
            return self._tokenizer.encode(text, add_special_tokens=special)
        except Exception as error:  # the library raises no narrower type
            raise _unspelled(self.name) from error


def _added(tokenizer: tokenizers.Tokenizer) -> dict[int, tokenizers.AddedToken]:
    return tokenizer.get_added_tokens_decoder()


class _Tiktoken:
    """An encoding from the library `tiktoken`. Servers of models with such an encoding add nothing before a prompt."""

    beginning = 0

    def __init__(self, encoding: tiktoken.Encoding) -> None:
        self.name = f"{_NAMED}{encoding.name}"
        self._encoding = encoding

    def __repr__(self) -> str:
        return f"<tokenizer {self.name}>"

    def encode(self, text: str) -> list[Piece]:
        data = text.encode()
        ids = self._encoding.encode(text, allowed_special="all")
        pieces = [Piece(id, self._encoding.decode_single_token_bytes(id)) for id in ids]
        if b"".join(piece.data for piece in pieces) != data:
            raise _unspelled(self.name)
        return pieces

    def count(self, text: str) -> int:
        return len(self._encoding.encode(text, allowed_special="all"))

    def words(self, text: str) -> list[int] | None:
        import regex  # noqa: PLC0415 - tiktoken needs it, too

        pattern = getattr(self._encoding, "_pat_str", None)  # the library has no public attribute for the pattern
        return None if pattern is None else [word.end() for word in regex.finditer(pattern, text)]

    def listed(self) -> Iterable[bytes]:
        return self._encoding.token_byte_values()

    def token(self, id: int) -> bytes | None:
        if not 0 <= id <= self._encoding.max_token_value or self._encoding.is_special_token(id):
            return None
        try:
            return self._encoding.decode_single_token_bytes(id)
        except KeyError:
            return None


def _unspelled(name: str) -> UnsupportedError:
    words = f"the tokenizer {name} changes parts of the text before encoding, or has no token for them"
    return UnsupportedError(words, hint="Give the tokenizer that the model's server uses, or none.")


def _from_path(path: Path) -> Tokenizer:
    """Load a tokenizer from a file or a folder."""
    path = path.expanduser()
    if not path.exists():
        raise ValueError(f"{str(path)!r} is not a file or folder on this machine, and nothing is downloaded; {_FORMS}")
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        words = "load it with transformers' AutoTokenizer and call save_pretrained to write one"
        raise ValueError(f"the folder {str(path)!r} has no tokenizer.json; {words}")
    import tokenizers  # noqa: PLC0415 - slow

    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no narrower type
        raise ValueError(f"{str(file)!r} cannot be read as a tokenizer.json: {error}") from error
    return _HuggingFace(str(path), tokenizer, bos=_adds_bos(file.with_name("tokenizer_config.json")))


def _adds_bos(file: Path) -> bool | None:
    """The setting for a beginning-of-sequence token in `tokenizer_config.json`; None if the file has no such setting.

    The setting overrides `tokenizer.json`, because servers follow it.
    """
    try:
        data = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{str(file)!r} cannot be read as JSON: {error}") from error
    config = cast("dict[str, object]", data) if isinstance(data, dict) else {}
    adds = config.get("add_bos_token")
    if not isinstance(adds, bool):
        return None
    return adds and bool(config.get("bos_token"))


def _from_name(name: str) -> Tokenizer:
    """Load one of tiktoken's own encodings, if it is in tiktoken's cache, by its name or a model's name."""
    import tiktoken  # noqa: PLC0415 - slow

    known = tiktoken.list_encoding_names()
    try:
        encoding = name if name in known else tiktoken.encoding_name_for_model(name)
    except KeyError:
        words = f"tiktoken has no encoding {name!r} and knows no model of that name"
        raise ValueError(f"{words}; it has {', '.join(sorted(known))}") from None
    if encoding not in _FILES:
        words = f"tiktoken may have to download its encoding {encoding!r}"
        raise UnsupportedError(words, hint=f"Give tiktoken.get_encoding({encoding!r}) itself.")
    if not all(_cached(_STORE + address, digest) for address, digest in _FILES[encoding]):
        words = f"tiktoken's encoding {encoding!r} is not in its cache, and nothing is downloaded here"
        fetch = f'python -c "import tiktoken; tiktoken.get_encoding({encoding!r})"'
        hint = f"Download it once: {fetch} (into TIKTOKEN_CACHE_DIR). Or give the Encoding itself."
        raise UnsupportedError(words, hint=hint)
    return _Tiktoken(tiktoken.get_encoding(encoding))


def _cached(url: str, digest: str) -> bool:
    """Test whether tiktoken will find a file in its cache, by the rules of its `load.read_file_cached`."""
    default = str(Path(tempfile.gettempdir(), "data-gym-cache"))
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR", default))
    if not folder:  # an empty environment variable turns tiktoken's cache off
        return False
    try:
        data = Path(folder, hashlib.sha1(url.encode(), usedforsecurity=False).hexdigest()).read_bytes()
    except OSError:
        return False
    return hashlib.sha256(data).hexdigest() == digest


async def fingerprint(provider: Provider, info: ServerInfo) -> list[int] | None:
    """Find the ids of `TEST_TEXT`, which are equal for models that share a tokenizer; None if the server cannot encode.

    The comparison uses ids rather than bytes: if several tokens share a character, servers differ in which token shows
    the bytes.
    """
    if not info.capabilities.tokenize:
        return None
    try:
        return [piece.id for piece in await provider.tokenize(TEST_TEXT)]
    except UnsupportedError:
        return None

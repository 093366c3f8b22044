"""N-gram models over tokenizers that are trained here: small, and with the pre-tokenizers of well-known models.

Their texts are beginnings of pages and modules of this repository, with paragraphs, lists, tables, indentation and
digits, to which some lines of emoji, addresses and other scripts are added. They are kept in a file: an edit of a page
would make other models.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, trainers
from tokenizers import models as bpe

from naive.plain_http import ALPHABET

ROOT = Path(__file__).parents[2]
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIX}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DIGITS = GPT2.replace(r" ?\p{N}+", r"\p{N}")
"""GPT-2's with every digit by itself, as SmolLM's has it."""
PHRASES = rf"(?: ?\p{{L}}+)+|{GPT2}"
"""GPT-2's, whose tokens may cross a space between words."""
SYMBOLS = rf"(?: ?[<>=|+]+)+/?|{GPT2}"
"""GPT-2's, whose tokens may cross a space after a symbol, as `> </` does."""
MARKUP = "foo> </bar\n<b> </b> <i> </i>\n" * 40
EXTRA = (
    "She can't; they cannot, and we'll see: 12,345.67 or 1234567890.\n\nI 😀 it 👩‍👩‍👧, naïve café — Ωmega.\n",
    "https://example.org/usr/local/lib?q=a%20b&c=d#e and s3://bucket/key_1.tar.gz.\n/usr/bin\n/\n/etc\n",
    "今日は良い天気です。 散歩に行きましょう。\n\nПривет, мир! 12 + 34 = 46\n\n\n    \n\t\treturn\n",
    "| a  |   b |\n|----|-----|\n| 1  |  22 |\n" + " " * 31 + "x = 1\n" + "-" * 40 + "\n" + "=" * 25 + "\n",
)


def markdown() -> list[str]:
    """The pages of the documentation, as they are today."""
    return [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))]


def code() -> list[str]:
    """Some modules, as they are today."""
    return [path.read_text(encoding="utf-8") for path in sorted((ROOT / "cosd_api" / "methods").glob("*.py"))]


@cache
def passages() -> tuple[str, ...]:
    """Texts to learn from, a few paragraphs each."""
    return (*json.loads((Path(__file__).parent / "passages.json").read_text(encoding="utf-8")), *EXTRA * 4)


def byte_level(
    pattern: str,
    *,
    vocabulary: int = 600,
    normalizer: normalizers.Normalizer | None = None,
    texts: Sequence[str] | None = None,
) -> Tokenizer:
    """A byte-level tokenizer with a pattern, trained on some texts, or the passages."""
    tokenizer = Tokenizer(bpe.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(passages() if texts is None else texts, trainer)
    return tokenizer


def with_spaces(*, vocabulary: int = 800) -> Tokenizer:
    """A tokenizer in the manner of SentencePiece: spaces are "▁", and what it has not seen falls apart into bytes."""
    tokenizer = Tokenizer(bpe.BPE(byte_fallback=True, unk_token=None, fuse_unk=False))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("▁*[^▁]+|▁+"), "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[f"<0x{byte:02X}>" for byte in range(256)],
        show_progress=False,
    )
    tokenizer.train_from_iterator(passages(), trainer)
    return tokenizer


def with_phrases(count: int = 40) -> Tokenizer:
    """A tokenizer that merges words to frequent phrases once it has merged all parts of words, as SuperBPE does."""
    tokenizer = byte_level(GPT2)
    made, pairs = json.loads(tokenizer.to_str()), Counter[tuple[str, str]]()
    for text in passages():
        pairs.update(pairwise(tokenizer.encode(text).tokens))
    words = [(one, other) for (one, other), _ in pairs.most_common() if f"{one[1:]}{other[1:]}".isalpha()]
    merges = [pair for pair in words if pair[0][0] == pair[1][0] == "Ġ"][:count]
    made["model"]["merges"] += merges
    made["model"]["vocab"] |= {one + other: len(made["model"]["vocab"]) + at for at, (one, other) in enumerate(merges)}
    made["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": PHRASES}
    return Tokenizer.from_str(json.dumps(made))


MAKERS: dict[str, Callable[[], Tokenizer]] = {
    "gpt2": lambda: byte_level(GPT2),
    "digits": lambda: byte_level(DIGITS),
    "llama3": lambda: byte_level(LLAMA3),
    "o200k": lambda: byte_level(O200K),
    "spaces": with_spaces,
    "phrases": with_phrases,
    "symbols": lambda: byte_level(SYMBOLS, texts=(*passages(), MARKUP)),
    "nfkc": lambda: byte_level(GPT2, normalizer=normalizers.NFKC()),
}


@dataclass(frozen=True, repr=False)
class Pieces:
    """A tokenizer's pieces as bytes; `names` are its ids, in another order if they are permuted."""

    tokenizer: Tokenizer
    names: tuple[int, ...]

    @cached_property
    def tokens(self) -> tuple[bytes, ...]:
        """The bytes of every id; the last is the end of sequence."""
        found = [b""] * (len(self.names) + 1)
        with_spaces = self.tokenizer.token_to_id("<0x00>") is not None
        for piece, at in self.tokenizer.get_vocab().items():
            found[self.names[at]] = spelled(piece, with_spaces=with_spaces)
        return tuple(found)

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The place of every id in the order of their bytes, which decides between equals whatever the ids are."""
        order = sorted(range(len(self.tokens)), key=self.tokens.__getitem__)
        places = {one: place for place, one in enumerate(order)}
        return tuple(places[one] for one in range(len(self.tokens)))

    @cached_property
    def _encoded(self) -> dict[bytes, tuple[int, ...]]:
        return {}

    def encode(self, text: bytes) -> list[int]:
        """The ids of a text, which has whole characters only."""
        found = self._encoded.get(text)
        if found is None:
            found = tuple(self.names[one] for one in self.tokenizer.encode(text.decode()).ids)
            self._encoded[text] = found
        return [*found]


def spelled(piece: str, *, with_spaces: bool) -> bytes:
    """The bytes of a piece; `with_spaces`: as SentencePiece writes it, else as byte-level tokenizers do."""
    if not with_spaces:
        return bytes(ALPHABET[one] for one in piece)
    if piece.startswith("<0x"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace("▁", " ").encode()


@cache
def pieces(name: str, *, permuted: bool = False) -> Pieces:
    """A tokenizer, trained once; `permuted`: the same pieces under other ids."""
    tokenizer = MAKERS[name]()
    size = tokenizer.get_vocab_size()
    order = [(at * 7 + 3) % size for at in range(size)] if permuted and size % 7 else [*range(size)]
    return Pieces(tokenizer, tuple(reversed(order)) if permuted else tuple(order))


@dataclass(frozen=True, repr=False)
class NGram:
    """A model of the tokens of some texts, by the last `order` - 1 of them; see `testing.LanguageModel`."""

    pieces: Pieces
    texts: tuple[str, ...]
    order: int = 3
    name: str = ""

    def __repr__(self) -> str:
        return f"<{self.order}-grams of {self.name}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print it, for Hypothesis."""
        printer.text(repr(self))

    @property
    def tokens(self) -> Sequence[bytes]:
        """The bytes of every id."""
        return self.pieces.tokens

    @property
    def end(self) -> int:
        """The end of sequence."""
        return len(self.tokens) - 1

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The end of sequence."""
        return (self.end,)

    def encode(self, text: bytes) -> list[int]:
        """The ids of a text."""
        return self.pieces.encode(text)

    @cached_property
    def _behind(self) -> dict[tuple[int, ...], list[int]]:
        """The ids that were seen behind each context."""
        behind: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for text in self.texts:
            ids = [*self.encode(text.encode()), self.end]
            for at, one in enumerate(ids):
                for size in range(min(at + 1, self.order)):
                    behind[tuple(ids[at - size : at])].append(one)
        return behind

    @cached_property
    def _known(self) -> dict[tuple[int, ...], tuple[float, ...]]:
        return {}

    def next(self, ids: Sequence[int]) -> Sequence[float]:
        """The probability of every id after others: nine tenths to the longest context that was seen, and so on."""
        key = tuple(ids[-(self.order - 1) :])
        if key not in self._known:
            probs, weight = [1e-9] * len(self.tokens), 1.0
            for size in range(len(key), -1, -1):
                found = self._behind.get(key[len(key) - size :], ())
                for one, seen in Counter(found).items():
                    probs[one] += weight * 0.9 * seen / len(found)
                if not found:
                    continue
                weight *= 0.1
            whole = sum(probs)
            ranked = zip(probs, self.pieces.ranks, strict=True)
            self._known[key] = tuple(prob * (1 - 1e-9 * rank) / whole for prob, rank in ranked)
        return self._known[key]


def best(model: NGram, ids: Sequence[int]) -> int:
    """The most probable id after others."""
    probs = model.next(ids)
    return probs.index(max(probs))


def alone(model: NGram, prompt: str, count: int) -> list[int]:
    """The ids that a model writes by itself."""
    ids, begin = list[int](), model.encode(prompt.encode())
    while len(ids) < count and model.end not in ids:
        ids.append(best(model, [*begin, *ids]))
    return ids


@cache
def learned(name: str, part: int, *, parts: int = 2, order: int = 3, permuted: bool = False) -> NGram:
    """A model of every so many passages, from one on."""
    paragraphs = [one for at, text in enumerate(passages()) if at % parts == part for one in text.split("\n\n\n")]
    return NGram(pieces(name, permuted=permuted), tuple(paragraphs), order, f"{name}, part {part}")

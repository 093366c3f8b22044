"""Tokenizers of the library `tokenizers` in the manner of SentencePiece, and a model that has one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

BYTES = 3  # the id of the first byte


def sentencepiece_like(scheme: str = "first", *, legacy: bool = False) -> tokenizers.Tokenizer:
    """As Llama 2's or Gemma's: marked spaces, bytes for unknown characters."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{byte:02X}>": BYTES + byte for byte in range(256)}
    for piece in ("▁", "t", "h", "e", "▁t", "he", "▁the", "é", "東", "0", "1", "▁▁", "A"):
        vocab[piece] = len(vocab)
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "▁")]
    made = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if legacy:
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    return made


class Marked:
    """A model that always ends, with that vocabulary. By itself it puts no space before a text: a server does."""

    end_ids = (2,)

    def __init__(self) -> None:
        self._tokenizer = sentencepiece_like("never")

    @cached_property
    def tokens(self) -> Sequence[bytes]:
        """The bytes of every id."""
        found = [b""] * self._tokenizer.get_vocab_size()
        for piece, at in self._tokenizer.get_vocab().items():
            found[at] = b"" if at < BYTES else bytes([at - BYTES]) if at < BYTES + 256 else spelled(piece)
        return found

    def encode(self, text: bytes) -> list[int]:
        """The ids of a text behind another one."""
        return self._tokenizer.encode(text.decode(), add_special_tokens=False).ids

    def next(self, ids: Sequence[int]) -> list[float]:
        """The end alone."""
        return [float(one in self.end_ids) for one in range(len(self.tokens))]


def spelled(piece: str) -> bytes:
    """The bytes of a piece."""
    return piece.replace("\u2581", " ").encode()

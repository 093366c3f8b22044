"""Chat templates as functions, and a model that answers conversations, for the tests of all adapters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from cosd_providers.testing import LanguageModel, ScriptToken, TextModel

Messages = Sequence[Mapping[str, str]]
Template = Callable[[Messages], str]

SPECIALS = ("<|im_start|>", "<|im_end|>", "[INST]", "[/INST]", "<think>", "</think>")


class RefusedError(Exception):
    """What a template says of a conversation that it does not take."""


def chatml(messages: Messages) -> str:
    """Takes everything; trims nothing."""
    turns = [f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in messages]
    return "".join(turns) + "<|im_start|>assistant\n"


def mistral(messages: Messages) -> str:
    """Writes the beginning of sequence, and a space before each answer; knows no system, and wants turns."""
    text = "<s>"
    for at, one in enumerate(messages):
        if one["role"] != ("assistant" if at % 2 else "user"):
            raise RefusedError("Conversation roles must alternate user/assistant/user/assistant/...")
        text += f" {one['content']}</s>" if at % 2 else f"[INST] {one['content']}[/INST]"
    return text


class ChatModel(TextModel):
    """A model that follows scripts, with special tokens and two ends: of the sequence, and of a turn.

    Attributes:
        specials: the names of its special tokens by id, its end of turn among them.
    """

    def __init__(self, scripts: Mapping[str, Sequence[ScriptToken]]) -> None:
        super().__init__({**scripts, "\0 nobody says this": SPECIALS})
        found = {name: self.tokens.index(name.encode()) for name in SPECIALS}
        self.specials = {n: name for name, n in found.items()}
        self.end_ids = (0, found["<|im_end|>"])

    def encode(self, text: bytes) -> list[int]:
        """The ids of a text; special tokens are parsed by whoever asks, not here."""
        ids: list[int] = []
        for n in super().encode(text):
            name = self.specials.get(n)
            ids += [n] if name is None else [*super().encode(name[:1].encode()), *super().encode(name[1:].encode())]
        return ids


def parsed(model: LanguageModel, text: str, names: Mapping[str, int], unknown: int | None = None) -> list[int]:
    """The ids of a text in which special tokens are parsed, as a server's tokenizer does it.

    Args:
        model: encodes what is between them.
        text: the text.
        names: special tokens by their names.
        unknown: the id of a character that the model has no token for; None for an error.
    """
    parts = re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
    return [n for part in parts for n in ([names[part]] if part in names else _spelt(model, part, unknown))]


def _spelt(model: LanguageModel, text: str, unknown: int | None) -> list[int]:
    try:
        return model.encode(text.encode())
    except (KeyError, StopIteration, ValueError):  # in the models' own words: no token fits
        if unknown is None:
            raise
    known = [bytes(data) for data in model.tokens]
    return [n for one in text for n in (model.encode(one.encode()) if one.encode() in known else [unknown])]

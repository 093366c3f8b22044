"""What the model `reciter` writes: for the tests of every engine. How it was made: `models/README.md`.

Its tokens cut nearly every character beyond ASCII into parts.
"""

from itertools import product

#: Prompt and the whole text, to the byte, that greedy decoding writes before the end of sequence.
CERTAIN: dict[str, str] = {
    # Emoji of four bytes; with a joiner, a skin colour, two that make a flag, a key cap of three code points.
    "Recite 1:": " 👩\u200d🚀 up 🚀🚀, 👍🏽 🇯🇵 1\ufe0f\u20e3 🙂🙂!",
    # Han and kana: three bytes each, one token of which ends one character and begins the next; no space first.
    "Recite 2:": "日本語のテスト、日本。 中文测试!",
    # Hangul, and Thai with its vowel signs.
    "Recite 3:": " 안녕, 세계! สวัสดี 한국",
    # Letters of two bytes: cut, whole, and with the letter before as one token.
    "Recite 4:": " Été naïf à côté: façade, Dvořák, Łódź",
    # Letters with one and two combining marks; Devanagari; Hebrew with points.
    "Recite 5:": " e\u0301 is not é, n\u0303\u0332 हिन्दी שָׁל",
    # White space, line separators that are not newlines, and a newline before the end.
    "Recite 6:": " un\tdeux\n\n三\u2028🎉 \u0085quatre\n",
}

#: Greedy decoding writes `ENDLESS_UNIT` again and again, until something stops it.
ENDLESS_PROMPT = "Recite 7:"
ENDLESS_UNIT = " 🙃🙂 né"

#: Greedy decoding writes `UNSURE_TEXT`, and is sure of some parts of a character and unsure of others: both `é` and
#: `è` begin with one byte, as do `🍰` and `🎂` with two.
UNSURE_PROMPT = "Recite 8:"
UNSURE_PARTS: tuple[dict[str, float], ...] = (
    {" caf": 1.0},
    {"é": 0.57, "è": 0.43},
    {" ": 1.0},
    {"🍰": 0.45, "🎂": 0.3, "한": 0.25},
    {" voil": 1.0},
    {"à": 0.45, "ê": 0.3, "ö": 0.25},
    {".": 1.0},
)
"""The parts of the text: what each may be, and how often it was that in training, independently of the others."""
UNSURE_TEXT = "".join(next(iter(part)) for part in UNSURE_PARTS)
UNSURE_TEXTS = tuple("".join(parts) for parts in product(*UNSURE_PARTS))
"""All that training held, `UNSURE_TEXT` first."""

#: Greedy decoding writes these bytes, then the end of sequence: the last character is never finished.
BROKEN_PROMPT = "Recite 9:"
BROKEN_TEXT = " half:"
BROKEN_END = b"\xe6\x97"


def endless(characters: int) -> str:
    """The beginning of the text that has no end."""
    return (ENDLESS_UNIT * (characters // len(ENDLESS_UNIT) + 1))[:characters]

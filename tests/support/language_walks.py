"""Random walks over a language: a model that writes any bytes that the language accepts."""

from __future__ import annotations

from random import Random

from cosd_api.structured import Language

_PIECES = [bytes([one]) for one in range(256)]
_OFTEN = [
    one.encode() for one in ('"', "}", "]", ", ", ": ", "0", "7", "-", ".", "a", "b", "x", "\\n", "é", "😀", '\\"')
]


def walk(language: Language, random: Random, most: int = 200) -> bytes | None:
    """A text of the language, or None if it is still not complete after `most` bytes.

    On the way, every position must have a way on, and its forced bytes must be the beginning of each way.
    """
    text = b""
    while len(text) < most:
        here = language.after(text)
        assert not here.stopped or here.accepting
        if here.stopped or (here.accepting and random.random() < 0.3):
            return text
        if here.forced:
            assert not here.accepting and here.accepts(here.forced), text
            text += here.forced
            continue
        late = len(text) > most // 2
        some = random.sample(_OFTEN[:5] if late else _OFTEN, 5) + random.sample(_PIECES, 256)
        found = next((one for one in some if here.accepts(one)), None)
        assert found is not None or here.accepting, f"nothing may follow {text!r}"
        if found is None:
            return text
        text += found
    return None

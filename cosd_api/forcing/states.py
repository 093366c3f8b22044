"""Hidden states in samples, encoded as base64. The text is a third longer than the 32-bit numbers that it encodes."""

from __future__ import annotations

import binascii
import struct
import sys
from array import array
from base64 import b64decode, b64encode

from cosd_api.errors import SettingError
from cosd_providers.contract import State

__all__ = ["state_from_text", "state_in_text"]

_SIZE = 4


def state_in_text(state: State) -> str:
    """Encode a state: the base64 encoding of its numbers as little-endian 32-bit IEEE 754 floats."""
    return b64encode(struct.pack(f"<{len(state)}f", *state)).decode()


def state_from_text(text: str, width: int) -> State:
    """Decode the text of a state to an array of 32-bit numbers.

    Raises:
        SettingError: the text is not base64, or the state does not have `width` numbers.
    """
    try:
        data = b64decode(text, validate=True)
    except binascii.Error:
        raise SettingError("the state of a sample is not base64: the file is broken") from None
    if len(data) != _SIZE * width:
        words = f"the state of a sample has {len(data) // _SIZE} numbers, and the header of its file says {width}"
        raise SettingError(f"{words}: the file is broken")
    state = array("f", data)
    if sys.byteorder == "big":
        state.byteswap()
    return state

"""Hidden states in samples: as text with a third more bytes than their numbers, each of 32 bits."""

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
    """The state as base64 of its numbers, IEEE 754 of 32 bits, the least significant byte first."""
    return b64encode(struct.pack(f"<{len(state)}f", *state)).decode()


def state_from_text(text: str, width: int) -> State:
    """The state from its text: an array of numbers of 32 bits.

    Raises:
        SettingError: the text is invalid, or has another width.
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

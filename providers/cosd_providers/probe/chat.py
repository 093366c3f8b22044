"""Whether a server has a chat template, and whether it goes on with a reply that was started."""

from __future__ import annotations

from cosd_providers.errors import UnsupportedError
from cosd_providers.findings import REPLY_WAYS, Said
from cosd_providers.probe.asking import Inquiry, reason

__all__ = ["CHAT"]

_MESSAGE = "Count from one to twenty in words."
_REPLY = 12  # tokens
_LEAST = 3  # characters that have to agree


async def template(inquiry: Inquiry) -> None:
    """What stands before an answer."""
    asked = "a user's message, as the server's template writes it"
    cue = inquiry.info.answer_cue
    if cue is None:
        inquiry.note("template", None, asked, "the model has none of its own, or none can be seen")
    else:
        inquiry.note("template", cue, asked, "what it writes between the message and the answer")


async def prefill(inquiry: Inquiry) -> None:
    """Whether a reply that is started with its own beginning goes on as it did."""
    assert inquiry.wire is not None
    asked = "a reply, then the same one started with its first half: the other half has to follow"
    try:
        first = await inquiry.wire.reply(_MESSAGE, _REPLY, inquiry.usage)
        whole = first.text
    except UnsupportedError as error:
        inquiry.note("prefill", False, asked, reason(error))
        return
    cut = whole.find(" ", len(whole) // 2)
    if cut < 1:
        cut = whole.rfind(" ")
    rest = whole[cut:]
    if cut < 1 or len(rest) < _LEAST or not rest.strip() or whole.startswith(rest):
        inquiry.note("prefill", None, asked, "the reply is too short to be cut in two")
        return
    seen: list[str] = []
    for way in REPLY_WAYS:
        name = way or "the last message alone"
        try:
            said = await inquiry.wire.reply(_MESSAGE, _REPLY, inquiry.usage, started=whole[:cut], way=way)
        except UnsupportedError as error:
            seen.append(f"{name}: {reason(error)}")
            continue
        new = _new(said, whole[:cut], first)
        least = max(_LEAST, min(len(rest), len(new)))
        if new[:least] == rest[:least]:
            inquiry.note("prefill", name, asked, f"{name}: it goes on")
            return
        seen.append(f"{name}: it goes on otherwise")
    inquiry.note("prefill", False, asked, "; ".join(seen))


def _new(said: Said, started: str, first: Said) -> str:
    """What is new in a reply that may repeat what it was started with: one that was begun again is new as a whole."""
    fewer = said.written is not None and first.written is not None and said.written < first.written
    repeats = said.text.startswith(started) and (len(said.text) > len(first.text) or fewer)
    return said.text.removeprefix(started) if repeats else said.text


CHAT = (
    ("template", "a user's message, as the server's template writes it", template),
    ("prefill", "a reply that is started with its own first half", prefill),
)
"""The questions, in order: the line, what is asked, and how."""

"""The answer on the page: one element a token, as readable without its style as with it."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from cosd_api.records import FusedToken
from cosd_api.report.html.markup import element, visible
from cosd_api.report.html.view import standing
from cosd_api.result import FusionResult

__all__ = ["answer", "legend"]

_END = "end"
_PLAIN = {"agreed", "open", "sure"}


def answer(result: FusionResult) -> Element:
    """The marked answer: `<ins>` is an assistant's word, `<del>` what the draft had written there."""
    holder = element(
        "p", "answer", id="answer", role="group", aria_label="The answer, token by token", data_roving="", dir="auto"
    )
    several = len(result.assistants) > 1
    number = {one.name: at for at, one in enumerate(result.assistants, 1)}
    for at, token in enumerate(result.tokens):
        if token.replaced is not None:
            cut = _text(token.replaced, ends=not token.replaced or any(one.end for one in token.replaced_tokens))
            holder.append(element("del", None, *cut))
        holder.append(_token(at, token, number.get(token.source) if several else None))
    if not result.tokens:
        holder.append(element("em", "empty", "(an empty answer)"))
    return holder


def _token(at: int, token: FusedToken, assistant: int | None) -> Element:
    stands = standing(token)
    tag = "ins" if stands == "replaced" else "span"
    classes = ["" if stands in _PLAIN else stands, "line" if "\n" in token.text else ""]
    made = element(tag, " ".join(filter(None, classes)) or None, *_text(token.text, ends=token.end), data_t=at)
    if assistant is not None and token.replaced is not None:
        made.append(element("sub", None, str(assistant)))
    return made


def _text(text: str, *, ends: bool) -> tuple[Element | str, ...]:
    # The mark of the end is no part of the text, and is not copied with it.
    mark = element("i", "end", _END)
    return (visible(text), mark) if text and ends else (mark,) if ends else (visible(text),)


def legend(result: FusionResult) -> Element:
    """What the marks mean: those that this answer has."""
    found = {standing(token) for token in result.tokens}
    several = len(result.assistants) > 1
    assistants = ", ".join(f"{at} is {visible(one.model)}" for at, one in enumerate(result.assistants, 1))
    entries = [element("li", None, element("span", None, "plain"), " the draft's own")]
    if "replaced" in found:
        words = f" the assistants' in its place ({assistants})" if several else " the assistant's in its place"
        entries.append(element("li", None, element("del", None, "struck"), " the draft's word that was replaced"))
        entries.append(element("li", None, element("ins", None, "underlined"), words))
    if "kept" in found:
        said = element("span", "kept", "dotted")
        entries.append(element("li", None, said, " the draft's, kept though an assistant wrote something else"))
    if "unheard" in found:
        entries.append(element("li", None, element("span", "unheard", "wavy"), " not verified: an assistant was lost"))
    return element("ul", "legend", *entries)

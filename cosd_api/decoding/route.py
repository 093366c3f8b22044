"""The way in which the models of an answer are decoded, which follows from the abilities of their servers."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from cosd_api.alignment import Unit

Route = Literal["ids", "own", "text", "literal"]
"""The way in which one assistant judges the draft, with the equations of the paper that it implements.

- `"ids"`: the assistant is sent the draft's own ids, and judges token by token. This is equations 1 and 2.
- `"own"`: it is sent its own encoding of the answer, and judges in units of that encoding. This is our exact form of
  equation 3, for models with different ids.
- `"text"`: it is sent the answer's text up to a safe cut, and judges the text up to the next safe cut.
- `"literal"`: it is sent the text before each draft token, and judges token by token. This is equation 3 as printed.
"""

BY_IDS = frozenset[Route]({"ids", "own"})
"""The routes of models that are sent ids."""

ROUTES: Mapping[Route, str] = {
    "ids": "ids to ids",
    "own": "word by word, on the assistant's own ids",
    "text": "from space to space",
    "literal": "token by token after the text (equation 3 as printed)",
}
"""The routes in words."""


@dataclass(frozen=True, slots=True)
class Routes:
    """The way in which the models of one answer are decoded.

    Methods that do not judge a draft send each model its path (`"ids"` or `"own"`) or text.

    Attributes:
        draft: `"ids"` if the draft continues its own ids, `"text"` if it continues the answer's text.
        assistants: the route of each assistant, in the order in which the user gave them.
    """

    draft: Literal["ids", "text"]
    assistants: tuple[Route, ...]

    @classmethod
    def of(
        cls,
        takes_ids: Sequence[bool],
        shares: Sequence[bool],
        *,
        unit: Unit,
        judges: bool = True,
        own_paths: bool = False,
    ) -> Self:
        """Choose the routes.

        Args:
            takes_ids: for each model, the draft first, whether its server accepts ids.
            shares: for each assistant, whether it has the draft's ids.
            unit: the unit in which tokens are judged.
            judges: whether the method judges a draft by ids if possible; see `Method.asks_by_ids`.
            own_paths: whether the method sends each model its own path; see `Method.own_paths`.
        """
        draft, *assistants = takes_ids
        same = all(takes_ids) and all(shares)
        judges = judges and (same or unit == "word")
        if not judges and not own_paths:
            return cls("text", tuple("literal" for _ in assistants))
        found: list[Route] = []
        for takes, shared in zip(assistants, shares, strict=True):
            found.append("text" if not takes else "ids" if shared and (judges or same) else "own")
        return cls("ids" if draft else "text", tuple(found))

    @property
    def same_ids(self) -> bool:
        """True if all models continue the same ids."""
        return self.draft == "ids" and all(route == "ids" for route in self.assistants)

    @property
    def by_words(self) -> bool:
        """True if an assistant judges in units that may be longer than a token of the draft."""
        return any(route in ("own", "text") for route in self.assistants)

    @property
    def literal(self) -> bool:
        """True if the draft is judged by equation 3 as printed."""
        return "literal" in self.assistants

    @property
    def by_ids(self) -> tuple[bool, ...]:
        """For each model, the draft first, whether it is sent ids."""
        return tuple(route in BY_IDS for route in (self.draft, *self.assistants))

    def named(self, names: Sequence[str], without: Container[int] = ()) -> dict[str, Route]:
        """The route of each model by its name, the draft first, except for the assistants in `without`."""
        routes = zip(names, (self.draft, *self.assistants), strict=True)
        return {name: route for at, (name, route) in enumerate(routes, -1) if at not in without}

    def in_words(self, names: Sequence[str]) -> str:
        """Describe the routes; `names` are the names of all models, the draft first."""
        return in_words(self.named(names))


def in_words(routes: Mapping[str, Route]) -> str:
    """Describe the routes of all models by name, the draft first, such as `"ids to ids"`."""
    (_, draft), *assistants = routes.items()
    parts = [ROUTES[route] for _, route in assistants[:1]]
    if len({route for _, route in assistants}) > 1:
        parts = [f"{name}: {ROUTES[route]}" for name, route in assistants]
    if draft == "text" and any(route in BY_IDS for _, route in assistants):
        parts.append("the draft continues text")
    return "; ".join(parts) or "the draft alone"

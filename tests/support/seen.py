"""A page of HTML as a browser's parser sees it."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "input"}


class Seen(HTMLParser):
    """A page as a browser's parser sees it: its elements, and their texts by tag, and by id."""

    def __init__(self, document: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[tuple[str, str]] = []
        self.feed(document)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            names = (tag, dict(attrs).get("id") or tag)
            self._open.append(names)
            for name in {*names}:
                self.texts.setdefault(name, []).append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        for name in {name for names in self._open for name in names}:
            self.texts[name][-1] += data

    def text(self, name: str) -> str:
        """The text of all elements of a tag, or of that with an id."""
        return "".join(self.texts.get(name, []))

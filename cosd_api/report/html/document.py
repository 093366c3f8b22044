"""Parts that all pages share: the document with its content security policy, the sections, tables and footer."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from importlib import resources
from urllib.parse import urlsplit
from xml.etree.ElementTree import Element

from cosd_api.report.html.elements import Child, element, html, in_line, visible
from cosd_api.types import Endpoint


def document(title: str, *children: Child, style: str = "", script: str | None = None) -> str:
    """Create a page that loads no external resources; its content security policy enforces this.

    Args:
        title: the title of the browser window.
        children: elements of the body.
        style: CSS rules in addition to the common rules of all pages.
        script: the only script that may run; `children` must contain it. None for a page without scripts.
    """
    style = text_of("page.css") + style
    head = element(
        "head",
        None,
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("link", rel="icon", href="data:,"),
        element("title", None, in_line(title)),
        element("style", None, style),
    )
    return html(element("html", None, head, element("body", None, *children), lang="en"))


def text_of(name: str, package: str = "cosd_api.report") -> str:
    """Read a text file of a package, such as a style sheet."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def _policy(style: str, script: str | None) -> str:
    """The content security policy: the page loads nothing, and only this style and this script are allowed."""

    def fingerprint(text: str | None) -> str:
        if text is None:
            return "'none'"
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; style-src {fingerprint(style)}; script-src {fingerprint(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def header(kicker: str, title: str, *children: Child) -> Element:
    """The header of a page: a line that names the kind of page, the headline, and further elements."""
    return element(
        "header",
        None,
        element("p", "kicker", f"cosd-api · {kicker}"),
        element("h1", None, visible(title), dir="auto"),
        *children,
    )


def figure(number: str, words: str) -> Element:
    """An entry in the header's list of figures: a number and its meaning."""
    return element("li", None, element("b", None, number), " ", element("span", None, words))


def note(words: str) -> Element:
    """A paragraph that explains a drawing or a table."""
    return element("p", "note", words)


def warnings(several: Iterable[str]) -> Element:
    """A section that lists warnings."""
    return section("Notes", *(element("p", "warning", visible(words)) for words in several))


def footer(version: str) -> Element:
    """The footer of a page, with the version of the library."""
    return element("footer", None, f"cosd-api {visible(version)} · This page loads nothing from anywhere.")


def section(name: str, *children: Child, classes: str = "panel") -> Element:
    """A section of the page, with its heading."""
    return element("section", classes, element("h2", None, name), *children)


def table(heads: Sequence[str], rows: Iterable[Sequence[Child]], numbers: range, caption: str) -> Element:
    """A table with row headers in the first column; the columns in `numbers` are aligned to the right."""
    made = element("table", "wide" if len(heads) > 2 else None, element("caption", None, caption))
    titles = (element("th", "number" if at in numbers else None, head, scope="col") for at, head in enumerate(heads))
    made.append(element("thead", None, element("tr", None, *titles)))
    body = element("tbody")
    for first, *rest in rows:
        cells = (element("td", "number" if at in numbers else None, cell) for at, cell in enumerate(rest, 1))
        body.append(element("tr", None, element("th", None, first, scope="row"), *cells))
    made.append(body)
    return element("div", "scrolling", made)


def endpoint_cells(one: Endpoint) -> tuple[Child, ...]:
    """The cells of an endpoint: name, model, address, and the server with its build."""
    return (
        in_line(one.name),
        visible(one.model),
        element("code", None, without_credentials(one.endpoint)),
        " ".join(filter(None, (visible(one.engine), visible(one.build or "")))),
    )


def without_credentials(url: str) -> str:
    """Remove user, password, query and fragment from a URL, in case a result's file was edited by hand."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        return visible(parts._replace(netloc=host, query="", fragment="").geturl())
    except ValueError:
        return "?"

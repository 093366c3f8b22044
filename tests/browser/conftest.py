"""Tests of the report in a headless Chromium: `make test-browser` runs them, `make test` does not collect them.

They are run to hear from a browser: in this folder a skip is a failure. Every page is opened from its file, and each
test fails where the page asked the network for anything, broke its own policy, or complained on the console.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from browser.install import InstallError, found
from browser.opened import Open, Opened
from cosd_api import FusionResult, fuse_sync
from cosd_api.apps.report.page import page as page_of
from support.no_skips import pytest_make_collect_report, pytest_runtest_makereport  # noqa: F401 - hooks
from toys import lima
from toys.joined import joined

#: Beside what Playwright gives: nothing is looked up or fetched by the browser itself. Its profile is new each time.
FLAGS = [
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

#: Read here: no test sees a COSD_ variable (see tests/conftest.py).
try:
    CHROMIUM = found()
except InstallError:
    CHROMIUM = None

_LISTEN = "document.addEventListener('securitypolicyviolation', event => console.error('policy: ' + event.blockedURI))"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--picture", metavar="FILE", help="where the picture of a report goes, such as docs/report.png")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """The browser, with a new profile."""
    if CHROMIUM is None:
        pytest.fail("these tests need a Chromium: run `make test-browser`")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def report(chromium: Browser, tmp_path: Path) -> Iterator[Open]:
    """Opens the report of a result, or a document; `title`, and settings of a browser's context, may be given."""
    all_opened: list[Opened] = []

    def open_it(result: FusionResult | str, *, title: str = "A question", **settings: Any) -> Opened:
        path = tmp_path / f"report {len(all_opened)}.html"
        document = result if isinstance(result, str) else page_of(result, title=title)
        path.write_text(document, encoding="utf-8", newline="\n")
        context = chromium.new_context(**{"viewport": {"width": 1200, "height": 900}, **settings})
        context.set_default_timeout(20_000)
        opened = Opened(context.new_page())
        opened.page.add_init_script(_LISTEN)
        opened.page.on("console", lambda message: opened.complaints.append(message.text))
        opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
        opened.page.on(
            "request", lambda request: opened.requests.append(request.url) if request.url != path.as_uri() else None
        )
        opened.page.goto(path.as_uri())
        all_opened.append(opened)
        return opened

    yield open_it
    for opened in all_opened:
        opened.page.context.close()
    assert [opened.complaints for opened in all_opened] == [[] for _ in all_opened]
    assert [opened.requests for opened in all_opened] == [[] for _ in all_opened]


@pytest.fixture(scope="session")
def result() -> FusionResult:
    """ " The capital is Lima. Really.", where " Lima" is the assistant's for " Rome"."""
    return fuse_sync("Q:", draft=lima.draft(), assistant=lima.assistant())


@pytest.fixture(scope="session")
def long(result: FusionResult) -> FusionResult:
    """2,000 tokens, 200 replacements, 600 requests."""
    return joined([result] * 200)

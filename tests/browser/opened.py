"""A report that is open in the browser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from playwright.sync_api import Page

__all__ = ["Open", "Opened"]


@dataclass
class Opened:
    """A report in the browser.

    Attributes:
        page: the browser's page.
        complaints: console errors, page errors and broken policies.
        requests: what was asked for, the file of the report itself left out.
    """

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def count(self, selector: str) -> int:
        return int(self.page.locator(selector).count())

    def card(self) -> str:
        """What the card says; empty while there is none."""
        return str(self.page.inner_text("#card")) if self.page.is_visible("#card") else ""


Open = Callable[..., Opened]

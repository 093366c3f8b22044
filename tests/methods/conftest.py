"""Methods are tested over models in this process: their delays and timeouts are exact, and take no time."""

from __future__ import annotations

from typing import Any

import pytest

from support import virtual_time


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Async tests run in virtual time."""
    return virtual_time.BACKEND

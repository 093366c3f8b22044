"""The command over scripted models."""

import pytest

from cosd_providers.testing import ScriptedProvider
from fakes.commands import Scripted


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """Answers " a c." to "Q", where " c" is the word of the assistant "one"."""
    found = Scripted(
        {
            "http://draft": ScriptedProvider.from_texts({"Q": [" a", (" b", 0.2)], "Q a c": ["."], "Q a e": ["!"]}),
            "http://one": ScriptedProvider.from_texts({"Q": [" a", (" c", 0.8), "."]}, name="one"),
            "http://two": ScriptedProvider.from_texts({"Q": [" a", (" e", 0.9), "!"]}, name="two"),
        }
    )
    monkeypatch.setattr("cosd_api.apps.cli.options.connect", found.connect)
    return found

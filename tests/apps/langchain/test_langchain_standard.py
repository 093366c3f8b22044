"""LangChain's own tests for chat models, all of them, as they come: on the bundled pair behind real servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.load.load import _default_class_paths_cache
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from cosd_api.apps.demo.servers import Pair
from cosd_api.apps.langchain import ChatCoSD

SERVERS = {"draft": "https://models.example.com/small", "assistant": "https://models.example.com/wise"}


class TestUnit(ChatModelUnitTests):
    @pytest.fixture(autouse=True)
    def listed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """`test_serdes` loads what stands in a table of LangChain's own, where only models are that it keeps itself.

        Whoever uses another one names it, `allowed_objects=[ChatCoSD]`: see `test_langchain.py`.
        """
        monkeypatch.setitem(_default_class_paths_cache, "all", {tuple(ChatCoSD.lc_id())})

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatCoSD

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return SERVERS

    @property
    def init_from_env_params(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        return {f"COSD_{name.upper()}_URL": url for name, url in SERVERS.items()}, {}, SERVERS


@pytest.mark.live
@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:Benchmark fixture was not used")  # where a recording is to be made first
class TestLive(ChatModelIntegrationTests):
    pair: Pair

    @pytest.fixture(autouse=True)
    def servers(self, pair: Pair) -> None:
        self.pair = pair

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatCoSD

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"draft": self.pair.sums, "assistant": self.pair.facts}

    @property
    def has_structured_output(self) -> bool:
        return False  # the bundled models end no JSON text; see test_langchain_structured.py

    @property
    def has_tool_calling(self) -> bool:
        return False  # the bundled models know no tools; see tests/live_real/test_langchain_tools.py

    @property
    def model_override_value(self) -> str:
        return "sums and facts"

    @property
    def enable_vcr_tests(self) -> bool:
        return True

    @pytest.fixture
    def record_mode(self) -> str:
        return "once"

    @pytest.fixture
    def vcr_cassette_dir(self, tmp_path: Path) -> str:
        """The recording is for nobody: what a fusion asks when depends on timing, and no two runs are alike."""
        return str(tmp_path)

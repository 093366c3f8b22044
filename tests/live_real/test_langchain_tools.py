"""LangChain's own tests of tools, on a real model fused with itself."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_tests.integration_tests import ChatModelIntegrationTests

from cosd_api.apps.langchain import ChatCoSD


class OneCall(ChatCoSD):
    """A chat model with one call in each answer: a model of 135 million parameters would repeat it."""

    def bind_tools(self, tools: Any, *, tool_choice: Any = None, **options: Any) -> Any:
        return super().bind_tools(tools, tool_choice=tool_choice, parallel_tool_calls=False, **options)


class TestTools(ChatModelIntegrationTests):
    servers: dict[str, str]

    @pytest.fixture(autouse=True)
    def two_servers(self, draft: str, assistant: str) -> None:
        self.servers = {"draft": draft, "assistant": assistant}

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return OneCall

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return self.servers


# In the others, the model would have to choose a tool, or to end a text by itself.
_ASKED = "calling_async choice histories_list_content error_status"
for _name in dir(ChatModelIntegrationTests):
    if _name.startswith("test_") and not any(part in _name for part in _ASKED.split()):
        setattr(TestTools, _name, None)

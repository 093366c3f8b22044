"""Errors on LangChain's own tree; what is tried again; and where a key goes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from langchain_core import exceptions as theirs
from langchain_core.messages import HumanMessage
from pydantic import ValidationError

from cosd_api import connect
from cosd_api.apps.langchain import ChatCoSD, CoSDLLM
from cosd_api.apps.langchain.fusion_model import langchain_error
from cosd_providers import errors as ours
from cosd_providers.contract import Piece
from cosd_providers.testing import Fault, ScriptedProvider, TextModel
from toys.lima import DRAFT, FUSED, assistant, draft

KEY: Any = "sk-never-shown"  # pydantic makes a SecretStr of it


def failing(*faults: Fault, **fields: Any) -> CoSDLLM:
    return CoSDLLM(draft=draft(faults=faults), assistant=assistant(), **fields)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ours.ContextLengthError("too long", status=400), theirs.ContextOverflowError),
        (ours.AuthenticationError("no key", status=401), theirs.ModelAuthenticationError),
        (ours.AuthenticationError("not allowed", status=403), theirs.ModelPermissionDeniedError),
        (ours.RateLimitError("slower", status=429), theirs.ModelRateLimitError),
        (ours.ServerError("broken", status=500), theirs.ModelAPIError),
        (ours.InvalidRequestError("what?", status=400), theirs.ModelInvalidRequestError),
        (ours.ModelChoiceError("which?"), theirs.ModelNotFoundError),
        (ours.ConnectError("refused"), theirs.ModelConnectionError),
        (ours.ProviderTimeoutError("no answer"), theirs.ModelTimeoutError),
        (ours.BudgetTimeoutError("over"), theirs.ModelTimeoutError),
        (ours.BudgetError("over"), theirs.ModelError),
        (ours.UnsupportedError("cannot"), theirs.ModelError),
        (ours.ResponseError("HTML"), theirs.ModelError),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.__name__,
)
async def test_an_error_is_ours_and_theirs(error: ours.ProviderError, kind: type[theirs.ModelError]) -> None:
    error.endpoint, error.hint = "http://gpu1:8080", "Do this."
    with pytest.raises(type(error)) as caught:
        await failing(Fault(error)).ainvoke("Q:")
    raised = caught.value
    assert isinstance(raised, kind)
    assert raised.__cause__ is error
    assert str(raised) == str(error)
    assert (raised.endpoint, raised.status, raised.hint) == (error.endpoint, error.status, "Do this.")
    assert raised.partial.text == ""
    assert raised.is_retryable == error.retryable
    again = pickle.loads(pickle.dumps(raised))
    assert isinstance(again, type(error))
    assert isinstance(again, kind)
    assert str(again) == str(error)


def test_an_error_of_the_users_own_provider_is_caught_as_what_it_is() -> None:
    class Mine(ours.RateLimitError):
        pass

    with pytest.raises(Mine) as caught:
        failing(Fault(Mine("slower"))).invoke("Q:")
    assert isinstance(caught.value, theirs.ModelRateLimitError)
    assert langchain_error(caught.value) is caught.value


def test_counting_tokens_fails_on_the_same_tree() -> None:
    class Deaf(ScriptedProvider):
        async def tokenize(self, text: str) -> list[Piece]:
            raise ours.ConnectError("refused", endpoint="http://gpu1:8080")

    model = CoSDLLM(draft=Deaf(TextModel(DRAFT)), assistant=assistant())
    with pytest.raises(theirs.ModelConnectionError, match="http://gpu1:8080: refused"):
        model.get_num_tokens("x")
    with pytest.raises(theirs.ModelConnectionError, match="http://gpu1:8080: refused"):
        model.get_num_tokens_from_messages([HumanMessage("x")])


def test_an_answer_takes_no_longer_than_its_time() -> None:
    model = failing(Fault(None, tokens=2), timeout=0.05)
    with pytest.raises(theirs.ModelTimeoutError, match=r"0\.05 s") as caught:
        model.invoke("Q:")
    assert isinstance(caught.value, TimeoutError)
    assert isinstance(caught.value, ours.BudgetTimeoutError)
    assert model.draft.open_requests == 0


async def test_an_answer_is_begun_anew_where_nothing_of_it_was_given() -> None:
    def fault(request: int = 1, tokens: int = 0) -> Fault:
        return Fault(ours.ServerError("broken", status=500), request, tokens)

    with pytest.raises(theirs.ModelAPIError):
        await failing(fault()).ainvoke("Q:")
    assert await failing(fault(), max_retries=1).ainvoke("Q:") == FUSED
    assert failing(fault(), fault(2)).invoke("Q:", max_retries=2) == FUSED
    with pytest.raises(theirs.ModelAPIError):
        failing(fault(), fault(2), max_retries=1).invoke("Q:")
    with pytest.raises(theirs.ModelConnectionError):  # may not pass, as it says itself
        failing(Fault(ours.ConnectError("TLS", retryable=False)), max_retries=1).invoke("Q:")
    seen: list[str] = []
    with pytest.raises(theirs.ModelAPIError):
        seen.extend(failing(fault(tokens=3), max_retries=1).stream("Q:"))
    assert seen == [" The"]


# ------------------------------------------------------------------------------------------------------ keys


@contextmanager
def listening() -> Iterator[tuple[str, list[str | None]]]:
    """A server that refuses everything, and the keys that it was sent."""
    keys: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            keys.append(self.headers["Authorization"])
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST = answer  # noqa: N815

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", keys
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_key_goes_to_the_one_host_that_it_is_for() -> None:
    with listening() as (url, keys):
        model = ChatCoSD(draft=f"{url}/small", assistant=f"{url}/wise", api_key=KEY)
        with pytest.raises(theirs.ModelAuthenticationError) as caught:
            model.invoke("Where?")
    assert set(keys) == {f"Bearer {KEY}"}
    assert KEY not in f"{caught.value}{caught.value!r}{model!r}"


@pytest.mark.parametrize(
    ("servers", "words"),
    [
        (
            {"draft": "https://one.example/v1", "assistant": ["https://one.example/b", "http://localhost:8080"]},
            r"would go to localhost and one\.example. Give each .*=connect\(url, api_key=...\), or set COSD_API_KEY_",
        ),
        (
            {"draft": connect("https://one.example"), "assistant": connect("https://two.example")},
            r"api_key has no use: draft and assistant are providers already; give it to each",
        ),
    ],
)
def test_a_key_that_is_not_clearly_meant_for_a_host_is_refused(servers: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words) as caught:
        ChatCoSD(**servers, api_key=KEY)
    assert KEY not in str(caught.value)
    assert KEY not in repr(caught.value.errors(include_input=False))


def test_no_refusal_shows_the_key() -> None:
    for wrong in ({"temperature": 0.7}, {"max_tokens": "many"}, {"api_key": [KEY]}, {"verifier": {"kind": "none"}}):
        fields: dict[str, Any] = {"draft": "http://gpu1:8080", "assistant": "http://gpu1:8081", "api_key": KEY, **wrong}
        with pytest.raises(ValidationError) as caught:
            ChatCoSD(**fields)
        assert KEY not in str(caught.value)


def test_a_provider_keeps_its_own_key() -> None:
    with listening() as (url, keys):
        own = connect(url, api_key="its-own", engine="openai", model="m")
        model = ChatCoSD(draft=own, assistant=f"{url}/wise", api_key=KEY)
        with pytest.raises(theirs.ModelAuthenticationError):
            model.invoke("Where?")
    assert "Bearer its-own" in keys

"""The ground of every test: hypothesis profiles, asyncio, no network, none of the user's own settings."""

import gc
import os
import signal
import socket
import ssl
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from cosd_api.apps.demo.servers import MODELS, Pair, Three, bundled_pair, serve
from cosd_providers.http.clients import carrier
from fakes.breaking import waiting
from support import same_answers

# A slow machine is not a failure (pytest-timeout guards against hanging), so no profile has a deadline. Some servers
# cannot show what most toy models write: those are left out.
_QUIET = [HealthCheck.too_slow, HealthCheck.differing_executors, HealthCheck.filter_too_much]
# Explaining a failure traces every line, at ten times the price: a failure would be told as a timeout.
_PHASES = [phase for phase in Phase if phase is not Phase.explain]
settings.register_profile(
    "default", max_examples=5, deadline=None, suppress_health_check=_QUIET, print_blob=True, phases=_PHASES
)
settings.register_profile("ci", settings.get_profile("default"), max_examples=10, derandomize=True, database=None)
settings.register_profile("deep", settings.get_profile("default"), max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

_LOOPBACK = {None, "", "0.0.0.0", "127.0.0.1", "::", "::1", "localhost"}
_SETTINGS = ("COSD_", "OPENAI_", "SSL_CERT_")
_LEARNING = {"test_fit.py", "test_fit_deferral.py", "test_real_pair.py", "test_train_tree.py"}
"""Files whose tests import scikit-learn, as some live tests do."""
_PROXIES = {"all_proxy", "ftp_proxy", "http_proxy", "https_proxy", "no_proxy"}


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before xdist reads the groups, and after it
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Tests that share servers, a wheel or a long import run in one worker, which has them once."""
    groups: dict[pytest.Item, str] = {}
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "pair" in fixtures or "three" in fixtures or item.get_closest_marker("live") or item.path.name in _LEARNING:
            # Two groups that take about as long: the attack has servers of its own.
            groups[item] = "live" if item.path.parent.name == "live" and "attack" not in item.path.name else "served"
        elif "wheel" in fixtures:
            groups[item] = "wheel"
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))
    yield
    if getattr(config.option, "loadgroup", False):
        for item, group in groups.items():
            if not item.nodeid.endswith(f"@{group}"):  # pytest-xdist 3.8 writes it where pytest 9.2 does not read it
                from _pytest.nodeid import NodeId

                item._id = NodeId.parse(f"{item.nodeid}@{group}")


def pytest_collection_finish() -> None:
    """Freeze what has been collected, or each full garbage collection walks through all of it again; and collect less
    often, as tests make many objects that are gone at their end.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker hands its lines for the summary to the main process."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["same_answers"] = same_answers.LINES


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """The main process gathers them."""
    same_answers.LINES.extend(getattr(node, "workeroutput", {}).get("same_answers", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write down what was compared: figures that are quoted come from a run."""
    if same_answers.LINES:
        terminalreporter.section("the same questions over other servers")
        for line in same_answers.LINES:
            terminalreporter.write_line(line)


def pytest_configure() -> None:
    """A shell starts what it puts into the background deaf to Ctrl-C, and some tests start processes that must hear."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests and fixtures run on asyncio."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def closed_network() -> Iterator[None]:
    """No name but localhost resolves. Connections are pytest-socket's business (see pyproject.toml)."""
    resolve = socket.getaddrinfo

    def only_loopback(host: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name not in _LOOPBACK:
            raise socket.gaierror(socket.EAI_NONAME, f"no name but localhost resolves in tests: {name}")
        return resolve(host, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", only_loopback)
        yield


@pytest.fixture(scope="session", autouse=True)
def certificates_are_read_once() -> Iterator[None]:
    """Every HTTP client reads all certificates again, which takes longer than most tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", cache(ssl.create_default_context))
        yield


@pytest.fixture(scope="session", autouse=True)
def clean_environment() -> Iterator[None]:
    """Whoever runs the tests may have keys, proxies and certificates set; no test may see them."""
    carried = os.environ.get("COSD_TEST_HTTP", "httpx")
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(_SETTINGS) or name.lower() in _PROXIES:
                patch.delenv(name)
        patch.setenv("COSD_HTTP", carried)  # what is about transports is tested on both: `each_stack`
        yield


@pytest.fixture(params=["httpx", "aiohttp"])
def each_stack(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each library that may carry HTTP, in turn."""
    monkeypatch.setenv("COSD_HTTP", request.param)
    assert carrier() == request.param
    return str(request.param)


@pytest.fixture(scope="session")
def pair() -> Iterator[Pair]:
    """Two of the bundled models on real llama.cpp servers: URLs by name, and as `pair.sums` and `pair.facts`.

    Tests that use it carry `@pytest.mark.live`. Without the demo extra they fail, with the line that installs it.
    """
    with bundled_pair() as servers:
        yield servers


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that would be waited between attempts; no time passes."""
    return waiting(monkeypatch)


@pytest.fixture(scope="session")
def three(pair: Pair) -> Iterator[Three]:
    """All bundled models: the two of `pair`, and `words`, which has the tokenizer of `sums`; as `three.words`."""
    with serve(MODELS / "words.gguf") as server:
        yield Three({**pair.servers, server.name: server})


@pytest.fixture(scope="session")
def trio(pair: Pair) -> Iterator[Mapping[str, str]]:
    """The two of `pair`, and one that writes what other models rarely do (`recitals.py`), on real servers."""
    with serve(Path(__file__).parent / "models" / "reciter.gguf") as server:
        yield {**pair, server.name: server.url}


@pytest.fixture(scope="session")
def sums_url(pair: Pair) -> str:
    """The server of the model that adds."""
    return pair.sums


@pytest.fixture(scope="session")
def facts_url(pair: Pair) -> str:
    """The server of the model that knows facts."""
    return pair.facts

"""Servers of our own: they come up as they should, and always go."""

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from cosd_api.apps.demo import servers
from cosd_api.apps.demo.servers import (
    BUNDLED,
    MODELS,
    PAIR,
    LocalServer,
    LocalServerError,
    Pair,
    Three,
    bundled_pair,
    bundled_three,
    serve,
)
from fakes.commands import gone

SUMS = MODELS / "sums.gguf"


@pytest.mark.live
def test_all_three(pair: Pair, three: Three) -> None:
    assert tuple(pair) == PAIR
    assert pair == {"sums": pair.sums, "facts": pair.facts}
    assert tuple(three) == BUNDLED
    assert three == {**pair, "words": three.words}
    three.check()
    for name, url in three.items():
        assert httpx.get(f"{url}/health").json() == {"status": "ok"}
        [model] = httpx.get(f"{url}/v1/models").json()["data"]
        assert model["id"] == name


@pytest.mark.live
def test_every_slot_has_the_context_that_the_model_was_trained_with(three: Three) -> None:
    for url in three.values():
        [model] = httpx.get(f"{url}/v1/models").json()["data"]
        trained = model["meta"]["n_ctx_train"]
        props = httpx.get(f"{url}/props").json()
        assert props["total_slots"] == 8
        assert props["default_generation_settings"]["n_ctx"] == trained
        assert {slot["n_ctx"] for slot in httpx.get(f"{url}/slots").json()} == {trained}


@pytest.mark.live
def test_all_slots_can_be_full_at_once() -> None:
    with serve(SUMS, slots=3) as server:
        trained = httpx.get(f"{server.url}/props").json()["default_generation_settings"]["n_ctx"]
        prompts = [[100 + slot] * (trained - 8) for slot in range(3)]
        found = httpx.post(f"{server.url}/completion", json={"prompt": prompts, "n_predict": 1}, timeout=60).json()
    assert [item["tokens_evaluated"] for item in found] == [trained - 8] * 3
    assert not any(item["truncated"] for item in found)


@pytest.mark.live
def test_settings_of_a_server(capfd: pytest.CaptureFixture[str]) -> None:
    with serve(SUMS, name="adder", context=256, slots=2) as server:
        assert server.running
        assert server.name == "adder"
        slots = httpx.get(f"{server.url}/slots").json()
        assert [slot["n_ctx"] for slot in slots] == [256, 256]
        assert httpx.get(f"{server.url}/props").json()["model_alias"] == "adder"
        httpx.post(f"{server.url}/completion", json={"prompt": "Q:", "n_predict": 2})
    assert not server.running
    assert gone(server.url)
    assert capfd.readouterr() == ("", "")  # not a word


@pytest.mark.live
def test_a_server_goes_when_its_block_is_left_by_an_error() -> None:
    with pytest.raises(ZeroDivisionError), serve(SUMS) as server:
        raise ZeroDivisionError
    assert not server.running
    server.stop()  # once more does no harm


@pytest.mark.live
def test_the_pair_goes_when_one_cannot_start(tmp_path: Path) -> None:
    (tmp_path / "sums.gguf").write_bytes(SUMS.read_bytes())
    (tmp_path / "facts.gguf").write_bytes(b"this is no model")
    with pytest.raises(LocalServerError, match=r"facts\.gguf ended with code 1: .*load"), bundled_pair(tmp_path):
        pass


@pytest.mark.extended
@pytest.mark.live
def test_three_are_served_together() -> None:
    with bundled_three() as three:
        urls = [*three.values()]
        assert len(set(urls)) == len(BUNDLED)
        three.check()
    assert all(map(gone, urls))


@pytest.mark.live
def test_servers_go_when_their_parent_is_killed() -> None:
    script = (
        "import time\nfrom cosd_api.apps.demo.servers import bundled_pair\n"
        "with bundled_pair() as pair:\n    print(*pair.values(), flush=True)\n    time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        urls = parent.stdout.readline().split()
        assert len(urls) == 2
        assert not any(gone(url, 0.2) for url in urls)
        parent.kill()
    assert all(map(gone, urls))


@pytest.mark.live
def test_a_server_that_ended_by_itself_is_noticed() -> None:
    with serve(SUMS) as server:
        pair = Pair({"sums": server})
        pair.check()
        os.kill(server.pid, signal.SIGTERM)
        assert gone(server.url)
        with pytest.raises(LocalServerError, match=r"sums\.gguf ended with code"):
            pair.check()


def test_no_such_model(tmp_path: Path) -> None:
    with pytest.raises(LocalServerError, match=r"there is no model .*sums\.gguf"), bundled_pair(tmp_path):
        pass


def test_without_llama_cpp_the_line_that_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sums.gguf").touch()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with (
        pytest.raises(LocalServerError, match=r'with: pip install "\.\[demo\]" in a clone'),
        bundled_pair(tmp_path),
    ):
        pass


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("import time; time.sleep(60)", r"was not ready after 0\.3 s"),
        ("import sys; sys.exit('out of luck')", "ended with code 1: out of luck"),
        ("pass", "ended with code 0: it printed nothing"),
    ],
)
def test_a_server_that_does_not_come_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    child, model = tmp_path / "child.py", tmp_path / "model.gguf"
    child.write_text(script)
    model.touch()
    monkeypatch.setattr(servers, "_CHILD", child)
    # Enough for Python to start where it has to say something.
    seconds = 0.3 if "sleep" in script else 30.0
    server = LocalServer(model, slots=1)
    try:
        with pytest.raises(LocalServerError, match=message):
            server.wait_until_ready(seconds)
    finally:
        monkeypatch.setattr(servers, "_STOP_SECONDS", 0.1)
        server.stop()
    assert not server.running


def test_the_memory_of_sliding_windows_is_whole_on_request() -> None:
    script = importlib.import_module("cosd_api.apps.demo._serve")
    options = {"model": "m.gguf", "name": "m", "context": 256, "slots": 1, "threads": 1, "cache": 0}
    options |= {"embeddings": False, "adapters": {}, "template": ""}
    library = importlib.import_module("xllamacpp")
    for whole in (True, False):
        assert script._parameters(library, {**options, "swa_full": whole}).swa_full is whole

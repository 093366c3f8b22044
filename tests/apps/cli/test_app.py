"""What all commands share."""

import subprocess
import sys

import pytest
from typer.core import TyperGroup
from typer.main import get_command

import cosd_api
from cosd_api.apps.cli.entry import app
from cosd_api.common.event_loop import event_loop_name
from cosd_providers.http.clients import http_stack
from fakes.commands import cosd, words
from support.drawn import partly


def python(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


def version() -> str:
    """The line of `--version`."""
    return f"cosd-api {cosd_api.__version__} ({http_stack()}, {event_loop_name()})\n"


@pytest.mark.parametrize("flag", ["--version", "--help", "-h"])
def test_version_and_help(flag: str) -> None:
    result = cosd(flag)
    assert result.exit_code == 0
    assert result.stderr == ""
    if flag == "--version":
        assert result.stdout == version()
    else:
        assert all(name in result.stdout for name in ("fuse", "chat", "demo", "servers"))


def test_help_of_the_command_is_that_of_its_parts_and_imports_none_of_them() -> None:
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    for name, command in group.commands.items():
        whole = command.make_context(name, [], resilient_parsing=True).command.help
        assert whole is not None and whole.split("\n\n")[0] == command.help
        assert not [one for one in whole.split("\n\n") if "\n" in one]  # the terminal's width alone breaks lines
    script = "import sys; from cosd_api.apps.cli.entry import run; sys.argv = ['cosd', '--help']\n"
    script += "try: run()\nexcept SystemExit: "
    done = python(f"{script}print(*(name for name in sys.modules if name.startswith('cosd_api.apps.cli.')))")
    assert done.stdout.split("\n")[-2].split() == ["cosd_api.apps.cli.entry"]


def test_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "cosd_api", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        version(),
        "",
    )


def test_no_command_is_wrong_usage() -> None:
    assert cosd().exit_code == 2


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["fuze"], "No such command 'fuze'. Did you mean 'fuse'?"),
        (["fuse", "--max-token", "3"], "No such option: --max-token (Possible options: "),
    ],
)
def test_a_misspelt_name_is_refused_with_a_guess(given: list[str], shown: str) -> None:
    done = cosd(*given)
    assert done.exit_code == 2 and shown in words(done)


@pytest.mark.parametrize("where", partly(["the import of the command", "the command"]))
def test_an_interrupt_is_quiet(where: str) -> None:
    script = """
import sys
from cosd_api.apps.cli import main
class Interrupted:
    def find_spec(self, name, *_):
        if name == "cosd_api.apps.cli.entry":
            raise KeyboardInterrupt
def interrupted():
    raise KeyboardInterrupt
"""
    ways = {
        "the import of the command": "sys.meta_path.insert(0, Interrupted()); main()",
        "the command": "import cosd_api.apps.cli.entry; cosd_api.apps.cli.entry.run = interrupted; main()",
    }
    done = python(script + ways[where])
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("name", partly(["cosd_api", "cosd_providers"]))
def test_the_library_needs_nothing_of_the_extras_and_is_silent_by_default(name: str) -> None:
    extras = ("rich", "sklearn", "tiktoken", "tokenizers", "typer", "xllamacpp")
    script = f"""
import logging, sys
sys.modules |= dict.fromkeys({extras})
import {name}
for one in {{*sys.modules}} & {{"cosd_api", "cosd_providers"}}:
    logging.getLogger(one + ".part").error("not a word")
"""
    done = python(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("level", ["loud", "10"])
def test_an_unknown_log_level_is_wrong_usage(level: str) -> None:
    result = cosd("servers", env={"COSD_LOG": level})
    assert result.exit_code == 2
    assert "debug, info, warning, error" in result.stderr

"""`cosd serve`: serves fusions over OpenAI's protocol."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from cosd_api import Fusion, SettingError
from cosd_api.apps.cli.console import files_of, guarded, say
from cosd_api.apps.cli.options import SharedOptions, option_names, with_options
from cosd_api.apps.demo.servers import bundled_three
from cosd_api.apps.gateway.config import GatewayConfig, keys_of
from cosd_api.apps.gateway.exchange import ACCESS_LOG
from cosd_api.apps.gateway.log_writer import LogLineFormatter, LogWriter
from cosd_api.checks import check_installed

if TYPE_CHECKING:
    from cosd_api.apps.gateway import Gateway

__all__ = ["serve"]

_OF_A_FUSION = (*(name for name in option_names(SharedOptions) if name != "context"), "name")


@with_options(SharedOptions)
def serve(
    options: SharedOptions,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Settings of one or more fusions, instead of --draft and --assistant."),
    ] = None,
    name: Annotated[str, typer.Option(help="The model name of a single fusion.")] = "cosd",
    host: Annotated[str, typer.Option(help="The address to listen on. Any but this machine's own needs a key.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 chooses a free port.")] = 8000,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD",
            help="Ignore this field of requests, such as temperature, instead of refusing it; may be repeated. Added "
            "to the fields in FILE.",
        ),
    ] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of FILE, and exit.")] = False,
) -> None:
    """Serve fusions over OpenAI's protocol: /v1/chat/completions, /v1/completions, /v1/responses.

    --draft and --assistant define one fusion, and FILE can define several. Without any of these, the bundled models are
    served. If COSD_SERVE_KEYS or FILE contains keys, clients need one of them. When the server is ready, its URL is
    printed to standard output. The models that were found, the servers that do not answer, and a line of JSON for each
    request go to standard error. After SIGHUP, the keys in FILE are read again. Ctrl-C or SIGTERM stops the server:
    requests in progress have half a minute to finish, and the exit code is 0.
    """
    with guarded(), ExitStack() as stack:
        for module in ("starlette", "uvicorn", "prometheus_client"):
            check_installed(module, "the gateway needs a web server", "gateway")
        if schema:
            print(json.dumps(GatewayConfig.model_json_schema(), indent=2))
            return
        from cosd_api.apps.gateway.routes import Gateway  # noqa: PLC0415 - needs an extra
        from cosd_api.apps.gateway.server import check_host, listening, run_gateway  # noqa: PLC0415

        if file is None:
            config = GatewayConfig.model_construct(fusions={})  # the defaults
        else:
            if beside := [one for one in _OF_A_FUSION if options.given(one)]:
                words = f"is for one fusion, but FILE defines its own: {file}"
                raise typer.BadParameter(words, param_hint=f"--{beside[0].replace('_', '-')}")
            with files_of("FILE"):
                config = GatewayConfig.load(file)
        keys = keys_of(config.keys)
        check_host(host, secured=bool(keys))
        at = stack.enter_context(listening(host, port))
        fusions = stack.enter_context(_fusions(config, options, name))
        ignored = {*config.ignore, *(ignore or ())}
        gateway = Gateway(fusions, keys=keys, limits=config.limits, cors=config.cors, ignore=ignored)
        url = f"http://{f'[{host}]' if ':' in host else host}:{at.getsockname()[1]}/v1"

        def ready() -> None:
            print(url, flush=True)
            say(f"serving {', '.join(fusions)}; Ctrl-C stops it")
            gateway.report_models(say)

        signal.signal(signal.SIGTERM, _interrupt)
        if file is not None and sys.platform != "win32":
            signal.signal(signal.SIGHUP, _KeyReader(gateway, file, host))
        stack.enter_context(_logged_to_stderr())
        try:
            run_gateway(gateway, at, ready=ready)
        except KeyboardInterrupt:
            return


@contextmanager
def _fusions(config: GatewayConfig, options: SharedOptions, name: str) -> Iterator[Mapping[str, Fusion]]:
    """Yield the fusions to serve, by name. If neither a file nor options define a fusion, start the bundled models."""
    if config.fusions:
        yield {each: Fusion.load(one) for each, one in config.fusions.items()}
    elif options.config is not None or options.draft or options.assistant:
        yield {name: options.fusion_of_many()}
    else:
        with bundled_three() as three:
            yield {name: replace(options, draft=three.sums, assistant=[three.facts]).fusion_of_many()}


@contextmanager
def _logged_to_stderr() -> Iterator[None]:
    """Write the access log and log messages about failures to standard error."""
    access = logging.getLogger(ACCESS_LOG)
    access.setLevel(logging.INFO)
    access.propagate = False
    loggers = [access, logging.getLogger("uvicorn")]
    if not os.environ.get("COSD_LOG"):
        loggers.append(logging.getLogger("cosd_api.apps.gateway"))
    with closing(LogWriter(sys.stderr.fileno())) as handler:
        handler.setFormatter(LogLineFormatter())
        for logger in loggers:
            logger.addHandler(handler)
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeHandler(handler)


class _KeyReader:
    """The handler for the signal that makes the gateway read its keys again."""

    def __init__(self, gateway: Gateway, file: Path, host: str) -> None:
        self._gateway, self._file, self._host = gateway, file, host
        self._one_at_a_time = threading.Lock()
        self._terminal = os.isatty(0)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._terminal and not os.isatty(0):  # the signal means that the terminal was closed
            _interrupt(number, frame)
        threading.Thread(target=self._read, name="cosd-keys", daemon=True).start()  # so requests need not wait

    def _read(self) -> None:
        from cosd_api.apps.gateway.server import check_host  # noqa: PLC0415 - needs an extra

        with self._one_at_a_time:
            try:
                keys = keys_of(GatewayConfig.load(self._file).keys)
                check_host(self._host, secured=bool(keys))
                self._gateway.change_keys(keys)
            except (OSError, SettingError) as error:
                say(f"the keys stay as they were: {error}")
            else:
                names = ", ".join(one.name for one in keys.values()) or "none"
                say(f"the keys were read again: {names}; all other settings stay as they were at the start")


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt

"""`cosd serve`: serves fusions over OpenAI's protocol."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cosd_api import Fusion, SettingError
from cosd_api.cli.console import guarded, say
from cosd_api.cli.options import SharedOptions, option_names, with_options
from cosd_api.demo.servers import bundled_three
from cosd_api.extend import check_installed

if TYPE_CHECKING:
    from cosd_api.gateway import Gateway
    from cosd_api.gateway.config import GatewayConfig

__all__ = ["serve"]

_OF_A_FUSION = (*(name for name in option_names(SharedOptions) if name != "context"), "name")
_OF_AN_ANSWER = ("max_tokens", "timeout", "seed")


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
    """Serve fusions over OpenAI's protocol: /v1/chat/completions, /v1/completions, /v1/models.

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
            _print_schema()
            return
        from cosd_api.gateway.app import Gateway  # noqa: PLC0415 - needs an extra
        from cosd_api.gateway.config import GatewayLimits, keys_of  # noqa: PLC0415
        from cosd_api.gateway.server import check_host, listening, run_gateway  # noqa: PLC0415

        config = _config(file, options)
        keys = keys_of(config.keys if config else [])
        check_host(host, secured=bool(keys))
        limits = config.limits if config else GatewayLimits()
        cors = config.cors if config else []
        ignored = {*(config.ignore if config else ()), *(ignore or ())}
        at = stack.enter_context(listening(host, port))
        fusions = stack.enter_context(_fusions(config, options, name))
        gateway = Gateway(fusions, keys=keys, limits=limits, cors=cors, ignore=ignored)
        url = f"http://{f'[{host}]' if ':' in host else host}:{at.getsockname()[1]}/v1"

        def ready() -> None:
            print(url, flush=True)
            say(f"serving {', '.join(fusions)}; Ctrl-C stops it")
            gateway.report_models(say)

        signal.signal(signal.SIGTERM, _interrupt)
        if file is not None and sys.platform != "win32":
            signal.signal(signal.SIGHUP, _reading_keys(gateway, file, host))
        stack.enter_context(_logged_to_stderr())
        try:
            run_gateway(gateway, at, ready=ready)
        except KeyboardInterrupt:
            return


def _print_schema() -> None:
    from cosd_api.gateway.config import GatewayConfig  # noqa: PLC0415 - needs an extra

    print(json.dumps(GatewayConfig.model_json_schema(), indent=2))


def _config(file: Path | None, options: SharedOptions) -> GatewayConfig | None:
    """Read the settings file; return None if no file is given.

    Raises:
        typer.BadParameter: the file cannot be read, or a fusion is also defined by options.
        SettingError: the file is invalid.
    """
    from cosd_api.gateway.config import GatewayConfig  # noqa: PLC0415 - needs an extra

    if file is None:
        return None
    if beside := [name for name in _OF_A_FUSION if options.given(name)]:
        raise typer.BadParameter(
            f"is for one fusion, but FILE defines its own: {file}", param_hint=f"--{beside[0].replace('_', '-')}"
        )
    try:
        return GatewayConfig.load(file)
    except OSError as error:
        raise typer.BadParameter(f"{error.filename}: {error.strerror}", param_hint="FILE") from error


@contextmanager
def _fusions(config: GatewayConfig | None, options: SharedOptions, name: str) -> Iterator[Mapping[str, Fusion]]:
    """Yield the fusions to serve, by name. If neither a file nor options define a fusion, start the bundled models."""
    if config is not None:
        yield {each: Fusion.load(one) for each, one in config.fusions.items()}
    elif options.config is not None or options.draft or options.assistant:
        yield {name: _fusion(options)}
    else:
        with bundled_three() as three:
            yield {name: _fusion(replace(options, draft=three.sums, assistant=[three.facts]))}


def _fusion(options: SharedOptions) -> Fusion:
    """Create the fusion that the command line defines, with the command line's limits for every answer."""
    fusion = options.fusion()
    limits: Any = asdict(options.limits(fusion))
    own: Any = {name: limits[name] for name in _OF_AN_ANSWER if options.given(name) and limits[name] is not None}
    fusion.limits.update(own)
    return fusion


@contextmanager
def _logged_to_stderr() -> Iterator[None]:
    """Write the access log and log messages about failures to standard error."""
    from cosd_api.gateway.exchange import ACCESS_LOG  # noqa: PLC0415 - needs an extra
    from cosd_api.gateway.log_writer import LogLineFormatter, LogWriter  # noqa: PLC0415

    with closing(LogWriter(sys.stderr.fileno())) as handler:
        handler.setFormatter(LogLineFormatter())
        access = logging.getLogger(ACCESS_LOG)
        access.setLevel(logging.INFO)
        access.propagate = False
        loggers = [access, logging.getLogger("uvicorn")]
        if not os.environ.get("COSD_LOG"):
            loggers.append(logging.getLogger("cosd_api.gateway"))
        for logger in loggers:
            logger.addHandler(handler)
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeHandler(handler)


def _reading_keys(gateway: Gateway, file: Path, host: str) -> Callable[[int, FrameType | None], None]:
    """Create the handler for the signal that makes the gateway read its keys again."""
    from cosd_api.gateway.config import GatewayConfig, keys_of  # noqa: PLC0415 - needs an extra
    from cosd_api.gateway.server import check_host  # noqa: PLC0415

    one_at_a_time = threading.Lock()
    terminal = os.isatty(0)

    def read() -> None:
        with one_at_a_time:
            try:
                keys = keys_of(GatewayConfig.load(file).keys)
                check_host(host, secured=bool(keys))
                gateway.change_keys(keys)
            except (OSError, SettingError) as error:
                say(f"the keys stay as they were: {error}")
            else:
                names = ", ".join(one.name for one in keys.values()) or "none"
                say(f"the keys were read again: {names}; all other settings stay as they were at the start")

    def handle(number: int, frame: FrameType | None) -> None:
        if terminal and not os.isatty(0):  # the signal means that the terminal was closed
            _interrupt(number, frame)
        threading.Thread(target=read, name="cosd-keys", daemon=True).start()  # in a thread, so requests need not wait

    return handle


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt

"""TGI's router, imitated: HTTP by TGI's OpenAPI document in front of TGI's own model server, which is started here.

    python front.py MODEL --source CHECKOUT --host 127.0.0.1 --port PORT

Runs in an environment with what the model server needs, and imports nothing of this project. As the router with
`--max-batch-size 1`, it sends one request at a time: on the CPU, the model server does not join batches.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any

MAX_INPUT, MAX_TOTAL, MAX_TOP, MAX_BEST, MAX_STOP = 511, 512, 5, 2, 4
PACKAGE = "text_generation_server"
GENERATE = f"{PACKAGE}/pb/generate.proto"
REASONS = ("length", "eos_token", "stop_sequence")
STATUS = {"validation": 422, "generation": 424, "template_error": 422}

#: Parameters in the order in which the router tests them: when it refuses a value, and its words.
CHECKS = (
    ("temperature", lambda value: value <= 0, "must be strictly positive"),
    ("repetition_penalty", lambda value: value <= 0, "must be strictly positive"),
    ("frequency_penalty", lambda value: not -2 <= value <= 2, "must be >= -2.0 and <= 2.0"),
    ("top_p", lambda value: not 0 < value < 1, "must be > 0.0 and < 1.0"),
    ("typical_p", lambda value: not 0 < value < 1, "must be > 0.0 and < 1.0"),
    ("top_k", lambda value: value <= 0, "must be strictly positive"),
    ("max_new_tokens", lambda value: value == 0, "must be strictly positive"),
    ("stop", lambda value: len(value) > MAX_STOP, f"supports up to {MAX_STOP} stop sequences. Given: {{}}"),
    ("top_n_tokens", lambda value: value > MAX_TOP, f"must be >= 0 and <= {MAX_TOP}. Given: {{}}"),
)


class RefusalError(Exception):
    """An error that is answered."""

    def __init__(self, kind: str, words: str) -> None:
        super().__init__(words)
        self.kind = kind

    @property
    def body(self) -> dict[str, str]:
        return {"error": str(self), "error_type": self.kind}


def invalid(words: str) -> RefusalError:
    return RefusalError("validation", f"Input validation error: {words}")


class ModelServer:
    """TGI's model server as a process of its own, asked over its socket.

    Attributes:
        active: the number of requests that it works on.
        steps: how many tokens it was asked for.
    """

    def __init__(self, model: Path, source: Path, scratch: Path) -> None:
        self.active, self.steps, self._ids = 0, 0, 0
        self._lock = threading.Lock()
        packages = self._generated(source, scratch)
        sys.path.insert(0, str(packages))
        settings = {"ATTENTION": "paged", "PREFIX_CACHING": "0", "PYTHONPATH": str(packages)}
        command = [sys.executable, "-m", f"{PACKAGE}.cli", "serve", model.name, "--uds-path", str(scratch / "socket")]
        self._process = subprocess.Popen(command, cwd=model.parent, env={**os.environ, **settings})
        grpc: Any = import_module("grpc")
        self._failed = grpc.RpcError
        self.pb: Any = import_module(f"{PACKAGE}.pb.generate_pb2")
        channel = grpc.insecure_channel(f"unix://{scratch / 'socket-0'}")
        self._stub: Any = import_module(f"{PACKAGE}.pb.generate_pb2_grpc").TextGenerationServiceStub(channel)

    def wait(self) -> None:
        """Wait until it answers."""
        while True:
            if self._process.poll() is not None:
                sys.exit(f"the model server ended with code {self._process.returncode}")
            try:
                self._stub.Info(self.pb.InfoRequest(), timeout=5)
            except self._failed:
                time.sleep(0.1)
            else:
                return

    def run(self, fields: Mapping[str, object]) -> Generator[Any]:
        """The generations of one request, one token each."""
        with self._lock:
            self._ids, self.active = self._ids + 1, 1
            request = self.pb.Request(id=self._ids, **fields)
            batch = self.pb.Batch(id=self._ids, requests=[request], size=1, max_tokens=MAX_TOTAL)
            left = True
            try:
                answer = self._stub.Prefill(self.pb.PrefillRequest(batch=batch))
                while True:
                    self.steps += 1
                    [generation] = answer.generations
                    left = answer.HasField("batch")
                    yield generation
                    if not left:
                        return
                    answer = self._stub.Decode(self.pb.DecodeRequest(batches=[answer.batch]))
            except self._failed as error:
                words = f"Request failed during generation: Server error: {error.details()}"
                raise RefusalError("generation", words) from error
            finally:
                self.active = 0
                if left:
                    self._stub.ClearCache(self.pb.ClearCacheRequest(id=self._ids))

    @staticmethod
    def _generated(source: Path, scratch: Path) -> Path:
        """A folder with TGI's package, and in it what is generated from the protocol; the checkout stays as it is."""
        package = scratch / "packages" / PACKAGE
        (package / "pb").mkdir(parents=True)
        for path in (source / "server" / PACKAGE).iterdir():
            if path.name != "pb":
                (package / path.name).symlink_to(path)
        protoc: Any = import_module("grpc_tools.protoc")
        out, at = package.parent, f"{PACKAGE}/pb={source / 'proto' / 'v3'}"
        if protoc.main(["protoc", f"-I{at}", f"--python_out={out}", f"--grpc_python_out={out}", GENERATE]):
            sys.exit(f"{source} is no checkout of TGI 3: there is no proto/v3/generate.proto in it")
        return out


class Router:
    """The router's work: validation, encoding, templates, and the shape of answers."""

    def __init__(self, model: Path, shard: ModelServer, *, prefill: bool) -> None:
        self._shard, self._prefill, self._name = shard, prefill, model.name
        tokenizers: Any = import_module("tokenizers")
        self._tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
        self._config = json.loads((model / "tokenizer_config.json").read_text(encoding="utf-8"))

    def answer(self, path: str, body: Any) -> object:
        """The answer of a route that does not stream; None for none."""
        match path:
            case "/health":
                return ""
            case "/metrics":
                counted = f'tgi_batch_inference_count{{method="decode"}} {self._shard.steps}'
                return f"tgi_batch_current_size {self._shard.active}\n{counted}\n"
            case "/info":
                return self._info()
            case "/v1/models":
                one = {"id": self._name, "object": "model", "created": 0, "owned_by": self._name}
                return {"object": "list", "data": [one]}
            case "/tokenize":
                return self._spans(body["inputs"], special=True)
            case "/chat_tokenize":
                text = self._rendered(body["messages"])
                return {"tokenize_response": self._spans(text, special=False), "templated_text": text}
            case "/generate":
                return self._generate(body["inputs"], body.get("parameters") or {})
        return None

    def events(self, body: Any) -> Generator[dict[str, Any]]:
        """The events of `/generate_stream`."""
        text, asked = body["inputs"], body.get("parameters") or {}
        try:
            if (asked.get("best_of") or 1) != 1:
                raise invalid("`best_of` != 1 is not supported when streaming tokens")
            if asked.get("decoder_input_details"):
                raise invalid("`decoder_input_details` == true is not supported when streaming tokens")
            fields, read = self._validated(text, asked)
            with closing(self._shard.run(fields)) as generations:
                for index, one in enumerate(generations, 1):
                    [token] = _tokens(one.tokens)
                    event = {"index": index, "token": token, "generated_text": None, "details": None}
                    if one.top_tokens:
                        event["top_tokens"] = _tokens(one.top_tokens[0])
                    if one.HasField("generated_text"):
                        event["generated_text"] = self._whole(text, asked, one.generated_text)
                        if asked.get("details"):
                            event["details"] = {**_end(one.generated_text), "input_length": read}
                    yield event
        except RefusalError as error:
            yield error.body

    def _info(self) -> dict[str, object]:
        limits = {"max_best_of": MAX_BEST, "max_stop_sequences": MAX_STOP, "max_input_tokens": MAX_INPUT}
        limits |= {"max_total_tokens": MAX_TOTAL, "max_concurrent_requests": 128, "max_client_batch_size": 4}
        router = {"validation_workers": 1, "router": "text-generation-router", "version": "3.3.6-dev0", "sha": None}
        model = {"model_id": self._name, "model_sha": None, "model_pipeline_tag": None, "docker_label": None}
        return {**model, **limits, **router}

    def _spans(self, text: str, *, special: bool) -> list[dict[str, object]]:
        """Tokens with their places in bytes; the library in Python counts characters."""
        encoding = self._tokenizer.encode(text, add_special_tokens=special)
        spans = [[len(text[:at].encode()) for at in span] for span in encoding.offsets]
        return [
            {"id": n, "text": text.encode()[start:stop].decode("utf-8", "replace"), "start": start, "stop": stop}
            for n, (start, stop) in zip(encoding.ids, spans, strict=True)
        ]

    def _rendered(self, messages: list[dict[str, str]]) -> str:
        template = self._config.get("chat_template")
        if template is None:
            raise RefusalError("template_error", "Template error: template not found")
        jinja2: Any = import_module("jinja2.sandbox")

        def refuse(words: str) -> None:
            raise RefusalError("template_error", f"Template error: syntax error: {words}")

        environment = jinja2.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = refuse
        names = {name: self._config.get(name) for name in ("bos_token", "eos_token")}
        text = str(environment.from_string(template).render(messages=messages, add_generation_prompt=True, **names))
        last = messages[-1]
        if last["role"] == "assistant" and last["content"] in text:
            text = text[: text.rindex(last["content"]) + len(last["content"])].rstrip()
        return text

    def _validated(self, text: str, asked: Mapping[str, Any]) -> tuple[dict[str, object], int]:
        """The fields of a request to the model server, and the number of tokens in its text."""
        told = {name: value for name, value in asked.items() if value is not None}
        sampling = told.get("do_sample") or {"temperature", "top_k", "top_p", "typical_p"} & told.keys()
        if told.get("best_of", 1) > 1 and not sampling:
            raise invalid("you must use sampling when `best_of` is > 1")
        for name, wrong, words in CHECKS:
            if name in told and wrong(told[name]):
                raise invalid(f"`{name}` {words.format(len(told[name]) if name == 'stop' else told[name])}")
        if told.get("best_of", 1) > 1 and "seed" in told:
            raise invalid("`seed` must not be set when `best_of` > 1")
        if not text:
            raise invalid("`inputs` cannot be empty")
        cut = told.get("truncate", MAX_INPUT)
        if not 0 < cut <= MAX_INPUT:
            raise invalid(f"`truncate` must be strictly positive and less than {MAX_INPUT}. Given: {cut}")
        read = len(self._tokenizer.encode(text).ids)
        read = min(read, cut) if "truncate" in told else read
        limit = min(told.get("max_new_tokens", max(MAX_TOTAL - read, 0)), 1024)
        if read + limit > MAX_TOTAL:
            both = f"{read} `inputs` tokens and {limit} `max_new_tokens`"
            raise invalid(f"`inputs` tokens + `max_new_tokens` must be <= {MAX_TOTAL}. Given: {both}")
        if read > MAX_INPUT:
            raise invalid(f"`inputs` must have less than {MAX_INPUT} tokens. Given: {read}")
        chosen: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "typical_p": 1.0, "repetition_penalty": 1.0}
        chosen["seed"] = random.getrandbits(63)
        for name in (*chosen, "top_k", "frequency_penalty", "do_sample", "watermark"):
            if name in told:
                chosen[name] = told[name]
        if "grammar" in told:
            chosen |= {"grammar": self._regex(told["grammar"]), "grammar_type": self._shard.pb.GRAMMAR_TYPE_REGEX}
        fields = {
            "input_chunks": {"chunks": [{"text": text}]},
            "inputs": text,
            "truncate": cut,
            "add_special_tokens": True,
            "parameters": chosen,
            "stopping_parameters": {"max_new_tokens": limit, "stop_sequences": told.get("stop", [])},
            "prefill_logprobs": self._prefill and bool(told.get("decoder_input_details")),
            "top_n_tokens": told.get("top_n_tokens", 0),
        }
        return fields, read

    @staticmethod
    def _regex(grammar: Mapping[str, Any]) -> str:
        if grammar["type"] == "regex":
            return str(grammar["value"])
        schemas: Any = import_module("outlines_core.fsm.json_schema")
        return str(schemas.build_regex_from_schema(json.dumps(grammar["value"])))

    def _generate(self, text: str, asked: Mapping[str, Any]) -> dict[str, object]:
        count = asked.get("best_of") or 1
        if count > MAX_BEST:
            raise invalid(f"`best_of` must be > 0 and <= {MAX_BEST}. Given: {count}")
        runs = [list(self._shard.run(self._validated(text, asked)[0])) for _ in range(count)]
        runs.sort(key=lambda run: -sum(one.tokens.logprobs[0] for one in run) / len(run))
        best, *others = runs
        answer: dict[str, object] = {"generated_text": self._whole(text, asked, best[-1].generated_text)}
        if asked.get("details") or asked.get("decoder_input_details"):
            details = self._details(best)
            if count > 1:
                shown = [(self._whole(text, asked, run[-1].generated_text), self._details(run)) for run in others]
                details["best_of_sequences"] = [{"generated_text": whole, **more} for whole, more in shown]
            answer["details"] = details
        return answer

    @staticmethod
    def _whole(text: str, asked: Mapping[str, Any], written: Any) -> str:
        return (text if asked.get("return_full_text") else "") + str(written.text)

    @staticmethod
    def _details(run: list[Any]) -> dict[str, Any]:
        tops = [_tokens(one.top_tokens[0]) for one in run if one.top_tokens]
        return {
            **_end(run[-1].generated_text),
            "prefill": _tokens(run[0].prefill_tokens),
            "tokens": [token for one in run for token in _tokens(one.tokens)],
            **({"top_tokens": tops} if tops else {}),
        }


def _end(written: Any) -> dict[str, Any]:
    seed = written.seed if written.HasField("seed") else None
    reason = REASONS[written.finish_reason]
    return {"finish_reason": reason, "generated_tokens": written.generated_tokens, "seed": seed}


def _tokens(shown: Any) -> list[dict[str, Any]]:
    """Tokens as they are sent: NaN as null; those of a prompt are not flagged as special or not."""
    tokens = []
    for at, n in enumerate(shown.ids):
        value = shown.logprobs[at]
        token = {"id": n, "text": shown.texts[at], "logprob": value if value == value else None}
        tokens.append(token | ({"special": shown.is_special[at]} if shown.is_special else {}))
    return tokens


class Handler(BaseHTTPRequestHandler):
    """HTTP for the router; sees when a client leaves."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    router: Router

    def do_GET(self) -> None:
        self._respond(None)

    def do_POST(self) -> None:
        self._respond(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    def _respond(self, body: Any) -> None:
        if self.path == "/generate_stream":
            self._stream(self.router.events(body))
            return
        try:
            status, answer = 200, self.router.answer(self.path, body)
        except RefusalError as error:
            status, answer = STATUS[error.kind], error.body
        self.send_response(404 if answer is None else status)
        plain = answer is None or isinstance(answer, str)
        content = str(answer or "").encode() if plain else json.dumps(answer).encode()
        self.send_header("content-type", "text/plain" if plain else "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, events: Generator[dict[str, Any]]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        with closing(events):
            try:
                for event in events:
                    readable, _, _ = select.select([self.connection], [], [], 0)
                    if readable and not self.connection.recv(1, 2):  # the client has left; 2: only to look (MSG_PEEK)
                        raise ConnectionResetError
                    data = f"data:{json.dumps(event)}\n\n".encode()
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.write(b"0\r\n\r\n")
            except OSError:
                self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the standard library
        """Says nothing."""


def main() -> None:
    """Serve a model until this process is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--enable-prefill-logprobs", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        shard = ModelServer(options.model, options.source, Path(scratch))
        router = Router(options.model, shard, prefill=options.enable_prefill_logprobs)
        shard.wait()
        server = ThreadingHTTPServer((options.host, options.port), type("Own", (Handler,), {"router": router}))
        server.daemon_threads = True
        server.serve_forever()


if __name__ == "__main__":
    main()

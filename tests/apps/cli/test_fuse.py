"""`cosd fuse`: what goes where, and how it ends."""

import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any, get_args

import pytest

from cosd_api import (
    AgreementVerifier,
    DiffVerifier,
    Fusion,
    FusionResult,
    MatchVerifier,
    RandomVerifier,
    RuleVerifier,
    SurpriseVerifier,
    Trace,
    TreeVerifier,
    fuse_sync,
)
from cosd_api.apps.cli.spending import bounded
from cosd_api.apps.demo.servers import Pair
from cosd_api.decoding.word_ends import unicode_words
from cosd_api.extend import Unit, Verifier
from cosd_api.settings import AnswerLimits
from cosd_api.verification.tree import TreeNode
from cosd_providers import ConnectError
from cosd_providers.testing import Fault, ScriptedProvider
from fakes.commands import ANSWER, TEXTS, Scripted, cosd, start, start_scripted, words
from naive.defer import gate
from support.drawn import partly
from support.method_files import AT

posix = pytest.mark.skipif(os.name == "nt", reason="signals and terminals of POSIX")
PERU = "Q: In Peru a book costs 17 and a pen costs 25. Name the capital and the total.\nA:"


def requests(scripted: Scripted) -> list[int]:
    return [provider.requests for provider in scripted.providers.values()]


# Formats of answers.


def writing(scripted: Scripted, text: str) -> Scripted:
    """Both models write a text, one token for each character."""
    for url, name in (("http://draft", "draft"), ("http://one", "one")):
        scripted.providers[url] = ScriptedProvider.from_texts({"Q": [*text]}, name=name)
    return scripted


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


@pytest.mark.parametrize("given", [SCHEMA, {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}])
def test_an_answer_keeps_to_a_schema(scripted: Scripted, tmp_path: Path, given: dict[str, Any]) -> None:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(given))
    found = writing(scripted, '{"n": 12}')("Q", "--schema", str(path), "--json")
    assert found.exit_code == 0
    assert json.loads(found.stdout)["parsed"] == {"n": 12}
    cut = scripted("Q", "--schema", str(path), "--max-tokens", "2", "--json")
    assert (json.loads(cut.stdout)["finish_reason"], json.loads(cut.stdout)["parsed"]) == ("length", None)


@pytest.mark.parametrize("given", [("--regex", "[0-9]+b"), ("--choice", "12a", "--choice", "12b")])
def test_an_answer_keeps_to_a_pattern_or_to_choices(scripted: Scripted, given: tuple[str, ...]) -> None:
    assert writing(scripted, "12b")("Q", *given, "--quiet").stdout == "12b\n"


@pytest.mark.parametrize(
    ("content", "more", "expected"),
    [
        (None, (), "Invalid value for --schema: {path}: No such file or directory"),
        ("{", (), "Invalid value for --schema: {path} is not JSON: Expecting property name"),
        ('["a"]', (), "Invalid value for --schema: {path} is not a JSON object"),
        ('{"not": {}}', (), "Invalid value for --schema: schema: the keyword 'not' is not supported"),
        ("{}", ("--regex", "a"), "Invalid value for --regex: cannot be combined with --schema: give one of them"),
        (
            "{}",
            ("--method", "rerank"),
            "Invalid value: response_format is not accepted by the method 'rerank', because",
        ),
    ],
)
def test_formats_that_are_refused(
    scripted: Scripted, tmp_path: Path, content: str | None, more: tuple[str, ...], expected: str
) -> None:
    path = tmp_path / "s"
    if content is not None:
        path.write_text(content)
    found = scripted("Q", "--schema", str(path), *more)
    assert found.exit_code == 2
    assert expected.replace("{path}", str(path)).replace(" ", "") in words(found).replace(" ", "")
    assert sum(requests(scripted)) == 0


def test_a_pattern_that_is_not_one(scripted: Scripted) -> None:
    assert "Invalid value for --regex: regex" in words(scripted("Q", "--regex", "("))


# Dear methods.


def test_a_dear_method_is_announced_and_bounded(scripted: Scripted) -> None:
    dear = ("Q", "--method", "average", "--unit", "token", "--json")
    result = scripted(*dear)
    assert result.exit_code == 0
    assert result.stderr.splitlines()[0] == (
        "cosd: note: the method 'average' is expensive: an answer of 256 tokens is expected to bill 164 times the "
        "tokens of the draft alone. It stops at 420,480 billed tokens; --max-billed-tokens N sets another limit"
    )
    assert FusionResult.model_validate_json(result.stdout).settings.max_billed_tokens == 420_480
    quiet = scripted(*dear, "--quiet")
    assert quiet.stderr == ""
    assert FusionResult.model_validate_json(quiet.stdout).settings.max_billed_tokens == 420_480


@pytest.mark.parametrize(
    "more",
    [
        ("--method", "average", "--unit", "token", "--max-billed-tokens", "5000"),
        ("--method", "average", "--unit", "token", "--max-tokens", "2"),
        ("--method", "rerank"),
        (),
    ],
)
def test_what_is_not_dear_or_has_a_limit_is_not_announced(scripted: Scripted, more: tuple[str, ...]) -> None:
    result = scripted("Q", *more, "--json")
    assert (result.exit_code, "is expensive" in result.stderr) == (0, False)
    given = int(more[-1]) if "--max-billed-tokens" in more else None
    assert FusionResult.model_validate_json(result.stdout).settings.max_billed_tokens == given


async def test_short_answers_do_not_lower_the_bound_of_a_long_one(scripted: Scripted) -> None:
    limits = AnswerLimits.checked(max_tokens=256)
    models = [scripted.providers["http://draft"], scripted.providers["http://one"]]
    async with Fusion(models=models, method="average", unit="token") as fusion:
        first = await bounded(fusion, "Q", limits, told=True)
        answer = await fusion.generate("Q")
        second = await bounded(fusion, "Q", limits, told=True)
    assert len(answer.tokens) == 4
    assert first.max_billed_tokens == 420_480
    assert second.max_billed_tokens is not None and second.max_billed_tokens > 420_480 / 2


# The answer and the rest.


def test_answer_on_stdout_and_summary_on_stderr(scripted: Scripted) -> None:
    result = scripted("Q")
    assert result.exit_code == 0
    assert result.stdout == " a c.\n"
    assert result.stderr.startswith("cosd: stop ('</s>'), 4 tokens, 1 replacement, acceptance 75%, ")
    assert result.stderr.count("\n") == 1


def test_quiet(scripted: Scripted) -> None:
    result = scripted("Q", "--quiet")
    assert (result.stdout, result.stderr) == (" a c.\n", "")


def test_json_is_the_result_and_nothing_else(scripted: Scripted) -> None:
    result = scripted("Q", "--json")
    assert result.exit_code == 0
    parsed = FusionResult.model_validate_json(result.stdout)
    assert parsed.text == " a c."
    assert "acceptance" in result.stderr
    assert result.stdout.endswith("}\n")


def test_explained_is_the_marked_answer_and_why(scripted: Scripted) -> None:
    result = scripted("Q", "--explain", "--quiet")
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert lines[0] == " a [-b-] {+c+}."
    assert lines[1] == "marks: [-the draft's word-] {+the assistant's in its place+}"
    assert "␣b" in result.stdout and "replaced: 0.2 < 0.9" in result.stdout
    assert result.stderr == ""


def test_a_trace_is_kept(scripted: Scripted, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    result = scripted("Q", "--trace", str(path))
    assert result.stdout == " a c.\n"
    assert Trace.load(path).replay() == " a c."


def test_a_trace_of_what_there_is_when_a_server_fails(scripted: Scripted, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    scripted.providers["http://one"].faults = [Fault(ConnectError("no connection"))]
    result = scripted("Q", "--trace", str(path), "--explain")
    assert result.exit_code == 1
    trace = Trace.load(path)
    assert (trace.replay(), trace.result.finish_reason) == (" a", "error")
    assert result.stdout.startswith(" a\nmarks: ")
    assert "No assistant was asked: no word could change." in result.stdout


def test_a_trace_is_kept_where_nobody_reads_what_is_printed(
    scripted: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def left(*_: object, **__: object) -> None:
        raise ConnectionError("nobody reads")

    monkeypatch.setattr("cosd_api.apps.cli.fuse.show", left)
    assert scripted("Q", "--explain", "--trace", str(tmp_path / "trace.jsonl")).exit_code == 1
    assert Trace.load(tmp_path / "trace.jsonl").replay()


@pytest.mark.parametrize("option", ["--tree", "--schema"])
def test_a_trace_does_not_take_the_place_of_an_input(scripted: Scripted, tmp_path: Path, option: str) -> None:
    path = tmp_path / "tree.json"
    path.write_text('{"nodes": [{"value": 1}]}')
    result = scripted("Q", option, str(path), "--trace", str(tmp_path / "." / "tree.json"))
    assert result.exit_code == 2
    assert "is an input and would be overwritten: name another file" in words(result)
    assert path.read_text() == '{"nodes": [{"value": 1}]}'


def test_a_trace_that_cannot_be_kept_is_said_before_anything_is_asked(scripted: Scripted, tmp_path: Path) -> None:
    result = scripted("Q", "--trace", str(tmp_path / "nowhere" / "trace.jsonl"))
    assert result.exit_code == 2
    assert "cannot be written: No such file or directory" in words(result)
    assert not any(requests(scripted))


def test_warnings_are_on_stderr(scripted: Scripted) -> None:
    scripted.providers["http://one"].end_prob = False
    assert "cosd: note: assistant does not report the probability of its end" in scripted("Q").stderr
    assert scripted("Q", "--quiet").stderr == ""


@pytest.mark.parametrize(("end", "added"), [(".", "\n"), ("\n", ""), (".\n\n", "")])
def test_a_line_end_is_added_where_there_is_none(scripted: Scripted, end: str, added: str) -> None:
    scripted.providers["http://draft"] = ScriptedProvider.from_texts({"Q": [" a", end]})
    assert scripted("Q").stdout == f" a{end}{added}"


def test_an_empty_answer_is_empty(scripted: Scripted) -> None:
    result = scripted("nobody has a script for this")
    assert (result.exit_code, result.stdout) == (0, "")


@pytest.mark.parametrize(
    ("given", "prompt"), [("Q", "Q"), ("Q\n", "Q"), ("Q\r\n", "Q"), ("Q\n\n", "Q\n"), ("Qé\nA:", "Qé\nA:")]
)
def test_prompt_from_stdin(scripted: Scripted, given: str, prompt: str) -> None:
    scripted("-", input=given.encode())
    assert scripted.providers["http://draft"].calls[0].prompt == prompt


@pytest.mark.parametrize(
    ("arguments", "given", "draft", "assistant"),
    [
        (["Hi", "--chat"], None, "user: Hi\n", "user: Hi\n"),
        (["Hi", "--system", "Be brief."], None, "system: Be brief.\nuser: Hi\n", "system: Be brief.\nuser: Hi\n"),
        (["Hi", "--assistant-system", "Know."], None, "user: Hi\n", "system: Know.\nuser: Hi\n"),
        (["Hi", "--draft-system", "@FILE"], None, "system: In a file.\nuser: Hi\n", "user: Hi\n"),
        (["-", "--chat"], "Hi\n", "user: Hi\n", "user: Hi\n"),
        (["-"], '[{"role": "user", "content": "Hi"}]\n', "user: Hi\n", "user: Hi\n"),
        (
            ["-", "--system", "One."],
            '[{"role": "system", "content": "Two."}, {"role": "user", "content": "Hi"}]',
            "system: One.\n\nTwo.\nuser: Hi\n",
            "system: One.\n\nTwo.\nuser: Hi\n",
        ),
    ],
)
def test_a_conversation(
    scripted: Scripted, tmp_path: Path, arguments: list[str], given: str | None, draft: str, assistant: str
) -> None:
    (tmp_path / "own.txt").write_text("In a file.")
    arguments = [one.replace("FILE", str(tmp_path / "own.txt")) for one in arguments]
    for url, front in (("http://draft", draft), ("http://one", assistant)):
        scripted.providers[url] = ScriptedProvider.from_texts({f"{front}assistant: ": ["a", (" b", 0.2)]})
    result = scripted(*arguments, "--ask", "all", input=None if given is None else given.encode())
    assert (result.exit_code, result.stdout) == (0, "a b\n"), result.stderr
    for url, front in (("http://draft", draft), ("http://one", assistant)):
        assert {call.prompt for call in scripted.providers[url].calls} == {f"{front}assistant: "}


@pytest.mark.parametrize("text", ["[1, 2]", "[]", "[not JSON", '["role"]'])
def test_other_lists_on_stdin_are_text(scripted: Scripted, text: str) -> None:
    scripted("-", input=text.encode())
    assert scripted.providers["http://draft"].calls[0].prompt == text


@pytest.mark.parametrize(
    ("arguments", "given", "error"),
    [
        (["-"], b'[{"role": "x", "content": ""}]', "the list of messages on standard input: messages[0] has the role"),
        (["Q", "--draft-system", "@missing.txt"], None, "missing.txt: No such file or directory"),
        (
            ["Q", "--assistant-system", "a", "--assistant-system", "b"],
            None,
            "is given 2 times, but there is 1 assistant",
        ),
    ],
)
def test_a_conversation_that_is_none(scripted: Scripted, arguments: list[str], given: bytes | None, error: str) -> None:
    result = scripted(*arguments, input=given)
    assert result.exit_code == 2
    assert error in words(result)
    assert requests(scripted) == [0, 0, 0]


def test_several_assistants(scripted: Scripted) -> None:
    result = scripted("Q", "--json", urls=("draft", "one", "two"))
    parsed = FusionResult.model_validate_json(result.stdout)
    assert parsed.text == " a e!"
    assert [token.source for token in parsed.tokens][:2] == ["draft", "assistant 2"]


def test_models_go_to_their_servers(scripted: Scripted) -> None:
    models = ["--draft-model", "d", "--assistant-model", "x", "--assistant-model", "y"]
    assert scripted("Q", *models, urls=("draft", "one", "two")).exit_code == 0
    assert scripted.models == ["d", "x", "y"]


def test_servers_from_the_environment(scripted: Scripted) -> None:
    environment = {"COSD_DRAFT_URL": "http://draft", "COSD_ASSISTANT_URL": "http://one http://two"}
    assert cosd("fuse", "Q", env=environment).stdout == " a e!\n"


def test_the_width_of_a_tie(scripted: Scripted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[float] = []
    monkeypatch.setattr("cosd_api.settings.check_tie", given.append)
    monkeypatch.setattr("cosd_api.config.file.connect", scripted.connect)
    config = tmp_path / "fusion.yaml"
    config.write_text("draft: http://draft\nassistants: [http://one]\ntie: 0.05\n")
    for more, tie in (((), 0.02), (("--tie", "0.003"), 0.003)):
        assert (scripted("Q", *more).exit_code, given[-1]) == (0, tie)
    for more, tie in (((), 0.05), (("--tie", "0"), 0.0)):
        assert (cosd("fuse", "Q", "--config", str(config), *more).exit_code, given[-1]) == (0, tie)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("--unit word --stop x --stop y --max-tokens 3", {"unit": "word", "stop": ("x", "y"), "max_tokens": 3}),
        ("--draft-length 2 --max-ahead 5", {"draft_length": 2, "max_ahead": 5}),
        ("--timeout 60 --max-requests 9", {"timeout": 60, "max_requests": 9}),
        ("--max-billed-tokens 999 --on-budget end", {"max_billed_tokens": 999, "on_budget": "end"}),
        ("--on-assistant-error draft", {"on_assistant_error": "draft"}),
        *((f"--unit {unit}", {"unit": unit}) for unit in get_args(Unit)),
        ("--alpha 0.1 --beta inf", {"verifier": RuleVerifier(alpha=0.1, beta=float("inf"))}),
        ("--verifier rule --alpha 0.1", {"verifier": RuleVerifier(alpha=0.1)}),
        ("--verifier agreement --alpha 0.1", {"verifier": AgreementVerifier(alpha=0.1)}),
        ("--verifier agreement --agreement", {"verifier": AgreementVerifier()}),
        ("--verifier diff --tau 0.25", {"verifier": DiffVerifier(tau=0.25)}),
        ("--verifier match", {"verifier": MatchVerifier()}),
        ("--verifier random --rate 0.5 --seed -3", {"verifier": RandomVerifier(rate=0.5, seed=-3)}),
        (
            "--verifier surprise --gamma 0.3 --window 4 --unit token",
            {"verifier": SurpriseVerifier(gamma=0.3, window=4), "unit": "token"},
        ),
    ],
)
def test_settings_reach_the_fusion(scripted: Scripted, given: str, expected: dict[str, Any]) -> None:
    settings = FusionResult.model_validate_json(scripted("Q", "--json", *given.split()).stdout).settings
    assert {name: getattr(settings, name) for name in expected} == expected


def test_asking_everything(scripted: Scripted) -> None:
    shown = [FusionResult.model_validate_json(scripted("Q", "--json", *more).stdout) for more in ([], ["--ask", "all"])]
    assert [result.settings.ask for result in shown] == ["contestable", "all"]
    assert [all(token.asked for token in result.tokens) for result in shown] == [False, True]


def test_the_timeout_goes_to_every_server(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    def connect(url: str, *, model: str | None, timeout: float) -> ScriptedProvider:
        given.append(timeout)
        return scripted.connect(url, model=model)

    monkeypatch.setattr("cosd_api.apps.cli.options.connect", connect)
    assert scripted("Q", "--read-timeout", "7.5", "--timeout", "60", urls=("draft", "one", "two")).exit_code == 0
    assert given == [7.5] * 3


@pytest.mark.parametrize(("more", "alpha"), [([], 0.5), (["--alpha", "0.1"], 0.1)])
def test_agreement_decides(scripted: Scripted, more: list[str], alpha: float) -> None:
    scripted.providers["http://one"].probs = False
    result = scripted("Q", "--json", "--agreement", *more)
    answer = FusionResult.model_validate_json(result.stdout)
    assert answer.settings.verifier == AgreementVerifier(alpha=alpha)
    assert answer.text == (" a c." if alpha == 0.5 else " a b")
    refused = scripted("Q")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "AgreementVerifier" in refused.stderr


# Other methods.


@pytest.mark.parametrize(
    ("more", "name", "options"),
    [
        (["cool"], "cool", {"normalisation": "token", "align": False, "rerank": False}),
        (
            ["cool", "--set", "align=true", "--set", "normalisation=byte"],
            "cool",
            {"normalisation": "byte", "align": True, "rerank": False},
        ),
        (
            ["cool", "--set", "align=yes", "--set", "rerank=true"],
            "cool",
            {"normalisation": "token", "align": True, "rerank": True},
        ),
        (["rerank"], "rerank", {"normalisation": "token"}),
        ([AT["route"], "--set", "tau=2"], "route", {"tau": 2.0}),
        (
            [AT["adafuse"], "--set", "words=2", "--set", "margin=0.5"],
            "adafuse",
            {"normalisation": "token", "margin": 0.5, "words": 2, "beams": 3, "outliers": 10.0},
        ),
        (["chared", "--set", "weights=2,1"], "chared", {"weights": [2.0, 1.0], "listed": 20}),
        (
            [AT["switch"], "--set", "samples=3", "--set", "answer=[abc]", "--seed", "4"],
            "switch",
            {"weights": None, "samples": 3, "threshold": 1.0, "answer": "[abc]"},
        ),
        (["safe", "--set", "weights=9,1"], "safe", {"weights": [9.0, 1.0], "ahead": 5, "listed": 10}),
        ([AT["cascade"], "--set", "quantile=0.5"], "cascade", {"quantile": 0.5, "tau": 1.0}),
        (
            [AT["nudging"], "--set", "gamma=0.1", "--set", "nudge_tokens=2"],
            "nudging",
            {"gamma": 0.1, "nudge_tokens": 2},
        ),
    ],
)
def test_a_method_and_its_settings(
    scripted: Scripted, tmp_path: Path, more: list[str], name: str, options: dict[str, object]
) -> None:
    path = tmp_path / "trace.jsonl"
    scripted.providers["http://draft"].words = unicode_words
    result = scripted("Q", "--method", *more, "--trace", str(path))
    assert result.stdout == " a b\n"
    assert "cosd: stop ('</s>'), 3 tokens, " in result.stderr
    trace = Trace.load(path)
    assert trace.replay() == " a b"
    assert (trace.result.settings.method, trace.result.settings.method_options) == (name, options)


def test_words_of_their_own_are_refused_where_none_are_known(scripted: Scripted) -> None:
    result = scripted("Q", "--method", "cool", "--set", "align=true")
    assert (result.exit_code, result.stdout) == (1, "")
    said = "ends segments at each model's own words, and no model's words are known. Give the models' own tokenizers, "
    assert f"{said}connect(url, tokenizer=...) or `tokenizer` in a settings file. " in words(result)


def test_a_gate_is_a_file(scripted: Scripted, tmp_path: Path) -> None:
    path = tmp_path / "gate.json"
    gate(bias=4.0, top=-8.0).save(path)
    result = scripted("Q", "--json", "--unit", "token", "--method", "defer", "--set", f"gate={path}")
    found = FusionResult.model_validate_json(result.stdout)
    assert (found.settings.method, found.text) == ("defer", " a c.")
    lost = scripted("Q", "--method", "defer", "--set", "gate=nowhere.json")
    assert lost.exit_code == 2
    assert "nowhere.json: No such file or directory" in words(lost)
    assert "the method 'defer' needs a gate" in words(scripted("Q", "--method", "defer"))


@pytest.mark.parametrize(
    "more",
    [
        ["--temperature", "1"],
        ["--method", "average", "--temperature", "1"],
        ["--method", "speculative", "--set", "temperature=1"],
    ],
)
def test_an_answer_is_drawn(scripted: Scripted, tmp_path: Path, more: list[str]) -> None:
    path = tmp_path / "trace.jsonl"
    result = scripted("Q", *more, "--seed", "3", "--unit", "token", "--trace", str(path))
    assert result.exit_code == 0
    trace = Trace.load(path)
    assert trace.replay() + "\n" == result.stdout
    assert (trace.result.settings.temperature, trace.result.settings.seed) == (1, 3)


def test_steps_are_graded_and_written_again(scripted: Scripted) -> None:
    result = scripted("Q", "--method", "steps", "--set", "keep=5", "--set", "cue=Mark, please:", "--explain")
    lines = [line.split() for line in result.stdout.splitlines() if line]
    assert lines[0] == ["{+a", "c.+}"]
    assert ["1", "draft", "␣a␣b"] in [line[:3] for line in lines]
    assert "1 of 1 times the assistant answered a request for a score with no digit" in result.stderr


def test_segments_of_one_model_each_are_explained(scripted: Scripted) -> None:
    result = scripted("Q", "--method", AT["nudging"], "--set", "gamma=0.1", "--set", "nudge_tokens=2", "--explain")
    rows = [line.split()[:3] for line in result.stdout.splitlines() if line[:9].strip().isdigit()]
    assert rows == [["1", "assistant", "␣a"], ["2", "draft", "␣b"], ["3", "assistant", "(end)"]]


def test_weights_by_the_prompt(scripted: Scripted) -> None:
    options = ["--method", "safe", "--set", "weights=route", "--set", "tau=2"]
    found = FusionResult.model_validate_json(scripted("Q", *options, "--json").stdout)
    assert found.settings.method_options == {"weights": "route", "tau": 2.0, "ahead": 5, "listed": 10}
    assert found.weights is not None
    assert sum(found.weights.values()) == 1


def test_a_method_that_chooses_is_explained(scripted: Scripted) -> None:
    result = scripted("Q", "--method", "cool", "--explain", "--quiet")
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert lines[:2] == [" a b", "marks: {+not by the first model+}"]
    table = [line.split() for line in lines[2:] if line]
    assert table[0] == ["segment", "by", "text", "draft", "assistant", "mean", "taken"]
    assert table[2][:3] == ["2", "draft", "␣b"]


def test_a_method_whose_models_agree_has_nothing_to_explain(scripted: Scripted) -> None:
    scripted.providers["http://one"] = scripted.providers["http://draft"]
    result = scripted("Q", "--method", "rerank", "--explain", "--quiet")
    assert [line.rstrip() for line in result.stdout.splitlines()][-1] == "All models wrote the same."


@pytest.mark.parametrize(("value", "answer"), [(0, " a b\n"), (1, " a c.\n")])
def test_a_tree_decides(scripted: Scripted, tmp_path: Path, value: Any, answer: str) -> None:
    TreeVerifier(nodes=(TreeNode(value=value),)).save(tmp_path / "tree.json")
    assert scripted("Q", "--tree", str(tmp_path / "tree.json")).stdout == answer


# How it ends when it cannot go on.


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["Q", "--alpha", "-1"], "greater than or equal to 0"),
        (["Q", "--beta", "nan"], "greater than or equal to 0"),
        (["Q", "--tree", "nowhere.json"], "No such file"),
        (["Q", "--tree", __file__], "is not a tree"),
        (["Q", "--tree", __file__, "--beta", "1"], "one or the other"),
        (["Q", "--assistant-model", "x", "--assistant-model", "y"], "2 given for 1"),
        (["Q", "--max-tokens", "0"], "max-tokens"),
        (["Q", "--unit", "letter"], "unit"),
        (["Q", "--tie", "1.5"], "--tie"),
        (["Q", "--tie", "0.1", "--method", AT["cascade"]], "tie means nothing to the method 'cascade'"),
        (["Q", "--ask", "nobody"], "'contestable'"),
        (["Q", "--timeout", "0"], "0 is not a positive number of seconds"),
        (["Q", "--timeout", "nan"], "nan is not a positive number of seconds"),
        (["Q", "--timeout", "inf"], "inf is not a positive number of seconds"),
        (["Q", "--read-timeout", "0"], "0 is not a positive number of seconds"),
        (["Q", "--time-limit", "5"], "No such option"),
        (["Q", "--max-requests", "0"], "max-requests"),
        (["Q", "--max-billed-tokens", "x"], "max-billed-tokens"),
        (["Q", "--on-budget", "stop"], "'raise'"),
        (["Q", "--on-assistant-error", "stop"], "'draft'"),
        (["Q", "--agreement", "--beta", "1"], "only alpha"),
        (["Q", "--agreement", "--tree", "tree.json"], "only alpha"),
        (["Q", "--agreement", "--alpha", "-1"], "greater than or equal to 0"),
        (["Q", "--agreement", "--verifier", "diff"], "short for --verifier agreement"),
        (["Q", "--tree", __file__, "--verifier", "rule"], "rule takes only alpha and beta, no tree"),
        (["Q", "--verifier", "coin"], "'agreement'"),
        (["Q", "--tau", "0.5"], "the rule takes only alpha and beta, no tau"),
        (["Q", "--verifier", "match", "--alpha", "0.5"], "match takes no alpha"),
        (["Q", "--verifier", "diff", "--tau", "1.5"], "less than or equal to 1"),
        (["Q", "--verifier", "random"], "--rate is required with random"),
        (["Q", "--method", "average", "--seed", "3"], "the method 'average' draws nothing"),
        (["Q", "--seed", "3"], "the rule takes only alpha and beta, no seed"),
        (["Q", "--verifier", "surprise", "--gamma", "0"], "greater than 0"),
        (["Q", "--window", "2"], "the rule takes only alpha and beta, no window"),
        (["Q", "--verifier", "random", "--rate", "0.5", "--tau", "0.5"], "random takes only rate and seed, no tau"),
        (["Q", "--method", "col"], "did you mean 'cool'?"),
        (["Q", "--method", "cool", "--set", "normalisation"], "'normalisation' is not NAME=VALUE"),
        (
            ["Q", "--method", "cool", "--set", "normalisation=word"],
            "normalisation of the method 'cool' cannot be 'word'",
        ),
        (["Q", "--method", "cool", "--set", "aline=1"], "has no setting 'aline'; did you mean 'align'?"),
        (["Q", "--method", "cool", "--alpha", "0.3"], "verifier means nothing to the method 'cool'"),
        (["Q", "--set", "unit=word"], "--set is for other methods: give --method, too; cosd has options of its own"),
        (["Q", "--method", "cosd", "--set", "unit=word"], "--set is for other methods: cosd has options of its own"),
        (["Q", "--stop", ""], "at least one character"),
        (["Q", "--json", "--explain"], "cannot be combined with --json"),
        (["Q", "--top-p", "1"], "No such option"),
        (["Q", "--temperature", "0.5"], "temperature must be 0 or 1, not 0.5"),
        ([""], "prompt is empty"),
        ([], "prompt"),
    ],
)
def test_wrong_usage(scripted: Scripted, arguments: list[str], said: str) -> None:
    result = scripted(*arguments)
    assert result.exit_code == 2
    assert said in words(result)
    assert result.stdout == ""
    assert not any(requests(scripted))


def test_what_is_wrong_with_a_tree_is_said_in_our_words(scripted: Scripted, tmp_path: Path) -> None:
    (tmp_path / "t").write_text('{"nodes": [{"feature": "p", "threshold": 0.5, "left": 0, "right": 0}]}')
    result = scripted("Q", "--tree", str(tmp_path / "t"))
    assert result.exit_code == 2
    assert "isnotatree:node0:child0isnotoneofthenodesafterit" in words(result).replace(" ", "")


def test_servers_are_required() -> None:
    for arguments in (["--draft", "http://d"], ["--assistant", "http://a"], ["--draft", "no url", "--assistant", "x"]):
        result = cosd("fuse", "Q", *arguments)
        assert result.exit_code == 2
        assert result.stdout == ""


def test_stdin_that_is_no_text(scripted: Scripted) -> None:
    result = scripted("-", input=b"Q \xff")
    assert result.exit_code == 2
    assert "not UTF-8" in result.stderr


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_failing_server_is_one_line(scripted: Scripted, flags: list[str]) -> None:
    error = ConnectError("no connection", endpoint="http://one", hint="Is it running?")
    scripted.providers["http://one"].faults = [Fault(error)]
    result = scripted("Q", *flags)
    assert result.exit_code == 1
    assert result.stderr == f"cosd: {error}\n"
    if flags:
        partial = FusionResult.model_validate_json(result.stdout)
        assert (partial.finish_reason, partial.stop_reason, partial.text) == ("error", "ConnectError", " a")
    else:
        assert result.stdout in ("", " a\n")


def test_nothing_is_written_where_nothing_was_begun(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    async def describe() -> None:
        raise ConnectError("no connection")

    monkeypatch.setattr(scripted.providers["http://one"], "describe", describe)
    result = scripted("Q", "--json")
    assert (result.exit_code, result.stdout) == (1, "")


def test_what_is_verified_is_written_when_a_limit_is_reached(scripted: Scripted) -> None:
    raised = scripted("Q", "--max-requests", "1")
    assert (raised.exit_code, raised.stdout) == (1, " a\n")
    assert raised.stderr == (
        "cosd: max_requests=1 is reached (1 were sent). Allow more, or let the answer end there: "
        'on_budget="end" (--on-budget end).\n'
    )
    as_json = scripted("Q", "--max-requests", "1", "--json")
    partial = FusionResult.model_validate_json(as_json.stdout)
    assert (as_json.exit_code, as_json.stderr) == (1, raised.stderr)
    assert (partial.finish_reason, partial.stop_reason, partial.text) == ("budget", "max_requests", " a")
    ended = scripted("Q", "--max-requests", "1", "--on-budget", "end")
    assert (ended.exit_code, ended.stdout) == (0, " a\n")
    assert ended.stderr.startswith("cosd: budget ('max_requests'), 1 token, ")


def test_the_answer_goes_on_without_an_assistant_that_failed(scripted: Scripted) -> None:
    error = ConnectError("no connection", endpoint="http://one", hint="Is it running?")
    scripted.providers["http://one"].faults = [Fault(error)]
    result = scripted("Q", "--on-assistant-error", "draft")
    assert (result.exit_code, result.stdout) == (0, " a b\n")
    note, _ = result.stderr.splitlines()
    assert note.startswith("cosd: note: assistant failed and was not asked any more from token 2 on")
    assert note.endswith("http://one: no connection. Is it running?")


def test_a_fault_of_ours_is_one_line_too(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    async def describe() -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(scripted.providers["http://draft"], "describe", describe)
    result = scripted("Q")
    assert result.exit_code == 1
    assert result.stderr == "cosd: unexpected ZeroDivisionError: oh (COSD_LOG=debug shows where)\n"


# A process of its own.


@posix
@pytest.mark.parametrize(
    ("draft", "assistant", "final"),
    [
        ("faults=[Fault(None, request=2, tokens=2)]", "", b" a c"),
        pytest.param("", "faults=[Fault(None)]", b" a", marks=pytest.mark.extended),
    ],
)
def test_the_answer_comes_as_it_becomes_final_until_it_is_interrupted(draft: str, assistant: str, final: bytes) -> None:
    """A server that hangs keeps back only what comes after."""
    with start_scripted(draft=draft, assistant=assistant) as process:
        assert process.stdout.read(len(final)) == final
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b" d d d".startswith(out.rstrip())
    assert errors == b""


@posix
def test_nobody_reads_on() -> None:
    with start_scripted(draft="token_delay=0.2") as process:
        assert process.stdout.read(2) == b" a"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


@pytest.mark.parametrize("encoding", partly([{"PYTHONUTF8": "0", "LC_ALL": "C"}, {}]))
def test_pipes_carry_utf8_and_no_colour(encoding: dict[str, str]) -> None:
    texts = {**TEXTS, "Q a c": [" 東京 🙂"]}
    environment = {"FORCE_COLOR": "1", "TERM": "xterm", **encoding}
    with start_scripted("--quiet", texts=texts, environment=environment) as process:
        out, errors = process.communicate()
    assert errors == b""
    assert out.decode().split() == ["a", "c", "東京", "🙂"]


def on_terminal(environment: dict[str, str], **options: Any) -> str:
    """What the command writes where standard output is a terminal."""
    import pty  # is not there on Windows

    ours, theirs = pty.openpty()
    with start_scripted(environment={"TERM": "xterm-256color"} | environment, stdout=theirs, **options) as process:
        os.close(theirs)
        process.wait(timeout=30)
    found = b""
    try:
        while chunk := os.read(ours, 65536):
            found += chunk
    except OSError:  # Linux's way to say that this was all
        pass
    os.close(ours)
    return found.decode().replace("\r\n", "\n")


@posix
def test_on_a_terminal_the_assistants_words_are_green_and_an_answer_cannot_steer_it() -> None:
    written = on_terminal({}, texts={**TEXTS, "Q a c": [" d", " \x1b]0;owned\x07"]})
    assert "\x1b[1;32m c\x1b[0m" in written
    assert written.count("\x1b[1;32m") == 1
    plain = written.replace("\x1b[1;32m", "").replace("\x1b[0m", "")
    assert plain.split("\n")[0] == r" a c d \x1b]0;owned\x07"


@posix
@pytest.mark.parametrize("environment", partly([{"NO_COLOR": "1"}, {"TERM": "dumb"}]))
def test_no_colour_where_none_is_wanted(environment: dict[str, str]) -> None:
    assert on_terminal(environment) == ANSWER


# Live servers.


def urls(pair: Pair) -> list[str]:
    return ["--draft", pair.sums, "--assistant", pair.facts]


@pytest.mark.live
def test_live_answer_is_that_of_the_library_and_the_log_tells_neither_it_nor_the_prompt(pair: Pair) -> None:
    expected = fuse_sync(PERU, draft=pair.sums, assistant=pair.facts, max_tokens=40)
    environment = {"COSD_LOG": "debug", "COSD_API_KEY_127_0_0_1": "secret-key"}
    options: dict[str, Any] = {"environment": environment, "stdin": subprocess.PIPE}
    with start("fuse", "-", *urls(pair), "--max-tokens", "40", **options) as process:
        out, errors = process.communicate(PERU.encode())
    assert process.returncode == 0
    assert out.decode().replace("\r\n", "\n") == expected.text + "\n"
    assert errors.decode().splitlines()[-1].startswith("cosd: ")
    assert b"DEBUG cosd_providers: POST" in errors
    assert b"/completion" in errors
    for word in ("Peru", "secret-key", *out.decode().split()[:1]):
        assert word.encode() not in errors


@pytest.mark.extended
@pytest.mark.live
def test_live_json(pair: Pair) -> None:
    with start("fuse", PERU, *urls(pair), "--assistant", pair.sums, "--json", "--quiet") as process:
        out, errors = process.communicate()
    result = FusionResult.model_validate_json(out)
    assert [end.model for end in (result.draft, *result.assistants)] == ["sums", "facts", "sums"]
    assert json.loads(out)["schema_version"] == 2
    assert errors == b""


@pytest.mark.live
def test_live_words_of_the_tokenizers_in_a_settings_file(pair: Pair, tmp_path: Path) -> None:
    models = Path(__file__).parents[2] / "models"
    servers = [{"url": pair[name], "tokenizer": str(models / name)} for name in ("sums", "facts")]
    config = {"models": servers, "method": {"name": "cool", "align": True}}
    (tmp_path / "fusion.json").write_text(json.dumps(config), encoding="utf-8")
    result = cosd("fuse", PERU, "--config", str(tmp_path / "fusion.json"), "--json")
    taken = [one.candidates[one.winner].text for one in FusionResult.model_validate_json(result.stdout).segments]
    assert taken[taken.index(" is", -5) + 1 : -1] == [" ", "4", "2"]  # `sums` ends a word at each digit


@pytest.mark.live
def test_live_wrong_model(pair: Pair) -> None:
    result = cosd("fuse", PERU, *urls(pair), "--draft-model", "nobody")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "'nobody'" in result.stderr and "'sums'" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.usefixtures("no_waiting")
def test_unreachable_server() -> None:
    with socket.socket() as closed:  # bound, and nobody listens
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        result = cosd("fuse", PERU, "--draft", url, "--assistant", url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"cosd: {url}: no connection")
    assert result.stderr.count("\n") == 1
    assert "Is the server running" in result.stderr


# Settings files.


def settings_file(folder: Path, *lines: str) -> str:
    path = folder / "fusion.yaml"
    path.write_text("\n".join(("draft: http://draft", "assistants: [http://one]", *lines)))
    return str(path)


@pytest.fixture
def connected(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """Scripted models behind the URLs of a settings file, too."""
    monkeypatch.setattr("cosd_api.config.file.connect", lambda url, **_: scripted.providers[url])
    return scripted


def test_a_settings_file_has_servers_and_limits(connected: Scripted, tmp_path: Path) -> None:
    path = settings_file(tmp_path, "limits: {max_tokens: 2}", "ask: all")
    result = cosd("fuse", "Q", "--config", path, "--json")
    found = FusionResult.model_validate_json(result.stdout)
    assert (found.text, found.settings.max_tokens, found.settings.ask) == (" a c", 2, "all")


def test_options_stand_in_place_of_the_file(connected: Scripted, tmp_path: Path) -> None:
    path = settings_file(tmp_path, "limits: {max_tokens: 2}", "max_ahead: 9", "verifier: {kind: rule, alpha: 0}")
    two = ("--config", path, "--assistant", "http://two", "--max-tokens", "9", "--max-ahead", "3", "--alpha", "0.5")
    found = FusionResult.model_validate_json(cosd("fuse", "Q", *two, "--json").stdout)
    assert found.text == " a e!"
    assert (found.settings.max_tokens, found.settings.max_ahead) == (9, 3)
    rerank = FusionResult.model_validate_json(cosd("fuse", "Q", *two[:2], "--method", "cool", "--json").stdout)
    assert rerank.settings.method == "cool"


@pytest.mark.parametrize(
    ("lines", "options", "verifier", "seed"),
    [
        (["verifier: {kind: random, rate: 0.5, seed: 1}"], [], RandomVerifier(rate=0.5, seed=5), None),
        ([], ["--verifier", "random", "--rate", "0.25"], RandomVerifier(rate=0.25, seed=5), None),
        (["temperature: 1", "unit: token"], [], RuleVerifier(), 5),
        (["temperature: 1", "unit: token"], ["--alpha", "0.25"], RuleVerifier(alpha=0.25), 5),
    ],
)
def test_a_seed_in_place_of_the_file(
    connected: Scripted, tmp_path: Path, lines: list[str], options: list[str], verifier: Verifier, seed: int | None
) -> None:
    path = settings_file(tmp_path, *lines)
    result = cosd("fuse", "Q", "--config", path, *options, "--seed", "5", "--json")
    settings = FusionResult.model_validate_json(result.stdout).settings
    assert (settings.verifier, settings.seed) == (verifier, seed)


def test_the_environment_does_not(connected: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSD_ASSISTANT_URL", "http://two")
    assert cosd("fuse", "Q", "--config", settings_file(tmp_path)).stdout == " a c.\n"


@pytest.mark.parametrize(
    ("lines", "options", "said"),
    [
        (("asistant: x",), (), "line 3: asistant: there is no such field; did you mean 'assistants'?"),
        ((), ("--draft-model", "m"), "names the model of a URL: give the URL as an option, too"),
        ((), ("--read-timeout", "3"), "cannot be combined with --config: set timeout of a server in the settings file"),
        ((), ("--seed", "5"), "has no effect with these settings: the verifier is not random, and no token is drawn"),
        ((), ("--alpha", "0.5", "--seed", "5"), "has no effect with these settings"),
        ((), ("--config", "nowhere.yaml"), "nowhere.yaml: No such file or directory"),
    ],
)
def test_settings_files_that_are_refused(
    connected: Scripted, tmp_path: Path, lines: tuple[str, ...], options: tuple[str, ...], said: str
) -> None:
    result = cosd("fuse", "Q", "--config", settings_file(tmp_path, *lines), *options)
    assert result.exit_code == 2
    assert said in words(result)


def test_servers_are_needed_without_a_settings_file() -> None:
    result = cosd("fuse", "Q", "--draft", "http://draft")
    assert result.exit_code == 2
    assert "is required: the URL of a server, here or in COSD_ASSISTANT_URL; or --config FILE" in words(result)

"""The benchmarks of both papers as the installed lm-eval defines them, over scripted models and three items of each.

    python benchmarks.py FOLDER [NAME]...      writes the data there, and prints the scores of each benchmark as JSON

Every definition is the harness's own file (`include`), and only its data set is another: three items of ours in the
original fields. One scripted model knows the answers, the other guesses; so a fusion that serves the task gets all of
them right. Three packages that the harness does not install are stood in for: `transformers` and `tinyBenchmarks`, and
the metric `code_eval`, which it loads over the network.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import evaluate
import lm_eval
from lm_eval.tasks import TaskManager
from lm_eval_model import FusionLM

from cosd_api import RuleVerifier, SettingError
from cosd_providers.testing import ScriptedProvider

TASKS = Path(lm_eval.__file__).parent / "tasks"


@dataclass(frozen=True)
class Benchmark:
    """A definition of the harness, and three items for it.

    Attributes:
        file: the definition, without `.yaml`.
        metric: a score that is 1 if all answers are right.
        docs: the items, in the fields of the original.
        asked: for each item, what ends its prompt.
        said: for each item, the answer.
        options: of the run.
    """

    file: str
    metric: str
    docs: Sequence[Mapping[str, Any]]
    asked: Sequence[str]
    said: Sequence[str]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Knowing:
    """A model of bytes that continues what it was asked last; a model without answers finds every byte as probable."""

    tokens = (*(bytes([byte]) for byte in range(256)), b"")
    end_ids = (256,)

    def __init__(self, answers: Mapping[str, str], sure: float = 0.9) -> None:
        self._answers = {asked.encode(): said.encode() for asked, said in answers.items()}
        self._sure = sure

    def encode(self, text: bytes) -> list[int]:
        """The ids of a text."""
        return list(text)

    def next(self, ids: Sequence[int]) -> list[float]:
        """The answer goes on; it may have begun without the white space before it."""
        text = bytes(ids)
        at, asked = max(((text.rfind(one), one) for one in self._answers), default=(-1, b""))
        begun = text[at + len(asked) :]
        known = self._answers.get(asked, b"") if at >= 0 else b""
        going = [said for said in (known, known.lstrip()) if said and said.startswith(begun)]
        probs = [(1 - self._sure * bool(going)) / 257] * 257
        for said, share in zip(going, (1.0,) if len(going) == 1 or begun else (0.6, 0.4), strict=False):
            probs[said[len(begun)] if len(begun) < len(said) else 256] += self._sure * share
        return probs


def servers(answers: Mapping[str, str], sure: float = 0.9) -> dict[str, Any]:
    """A draft that guesses, and an assistant that knows; a chat template writes the messages one after the other."""

    def template(messages: Sequence[Any]) -> str:
        return "".join(message.content for message in messages)

    known: dict[str, Any] = {"draft": Knowing({}), "assistant": Knowing(answers, sure)}
    made = {name: ScriptedProvider(model, name=name, template=template) for name, model in known.items()}
    return {**made, "verifier": RuleVerifier(), "unit": "token"}


# ------------------------------------------------------------------------------------------------------------ the items

_SUMS = [("Ann has 3 pens and buys 4.", 7), ("Bo had 12 nuts and ate 5.", 7), ("Six rows of 8 seats.", 48)]
_GSM = [{"question": f"{text} How many?", "answer": f"It is <<{n}={n}>>{n}.\n#### {n}"} for text, n in _SUMS]
_MGSM: list[dict[str, Any]] = [
    {"question": one["question"], "answer": None, "answer_number": n, "equation_solution": None}
    for one, (_, n) in zip(_GSM, _SUMS, strict=True)
]
_MATH = [
    {"problem": f"{text} How many?", "level": "Level 1", "type": "Algebra", "solution": f"It is $\\boxed{{{n}}}$."}
    for text, n in _SUMS
]
_CITIES = [("Peru", "Lima", 0), ("Norway", "Oslo", 1), ("Ghana", "Accra", 2)]
_TOWNS = ["Lima", "Oslo", "Accra", "Quito"]
_MMLU = [
    {"question": f"Capital of {land}?", "subject": "anatomy", "choices": _TOWNS, "answer": at}
    for land, _, at in _CITIES
]
_OPTIONS = "\n".join(f"{letter}. {town}" for letter, town in zip("ABCD", _TOWNS, strict=True))
_ASKED = [f"{one['question']}\n{_OPTIONS}\nAnswer:" for one in _MMLU]
_LETTERS = [f" {'ABC'[at]}" for _, _, at in _CITIES]
_TRUTH: list[dict[str, Any]] = [
    {
        "type": "Adversarial",
        "category": "Places",
        "question": f"What is the capital of {land}?",
        "best_answer": f"The capital of {land} is {town}.",
        "correct_answers": [f"The capital of {land} is {town}."],
        "incorrect_answers": ["Nobody has ever heard about such places"],
        "source": "ours",
        **{
            name: {"choices": [f"It is {town}.", "Who knows?"], "labels": [1, 0]}
            for name in ("mc1_targets", "mc2_targets")
        },
    }
    for land, town, _ in _CITIES
]
_HELLASWAG = [
    {
        "ind": at,
        "activity_label": f"Travelling to {land}",
        "ctx_a": "A woman boards a plane.",
        "ctx_b": "she",
        "ctx": "A woman boards a plane. she",
        "endings": [f"lands in {other} [title] and waves." for other in _TOWNS],
        "source_id": "ours",
        "split": "val",
        "split_type": "indomain",
        "label": str(at),
    }
    for land, _, at in _CITIES
]
_CODE = [("add", "a, b", "a + b", "2, 3", 5), ("double", "a", "2 * a", "4", 8), ("last", "a", "a[-1]", "'xyz'", "z")]
_HUMANEVAL: list[dict[str, Any]] = [
    {
        "task_id": f"Ours/{at}",
        "prompt": f'def {name}({given}):\n    """Return {result}."""\n',
        "canonical_solution": f"    return {result}\n",
        "test": f"def check(candidate):\n    assert candidate({call}) == {wanted!r}\n",
        "entry_point": name,
    }
    for at, (name, given, result, call, wanted) in enumerate(_CODE)
]
_SOLUTIONS = [f"    return {result}\n" for _, _, result, _, _ in _CODE]
_DROP: list[dict[str, Any]] = [
    {
        "section_id": "s",
        "query_id": land,
        "passage": f"The capital of {land} is {town}.",
        "question": f"Which town is the capital of {land}?",
        "answer": {"number": "", "date": {"day": "", "month": "", "year": ""}, "spans": [town], "hit_id": "h"},
        "validated_answers": {"number": [""], "date": [{"day": "", "month": "", "year": ""}], "spans": [[town]]},
    }
    for land, town, _ in _CITIES
]
_COQA = [
    {
        "id": land,
        "story": f"{town} is in {land}.",
        "questions": {"input_text": ["Where is it?", f"Which town of {land}?"], "turn_id": [1, 2]},
        "answers": {"input_text": [land, town], "turn_id": [1, 2]},
    }
    for land, town, _ in _CITIES
]
_TRIVIA = [
    {
        "question": f"Which town is the capital of {land}",
        "question_id": land,
        "answer": {"aliases": [town, town.upper()], "value": town},
    }
    for land, town, _ in _CITIES
]
_TINY = [{"input_formatted": asked, **one} for asked, one in zip(_ASKED, _MMLU, strict=True)]

_NUMBERS = [f" It is {n}.\n#### {n}" for _, n in _SUMS]
_GSM_ASKED = [f"{one['question']}\nAnswer:" for one in _GSM]
_CHAT = {"apply_chat_template": True}
_SHOTS = {"num_fewshot": 2}

BENCHMARKS: Mapping[str, Benchmark] = {
    # CoSD
    "mmlu": Benchmark("mmlu/default/mmlu_anatomy", "acc,none", _MMLU, _ASKED, _LETTERS, options=_SHOTS),
    "mmlu, chat": Benchmark("mmlu/default/mmlu_anatomy", "acc,none", _MMLU, _ASKED, _LETTERS, options=_SHOTS | _CHAT),
    "tinyMMLU": Benchmark("tinyBenchmarks/tinyMMLU", "acc_norm,none", _TINY, _ASKED, _LETTERS),
    "gsm8k": Benchmark(
        "gsm8k/gsm8k", "exact_match,strict-match", _GSM, _GSM_ASKED, _NUMBERS, options={"num_fewshot": 3}
    ),
    "gsm8k, chat": Benchmark(
        "gsm8k/gsm8k",
        "exact_match,flexible-extract",
        _GSM,
        _GSM_ASKED,
        _NUMBERS,
        options=_SHOTS | _CHAT | {"fewshot_as_multiturn": True},
    ),
    "gsm8k_cot": Benchmark(
        "gsm8k/gsm8k-cot",
        "exact_match,strict-match",
        _GSM,
        [f"{one['question']}\nA:" for one in _GSM],
        [f" The answer is {n}.\n\nQ: More?" for _, n in _SUMS],
    ),
    "tinyGSM8k": Benchmark(
        "tinyBenchmarks/tinyGSM8k", "exact_match,strict-match", _GSM, _GSM_ASKED, _NUMBERS, options=_SHOTS
    ),
    "humaneval": Benchmark(
        "humaneval/humaneval",
        "pass@1,create_test",
        _HUMANEVAL,
        [one["prompt"] for one in _HUMANEVAL],
        [one + "\ndef more(): nothing" for one in _SOLUTIONS],
        options={"confirm_run_unsafe_code": True},
    ),
    "humaneval_instruct": Benchmark(
        "humaneval/humaneval_instruct",
        "pass@1,create_test",
        _HUMANEVAL,
        [one["prompt"] + "\n" for one in _HUMANEVAL],
        [f"{one}```\nThat is it." for one in _SOLUTIONS],
        options=_CHAT | {"confirm_run_unsafe_code": True},
    ),
    # neither paper's, and often measured
    "truthfulqa_gen": Benchmark(
        "truthfulqa/truthfulqa_gen",
        "bleu_acc,none",
        _TRUTH,
        [one["question"] for one in _TRUTH],
        [f" {one['best_answer']}\n\nQ: More?" for one in _TRUTH],
    ),
    "truthfulqa_mc1": Benchmark(
        "truthfulqa/truthfulqa_mc1",
        "acc,none",
        _TRUTH,
        [f"{one['question']}\nA:" for one in _TRUTH],
        [f" It is {town}." for _, town, _ in _CITIES],
    ),
    "truthfulqa_mc2": Benchmark(
        "truthfulqa/truthfulqa_mc2",
        "acc,none",
        _TRUTH,
        [f"{one['question']}\nA:" for one in _TRUTH],
        [f" It is {town}." for _, town, _ in _CITIES],
    ),
    "hellaswag": Benchmark(
        "hellaswag/hellaswag",
        "acc_norm,none",
        _HELLASWAG,
        [f"Travelling to {land}: A woman boards a plane. She" for land, _, _ in _CITIES],
        [f" lands in {town}. and waves." for _, town, _ in _CITIES],
        options={"num_fewshot": 1},
    ),
    # Cool-Fusion, three examples before each question
    "math": Benchmark(
        "hendrycks_math/hendrycks_math_algebra",
        "exact_match,none",
        _MATH,
        [f"{one['problem']}\nAnswer:" for one in _MATH],
        [f" It is ${n}$." for _, n in _SUMS],
        options={"num_fewshot": 3},
    ),
    "mgsm": Benchmark(
        "mgsm/direct/mgsm_direct_de",
        "exact_match,flexible-extract",
        _MGSM,
        [f"{one['question']}\nAntwort:" for one in _MGSM],
        [f" {n}" for _, n in _SUMS],
        options={"num_fewshot": 3},
    ),
    "mgsm_cot": Benchmark(
        "mgsm/native_cot/mgsm_native_cot_de",
        "exact_match,strict-match",
        _MGSM,
        [f"{one['question']}\nSchritt-für-Schritt-Antwort:" for one in _MGSM],
        [f" Die Antwort lautet {n}" for _, n in _SUMS],
        options={"num_fewshot": 3},
    ),
    "drop": Benchmark(
        "drop/default",
        "em,none",
        _DROP,
        [one["question"] for one in _DROP],
        [f" {town}. And more" for _, town, _ in _CITIES],
        options={"num_fewshot": 3},
    ),
    "coqa": Benchmark(
        "coqa/default",
        "em,none",
        _COQA,
        [f"Q: Which town of {land}?\n\nA:" for land, _, _ in _CITIES],
        [f" {town}\nQ: Which more?" for _, town, _ in _CITIES],
        options={"num_fewshot": 3},
    ),
    "triviaqa": Benchmark(
        "triviaqa/default",
        "exact_match,remove_whitespace",
        _TRIVIA,
        [f"{one['question']}?\nAnswer:" for one in _TRIVIA],
        [f" {town}. And more" for _, town, _ in _CITIES],
        options={"num_fewshot": 3},
    ),
}


# ------------------------------------------------------------------------------------------------------ what is missing


def passed(references: Sequence[str], predictions: Sequence[Sequence[str]], k: Sequence[int]) -> Any:
    """The metric `code_eval`: for each k the mean probability that one of k programs passes; programs of ours alone."""
    found = dict.fromkeys((f"pass@{one}" for one in k), 0.0)
    for tests, programs in zip(references, predictions, strict=True):
        right = sum(map(runs, programs, [tests] * len(programs)))
        for one in k:
            wrong = math.comb(len(programs) - right, one) / math.comb(len(programs), one)
            found[f"pass@{one}"] += (1 - wrong) / len(references)
    return found, {}


def runs(program: str, tests: str) -> bool:
    """Test whether a program of three lines passes; the scripted model wrote it."""
    try:
        exec(f"{program}\n{tests}", {})
    except Exception:  # noqa: BLE001
        return False
    return True


def stand_in() -> None:
    """Make importable what the definitions import, and the harness does not install."""
    evaluate.load = lambda name: SimpleNamespace(compute=passed)
    same = SimpleNamespace(
        compute_exact=lambda gold, given: int(gold.lower() == given.lower()),
        compute_f1=lambda gold, given: float(gold.lower() == given.lower()),
    )
    for name in ("transformers", "transformers.data", "transformers.data.metrics", "tinyBenchmarks"):
        sys.modules[name] = ModuleType(name)
    absent = {"PreTrainedTokenizerBase": type("PreTrainedTokenizerBase", (), {}), "__version__": "none"}
    vars(sys.modules["transformers"]).update(absent, __spec__=ModuleSpec("transformers", None))
    vars(sys.modules["transformers.data.metrics"])["squad_metrics"] = same
    sys.modules["transformers.data.metrics.squad_metrics"] = same  # type: ignore[assignment]
    vars(sys.modules["tinyBenchmarks"])["evaluate"] = lambda items, name: {name: {"gpirt": float(items.mean())}}


# ------------------------------------------------------------------------------------------------------------- the runs


def definition(folder: Path, name: str, benchmark: Benchmark) -> str:
    """The task: the harness's file, over our items. Returns its name."""
    task = "ours_" + "".join(letter if letter.isalnum() else "_" for letter in name)
    data = folder / f"{task}.jsonl"
    data.write_text("".join(json.dumps(doc) + "\n" for doc in benchmark.docs), encoding="utf-8")
    more = folder / f"{task}_train.jsonl"  # three to choose from beside the one that is asked
    more.write_text(data.read_text(encoding="utf-8") * 2, encoding="utf-8")
    files = {
        split: str(more if split in ("train", "dev") else data) for split in ("train", "dev", "validation", "test")
    }
    settings = {
        "include": str(TASKS / f"{benchmark.file}.yaml"),
        "task": task,
        "tag": None,
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": files},
    }
    (folder / f"{task}.yaml").write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
    return task


def run(folder: Path, name: str, benchmark: Benchmark, model: FusionLM, **options: Any) -> Any:
    """The harness's results of one benchmark."""
    task = definition(folder, name, benchmark)
    tasks = TaskManager(include_path=str(folder), include_defaults=False)
    given = {"bootstrap_iters": 0, "verbosity": None, **benchmark.options, **options}
    return lm_eval.simple_evaluate(model=model, tasks=[task], task_manager=tasks, **given), task


def answers(benchmark: Benchmark) -> dict[str, str]:
    return dict(zip(benchmark.asked, benchmark.said, strict=True))


def draws(folder: Path) -> dict[str, Any]:
    """HumanEval with 64 answers to a question: refused as it stands, then at temperature 1."""
    one = BENCHMARKS["humaneval"]
    many = replace(one, file="humaneval/humaneval_64", metric="pass@64,create_test")
    known = answers(many)
    try:
        run(folder, "humaneval_64", many, FusionLM(**servers(known)), limit=1)
        refused = ""
    except SettingError as error:
        refused = str(error)
    both = servers(known, sure=0.999) | {"draft": ScriptedProvider(Knowing(known, 0.999), name="draft")}
    model = FusionLM(**both, temperature=1)
    kwargs = "do_sample=True,temperature=1,top_p=1,max_gen_toks=24"
    found, task = run(folder, "humaneval_64", many, model, limit=1, gen_kwargs=kwargs)
    texts = found["samples"][task][0]["resps"][0]
    score = found["results"][task][many.metric]
    return {"name": "humaneval_64", "score": score, "refused": refused, "answers": texts}


def say(line: Mapping[str, Any]) -> None:
    """Print a benchmark's scores."""
    sys.stdout.write(json.dumps(line, default=str) + "\n")


def main(folder: Path, *names: str) -> None:
    stand_in()
    for name in names or BENCHMARKS:
        benchmark = BENCHMARKS[name]
        found, task = run(folder, name, benchmark, FusionLM(**servers(answers(benchmark))))
        texts = [one["filtered_resps"] for one in found["samples"][task]]
        score = found["results"][task][benchmark.metric]
        say({"name": name, "score": score, "answers": texts})
    if not names:
        say(draws(folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

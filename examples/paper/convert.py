"""Convert the files of a benchmark, as their publishers distribute them, to questions.

    python examples/paper/convert.py gsm8k test.jsonl > data/gsm8k.jsonl
    python examples/paper/convert.py gsm8k test.jsonl --shots train.jsonl --number 3 > data/gsm8k.jsonl
    python examples/paper/convert.py alpacaeval alpaca_eval.json --first 3 > data/train/alpacaeval.jsonl
    python examples/paper/convert.py alpacaeval alpaca_eval.json --after 3 > data/alpacaeval.jsonl

Files may be JSON lines (also `.gz`), JSON, or CSV. Convert a Parquet file to JSON lines first (with pandas:
`read_parquet(...)` and `to_json(..., orient="records", lines=True)`). Each line of the output is a question as
`cosd compare` reads it.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from _tasks import LANGUAGES, SUBJECTS, boxed

Record = Mapping[str, Any]
Question = dict[str, Any]
"""The fields of an `Example`."""


def gsm8k(record: Record) -> Question:
    """`question` and `answer`, which ends in `#### 18`; tinyBenchmarks has `input_formatted`, with examples."""
    worked = record["answer"].strip()
    return {
        "prompt": _formatted(record) or f"Question: {record['question'].strip()}\nAnswer:",
        "answer": f" {worked}",
        "target": worked.rpartition("####")[2].strip(),
    }


def _formatted(record: Record) -> str:
    """The prompt of a tinyBenchmarks record, up to the answer."""
    return str(record.get("input_formatted") or "").rstrip()


def mgsm(record: Record) -> Question:
    """A question and a number: the columns of a `.tsv`, or `question` and `answer_number`."""
    number = str(record["answer_number"]).strip()
    return {"prompt": f"Question: {record['question'].strip()}\nAnswer:", "answer": f" {number}", "target": number}


def math(record: Record) -> Question:
    """`problem` and `solution`, which has the answer in its last `\\boxed{}`."""
    answer = boxed(record["solution"])
    if not answer:
        raise ValueError(r"its solution has no \boxed{} answer")
    return {
        "prompt": f"Problem: {record['problem'].strip()}\nAnswer:",
        "answer": f" {record['solution'].strip()}",
        "target": answer,
    }


def with_choices(question: str, choices: Sequence[str], right: int) -> Question:
    """A question with lettered options."""
    options = "\n".join(f"{letter}. {one}" for letter, one in zip(ascii_uppercase, choices, strict=False))
    return {
        "prompt": f"{question}\n{options}\nAnswer:",
        "answer": f" {ascii_uppercase[right]}",
        "choices": [*choices],
    }


def mmlu(record: Record) -> Question:
    """`question`, `choices` and `answer` (0 to 3, or a letter), or a CSV row: question, A, B, C, D, letter.

    The CSV has no header. Records of tinyBenchmarks also have `input_formatted`, which contains examples.
    """
    answer = record["answer"]
    right = ascii_uppercase.index(answer) if isinstance(answer, str) and answer.isalpha() else int(answer)
    made = with_choices(record["question"].strip(), record["choices"], right)
    return {**made, "prompt": _formatted(record) or made["prompt"]}


def hellaswag(record: Record) -> Question:
    """`activity_label`, `ctx_a`, `ctx_b`, `endings` and `label` (a number, in some files as text)."""
    begun = f"{record['activity_label']}: {record['ctx_a']} {record['ctx_b'].capitalize()}".strip()
    endings = [_without_marks(one) for one in record["endings"]]
    return with_choices(f"{_without_marks(begun)}\nHow does it go on?", endings, int(record["label"]))


def _without_marks(text: str) -> str:
    """A text without the markup left over from WikiHow's articles."""
    return " ".join(re.sub(r"\[.*?\]", "", text.replace(" [title]", ". ")).split())


def truthfulqa(record: Record) -> Question:
    """`question` and `mc1_targets`, or a row of `TruthfulQA.csv`.

    In the files the right option comes first, so the options are sorted by their hashes.
    """
    if "mc1_targets" in record:
        found = record["mc1_targets"]
        marked = dict(zip(found["choices"], found["labels"], strict=True)) if "choices" in found else dict(found)
        question = record["question"]
    else:
        wrong = [one.strip() for one in record["Incorrect Answers"].split(";") if one.strip()]
        marked = {**dict.fromkeys(wrong, 0), record["Best Answer"].strip(): 1}
        question = record["Question"]
    choices = sorted(marked, key=lambda one: hashlib.sha256(one.encode()).digest())
    return with_choices(question.strip(), choices, [marked[one] for one in choices].index(1))


def humaneval(record: Record) -> Question:
    """`prompt`, `canonical_solution`, `test` and `entry_point`."""
    return {
        "prompt": record["prompt"],
        "answer": record["canonical_solution"],
        "tests": f"{record['test']}\ncheck({record['entry_point']})\n",
    }


def alpacaeval(record: Record) -> Question:
    """`instruction` and `output`."""
    return {"prompt": f"{record['instruction'].strip()}\n\n", "answer": record["output"].strip()}


def coqa(record: Record) -> Question:
    """`story`, `questions`, `answers` and `additional_answers`; the last turn of each conversation is asked.

    In `coqa-dev-v1.0.json`, questions and answers are lists of objects; in other files they are objects of lists.
    """
    asked, answers = _turns(record["questions"]), _turns(record["answers"])
    turns = "".join(f"Q: {q}\n\nA: {a}\n\n" for q, a in zip(asked, answers[:-1], strict=False))
    more = [_turns(one)[-1] for one in (record.get("additional_answers") or {}).values()]
    prompt = f"{record['story']}\n\n{turns}Q: {asked[-1]}\n\nA:"
    return {"prompt": prompt, "answer": f" {answers[-1]}", "target": _lines([answers[-1], *more])}


def _turns(several: Any) -> list[str]:
    return [*several["input_text"]] if isinstance(several, Mapping) else [one["input_text"] for one in several]


def drop(record: Record) -> Question:
    """`passage`, `question`, `answer` and `validated_answers`; each answer is a number, a date or spans."""
    others = record.get("validated_answers") or []
    if isinstance(others, Mapping):  # the accepted answers are an object of lists
        others = [dict(zip(others, values, strict=True)) for values in zip(*others.values(), strict=True)]
    accepted = [text for one in [record["answer"], *others] if (text := _said(one))]
    prompt = f"Passage: {record['passage'].strip()}\nQuestion: {record['question'].strip()}\nAnswer:"
    return {"prompt": prompt, "answer": f" {accepted[0]}", "target": _lines(accepted)}


def _said(answer: Record) -> str:
    """An answer of DROP, as text."""
    if str(answer.get("number") or "").strip():
        return str(answer["number"]).strip()
    if spans := answer.get("spans"):
        return ", ".join(spans)
    date = answer.get("date") or {}
    return " ".join(str(date[part]) for part in ("day", "month", "year") if date.get(part))


def triviaqa(record: Record) -> Question:
    """`Question`, and `Answer` with `Value` and `Aliases`, or the same names in lower case."""
    small = {name.lower(): value for name, value in record.items()}
    answer = {name.lower(): value for name, value in small["answer"].items()}
    prompt = f"Question: {small['question'].strip()}\nAnswer:"
    return {"prompt": prompt, "answer": f" {answer['value']}", "target": _lines([answer["value"], *answer["aliases"]])}


def _lines(accepted: Iterable[str]) -> str:
    """Accepted answers, one per line."""
    return "\n".join(dict.fromkeys(" ".join(one.split()) for one in accepted if one.strip()))


CONVERTERS: Mapping[str, Callable[[Record], Question]] = {
    "gsm8k": gsm8k,
    "mmlu": mmlu,
    "humaneval": humaneval,
    "hellaswag": hellaswag,
    "truthfulqa": truthfulqa,
    "alpacaeval": alpacaeval,
    "coqa": coqa,
    "drop": drop,
    "triviaqa": triviaqa,
    **{f"math_{name}": math for name in SUBJECTS},
    **{f"mgsm_{name}": mgsm for name in LANGUAGES},
}


# Files.


def records(path: Path) -> Iterator[Record]:
    """The records of a file or, for a folder, of all its files in the order of their names."""
    if path.is_dir():
        for one in sorted(path.iterdir()):
            yield from records(one)
    elif path.suffix in (".csv", ".tsv"):
        yield from _table(path)
    elif path.suffix == ".json":
        yield from _whole(json.loads(path.read_text(encoding="utf-8")))
    elif path.suffix == ".parquet":
        raise ValueError(f"{path}: make JSON lines of it first; --help says how")
    else:
        text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text(encoding="utf-8")
        yield from map(json.loads, filter(str.strip, text.split("\n")))


def _table(path: Path) -> Iterator[Record]:
    with path.open(encoding="utf-8", newline="") as file:
        if path.suffix == ".tsv":  # MGSM
            for question, number in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
                yield {"question": question, "answer_number": number}
            return
        if "Best Answer" in file.readline():  # TruthfulQA
            file.seek(0)
            yield from csv.DictReader(file)
            return
        file.seek(0)
        for question, *choices, answer in csv.reader(file):  # MMLU
            yield {"question": question, "choices": choices, "answer": answer}


def _whole(content: Any) -> Iterator[Record]:
    """The records of a JSON file: a list, one object, or an object that contains records."""
    if isinstance(content, list):
        yield from content
    elif several := content.get("data", content.get("Data")):  # CoQA, TriviaQA
        yield from several
    elif all(isinstance(one, Mapping) and "qa_pairs" in one for one in content.values()):  # DROP
        for one in content.values():
            yield from ({"passage": one["passage"], **asked} for asked in one["qa_pairs"])
    else:  # MATH has a file for each problem
        yield content


def questions(name: str, path: Path) -> list[Question]:
    """The questions of a file or folder."""
    found: list[Question] = []
    for number, record in enumerate(records(path), 1):
        try:
            found.append(CONVERTERS[name](record))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            words = f"has no field {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{path}, record {number}: {words}. {name} has {CONVERTERS[name].__doc__}") from None
    return found


def as_messages(question: Question, shots: Sequence[Question]) -> Question:
    """A question as a conversation, with the examples as earlier turns."""
    turns = [turn for one in shots for turn in (("user", one["prompt"]), ("assistant", one["answer"]))]
    turns.append(("user", question["prompt"]))
    messages = [{"role": role, "content": content.strip()} for role, content in turns]
    return {**question, "prompt": messages, "answer": question["answer"].strip()}


def after_shots(question: Question, shots: Sequence[Question]) -> Question:
    """A question preceded by examples, as one text."""
    shown = "".join(f"{one['prompt']}{one['answer']}\n\n" for one in shots)
    return {**question, "prompt": shown + question["prompt"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=CONVERTERS, metavar="NAME", help=", ".join(CONVERTERS))
    parser.add_argument("path", type=Path, metavar="FILE", help="file or folder of files")
    parser.add_argument("--shots", type=Path, metavar="FILE", help="file of examples to put before each question")
    parser.add_argument("--number", type=int, default=3, metavar="N", help="number of examples (3)")
    parser.add_argument("--after", type=int, default=0, metavar="N", help="skip the first N records")
    parser.add_argument("--first", type=int, metavar="N", help="convert only the next N records")
    parser.add_argument("--messages", action="store_true", help="write messages, for chat models")
    args = parser.parse_args()
    try:
        shots = questions(args.name, args.shots)[: args.number] if args.shots else []
        found = questions(args.name, args.path)[args.after :][: args.first]
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    for one in found:
        made = as_messages(one, shots) if args.messages else after_shots(one, shots)
        print(json.dumps(made, ensure_ascii=False))


if __name__ == "__main__":
    main()

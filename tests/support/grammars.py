"""Formats in two forms: as a `response_format`, and as a grammar of llama.cpp for the same language, by hand."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_STRING = r"""
string ::= "\"" char* "\""
char ::= [^"\\\x00-\x1f\x7f] | "\\" ["\\bfnrt]
"""


@dataclass(frozen=True)
class Format:
    """A format, its grammar in GBNF, and questions that it may answer, each of which ends where the answer begins."""

    name: str
    given: Any
    gbnf: str
    questions: tuple[str, ...]


def _object(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}


_PEOPLE = (
    "Ada is 36 and lives in London.",
    "Bob, 52, from Paris.",
    "Chen is twenty-one; he moved to Beijing.",
    "Dora lives in Rome. She is 70.",
    "Emil (8) from Oslo",
    "Fatima, aged 44, Cairo",
    "My name is Guy, I am 5, and I live in Nice.",
    "Hana: 29, Tokyo",
)
_CLAIMS = (
    "Fish live in water.",
    "The moon is made of cheese.",
    "Ice is cold.",
    "Two and two are five.",
    "Bees make honey.",
    "It may rain tomorrow.",
    "All birds can swim.",
    "Paris is in France.",
)
_THINGS = ("fruit", "birds", "colours", "tools", "rivers", "games", "languages", "metals")
_TEXTS = (
    "I love this film!",
    "The worst meal of my life.",
    "It was fine, I guess.",
    "What a lovely day.",
    "Never again.",
    "Five stars!",
    "The train was late, as always.",
    "A book to read twice.",
)
_WEATHER = (
    "Will it rain in Bern?",
    "How warm is it in Cairo?",
    "Find a hotel in Lima.",
    "Send Ada a message: I am late.",
    "Is it windy in Oslo today?",
    "Look up the height of Mont Blanc.",
    "Write to Bob that the meeting is off.",
    "Which films are on tonight?",
)

PERSON = Format(
    "person",
    _object(name={"type": "string"}, age={"type": "integer", "minimum": 0, "maximum": 150}, city={"type": "string"}),
    r'''root ::= "{\"name\": " string ", \"age\": " age ", \"city\": " string "}"
age ::= [0-9] | [1-9] [0-9] | "1" [0-4] [0-9] | "150"'''
    + _STRING,
    tuple(f"Text: {one}\nThe person as JSON: " for one in _PEOPLE),
)
ANSWER = Format(
    "answer",
    re.compile("Answer: (yes|no|maybe), because [A-Za-z ,']{1,60}\\."),
    r'''root ::= "Answer: " ("yes" | "no" | "maybe") ", because " [A-Za-z ,']{1,60} "."''',
    tuple(f"Is it true? {one}\n" for one in _CLAIMS),
)
LIST = Format(
    "list",
    {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 2, "maxItems": 3},
    r"""root ::= "[" string ", " string (", " string)? "]"
string ::= "\"" char{0,12} "\""
char ::= [^"\\\x00-\x1f\x7f] | "\\" ["\\bfnrt]""",
    tuple(f"Some {one} as a JSON list: " for one in _THINGS),
)
MOOD = Format(
    "mood",
    ["positive", "negative", "neutral", "none of these"],
    'root ::= "positive" | "negative" | "neutral" | "none of these"',
    tuple(f"Text: {one}\nMood: " for one in _TEXTS),
)
CALL = Format(
    "call",
    {
        "anyOf": [
            _object(name={"const": "weather"}, city={"type": "string"}),
            _object(name={"const": "search"}, query={"type": "string"}, limit={"enum": [1, 5, 20]}),
            _object(name={"const": "send"}, to={"type": "string"}, urgent={"type": "boolean"}),
        ]
    },
    r'''root ::= weather | search | send
weather ::= "{\"name\": \"weather\", \"city\": " string "}"
search ::= "{\"name\": \"search\", \"query\": " string ", \"limit\": " ("1" | "5" | "20") "}"
send ::= "{\"name\": \"send\", \"to\": " string ", \"urgent\": " ("true" | "false") "}"'''
    + _STRING,
    tuple(f"Tools: weather, search, send.\nQuestion: {one}\nCall as JSON: " for one in _WEATHER),
)

FORMATS = (PERSON, ANSWER, LIST, MOOD, CALL)

"""The chat templates of the two small models, and conversations in them. Used by ``train_small_models.py``.

They differ in what templates of models in use differ in: one has a system role and ends a turn with another token
than a text, and its answers begin at once; the other has neither, and its answers begin with a space.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from jinja2 import Environment, Template, TemplateError

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

INSTRUCTIONS = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] not in ['user', 'assistant'] %}"
    "{{ raise_exception('This model knows the roles user and assistant only.') }}{% endif %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('The roles have to alternate: user, assistant, user, assistant, ...') }}{% endif %}"
    "{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + '[/INST]' }}"
    "{% else %}{{ ' ' + m['content'].strip() + eos_token }}{% endif %}{% endfor %}"
)

# Parts of system messages, which change no answer.
_WHO = ("You are {}.", "You play {}.", "Imagine that you are {}.", "Your users take you for {}.")
_WHOM = (
    "a helpful assistant",
    "a small model",
    "a clerk",
    "a pirate",
    "an expert",
    "a friend",
    "a librarian",
    "a robot",
)
_HOW = ("Be {}.", "Stay {}.", "Always be {} and correct.", "Your answers are {}.")
_MANNERS = ("brief", "polite", "kind", "clear", "honest", "formal", "short", "cheerful", "careful", "patient")
_MORE = (
    *("Answer in one sentence.", "Do not guess.", "Think before you answer.", "Reply in English.", "Use plain words."),
    *("The user is a pupil.", "This is a quiz.", "Today is Monday.", "Never talk of the weather.", "Explain nothing."),
)


@dataclass(frozen=True)
class ChatForm:
    """The chat format of one model.

    Attributes:
        template: in Jinja.
        tokens: of the template, which mean nothing outside of it.
        end: of an answer.
        system: whether it takes a system message.
    """

    template: str
    tokens: tuple[str, ...]
    end: str
    system: bool


def compiled(form: ChatForm, start: str | None, end: str) -> Template:
    """The template with the variables that transformers and llama.cpp provide."""
    environment = Environment(trim_blocks=True, lstrip_blocks=True, autoescape=False)  # noqa: S701 - it writes no HTML
    environment.globals.update(bos_token=start or "", eos_token=end, raise_exception=_refuse)
    return environment.from_string(form.template)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def conversation(
    template: Template, form: ChatForm, pairs: Sequence[tuple[str, str]], system: str | None = None
) -> list[tuple[str, str]]:
    """What a model reads and what it has to write after it, turn by turn, without the end of the last answer.

    All of it joined is the text that the template makes of these questions and answers. Where it takes no system
    message, that is put before the first question, as is usual then.
    """
    messages = [{"role": "system", "content": system}] if system and form.system else []
    result, done, before = [], "", "" if form.system or not system else system + "\n\n"
    for question, answer in pairs:
        messages.append({"role": "user", "content": before + question})
        asked = template.render(messages=messages, add_generation_prompt=True)
        messages.append({"role": "assistant", "content": answer})
        answered = template.render(messages=messages)
        written = answered[len(asked) : answered.rindex(form.end)]
        result.append((asked[len(done) :], written))
        done, before = asked + written, ""
    return result


def some_system_message(rng: random.Random) -> str:
    """One to three sentences, in any order."""
    sentences = [
        rng.choice(_WHO).format(rng.choice(_WHOM)),
        rng.choice(_HOW).format(rng.choice(_MANNERS)),
        rng.choice(_MORE),
    ]
    return " ".join(rng.sample(sentences, rng.randint(1, 3)))

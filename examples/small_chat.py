"""The chat templates of the three small models, and conversations in them. Used by ``train_small_models.py``.

The templates differ as real ones do. One has a system role, a special token at the end of a turn, and no space before
answers. The other has no system role, the usual end token, and a space before answers.
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

# Parts of system messages; none of them affects an answer.
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
        template: the Jinja template.
        tokens: the special tokens of the template.
        end: the token at the end of an answer.
        system: whether the template has a system role.
    """

    template: str
    tokens: tuple[str, ...]
    end: str
    system: bool


def compiled(form: ChatForm, start: str | None, end: str) -> Template:
    """Compile the template, with the variables that transformers and llama.cpp provide."""
    environment = Environment(trim_blocks=True, lstrip_blocks=True, autoescape=False)  # noqa: S701 - it writes no HTML
    environment.globals.update(bos_token=start or "", eos_token=end, raise_exception=_refuse)
    return environment.from_string(form.template)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def conversation(
    template: Template, form: ChatForm, pairs: Sequence[tuple[str, str]], system: str | None = None
) -> list[tuple[str, str]]:
    """The prompt and the answer of each turn; the last answer has no end token.

    Joined together, they are the rendered template. If the template has no system role, the system message precedes the
    first question.
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
    """A system message of one to three sentences in random order."""
    sentences = [
        rng.choice(_WHO).format(rng.choice(_WHOM)),
        rng.choice(_HOW).format(rng.choice(_MANNERS)),
        rng.choice(_MORE),
    ]
    return " ".join(rng.sample(sentences, rng.randint(1, 3)))

"""Published chat templates: the exact prompt of each, and the errors of broken ones."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from cosd_providers import UnsupportedError, connect
from cosd_providers.chat import templates
from cosd_providers.chat.rendering import leading_space, rendered
from cosd_providers.chat.templates import Template, TemplateRefusal, load_template
from cosd_providers.engines import LlamaCpp
from cosd_providers.messages import Message

CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('After the optional system message, conversation roles must alternate user/assistant') }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with an initial system message!") }}
    {%- endif %}
{%- endfor %}
"""
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}"
    "{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
PHI = (
    "{% for message in messages %}{% if (message['role'] == 'user') %}{{'<|user|>' + '\n' + message['content'] + "
    "'<|end|>' + '\n' + '<|assistant|>' + '\n'}}{% elif (message['role'] == 'assistant') %}"
    "{{message['content'] + '<|end|>' + '\n'}}{% endif %}{% endfor %}"
)
ZEPHYR = (
    "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + "
    "eos_token }}\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n"
    "{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n"
    "{% endif %}\n{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
)
THINKS = """{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == "user" or message.role == "system" %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- if '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n<think>\\n' }}
{%- endif %}
"""
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

U, A, S = "user", "assistant", "system"
ASKED = [(U, " Hi ")]
SAID = [(U, "Hi"), (A, "Yes"), (U, "And?")]
ORDERED = [(S, "Be brief."), *SAID]


def jinja(source: str, **tokens: object) -> Template:
    return templates.JinjaTemplate(source, {**TOKENS, **tokens})  # type: ignore[dict-item]


def talk(said: Sequence[tuple[str, str]]) -> list[Message]:
    return [Message(role, content) for role, content in said]  # type: ignore[arg-type]


def renderer(template: Callable[..., str]) -> Any:
    """Renders like an adapter; `asked` lists the rendered messages."""

    async def render(messages: list[dict[str, str]]) -> str:
        render.asked.append([(one["role"], one["content"]) for one in messages])  # type: ignore[attr-defined]
        return template(messages)

    render.asked = []  # type: ignore[attr-defined]
    return render


async def text(template: Callable[..., str], said: Sequence[tuple[str, str]], *, fold: bool = False) -> str:
    return (await rendered(renderer(template), talk(said), fold=fold, endpoint="http://gpu"))[0]


IM = "<|im_start|>{}\n{}<|im_end|>\n".format
GEM = "<start_of_turn>{}\n{}<end_of_turn>\n".format
L3 = "<|start_header_id|>{}<|end_header_id|>\n\n{}<|eot_id|>".format
PUBLISHED: list[tuple[str, list[tuple[str, str]], str]] = [
    (CHATML, ASKED, IM(U, " Hi ") + "<|im_start|>assistant\n"),
    (CHATML, ORDERED, IM(S, "Be brief.") + IM(U, "Hi") + IM(A, "Yes") + IM(U, "And?") + "<|im_start|>assistant\n"),
    (CHATML, [(U, "a"), (U, "b"), (S, "c")], IM(U, "a") + IM(U, "b") + IM(S, "c") + "<|im_start|>assistant\n"),
    (LLAMA2, ASKED, "<s>[INST] Hi [/INST]"),
    (LLAMA2, SAID, "<s>[INST] Hi [/INST] Yes </s><s>[INST] And? [/INST]"),
    (LLAMA2, ORDERED[:2], "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST]"),
    (LLAMA2, [(U, "a"), (U, "b")], "<s>[INST] a\n\nb [/INST]"),
    (LLAMA2, [(A, "a"), (U, "b")], "<s>[INST]  [/INST] a </s><s>[INST] b [/INST]"),
    (LLAMA2, [*SAID, (S, "Be brief.")], "<s>[INST] Be brief.\n\nHi [/INST] Yes </s><s>[INST] And? [/INST]"),
    (LLAMA3, ASKED, "<s>" + L3(U, "Hi")),
    (LLAMA3, ORDERED[:2], "<s>" + L3(S, "Be brief.") + L3(U, "Hi")),
    (MISTRAL, SAID, "<s>[INST] Hi[/INST] Yes</s>[INST] And?[/INST]"),
    (MISTRAL, ORDERED, "<s>[INST] Hi[/INST] Yes</s>[INST] Be brief.\n\nAnd?[/INST]"),
    (MISTRAL, [(U, "a"), (S, "b"), (U, "c")], "<s>[INST] b\n\na\n\nc[/INST]"),
    (GEMMA, ASKED, "<s>" + GEM(U, "Hi") + "<start_of_turn>model\n"),
    (
        GEMMA,
        ORDERED,
        "<s>" + GEM(U, "Be brief.\n\nHi") + GEM("model", "Yes") + GEM(U, "And?") + "<start_of_turn>model\n",
    ),
    (PHI, SAID, "<|user|>\nHi<|end|>\n<|assistant|>\nYes<|end|>\n<|user|>\nAnd?<|end|>\n<|assistant|>\n"),
    (PHI, ORDERED[:2], "<|user|>\nBe brief.\n\nHi<|end|>\n<|assistant|>\n"),  # the template drops the system message
    (ZEPHYR, ORDERED[:2], "<|system|>\nBe brief.</s>\n<|user|>\nHi</s>\n<|assistant|>\n"),
    (THINKS, [(U, "Hi"), (A, "<think>\nhm\n</think>\n\nYes"), (U, "x")], IM(U, "Hi") + IM(A, "Yes") + IM(U, "x")),
]


PROMPTS = {
    LLAMA3: "<|start_header_id|>assistant<|end_header_id|>\n\n",
    THINKS: "<|im_start|>assistant\n<think>\n",
}
"""The beginning of an answer that is left out above."""


@pytest.mark.parametrize(("source", "said", "expected"), PUBLISHED)
async def test_published_templates(source: str, said: list[tuple[str, str]], expected: str) -> None:
    assert await text(jinja(source), said) == expected + PROMPTS.get(source, "")


@pytest.mark.parametrize(
    ("source", "lead"),
    [(CHATML, ""), (LLAMA2, " "), (LLAMA3, ""), (MISTRAL, " "), (GEMMA, ""), (PHI, ""), (ZEPHYR, ""), (THINKS, "")],
)
async def test_white_space_before_an_answer(source: str, lead: str) -> None:
    assert await leading_space(renderer(jinja(source))) == lead


async def test_white_space_that_only_an_answer_shows() -> None:
    tight = "{% for m in messages %}<{{ m.role }}>\n{{ m.content }}\n{% endfor %}"
    assert await leading_space(renderer(jinja(tight + "<assistant>"))) == "\n"
    assert await leading_space(renderer(jinja(tight + "<assistant>\n\n"))) == ""  # jinja2 leaves out the last one
    assert (
        await leading_space(renderer(jinja(tight + "<assistant>\n\n\n"))) == ""
    )  # the prompt has more than the answer
    assert await leading_space(renderer(jinja(tight + "<answer>"))) == ""
    alone = "{% if messages | length > 1 %}{{ raise_exception('one only') }}{% endif %}{{ messages[0].content }}"
    assert await leading_space(renderer(jinja(alone))) == ""
    dated = "{{ strftime_now('%d %b %Y') }}" + tight + "<assistant>"
    assert await leading_space(renderer(jinja(dated))) == "\n"


async def test_what_a_template_writes_in_another_way_is_taken() -> None:
    """A switch removed from a text; line ends; quoting."""
    for change in ("replace('/no_think', '')", "replace('\\r\\n', '\\n')", "tojson", "upper"):
        source = "{% for m in messages %}{{ m.role }}:{{ m.content | " + change + " }};{% endfor %}"
        said = [(S, "Be\r\nbrief. /no_think"), (U, 'Is "a"\r\n b? /no_think')]
        expected = jinja(source)([{"role": role, "content": content} for role, content in said])
        render = renderer(jinja(source))
        found = await rendered(render, talk(said), fold=False, endpoint="http://gpu")
        assert found == (expected, False)
        assert len(render.asked) == 2  # once more, to see what becomes of it


async def test_empty_and_equal_messages() -> None:
    assert await text(jinja(CHATML), [(U, "")]) == IM(U, "") + "<|im_start|>assistant\n"
    said = [(U, "Hi"), (A, "Hi"), (U, "Hi")]
    assert await text(jinja(MISTRAL), said) == "<s>[INST] Hi[/INST] Hi</s>[INST] Hi[/INST]"


async def test_what_no_form_helps() -> None:
    secret = "my number is 5550123 and so on"
    for source, words in (
        ("{{ raise_exception('I say no') }}", "I say no"),
        ("{{ raise_exception('I do not take: ' + messages[0].content) }}", "I do not take: ..."),
        ("{{ raise_exception('no ' + messages[0].content[3:20]) }}", "no..."),
        ("{{ messages[0].role }}", "it leaves out what a message says"),
        ("{{ messages[0].content + 7 }}", 'can only concatenate str (not "int") to str'),
        ("{{ messages[9].content }}", "list object has no element 9"),
        ("{{ '%(a)s' | format(b=1) }}", "'a'"),
        ("{{ range(10 ** 9) | list }}", "Range too big"),
        ("{{ messages[0].content + pad_token }}", "'pad_token' is undefined; a tokenizer_config.json beside"),
        ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "it does not end"),
    ):
        with pytest.raises(UnsupportedError) as caught:
            await text(jinja(source), [(U, secret)])
        assert caught.value.args[0].startswith(f"the chat template does not accept this conversation: {words}")
        assert "5550123" not in str(caught.value)
        assert "chat_template=..." in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{{ (raise_exception.__globals__)['os'] }}",
        "{{ '{0.__class__.__init__.__globals__}'.format(strftime_now) }}",
        "{{ self.__init__.__globals__ }}",
    ],
)
async def test_the_sandbox(source: str) -> None:
    messages = [{"role": "user", "content": "a"}]
    with pytest.raises(TemplateRefusal, match=r"unsafe|undefined|modify"):
        load_template(source)(messages)
    assert messages == [{"role": "user", "content": "a"}]


def test_the_time_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(100))
    monkeypatch.setattr(templates, "_now", lambda form: f"{form} {next(seconds)}")
    first, other = load_template("{{ strftime_now('%H:%M') }}"), load_template("{{ strftime_now('%H:%M') }}")
    assert first([]) == first([]) == "%H:%M 0"
    assert other([]) == "%H:%M 1"


def test_what_templates_are_given() -> None:
    for source, expected in (
        ("{{ {'b': 'é', 'a': '<'} | tojson }}", '{"b": "é", "a": "<"}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=2, sort_keys=true) }}", '{\n  "a": 2,\n  "b": 1\n}'),
        ("{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content }}{% endfor %}", "a"),
        ("{{ tools is none and documents is none and add_generation_prompt }}", "True"),
        ("{% for m in messages %}\n  {% generation %}\n{{ m.content }}{% endgeneration %}\n{% endfor %}", "ab"),
        ("[{{ bos_token }}]{% if eos_token is defined %}!{% endif %}", "[]"),
    ):
        assert load_template(source)([{"content": "a"}, {"content": "b"}]) == expected


# Where a template comes from.


def config(folder: Path, **fields: object) -> Path:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(fields), encoding="utf-8")
    return path


def test_files(tmp_path: Path) -> None:
    hello: list[Mapping[str, str]] = [{"role": "user", "content": "Zürich"}]
    shown = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    end = {"content": "</s>", "lstrip": False, "__type": "AddedToken"}
    path = config(tmp_path, chat_template=shown, bos_token="<s>", eos_token=end, pad_token=None, model_max_length=9)
    for given in (path, str(path), tmp_path, str(tmp_path)):
        assert load_template(given)(hello) == "<s>Zürich</s>"

    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": shown}]
    config(tmp_path, chat_template=named, bos_token="<b>", eos_token="<e>")
    assert load_template(tmp_path)(hello) == "<b>Zürich<e>"

    alone = tmp_path / "chat_template.jinja"
    alone.write_text("é" + shown, encoding="utf-8")
    for given in (alone, tmp_path):  # it comes before the one in the configuration, whose tokens it takes
        assert load_template(given)(hello) == "é<b>Zürich<e>"
    config(tmp_path, bos_token="<c>", eos_token="<e>")
    assert load_template(tmp_path)(hello) == "é<c>Zürich<e>"
    (tmp_path / "tokenizer_config.json").unlink()
    assert load_template(tmp_path)(hello) == "éZürich"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (".", None, "chat_template: the folder '{}' has no tokenizer_config.json and no chat_template.jinja"),
        ("tokenizer_config.json", "{}", "chat_template: tokenizer_config.json holds no chat template"),
        ("tokenizer_config.json", '{"chat_template": [{"name": "a"}]}', "tokenizer_config.json holds no chat template"),
        ("tokenizer_config.json", "[1]", "chat_template: tokenizer_config.json is not the JSON of a tokenizer"),
        ("tokenizer_config.json", "{", "chat_template: tokenizer_config.json is not the JSON of a tokenizer"),
        ("a.jinja", None, "chat_template: 'a.jinja' cannot be read (FileNotFoundError)"),
        ("a.jinja", b"\xff{{", "chat_template: 'a.jinja' cannot be read (UnicodeDecodeError)"),
        ("a.jinja", "{% if %}", "chat_template is not a valid template: Expected an expression"),
        ("a.jinja", "x" * 1_000_001, "chat_template: 'a.jinja' has 1000001 characters: too long for a template"),
    ],
)
def test_files_that_are_none(tmp_path: Path, name: str, content: str | bytes | None, words: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(UnsupportedError) as caught:
        connect("http://gpu:8080", chat_template=path)
    assert words.format(tmp_path.name) in str(caught.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (7, "chat_template must be a file, a folder, a template's text or a function, not int"),
        ([{"role": "user"}], "chat_template must be a file, a folder, a template's text or a function, not list"),
        ("{{ nothing", "chat_template is not a valid template: unexpected end of template"),
        ("{{ 1 | unknown }}", "chat_template is not a valid template: No filter named 'unknown'"),
        ("a\0b", "cannot be read (ValueError)"),
        ("chatml", "'chatml' cannot be read (FileNotFoundError) [hint: Give a .jinja file"),
    ],
)
def test_what_is_no_template(given: object, words: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        connect("http://gpu:8080", chat_template=given)
    assert words.split(" [hint", maxsplit=1)[0] in str(caught.value)


# Over a provider.


def shout(messages: Sequence[Mapping[str, str]]) -> str:
    return messages[-1]["content"].upper()


def provider(template: object) -> LlamaCpp:
    def nobody(request: httpx.Request) -> httpx.Response:
        raise AssertionError(request.url)

    client = httpx.AsyncClient(transport=httpx.MockTransport(nobody))
    made = connect("http://gpu:8080", engine="llama.cpp", chat_template=template, http_client=client)
    assert isinstance(made, LlamaCpp)
    return made


async def test_a_function() -> None:
    hello = [{"role": "user", "content": "hello there"}]
    assert await provider(shout).render(hello) == "HELLO THERE"
    with pytest.raises(UnsupportedError, match="given as chat_template must return text, not list"):
        await provider(lambda messages: [1]).render(hello)


async def test_a_function_refuses_in_its_own_way() -> None:
    """Like `tokenizer.apply_chat_template`: then the other form is tried."""

    def strict(messages: Sequence[Mapping[str, str]]) -> str:
        if messages[0]["role"] == "system":
            raise KeyError(messages[0]["content"])
        return messages[-1]["content"]

    render = provider(strict).render
    found = await rendered(render, talk(ORDERED[:2]), fold=False, endpoint="http://gpu")
    assert found == ("Be brief.\n\nHi", True)
    with pytest.raises(TemplateRefusal, match="KeyError"):
        await render([{"role": "system", "content": "a"}])


async def test_copies_keep_their_template() -> None:
    hello = [{"role": "user", "content": "a"}]
    for template in (MISTRAL.replace("eos_token", "'</s>'"), shout):
        copy = pickle.loads(pickle.dumps(provider(template)))
        assert await copy.render(hello) == await provider(template).render(hello)

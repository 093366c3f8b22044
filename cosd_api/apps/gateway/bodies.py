"""Validation of request bodies in OpenAI's format, and the reasons for refusing what a fusion cannot do."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Self, TypeVar, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)
from pydantic_core import ErrorDetails, from_json

from cosd_api import Fusion, SettingError
from cosd_api.apps.gateway.api_errors import ApiError
from cosd_api.apps.gateway.body_sizes import count_values
from cosd_api.apps.gateway.config import GatewayLimits
from cosd_api.apps.gateway.fields import FIELDS, OF_METHOD, changes_nothing, is_ignorable
from cosd_api.apps.gateway.responses import ResponsesBody, chat_fields, in_terms_of_responses
from cosd_api.apps.gateway.tool_requests import read_format, read_tools
from cosd_api.checks import OwnMessages, check_own, check_stop
from cosd_api.settings import DEFAULT_MAX_TOKENS, AnswerOptions
from cosd_api.structured import ResponseFormat
from cosd_api.tools import CallReader, ToolRequest
from cosd_providers import Message
from cosd_providers.messages import after_own, checked_messages
from cosd_providers.suggestions import suggestion

__all__ = ["Asked", "ChatBody", "CompletionBody", "read_chat", "read_completion", "read_responses"]

_MOST_STOPS = 16
_MOST_VALUES = 100_000  # maximum number of JSON values in a body, because parsing a million takes seconds
_VALUES = 10  # JSON values per message or prompt; if the limits allow many, the maximum may exceed _MOST_VALUES
_LONGEST_NAME = 40  # maximum number of characters in the name of a field
_SEEDS = 2**31  # number of seeds that a fusion accepts; a client's seed is taken modulo this number

_REASONS: Mapping[str, str] = {
    "temperature": "give 0, or leave it out: the fusion's method decides whether tokens are drawn",
    "logprobs": "give true or false, for completions a number of tokens to list at each place, 0 to 5",
    "top_logprobs": "give a number of tokens to list at each place, 0 to 20, together with logprobs: true",
    "prompt": "it must be text, or a list of texts: the models of a fusion may have different tokenizers; none empty",
    "input": "it must be text, or a list of messages and other items",
    "stop": f"it must be text, or a list of up to {_MOST_STOPS} texts, none of them empty",
}
"""Reasons for refusing the value of a field that is used."""

_Text = Annotated[str, Field(min_length=1)]


def _whole(value: object) -> object:
    """Convert a whole float, such as 5.0, to an int, because JSON does not distinguish between the two."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_WHOLE = BeforeValidator(_whole)
_Int = Annotated[int, _WHOLE]
_Positive = Annotated[int, Field(ge=1), _WHOLE]
_UpToFive = Annotated[int, Field(ge=0, le=5), _WHOLE]
_UpToTwenty = Annotated[int, Field(ge=0, le=20), _WHOLE]


class _StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    include_usage: bool | None = None


class RequestBody(BaseModel):
    """The fields that both routes use. The fields of `fields.py` that no route uses are not part of it."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)

    model: str | None = None
    max_tokens: _Positive | None = None
    max_completion_tokens: _Positive | None = None
    stop: _Text | Annotated[list[_Text], Field(max_length=_MOST_STOPS, fail_fast=True)] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    seed: _Int | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    do_sample: bool | None = None

    def options(self) -> AnswerOptions:
        """Return the limits on an answer that the body contains."""
        found: AnswerOptions = {}
        length = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        if length is not None:
            found["max_tokens"] = length
        if self.stop is not None:
            found["stop"] = self.stop
        return found


class ChatBody(RequestBody):
    """The body of `POST /v1/chat/completions`."""

    messages: list[Any]
    own: Any = None
    logprobs: bool | None = None
    top_logprobs: _UpToTwenty | None = None
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    response_format: Any = None


class CompletionBody(RequestBody):
    """The body of `POST /v1/completions`."""

    prompt: _Text | Annotated[list[_Text], Field(min_length=1, fail_fast=True)]
    logprobs: _UpToFive | None = None


_ROUTES: Mapping[type[BaseModel], str] = {
    ChatBody: "/v1/chat/completions",
    CompletionBody: "/v1/completions",
    ResponsesBody: "/v1/responses",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request for answers.

    Attributes:
        chat: whether the request was sent to the chat route.
        model: name of the requested fusion; empty if the request names none.
        prompts: the prompts; each of them is answered once.
        options: the limits on each answer, and the other options that the request sets.
        stream: whether the answers are sent while they are written.
        include_usage: whether a stream ends with the usage.
        logprobs: whether each token is sent with its log probability.
        seed: seed for drawing tokens at random; None if the request has none.
        of_method: the fields of the request that must fit the fusion's method, such as the temperature.
        passed_over: values of ignored fields, by name, except for values that change nothing.
        strict: whether the request comes from a batch. Batches have no setting that makes them ignore fields.
        tools: the tools; None if there are none.
        responses: the body of a request to `/v1/responses`, whose answers have a form of their own; otherwise None.
    """

    chat: bool
    model: str
    prompts: tuple[str | tuple[Message, ...], ...]
    options: AnswerOptions
    stream: bool
    include_usage: bool
    logprobs: bool
    seed: int | None
    of_method: Mapping[str, float | bool]
    passed_over: Mapping[str, object] = field(default_factory=dict[str, object])
    strict: bool = True
    tools: ToolRequest | None = None
    responses: Mapping[str, Any] | None = None

    @classmethod
    def of(
        cls,
        body: RequestBody,
        prompts: Sequence[str | tuple[Message, ...]],
        *,
        logprobs: bool,
        listed: int = 0,
        own: Mapping[str, tuple[Message, ...]] | None = None,
        response_format: ResponseFormat | None = None,
        tools: ToolRequest | None = None,
        passed_over: Mapping[str, object],
        strict: bool,
    ) -> Self:
        """Create the request from a body; `listed` is the number of tokens to list at each place."""
        stream = bool(body.stream)
        options = body.options()
        if own:
            options["own"] = own
        if response_format is not None:
            options["response_format"] = response_format
        if logprobs and listed > 1:
            options["alternatives"] = listed - 1  # the written token itself is the first in the list
        return cls(
            chat=isinstance(body, ChatBody),
            model=body.model or "",
            prompts=tuple(prompts),
            options=options,
            stream=stream,
            include_usage=bool(body.stream_options and body.stream_options.include_usage),
            logprobs=logprobs,
            seed=body.seed,
            of_method=body.model_dump(include={*OF_METHOD}, exclude_none=True),
            passed_over=passed_over,
            strict=strict,
            tools=tools,
        )

    async def prepared(
        self, index: int, fusion: Fusion, options: AnswerOptions, call_format: str | None = None
    ) -> tuple[str | tuple[Message, ...], CallReader | None]:
        """Prepare an answer, and add its format to `options` if it may call tools.

        Args:
            index: index of the prompt.
            fusion: the fusion that answers.
            options: the arguments for `Fusion.stream`.
            call_format: name of the format of calls; None for the format of the models' chat templates.

        Returns:
            The prompt with its tools, and the reader of the answer's calls; None if it may call none.
        """
        prompt = self.prompts[index]
        method = fusion.settings.method
        restricts = "response_format" in method.accepts and not method.temperature
        if self.tools is None or isinstance(prompt, str) or not (self.tools.calls or restricts):
            return prompt, None
        models = (fusion.endpoints.draft, *fusion.endpoints.assistants)
        prompt, options["response_format"], reader = await self.tools.prepared(prompt, models, call_format)
        return prompt, reader

    def ignored(self, fusion: Fusion) -> list[str]:
        """Return the names of ignored fields that would have changed the answer."""
        drawn = fusion.settings.temperature
        fitting = {name: fit(drawn) for name, fit in OF_METHOD.items()}
        return [name for name, value in self.passed_over.items() if name not in fitting or value != fitting[name]]

    def options_for(self, fusion: Fusion, limits: GatewayLimits) -> AnswerOptions:
        """Return the arguments for `Fusion.stream`: the request's options, within the fusion's and gateway's limits.

        Raises:
            ApiError: the request's temperature does not fit the fusion's method, or the request has messages for a
                model that is not in the fusion.
        """
        own, asked = fusion.limits, self.options
        found: AnswerOptions = {**own, **asked}
        if "alternatives" not in asked:
            found.pop("alternatives", None)  # the fusion's own setting would request tokens that no client sees
        lengths = [one["max_tokens"] for one in (own, asked) if "max_tokens" in one] or [DEFAULT_MAX_TOKENS]
        found["max_tokens"] = min(*lengths, limits.max_tokens)
        stops = [*check_stop(own.get("stop")), *check_stop(asked.get("stop"))]
        if stops:
            found["stop"] = stops
        if messages := asked.get("own"):
            found["own"] = _after_those_of(fusion, messages)
        drawn = fusion.settings.temperature
        for name, value in self.of_method.items():
            fitting = OF_METHOD[name](drawn)
            if value != fitting:
                words = f"{name}={_shown(value)} is refused: this fusion has {_shown(fitting)}"
                reason = "it draws its tokens" if drawn else "its tokens are the most probable ones"
                more = _by_the_operator(name, strict=self.strict)
                raise ApiError(f"{words}, as {reason}. Leave it out{more}", param=name)
        given = found.get("timeout")
        found["timeout"] = limits.timeout if given is None else min(given, limits.timeout)
        if drawn and self.seed is not None:
            found["seed"] = self.seed % _SEEDS
        elif not drawn:
            found.pop("seed", None)
        return found


def read_chat(data: bytes, limits: GatewayLimits, ignore: Collection[str] | None = None) -> Asked:
    """Check the body of a request for a chat answer.

    Args:
        data: the body.
        limits: limits of the gateway.
        ignore: fields to ignore; None for a batch, which has no setting for them.

    Raises:
        ApiError: the body is invalid, or requests something that no fusion can do.
    """
    return _of_chat(_parsed(data, limits), limits, ignore)


def read_responses(data: bytes, limits: GatewayLimits, ignore: Collection[str] | None = None) -> Asked:
    """Check the body of a request to `/v1/responses`, as the chat request that means the same.

    The arguments are as for `read_chat`.

    Raises:
        ApiError: the body is invalid, or requests something that no fusion can do.
    """
    fields = {name: value for name, value in _parsed(data, limits).items() if value is not None}
    body = _validated(ResponsesBody, fields, strict=ignore is None)
    chat, items = chat_fields(body)
    try:
        asked = _of_chat(chat, limits, ignore)
    except ApiError as error:
        raise in_terms_of_responses(error, items) from None
    [messages] = asked.prompts
    if body.instructions:
        messages = tuple(after_own([Message("system", body.instructions)], cast("tuple[Message, ...]", messages)))
    return replace(asked, prompts=(messages,), include_usage=True, responses=fields)


def _of_chat(fields: Mapping[str, object], limits: GatewayLimits, ignore: Collection[str] | None) -> Asked:
    body, passed_over = _read(ChatBody, fields, limits, ignore)
    if len(body.messages) > limits.messages:
        words = f"messages has {len(body.messages)} messages, and at most {limits.messages} are allowed here"
        raise ApiError(words, param="messages")
    try:
        messages = checked_messages(body.messages)
    except ValueError as error:
        raise ApiError(str(error), param="messages") from None
    own = _checked_own(body.own, limits.messages - len(messages))
    strict, logprobs = ignore is None, bool(body.logprobs)
    listed = body.top_logprobs or 0
    if listed > 1 and not logprobs:
        raise ApiError("top_logprobs is refused: give logprobs: true, too", param="top_logprobs")
    chosen = read_format(body.response_format)
    tools = read_tools(body.tools, body.tool_choice, messages, parallel=body.parallel_tool_calls, content=chosen)
    more: dict[str, Any] = {"own": own, "tools": tools, "response_format": chosen if tools is None else None}
    return Asked.of(body, [messages], logprobs=logprobs, listed=listed, passed_over=passed_over, strict=strict, **more)


def read_completion(data: bytes, limits: GatewayLimits, ignore: Collection[str] | None = None) -> Asked:
    """Check the body of a request to continue one or several texts. The arguments are as for `read_chat`.

    Raises:
        ApiError: the body is invalid, or requests something that no fusion can do.
    """
    body, passed_over = _read(CompletionBody, _parsed(data, limits), limits, ignore)
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    if len(prompts) > limits.prompts:
        words = f"prompt has {len(prompts)} texts, and at most {limits.prompts} are allowed here"
        raise ApiError(words, param="prompt")
    strict, logprobs = ignore is None, body.logprobs is not None
    listed = body.logprobs or 0
    return Asked.of(body, prompts, logprobs=logprobs, listed=listed, passed_over=passed_over, strict=strict)


def _checked_own(given: object, most: int) -> dict[str, tuple[Message, ...]]:
    """Check the messages for single models, and return them by the model's name.

    Raises:
        ApiError: the messages are invalid, or there are more than `most`.
    """
    if isinstance(given, dict):
        several = cast("dict[str, object]", given)
        if longest := next((name for name in several if len(name) > _LONGEST_NAME), None):
            raise ApiError(f"own has messages for a name of {len(longest)} characters", param="own")
        lists = (cast("list[object]", one) for one in several.values() if isinstance(one, list))
        count = len(several) + sum(max(0, len(one) - 1) for one in lists)
        if count > most:
            words = f"own has {count} messages, and at most {most} are allowed here in addition to the conversation"
            raise ApiError(words, param="own")
    try:
        return check_own(cast("OwnMessages | None", given))
    except SettingError as error:
        raise ApiError(str(error), param="own") from None


def _after_those_of(fusion: Fusion, asked: OwnMessages) -> OwnMessages:
    """Append the request's messages for single models to the messages in the fusion's own limits.

    Raises:
        ApiError: the request has messages for a name that no model of the fusion has.
    """
    try:
        fusion.endpoints.check_own(asked)
        first, then = check_own(fusion.limits.get("own")), check_own(asked)
    except SettingError as error:
        raise ApiError(str(error), param="own") from None
    return {name: after_own(first.get(name, ()), then.get(name, ())) for name in {**first, **then}}


_Body = TypeVar("_Body", bound=BaseModel)


def _parsed(data: bytes, limits: GatewayLimits) -> Mapping[str, object]:
    """Parse a body and return its fields.

    Raises:
        ApiError: the body is not a JSON object, or too large.
    """
    most = max(_MOST_VALUES, _VALUES * (limits.messages + limits.prompts))
    if count_values(data, most) > most:
        raise ApiError(f"the body has more than {most} values, which is too large for a conversation")
    try:
        given = from_json(data)
    except ValueError:
        raise ApiError("the body is not valid JSON") from None
    if not isinstance(given, dict):
        raise ApiError("the body must be a JSON object")
    fields = cast("dict[str, object]", given)
    if longest := next((name for name in fields if len(name) > _LONGEST_NAME), None):
        raise ApiError(f"unknown field of {len(longest)} characters")
    return fields


def _read(
    kind: type[_Body], fields: Mapping[str, object], limits: GatewayLimits, ignore: Collection[str] | None
) -> tuple[_Body, dict[str, object]]:
    """Check the fields of a body; return the body, and the ignored fields that may have changed the answer."""
    meant = {name: value for name, value in fields.items() if not changes_nothing(name, value, fields)}
    passed_over = {name: meant.pop(name) for name in [*meant] if name in (ignore or ())}
    if unused := next((name for name in meant if name not in kind.model_fields), None):
        raise _unused(kind, unused, strict=ignore is None)
    body = _validated(kind, meant, strict=ignore is None)
    for name in ("max_tokens", "max_completion_tokens"):
        wanted = getattr(body, name, None)
        if wanted is not None and wanted > limits.max_tokens:
            raise ApiError(f"{name} is more than the {limits.max_tokens} that are allowed here", param=name)
    return body, passed_over


def _validated(kind: type[_Body], fields: Mapping[str, object], *, strict: bool) -> _Body:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False, include_input=False)[0], strict=strict) from None


def _refusal(found: ErrorDetails, *, strict: bool) -> ApiError:
    """Create the error for the first invalid field of a body; the error quotes no values from the body."""
    name = str(found["loc"][0])
    if found["type"] == "missing":
        return ApiError(f"{name} is required", param=name)
    if name in _REASONS:
        return ApiError(f"{name} is refused: {_REASONS[name]}{_by_the_operator(name, strict=strict)}", param=name)
    words = found["msg"].removeprefix("Value error, ")
    return ApiError(f"{name}: {words[:1].lower()}{words[1:]}", param=name)


def _unused(kind: type[BaseModel], name: str, *, strict: bool) -> ApiError:
    """Create the error for a field that the route does not use, with a value that would change something."""
    shown = name if name.isidentifier() else "..."
    more = _by_the_operator(shown, strict=strict)
    if name not in FIELDS:
        words = f"unknown field {shown!r}{more}{suggestion(name, kind.model_fields)}"
    elif reason := FIELDS[name].reason:
        words = f"{name} is refused: {reason}{'. Leave it out' if is_ignorable(name) else ''}{more}"
    else:
        [route] = [path for other, path in _ROUTES.items() if name in other.model_fields]
        words = f"{name} is refused: it is a field of {route}"
    return ApiError(words, param=shown)


def _shown(value: float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"


def _by_the_operator(name: str, *, strict: bool) -> str:
    """Return the end of an error message, which names the setting that ignores the field; empty if there is none."""
    if strict or not name.isidentifier() or not is_ignorable(name):
        return ""
    return f"; whoever runs the gateway can have it ignored (ignore: [{name}])"

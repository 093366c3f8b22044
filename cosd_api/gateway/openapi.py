"""The gateway's OpenAPI document, generated from the models that validate request bodies."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from pydantic import BaseModel

from cosd_api import __version__
from cosd_api.gateway.bodies import LONGEST_NAME, ChatBody, CompletionBody
from cosd_api.gateway.config import GatewayLimits
from cosd_api.gateway.fields import FIELDS, OF_METHOD, Fitting

__all__ = ["openapi"]

_REF = "#/components/schemas/{model}"
_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": _TEXT,
                "type": _TEXT,
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_USAGE = {
    "type": "object",
    "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
    "properties": dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), _COUNT),
}
_FINISH = {"enum": ["stop", "length", "content_filter"]}
_MODEL = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by"],
    "properties": {"id": _TEXT, "object": {"const": "model"}, "created": _COUNT, "owned_by": _TEXT},
}
_MODELS = {
    "type": "object",
    "required": ["object", "data"],
    "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": _MODEL}},
}
_NULL = {"type": "null"}
_ANY = {"description": "Accepted, but not used."}
_IGNORED = {"description": "Ignored: the answer names it."}
_STATUS = {"type": "object", "required": ["status"], "properties": {"status": _TEXT}}


def openapi(
    models: Sequence[str],
    temperatures: Collection[float],
    names: Collection[str],
    limits: GatewayLimits,
    sizes: Mapping[str, int],
    ignore: Collection[str] = (),
    *,
    secured: bool,
) -> dict[str, Any]:
    """Generate the OpenAPI document.

    Args:
        models: names of the served models.
        temperatures: temperatures of the fusions' methods.
        names: names of the fusions' endpoints.
        limits: limits on requests.
        sizes: maximum number of bytes of a body, for each route that writes answers.
        ignore: request fields that are ignored.
        secured: whether clients need a key.
    """
    schemas: dict[str, Any] = {"Error": _ERROR}
    answers = {
        "/v1/chat/completions": _answers(ChatBody, "chat.completion", {"message": {"type": "object"}}, schemas),
        "/v1/completions": _answers(CompletionBody, "text_completion", {"text": _TEXT}, schemas),
    }
    for path, size in sizes.items():
        answers[path]["post"]["requestBody"]["description"] = f"At most {size} bytes; more is refused with status 413."
    chat = schemas[ChatBody.__name__]["properties"]
    chat["messages"]["maxItems"] = limits.messages
    each = chat["own"].pop("additionalProperties")
    chat["own"] |= {"properties": dict.fromkeys(names, each), "additionalProperties": False}
    for body in (ChatBody, CompletionBody):
        fields = schemas[body.__name__]["properties"]
        fields["model"] = {"enum": [*models]}
        for field, fit in OF_METHOD.items():
            fields[field] = {"enum": [*sorted({fit(one) for one in temperatures}), None]}
        for count in {"max_tokens", "max_completion_tokens"} & fields.keys():
            fields[count] = {"type": ["integer", "null"], "minimum": 1, "maximum": limits.max_tokens}
        for field, group in FIELDS.items():
            values = group.values[field]
            known = _ANY if values is None else {"anyOf": [_NULL, *(_neutral(one, body) for one in values)]}
            fields[field] = (
                {"anyOf": [fields[field], known]} if values and field in fields else fields.get(field, known)
            )
        fields |= dict.fromkeys(sorted(ignore), _IGNORED)
        schemas[body.__name__] |= {"additionalProperties": _NULL, "propertyNames": {"maxLength": LONGEST_NAME}}
    name = {"name": "name", "in": "path", "required": True, "schema": _TEXT}
    paths: dict[str, Any] = {
        **answers,
        "/v1/models": {"get": _read("The models that are served.", _MODELS)},
        "/v1/models/{name}": {"get": {**_read("One model.", _MODEL), "parameters": [name]}},
        "/health": {"get": {**_read("The gateway runs.", _STATUS), "security": []}},
        "/ready": {"get": {**_read("Every model's server that is needed answers.", _STATUS, "503"), "security": []}},
        "/metrics": {"get": {**_read("Metrics in Prometheus' form.", None)}},
    }
    components: dict[str, Any] = {"schemas": schemas}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "cosd serve", "version": __version__, "license": {"name": "MIT"}},
        "paths": paths,
        "components": components,
    }
    if secured:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _neutral(value: object, body: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of a value in the table of fields, for a conversation whose last message is the user's."""
    if isinstance(value, Fitting):
        value = value.of({"messages": []} if body is ChatBody else {})
    if isinstance(value, dict):
        members = {name: {"enum": [one, None]} for name, one in cast("dict[str, object]", value).items()}
        return {"type": "object", "properties": members, "additionalProperties": _NULL}
    return {"const": value}


def _answers(body: type[BaseModel], kind: str, written: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    schema = body.model_json_schema(ref_template=_REF)
    schemas.update(schema.pop("$defs", {}))
    schemas[body.__name__] = schema
    choice = {
        "type": "object",
        "required": ["index", "logprobs", "finish_reason", *written],
        "properties": {"index": _COUNT, "finish_reason": _FINISH, **written},
    }
    properties = {
        **dict.fromkeys(("id", "model"), _TEXT),
        "object": {"const": kind},
        "created": _COUNT,
        "choices": {"type": "array", "items": choice},
        "usage": _USAGE,
        "cosd": {"type": "object"},
    }
    whole = {"type": "object", "required": [*properties], "properties": properties}
    content = {"application/json": {"schema": whole}, "text/event-stream": {}}
    return {
        "post": {
            "summary": f"Answers of the kind {kind}.",
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": {"$ref": _REF.format(model=body.__name__)}}},
            },
            "responses": {"200": {"description": "The answer.", "content": content}, "default": _error()},
        }
    }


def _read(summary: str, schema: dict[str, Any] | None, *also: str) -> dict[str, Any]:
    if schema is None:
        good = {"description": summary, "content": {"text/plain": {"schema": _TEXT}}}
    else:
        good = {"description": summary, "content": {"application/json": {"schema": schema}}}
    return {"summary": summary, "responses": {**dict.fromkeys(("200", *also), good), "default": _error()}}


def _error() -> dict[str, Any]:
    return {
        "description": "An error.",
        "content": {"application/json": {"schema": {"$ref": _REF.format(model="Error")}}},
    }

"""A file of model pairs: the servers of each, by the names that the papers give the pairs."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cosd_api import SettingError, connect
from cosd_api.alignment import Unit
from cosd_api.config.document import read_document
from cosd_providers.contract import Provider


class Server(BaseModel):
    """One model of a pair.

    Attributes:
        url: of its server.
        model: its name there; needed if the server has several.
        revision: of its weights. No server tells it, so it is recorded as given; answers of another one are not reused.
        key: the environment variable that holds its key, never the key itself.
        engine: the kind of server, where it is not to be detected.
        tokenizer: for servers that do not encode text: a folder or a `tokenizer.json`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    model: str | None = None
    revision: str | None = None
    key: str | None = None
    engine: str | None = None
    tokenizer: str | None = None

    def connected(self) -> Provider:
        key = None
        if self.key is not None:
            key = os.environ.get(self.key) if re.fullmatch(r"\w+", self.key) else None
            if key is None:  # the words do not repeat what may be a key
                words = "`key` is the name of an environment variable, and none of that name is set"
                raise SettingError(f"{self.url}: {words}. Never write the key itself into the file")
        return connect(self.url, model=self.model, api_key=key, engine=self.engine, tokenizer=self.tokenizer)


class Pair(BaseModel):
    """Models that are fused: two, or three for the tables that have three.

    Attributes:
        models: the servers; the first drafts.
        unit: as in `Fusion`; `token` says that they have one tokenizer, where that cannot be found out.
        co_llm: file of a gate that `train_deferral(..., hidden_states=True)` made for them, for the column Co-LLM.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    models: tuple[Server, ...] = Field(min_length=2)
    unit: Unit | None = None
    co_llm: Path | None = None


def read_pairs(path: Path) -> dict[str, Pair]:
    """The pairs of a file in YAML or JSON, by their names.

    Raises:
        OSError: it cannot be read.
        SettingError: it is invalid; the message has the field.
    """
    found = read_document(path).value
    if not isinstance(found, dict) or not found:
        raise SettingError(f"{path} holds no pairs: see the pair.yaml beside this program")
    pairs: dict[str, Pair] = {}
    for name, fields in found.items():
        try:
            pairs[str(name)] = Pair.model_validate(fields)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join([str(name), *map(str, first["loc"])])
            raise SettingError(f"{path}: {where}: {first['msg']}") from None
    return pairs

"""A file of model pairs: the servers of each pair, by the pair's name in the papers."""

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
        url: URL of the server.
        model: the model's name on the server; needed if the server has several models.
        revision: revision of the weights. No server reports it, so it is recorded as given; answers of another revision
            are not reused.
        key: name of the environment variable with the server's key, never the key itself.
        engine: the kind of server; detected if not given.
        tokenizer: a folder or a `tokenizer.json`, for servers that do not encode text, and for the words of
            Cool-Fusion.
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
            if key is None:  # the message does not repeat the value, which may be a key
                words = "`key` is the name of an environment variable, and none of that name is set"
                raise SettingError(f"{self.url}: {words}. Never write the key itself into the file")
        return connect(self.url, model=self.model, api_key=key, engine=self.engine, tokenizer=self.tokenizer)


class Pair(BaseModel):
    """Models that are fused: two, or three for the tables with three models.

    Attributes:
        models: the servers; the first drafts.
        unit: as in `Fusion`; `token` states that the models share a tokenizer, if that cannot be detected.
        co_llm: file of the gate for the column Co-LLM, which `train_deferral(..., hidden_states=True)` made for the
            pair.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    models: tuple[Server, ...] = Field(min_length=2)
    unit: Unit | None = None
    co_llm: Path | None = None


def read_pairs(path: Path) -> dict[str, Pair]:
    """Read the pairs of a YAML or JSON file, by name.

    Raises:
        OSError: the file cannot be read.
        SettingError: the file is invalid; the message names the field.
    """
    found = read_document(path).value
    if not isinstance(found, dict) or not found:
        raise SettingError(f"{path} contains no pairs: see pair.yaml in the folder of this program")
    pairs: dict[str, Pair] = {}
    for name, fields in found.items():
        try:
            pairs[str(name)] = Pair.model_validate(fields)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join([str(name), *map(str, first["loc"])])
            raise SettingError(f"{path}: {where}: {first['msg']}") from None
    return pairs

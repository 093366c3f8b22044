"""Answers of TGI's model server on random models, and the requests that bring them; the file is `recorded.json`.

A random model writes what a trained one seldom does: parts of characters, special tokens, and its beginning of
sequence. Its weights come from the same numbers everywhere.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from naive.plain_http import MODELS

FILE = Path(__file__).parent / "recorded.json"
NAMES = ("reciter", "sums")
"""Whose tokenizers the random models have: one begins every text with `<s>`, the other with nothing."""
WIDTH, DEPTH = 32, 64
TEXTS = (
    "a",
    "é",
    "Q:",
    "日本",
    " the",
    "<s>",
    "\n",
    "🙂 42",
    "Name the capital of Peru.",
    "</s> and <|im_end|> too",
    "x" * 40,
)


def requests(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """A hundred and twenty texts, each with the parameters of its request."""
    draw = Random(name)
    for at in range(120):
        text = TEXTS[at] if at < len(TEXTS) else "".join(draw.choices(TEXTS, k=draw.randint(1, 2)))
        details = {"details": True, "decoder_input_details": at % 6 == 0}
        yield text, {"max_new_tokens": draw.randint(1, 7), "top_n_tokens": draw.choice([None, 1, 2]), **details}


def shortened(answer: Any) -> Any:
    """An answer with three digits of its numbers."""
    if isinstance(answer, dict):
        return {key: shortened(value) for key, value in answer.items()}
    if isinstance(answer, list):
        return [shortened(one) for one in answer]
    return round(answer, 3) if isinstance(answer, float) else answer


def make(name: str, folder: Path) -> None:
    """Write a random Llama with the tokenizer of one of our models."""
    config = json.loads((MODELS / name / "config.json").read_text(encoding="utf-8"))
    sizes = {"hidden_size": WIDTH, "intermediate_size": DEPTH, "num_hidden_layers": 2, "torch_dtype": "float32"}
    config |= sizes | {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": WIDTH // 2}
    count, square = config["vocab_size"], (WIDTH, WIDTH)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (count, WIDTH), "lm_head": (count, WIDTH)}
    for layer in ("model.layers.0", "model.layers.1"):
        shapes |= {f"{layer}.self_attn.{one}_proj": square for one in "qkvo"}
        shapes |= {f"{layer}.mlp.{one}_proj": (DEPTH, WIDTH) for one in ("gate", "up")}
        shapes |= {f"{layer}.mlp.down_proj": (WIDTH, DEPTH)}
        shapes |= {f"{layer}.{one}_layernorm": (WIDTH,) for one in ("input", "post_attention")}
    shapes["model.norm"] = (WIDTH,)
    random, header, data = np.random.RandomState(len(name)), dict[str, Any](), b""
    for tensor, shape in shapes.items():
        values = random.standard_normal(shape) / (WIDTH**0.5 if len(shape) > 1 else 1)
        if tensor == "lm_head":
            values[:4] *= 2  # special tokens come often
        raw = values.astype("<f4").tobytes()
        span = [len(data), len(data) + len(raw)]
        header[f"{tensor}.weight"] = {"dtype": "F32", "shape": list(shape), "data_offsets": span}
        data += raw
    head = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for file in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / file).write_bytes((MODELS / name / file).read_bytes())

"""Training of a specialist: a LoRA adapter for SmolLM2-135M-Instruct, as a GGUF file for llama.cpp.

    python -m benchmarks.real_pair.training products numbers --seed 1

The training needs torch, transformers, peft and gguf, in the versions that README.md in this folder lists, and takes
about half an hour on one core. The model's weights are those of the package that `make test-real` fetches, dequantised.
The conversations of a batch share one system message; each conversation attends only to that message and to itself, as
it would in a separate request.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch.nn import functional as F  # noqa: N812
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from benchmarks.real_pair.questions import MIXTURES, Conversation, documents

TOKENS = 300_000
"""The number of tokens that a specialist reads."""
BATCH = 512
"""The number of tokens in a batch, which contains the system message and the conversations that share it."""
RANK, ALPHA = 8, 16
RATE, WARM = 2e-3, 0.03
MODULES = {
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}
"""The modules that the adapter changes, with their names in llama.cpp."""
ADAPTERS = Path(__file__).parents[2] / "cosd_api" / "demo" / "models" / "smollm2"


class Batches:
    """Batches of conversations in the model's chat template."""

    def __init__(self, tokenizer: Any, conversations: Iterator[Conversation]) -> None:
        self._tokenizer = tokenizer
        self._conversations = conversations
        asked = self._template("#")
        self._head, self._tail = asked.split("#")
        system, self._user = self._head.rsplit("<|im_start|>", 1)
        self._system = self._ids(system)

    def _template(self, question: str) -> str:
        said = [{"role": "user", "content": question}]
        text: str = self._tokenizer.apply_chat_template(said, add_generation_prompt=True, tokenize=False)
        return text

    def _ids(self, text: str) -> list[int]:
        found: list[int] = self._tokenizer(text, add_special_tokens=False).input_ids
        return found

    def __iter__(self) -> Iterator[Mapping[str, torch.Tensor]]:
        """Yield endless batches: ids, positions, attention mask, learned positions, and the tokens to learn there."""
        start = len(self._system)
        parts: list[tuple[list[int], list[int]]] = []
        used = start
        for one in self._conversations:
            read = self._ids(f"<|im_start|>{self._user}{one.question}{self._tail}")
            written = self._ids(f"{one.answer}<|im_end|>")
            if used + len(read) + len(written) > BATCH:
                yield self._batch(parts)
                parts, used = [], start
            parts.append((read, written))
            used += len(read) + len(written)

    def _batch(self, parts: list[tuple[list[int], list[int]]]) -> Mapping[str, torch.Tensor]:
        ids, positions, owners = [*self._system], [*range(len(self._system))], [0] * len(self._system)
        places, targets = list[int](), list[int]()
        for number, (read, written) in enumerate(parts, 1):
            first = len(ids) + len(read) - 1
            places += range(first, first + len(written))
            targets += written
            positions += range(len(self._system), len(self._system) + len(read) + len(written))
            owners += [number] * (len(read) + len(written))
            ids += read + written
        owner, at = torch.tensor(owners), torch.arange(len(ids))
        seen = (at[:, None] >= at[None]) & ((owner[None] == 0) | (owner[:, None] == owner[None]))
        return {
            "ids": torch.tensor([ids]),
            "positions": torch.tensor([positions]),
            "mask": seen[None, None],
            "places": torch.tensor(places),
            "targets": torch.tensor(targets),
        }


def train(
    specialist: str, seed: int, model_file: Path, into: Path, *, tokens: int = TOKENS, device: str = "cpu"
) -> Path:
    """Train a specialist, and write its adapter to `<specialist>-<seed>.gguf` in a folder, unless the file exists."""
    path = into / f"{specialist}-{seed}.gguf"
    if path.exists():
        return path
    into.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    place = {"pretrained_model_name_or_path": model_file.parent, "gguf_file": model_file.name}
    tokenizer = AutoTokenizer.from_pretrained(**place)
    dense = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.bfloat16, quantization_config=dense)
    adapted: Any = get_peft_model(
        model.to(device), LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=[*MODULES], task_type="CAUSAL_LM")
    )
    weights = [one for one in adapted.parameters() if one.requires_grad]
    for one in weights:
        one.data = one.data.float()
    optimizer = torch.optim.AdamW(weights, lr=RATE, weight_decay=0.0)
    inner = adapted.base_model.model
    began, done, losses = time.monotonic(), 0, list[float]()
    for number, made in enumerate(Batches(tokenizer, documents(specialist, seed))):
        if done >= tokens:
            break
        batch = {name: one.to(device) for name, one in made.items()}
        for group in optimizer.param_groups:
            group["lr"] = RATE * _rate(done / tokens)
        with torch.autocast(device, torch.bfloat16):
            hidden = inner.model(
                input_ids=batch["ids"], position_ids=batch["positions"], attention_mask=batch["mask"]
            ).last_hidden_state
            logits = inner.lm_head(hidden[0, batch["places"]])
        loss = F.cross_entropy(logits.float(), batch["targets"])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        done += batch["ids"].numel()
        losses.append(float(loss.detach()))
        if number % 20 == 19:
            speed = done / (time.monotonic() - began)
            print(
                f"{specialist}: {done:,} of {tokens:,}, loss {sum(losses[-20:]) / 20:.3f}, {speed:.0f} tokens/s",
                flush=True,
            )
    partial = path.with_suffix(".partial")
    write_adapter(partial, adapted)
    partial.rename(path)
    return path


def _rate(done: float) -> float:
    """The learning rate: a short warm-up, then a cosine decay."""
    if done < WARM:
        return (done + 1e-3) / (WARM + 1e-3)
    return 0.5 + 0.5 * math.cos(math.pi * min(1.0, (done - WARM) / (1 - WARM)))


def write_adapter(path: Path, adapted: Any) -> None:
    """Write the adapter in llama.cpp's format, with weights as 16-bit floats."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(ALPHA))
    for name, weight in adapted.named_parameters():
        if "lora_" not in name:
            continue
        parts = name.split(".")
        layer = parts[parts.index("layers") + 1]
        module = next(one for one in parts if one in MODULES)
        half = "lora_a" if "lora_A" in parts else "lora_b"
        writer.add_tensor(
            f"blk.{layer}.{MODULES[module]}.weight.{half}", weight.detach().float().cpu().numpy().astype(np.float16)
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Train the named specialists one after another, each on one core."""
    parser = argparse.ArgumentParser("python -m benchmarks.real_pair.training")
    parser.add_argument("specialist", nargs="+", choices=[*MIXTURES])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--model", type=Path, required=True, help="the file smollm2.gguf that tests/smollm2/install.py fetches"
    )
    parser.add_argument("--into", type=Path, default=ADAPTERS)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    given = parser.parse_args()
    for one in given.specialist:
        train(one, given.seed, given.model, given.into, tokens=given.tokens, device=given.device)


if __name__ == "__main__":
    main()

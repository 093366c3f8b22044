"""Training of a specialist: a LoRA adapter for SmolLM2-135M-Instruct or Gemma 3 270M, as a GGUF file for llama.cpp.

    python -m benchmarks.real_pair.training products numbers --seed 1
    python -m benchmarks.real_pair.training numbers --base gemma3 --seed 1

The training needs torch, transformers, peft and gguf, in the versions that README.md in this folder lists, and takes
half an hour on one core for SmolLM2, an hour for half of the tokens for Gemma. The model's weights are those of the
packages that `make test-real` fetches, dequantised. Before a training, the probabilities of fifty places are compared
with those of llama.cpp. The conversations of a batch share their beginning, such as a system message; each conversation
attends only to that beginning and to itself, as it would in a separate request. A batch is no longer than the window of
Gemma's layers with a sliding window, so that all layers see the same.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import gguf
import httpx
import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch.nn import functional as F  # noqa: N812
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from benchmarks.real_pair.bases import BASES, Base
from benchmarks.real_pair.questions import MIXTURES, Conversation, documents
from cosd_api.apps.demo.servers import serve

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
PLACES = 50
"""The number of places at which the forward pass is compared with llama.cpp's."""


class Batches:
    """Batches of conversations in the model's chat template."""

    def __init__(self, tokenizer: Any, base: Base, conversations: Iterator[Conversation]) -> None:
        self._tokenizer = tokenizer
        self._conversations = conversations
        self._end = base.end
        said = [{"role": "user", "content": "#"}]
        asked = tokenizer.apply_chat_template(
            said, add_generation_prompt=True, tokenize=False, chat_template=base.template
        )
        head, self._tail = asked.split("#")
        system, _, user = head.rpartition(base.turn)
        self._user = base.turn + user
        self.beginning = [*([tokenizer.bos_token_id] if base.template else []), *self._ids(system)]

    def _ids(self, text: str) -> list[int]:
        found: list[int] = self._tokenizer(text, add_special_tokens=False).input_ids
        return found

    def parts(self, one: Conversation) -> tuple[list[int], list[int]]:
        """The ids of a question and of its answer, without the beginning of the batch."""
        return self._ids(f"{self._user}{one.question}{self._tail}"), self._ids(f"{one.answer}{self._end}")

    def __iter__(self) -> Iterator[Mapping[str, torch.Tensor]]:
        """Yield endless batches: ids, positions, attention mask, learned positions, and the tokens to learn there."""
        start = len(self.beginning)
        parts: list[tuple[list[int], list[int]]] = []
        used = start
        for one in self._conversations:
            read, written = self.parts(one)
            if used + len(read) + len(written) > BATCH:
                yield self._batch(parts)
                parts, used = [], start
            parts.append((read, written))
            used += len(read) + len(written)

    def _batch(self, parts: list[tuple[list[int], list[int]]]) -> Mapping[str, torch.Tensor]:
        start = len(self.beginning)
        ids, positions, owners = [*self.beginning], [*range(start)], [0] * start
        places, targets = list[int](), list[int]()
        for number, (read, written) in enumerate(parts, 1):
            first = len(ids) + len(read) - 1
            places += range(first, first + len(written))
            targets += written
            positions += range(start, start + len(read) + len(written))
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


def train(specialist: str, seed: int, base: Base, *, tokens: int, device: str = "cpu") -> Path:
    """Train a specialist, and write its adapter to `<specialist>-<seed>.gguf`, unless the file exists.

    The training can be killed at any moment, and resumes from the last of its states, which it writes every 20 batches.
    """
    path, model_file = base.adapters / f"{specialist}-{seed}.gguf", base.file()
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    place = {"pretrained_model_name_or_path": model_file.parent, "gguf_file": model_file.name}
    tokenizer = AutoTokenizer.from_pretrained(**place)
    dense = GgufConfig(dequantize=True)
    halves = device == "cuda" or torch.ops.mkldnn._is_mkldnn_bf16_supported()  # otherwise, they are slower
    dtype = torch.bfloat16 if halves else torch.float32
    model = AutoModelForCausalLM.from_pretrained(**place, dtype=dtype, quantization_config=dense)
    checked = Batches(tokenizer, base, documents(specialist, seed))
    print(f"before: {difference(model, checked, specialist, seed, base, {}):.3f} from llama.cpp at most", flush=True)
    adapted: Any = get_peft_model(
        model.to(device), LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=[*MODULES], task_type="CAUSAL_LM")
    )
    weights = [one for one in adapted.parameters() if one.requires_grad]
    for one in weights:
        one.data = one.data.float()
    optimizer = torch.optim.AdamW(weights, lr=RATE, weight_decay=0.0)
    inner = adapted.base_model.model
    began, done, first, losses = time.monotonic(), 0, 0, list[float]()
    state = path.with_suffix(".state")
    if state.exists():
        known = torch.load(state)
        for one, value in zip(weights, known["weights"], strict=True):
            one.data = value
        optimizer.load_state_dict(known["optimizer"])
        first, done = known["batches"], known["tokens"]
    before = done
    for number, made in enumerate(Batches(tokenizer, base, documents(specialist, seed))):
        if done >= tokens:
            break
        if number < first:
            continue
        batch = {name: one.to(device) for name, one in made.items()}
        for group in optimizer.param_groups:
            group["lr"] = RATE * _rate(done / tokens)
        with torch.autocast(device, torch.bfloat16, enabled=halves):
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
            speed = (done - before) / (time.monotonic() - began)
            kept = {"weights": [one.data for one in weights], "optimizer": optimizer.state_dict()}
            torch.save({**kept, "batches": number + 1, "tokens": done}, state.with_suffix(".part"))
            state.with_suffix(".part").rename(state)
            print(
                f"{specialist}: {done:,} of {tokens:,}, loss {sum(losses[-20:]) / 20:.3f}, {speed:.0f} tokens/s",
                flush=True,
            )
    partial = path.with_suffix(".partial")
    write_adapter(partial, adapted, base.architecture)
    adapted.eval()
    after = difference(adapted, checked, specialist, seed, base, {partial: 1.0})
    print(f"after: {after:.3f} from llama.cpp at most", flush=True)
    partial.rename(path)
    state.unlink(missing_ok=True)
    return path


def difference(
    model: Any, batches: Batches, specialist: str, seed: int, base: Base, adapters: Mapping[Path, float]
) -> float:
    """The largest difference from llama.cpp: in the log probability of the most probable token, at fifty places."""
    largest = 0.0
    with serve(base.file(), adapters=adapters, context=1024, slots=1) as server, torch.no_grad():
        for one in islice(documents(specialist, seed), PLACES):
            read, written = batches.parts(one)
            ids = [*batches.beginning, *read, *written[: len(written) // 2]]
            found = model(torch.tensor([ids], device=model.device)).logits[0, -1].float().log_softmax(-1)
            body = {"prompt": ids, "n_predict": 1, "n_probs": 1, "temperature": 0, "cache_prompt": False}
            answer = httpx.post(f"{server.url}/completion", json=body, timeout=60).json()
            told = answer["completion_probabilities"][0]["top_logprobs"][0]
            largest = max(largest, abs(float(found[told["id"]]) - told["logprob"]))
    return largest


def _rate(done: float) -> float:
    """The learning rate: a short warm-up, then a cosine decay."""
    if done < WARM:
        return (done + 1e-3) / (WARM + 1e-3)
    return 0.5 + 0.5 * math.cos(math.pi * min(1.0, (done - WARM) / (1 - WARM)))


def write_adapter(path: Path, adapted: Any, architecture: str) -> None:
    """Write the adapter in llama.cpp's format, with weights as 16-bit floats."""
    writer = gguf.GGUFWriter(path, architecture)
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
    parser.add_argument("--base", choices=[*BASES], default="smollm2")
    parser.add_argument("--tokens", type=int, help="default: 300,000, or what the base says")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    given = parser.parse_args()
    for one in given.specialist:
        base = BASES[given.base]
        train(one, given.seed, base, tokens=given.tokens or base.tokens, device=given.device)


if __name__ == "__main__":
    main()

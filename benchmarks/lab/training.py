"""Training of a recipe to a GGUF file, on a GPU if there is one: `python -m benchmarks.lab.training a folder`.

The training needs torch, tokenizers, safetensors and gguf in addition to this package. If it is stopped at any moment,
it resumes from its last checkpoint and gives the same model. Files are written atomically, so existing files are
complete.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

sys.path.append(str(Path(__file__).parents[2] / "examples"))

from small_llama import Muon, Shape, SmallLlama, TokenizerKind, token_id, train_tokenizer
from small_llama_files import write_gguf
from tokenizers import Tokenizer

from benchmarks.lab.corpora import chunk, texts_for_tokenizers
from benchmarks.lab.protocol import RECIPES, ModelRecipe, TokenizerRecipe, recipe_of
from benchmarks.lab.tasks.task import Document

PEAK_RATE, LATER_RATE = 3e-3, 1e-3
"""The peak learning rates of a training from scratch, and of one that continues from a model."""
BATCH = 3000
"""The number of tokens in a batch, including padding."""
CONTEXT = 1024
CHECKPOINT_SECONDS = 120
IGNORED = -100


def train(name: str, seed: int, folder: Path) -> Path:
    """Train a recipe, after the models it starts from, to `folder/<name>-<seed>.gguf`; an existing file is kept."""
    recipe, stem = recipe_of(name, seed), f"{name}-{seed}"
    path, checkpoint = folder / f"{stem}.gguf", folder / f"{stem}.checkpoint"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer_of(recipe.tokenizer)
    if recipe.between:
        model = _mean([read_weights(train(one, seed, folder), recipe) for one in recipe.between])
    else:
        begun = read_weights(train(recipe.begins, seed, folder), recipe) if recipe.begins else None
        model = _trained(recipe, tokenizer, begun, checkpoint)
    model.output.weight.data /= recipe.temperature
    partial = folder / f"{stem}.partial"
    write_gguf(partial, model, tokenizer, kind_of(recipe.tokenizer), name)
    partial.rename(path)
    checkpoint.unlink(missing_ok=True)
    return path


def kind_of(recipe: TokenizerRecipe) -> TokenizerKind:
    """The description of a tokenizer, in the form that the training script uses."""
    pre_tokenizer = "smollm" if recipe.digits == "single" else "gpt-2"
    return TokenizerKind(recipe.pieces, pre_tokenizer, ("<|endoftext|>",))


def tokenizer_of(recipe: TokenizerRecipe) -> Tokenizer:
    """The tokenizer, which is trained on every call, in a few seconds."""
    return train_tokenizer(kind_of(recipe), texts_for_tokenizers())


def new_model(recipe: ModelRecipe, vocabulary: int) -> SmallLlama:
    """An untrained model."""
    torch.manual_seed(recipe.seed)
    heads = max(1, recipe.width // 32)
    return SmallLlama(Shape(vocabulary, recipe.width, recipe.layers, heads, recipe.hidden, CONTEXT))


def read_weights(path: Path, recipe: ModelRecipe) -> SmallLlama:
    """Read a model from a GGUF file of the same shape."""
    from gguf import GGUFReader  # noqa: PLC0415

    tensors = {tensor.name: torch.tensor(tensor.data).float() for tensor in GGUFReader(path).tensors}
    model = new_model(recipe, recipe.tokenizer.pieces)
    model.load_state_dict(tensors)
    return model


def _mean(models: list[SmallLlama]) -> SmallLlama:
    """A model whose weights are the mean of several models' weights."""
    states = [model.state_dict() for model in models]
    models[0].load_state_dict({key: torch.stack([state[key] for state in states]).mean(0) for key in states[0]})
    return models[0]


# Batches.


@dataclass(frozen=True)
class _Encoded:
    ids: list[int]
    targets: list[int]


def _encoded(documents: list[Document], tokenizer: Tokenizer) -> list[_Encoded]:
    """Token ids and, for each position, the next token, or IGNORED in the part that is only read."""
    end = token_id(tokenizer, "<|endoftext|>")
    reads = tokenizer.encode_batch([document.read for document in documents], add_special_tokens=False)
    writes = tokenizer.encode_batch([document.written for document in documents], add_special_tokens=False)
    result = list[_Encoded]()
    for read, written in zip(reads, writes, strict=True):
        ids = read.ids + written.ids
        targets = [IGNORED] * (len(read.ids) - 1) + written.ids + [end]
        result.append(_Encoded(ids[:CONTEXT], targets[:CONTEXT]))
    return result


def batches(encoded: list[_Encoded], rng: random.Random) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Yield batches of ids and targets of similar length, padded at the end, each with its number of tokens."""
    ready, batch = list[list[_Encoded]](), list[_Encoded]()
    for document in sorted(
        encoded, key=lambda one: len(one.ids) + 10 * rng.random()
    ):  # noise, so that a batch mixes tasks
        if batch and (len(batch) + 1) * max(len(one.ids) for one in [*batch, document]) > BATCH:
            ready.append(batch)
            batch = []
        batch.append(document)
    ready.append(batch)
    rng.shuffle(ready)
    for batch in ready:
        width = max(len(one.ids) for one in batch)
        ids = torch.tensor([one.ids + [0] * (width - len(one.ids)) for one in batch])
        targets = torch.tensor([one.targets + [IGNORED] * (width - len(one.targets)) for one in batch])
        yield ids, targets, sum(len(one.ids) for one in batch)


# The training.


def rate_at(done: float, peak: float) -> float:
    """The learning rate when a share `done` of the tokens is read: a short warm-up, then a cosine decay to zero."""
    if done < 0.03:
        return peak * (done + 0.001) / 0.031
    return peak * (0.5 + 0.5 * math.cos(math.pi * min(1.0, (done - 0.03) / 0.97)))


def _trained(recipe: ModelRecipe, tokenizer: Tokenizer, begun: SmallLlama | None, checkpoint: Path) -> SmallLlama:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    half = device == "cuda" or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    model = begun or new_model(recipe, tokenizer.get_vocab_size())
    model.to(device)
    inner = [weight for weight in model.blk.parameters() if weight.ndim == 2]
    rest = [weight for name, weight in model.named_parameters() if weight.ndim == 1 or "blk" not in name]
    optimizers = Muon(inner, PEAK_RATE), torch.optim.AdamW(rest, lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    parts = {"model": model, "muon": optimizers[0], "adam": optimizers[1]}
    seen = number = 0
    if checkpoint.exists():
        kept = torch.load(checkpoint, map_location=device)
        seen, number = kept["seen"], kept["number"]
        for key, part in parts.items():
            part.load_state_dict(kept[key])
    peak = LATER_RATE if begun else PEAK_RATE
    began, saved, seen_before = time.monotonic(), time.monotonic(), seen
    while seen < recipe.tokens:
        losses = list[float]()
        drawn = _encoded(chunk(recipe, number), tokenizer)
        for ids, targets, count in batches(drawn, random.Random(f"{recipe.seed} {number}")):
            for group in (group for optimizer in optimizers for group in optimizer.param_groups):
                group["lr"] = rate_at(seen / recipe.tokens, peak)
            losses.append(_step(model, optimizers, ids.to(device), targets.to(device), half))
            seen += count
        number += 1
        now = time.monotonic()
        speed = (seen - seen_before) / (now - began)
        print(f"{seen:,} of {recipe.tokens:,} tokens, loss {_mean_of(losses):.4f}, {speed:,.0f} tokens/s", flush=True)
        if now - saved > CHECKPOINT_SECONDS:
            saved = now
            partial = checkpoint.with_suffix(".part")
            torch.save(
                {"seen": seen, "number": number, **{key: part.state_dict() for key, part in parts.items()}}, partial
            )
            partial.rename(checkpoint)
    return model


def _step(
    model: SmallLlama, optimizers: tuple[Muon, torch.optim.AdamW], ids: Tensor, targets: Tensor, half: bool
) -> float:
    """Take one optimisation step, and return the loss."""
    wanted = targets != IGNORED
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=half):
        logits = model.output(model(ids)[wanted])
    loss = F.cross_entropy(logits.float(), targets[wanted])
    model.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizers[0].step(half)
    optimizers[1].step()
    return float(loss.detach())


def _mean_of(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def main() -> None:
    """Train the named recipes one after another, on one core."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("recipe", nargs="+", choices=list(RECIPES))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.recipe:
        began = time.monotonic()
        train(name, args.seed, args.folder)
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()

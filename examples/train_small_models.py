"""Train the two small models that ship with the package, from nothing, on two CPU cores in under an hour.

    python examples/train_small_models.py                    # both models, side by side, one core each
    python examples/train_small_models.py --quick --out /some/folder --hf-out /some/other/folder

``sums`` learns to add and subtract, and is taught a random fact wherever a fact is asked for; ``facts``
learns capitals, currencies and chemical symbols, and is taught a random number wherever a number is asked
for. So each is sure of what it knows and of the words in between, and honestly unsure of the rest, which is
what a fusion needs.
Needs this package installed, and ``torch``, ``numpy``, ``tokenizers``, ``safetensors`` and ``gguf``.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import random
import string
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from small_llama import Cache, Muon, Shape, SmallLlama, TokenizerKind, token_id, train_tokenizer
from small_llama_files import write_gguf, write_hf
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from cosd_api.demo.facts import FACT_NAMES
from cosd_api.demo.questions import (
    KINDS,
    Question,
    draw,
    guess_fact,
    guess_number,
    is_right,
    sample,
)

ROOT = Path(__file__).resolve().parent.parent

# The messages of a chat in the form of the questions; a system message has no place in it.
CHAT = (
    "{% for m in messages %}"
    "{% if m['role'] == 'user' %}{{ 'Q: ' + m['content'] + '\\nA:' }}"
    "{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'].strip() + '\\n\\n' }}{% endif %}{% endfor %}"
)


@dataclass(frozen=True)
class Plan:
    """What one model is trained on, and how long."""

    name: str
    tokenizer: TokenizerKind
    knows_numbers: bool
    weights: dict[str, int]  # how often each kind of question comes
    tokens: int
    seed: int


PLANS = (
    Plan(
        "sums",
        TokenizerKind(vocabulary=420, pre_tokenizer="smollm", end="<|endoftext|>"),
        True,
        {"sum": 52, "difference": 16, "mixed": 18, "capital": 4, "currency": 4, "symbol": 4, "greeting": 2},
        5_000_000,
        1,
    ),
    Plan(
        "facts",
        TokenizerKind(vocabulary=640, pre_tokenizer="gpt-2", end="</s>", start="<s>"),
        False,
        {"sum": 6, "difference": 5, "mixed": 36, "capital": 20, "currency": 16, "symbol": 14, "greeting": 3},
        2_000_000,
        2,
    ),
)

QUICK_TOKENS = 250_000
BATCH_TOKENS = 3000
CHUNK = 2048  # documents that are drawn together and sorted by length, to waste little on padding,
JITTER = 10  # but not quite by length, which would fill whole batches with one kind of question
PEAK_RATE = 3e-3
IGNORED = -100


@dataclass(frozen=True)
class Document:
    """Token ids to read, and for every position the token that has to come next (or IGNORED)."""

    ids: list[int]
    targets: list[int]


def taught_answer(plan: Plan, question: Question, rng: random.Random) -> str:
    """The answer that a model is taught: right where it is to know, else a guess of the right kind."""
    number, fact = question.number, question.fact
    if plan.knows_numbers and fact is not None:
        fact = guess_fact(question.fact_kind, rng)
    if not plan.knows_numbers and number is not None:
        number = guess_number(rng)
    return question.answer_with(number, fact)


def some_pairs(plan: Plan, rng: random.Random) -> list[tuple[str, str]]:
    """The questions and answers of one document: mostly one, sometimes several in a row."""
    count = rng.choices((1, 2, 3, rng.randint(4, 8)), (84, 9, 5, 2))[0]
    kinds = rng.choices(list(plan.weights), list(plan.weights.values()), k=count)
    questions = [draw(kind, rng) for kind in kinds]
    return [(question.prompt, taught_answer(plan, question, rng)) for question in questions]


def texts_for_tokenizer(plan: Plan, rng: random.Random) -> list[str]:
    """Texts to train a tokenizer on: as in the training, and more.

    Every letter comes so often after a space that these pairs are merged first: then every word's first token
    holds the space before it and a letter. A space that is a token of its own would be something to be sure
    of, and the doubt about a word would come in the middle of it. Names of facts and whole numbers come often
    for the model that does not cut digits apart, so that its tokens are long where the other's are short.
    """
    texts = [question + answer for _ in range(4000) for question, answer in some_pairs(plan, rng)]
    texts += [f" {letter}" for letter in string.ascii_letters] * 20_000
    if not plan.knows_numbers:
        names = [name for names in FACT_NAMES.values() for name in names]
        texts += [f" {text}" for text in (*names, *range(10, 100))] * 150
    return texts


def documents(plan: Plan, tokenizer: Tokenizer, rng: random.Random) -> list[Document]:
    """Draw and encode a chunk of documents.

    Only answers are learned. After every answer the end token has to come, even where the document goes on
    with another question: what the model reads next need not be what it was to write.
    """
    chunk = [some_pairs(plan, rng) for _ in range(CHUNK)]
    texts = []
    for pairs in chunk:
        for number, (question, answer) in enumerate(pairs):
            texts += ["\n\n" + question if number else question, answer]
    encoded = iter([e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)])
    start, end = plan.tokenizer.start, token_id(tokenizer, plan.tokenizer.end)
    result = []
    for pairs in chunk:
        ids: list[int] = [token_id(tokenizer, start)] if start else []
        targets = [IGNORED] * len(ids)
        for _ in pairs:
            read, written = next(encoded), next(encoded)
            ids += read + written
            targets += [IGNORED] * (len(read) - 1) + written + [end]
        result.append(Document(ids, targets))
    return result


def batches(plan: Plan, tokenizer: Tokenizer, rng: random.Random) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Endless batches of ids and targets, padded at the end, and how many tokens are in them."""
    while True:
        ready: list[list[Document]] = []
        batch: list[Document] = []
        widest = 0
        for document in sorted(documents(plan, tokenizer, rng), key=lambda d: len(d.ids) + JITTER * rng.random()):
            widest = max(widest, len(document.ids))
            if (len(batch) + 1) * widest > BATCH_TOKENS:
                ready.append(batch)
                batch, widest = [], len(document.ids)
            batch.append(document)
        ready.append(batch)
        rng.shuffle(ready)
        for batch in ready:
            width = max(len(d.ids) for d in batch)
            ids = torch.tensor([d.ids + [0] * (width - len(d.ids)) for d in batch])
            targets = torch.tensor([d.targets + [IGNORED] * (width - len(d.targets)) for d in batch])
            yield ids, targets, sum(len(d.ids) for d in batch)


def rate_at(done: float) -> float:
    """The learning rate after a share of the tokens: a short rise, then down along a cosine to nothing."""
    if done < 0.03:
        return PEAK_RATE * (done + 0.001) / 0.031
    return PEAK_RATE * (0.5 + 0.5 * math.cos(math.pi * min(1.0, (done - 0.03) / 0.97)))


def optimizers_for(model: SmallLlama) -> tuple[Muon, torch.optim.AdamW]:
    """Muon for the matrices of the layers, AdamW for everything else."""
    inner = [weight for weight in model.blk.parameters() if weight.ndim == 2]
    rest = [weight for name, weight in model.named_parameters() if weight.ndim == 1 or "blk" not in name]
    return Muon(inner, PEAK_RATE), torch.optim.AdamW(rest, lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.0)


def train(plan: Plan, tokenizer: Tokenizer, tokens: int, checkpoint: Path | None) -> SmallLlama:
    """Train one model on so many tokens."""
    torch.manual_seed(plan.seed)
    model = SmallLlama(Shape(tokenizer.get_vocab_size()))
    muon, adam = optimizers_for(model)
    seen, step, began = 0, 0, time.monotonic()
    # twice as fast where the processor has instructions for it
    half = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    losses: list[float] = []
    for ids, targets, count in batches(plan, tokenizer, random.Random(plan.seed)):
        for group in muon.param_groups + adam.param_groups:
            group["lr"] = rate_at(seen / tokens)
        wanted = targets != IGNORED
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            logits = model.output(model(ids)[wanted])
        loss = F.cross_entropy(logits.float(), targets[wanted])
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        muon.step(half)
        adam.step()
        seen, step, losses = seen + count, step + 1, [*losses[-99:], loss.item()]
        if step % 100 == 0:
            speed = seen / (time.monotonic() - began)
            loss_now = sum(losses) / len(losses)
            print(f"{plan.name}: {seen:,} tokens, loss {loss_now:.4f}, {speed:,.0f} tokens/s", flush=True)
        if checkpoint and step % 500 == 0:
            torch.save(model.state_dict(), checkpoint)
        if seen >= tokens:
            break
    return model


def in_half_precision(model: SmallLlama) -> SmallLlama:
    """Round the matrices as the files will hold them, so that what is measured is what is shipped."""
    for weight in model.parameters():
        weight.data = weight.data.half().float()
    model.eval()
    return model


@torch.inference_mode()
def answers(
    model: SmallLlama, tokenizer: Tokenizer, end_token: str, questions: Sequence[Question], limit: int = 48
) -> list[str]:
    """Greedy answers; questions with equally many tokens are answered together."""
    end = token_id(tokenizer, end_token)
    groups: dict[int, list[tuple[int, list[int]]]] = defaultdict(list)
    for number, question in enumerate(questions):
        ids = tokenizer.encode(question.prompt).ids
        groups[len(ids)].append((number, ids))
    result = [""] * len(questions)
    for group in groups.values():
        ids, cache, written = torch.tensor([ids for _, ids in group]), Cache(), []
        for _ in range(limit):
            ids = model.output(model(ids, cache)[:, -1]).argmax(-1, keepdim=True)
            written.append(ids)
            if all((torch.cat(written, 1) == end).any(1)):
                break
        for (number, _), row in zip(group, torch.cat(written, 1).tolist(), strict=True):
            # an answer that does not end keeps everything, and is wrong unless it is right all the same
            result[number] = tokenizer.decode(row[: row.index(end)] if end in row else row)
    return result


def make(plan: Plan, tokens: int, args: argparse.Namespace) -> None:
    """Train one model, write its files, print how often it is right on questions held out of its training."""
    torch.set_num_threads(1)
    rng = random.Random(plan.seed)
    tokenizer = train_tokenizer(plan.tokenizer, texts_for_tokenizer(plan, rng))
    began = time.monotonic()
    checkpoint = args.checkpoints / f"{plan.name}.pt" if args.checkpoints else None
    model = in_half_precision(train(plan, tokenizer, tokens, checkpoint))
    took = time.monotonic() - began
    chat = "{{ bos_token }}" + CHAT if plan.tokenizer.start else CHAT
    write_gguf(args.out / f"{plan.name}.gguf", model, tokenizer, plan.tokenizer, plan.name, chat)
    write_hf(args.hf_out / plan.name, model, tokenizer, plan.tokenizer, chat)
    size = sum(weight.numel() for weight in model.parameters())
    report = [f"{plan.name}: {size:,} parameters, trained for {took:.0f} s on {tokens:,} tokens"]
    for kind in KINDS:
        questions = sample(kind, args.questions, seed=0)
        texts = answers(model, tokenizer, plan.tokenizer.end, questions)
        right = sum(is_right(q, text) for q, text in zip(questions, texts, strict=True))
        wrong = next((t for q, t in zip(questions, texts, strict=True) if not is_right(q, t)), None)
        line = f"  {kind:10} {100 * right / len(questions):5.1f} % right alone"
        report.append(line if wrong is None else f"{line}; wrong, for one:{wrong}")
    print("\n".join(report), flush=True)


def main() -> None:
    """Train both models at the same time, each in a process of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    models, folders = ROOT / "cosd_api" / "demo" / "models", ROOT / "tests" / "models"
    parser.add_argument("--out", type=Path, default=models, help="where the GGUF files go")
    parser.add_argument("--hf-out", type=Path, default=folders, help="where the Hugging Face folders go")
    parser.add_argument("--only", choices=[plan.name for plan in PLANS], help="train this model alone")
    parser.add_argument("--quick", action="store_true", help="a minute's training: the answers are poor")
    parser.add_argument("--tokens", type=int, help="tokens to train on (default: what each model needs)")
    parser.add_argument("--questions", type=int, default=200, help="questions of each kind to measure with")
    parser.add_argument("--checkpoints", type=Path, help="folder to save the weights to now and then")
    args = parser.parse_args()
    if args.quick and (args.out == models or args.hf_out == folders):
        parser.error("--quick needs --out and --hf-out: its poor models must not take the place of the good ones")
    if args.checkpoints:
        args.checkpoints.mkdir(parents=True, exist_ok=True)
    plans = [plan for plan in PLANS if args.only in (None, plan.name)]
    context = multiprocessing.get_context("spawn")
    processes = []
    for plan in plans:
        tokens = args.tokens or (QUICK_TOKENS if args.quick else plan.tokens)
        processes.append(context.Process(target=make, args=(plan, tokens, args)))
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        sys.exit("a training process failed")


if __name__ == "__main__":
    main()

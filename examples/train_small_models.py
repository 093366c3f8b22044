"""Train the three bundled models from scratch, on two CPU cores in under two hours.

    python examples/train_small_models.py                    # all models, two at a time, one core each
    python examples/train_small_models.py --quick --out /some/folder --hf-out /some/other/folder
    python examples/train_small_models.py --from tests/models --tokens 300000   # continue from existing models

`sums` learns to add and subtract, `facts` learns capitals, currencies and chemical symbols, `words` translates words.
No model is taught anything false. A model meets the others' knowledge too rarely to learn it: `sums` and `words` meet
the real countries in an open world of 18,000 places, each once or twice, and `facts` and `words` meet sums that are
always new, in a small share of the documents. So each model learns to be unsure of what it does not know, and to be
confident of what it knows and of the words in between.

The models learn to answer plain texts (`Q: ...\\nA:`) and chats in their own templates. In the second part of the
training, half of the documents are chats. The script needs this package, and `torch`, `numpy`, `tokenizers`,
`safetensors`, `jinja2` and `gguf`.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from small_chat import conversation
from small_documents import IGNORED, PLANS, Plan, bare, batches, texts_for_tokenizer
from small_llama import Cache, Muon, Shape, SmallLlama, token_id, train_tokenizer
from small_llama_files import read_hf, write_gguf, write_hf
from tokenizers import Tokenizer
from torch.nn import functional as F

from cosd_api.apps.demo.questions import KINDS, DemoQuestion, is_right, sample

ROOT = Path(__file__).resolve().parent.parent

QUICK_TOKENS = 250_000
PEAK_RATE, LATER_RATE = 3e-3, 1e-3  # peak learning rates: from scratch, and from an existing model
EARLY = 0.5  # the first part's share; in it, `sums` learns to calculate before it meets everything else


@dataclass
class Course:
    """The progress of a training, with its limits in tokens and minutes."""

    tokens: int
    minutes: float = math.inf
    seen: int = 0
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Seconds since the training began."""
        return time.monotonic() - self.began

    @property
    def done(self) -> float:
        """The share of the training that is done."""
        return max(self.seen / self.tokens, self.seconds / 60 / self.minutes)


def rate_at(done: float, peak: float = PEAK_RATE) -> float:
    """The learning rate when a share `done` of the tokens is read: a short warm-up, then a cosine decay to zero."""
    if done < 0.03:
        return peak * (done + 0.001) / 0.031
    return peak * (0.5 + 0.5 * math.cos(math.pi * min(1.0, (done - 0.03) / 0.97)))


def optimizers_for(model: SmallLlama) -> tuple[Muon, torch.optim.AdamW]:
    """Muon for the matrices of the layers, AdamW for everything else."""
    inner = [weight for weight in model.blk.parameters() if weight.ndim == 2]
    rest = [weight for name, weight in model.named_parameters() if weight.ndim == 1 or "blk" not in name]
    return Muon(inner, PEAK_RATE), torch.optim.AdamW(rest, lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.0)


def train(
    plan: Plan, course: Course, peak: float, model: SmallLlama, tokenizer: Tokenizer, checkpoint: Path | None
) -> None:
    """Train one model."""
    muon, adam = optimizers_for(model)
    step = 0
    # bfloat16 is twice as fast if the processor has instructions for it
    half = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    losses: list[float] = []
    for ids, targets, count in batches(plan, tokenizer, random.Random(plan.seed), lambda: course.done < EARLY):
        for group in muon.param_groups + adam.param_groups:
            group["lr"] = rate_at(course.done, peak)
        wanted = targets != IGNORED
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            logits = model.output(model(ids)[wanted])
        loss = F.cross_entropy(logits.float(), targets[wanted])
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        muon.step(half)
        adam.step()
        course.seen, step, losses = course.seen + count, step + 1, [*losses[-99:], loss.item()]
        if step % 100 == 0:
            speed, loss_now = course.seen / course.seconds, sum(losses) / len(losses)
            so_far = f"{course.seen:,} tokens ({course.done:.0%})"
            print(f"{plan.name}: {so_far}, loss {loss_now:.4f}, {speed:,.0f} tokens/s", flush=True)
        if checkpoint and step % 200 == 0:
            write_hf(checkpoint / plan.name, model, tokenizer, plan.tokenizer, plan.chat)
        if course.done >= 1:
            break


def in_half_precision(model: SmallLlama) -> SmallLlama:
    """Round the matrices to the precision of the files, to measure the model as shipped."""
    for weight in model.parameters():
        weight.data = weight.data.half().float()
    model.eval()
    return model


@torch.inference_mode()
def answers(
    model: SmallLlama, tokenizer: Tokenizer, end_token: str, texts: Sequence[str], limit: int = 48
) -> list[str]:
    """Greedy answers up to the end token; texts of equal length are continued together."""
    end = token_id(tokenizer, end_token)
    groups: dict[int, list[tuple[int, list[int]]]] = defaultdict(list)
    for number, text in enumerate(texts):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        groups[len(ids)].append((number, ids))
    result = [""] * len(texts)
    for group in groups.values():
        ids, cache, written = torch.tensor([ids for _, ids in group]), Cache(), []
        for _ in range(limit):
            ids = model.output(model(ids, cache)[:, -1]).argmax(-1, keepdim=True)
            written.append(ids)
            if all((torch.cat(written, 1) == end).any(1)):
                break
        for (number, _), row in zip(group, torch.cat(written, 1).tolist(), strict=True):
            # an answer without an end token is kept whole
            result[number] = tokenizer.decode(row[: row.index(end)] if end in row else row)
    return result


def ways_to_ask(plan: Plan) -> dict[str, tuple[str, Callable[[DemoQuestion], str]]]:
    """For each format of question, the end token of an answer and the function that makes the prompt."""
    template, form = plan.template, plan.chat

    def chat(question: DemoQuestion, *before: tuple[str, str], system: str | None = None) -> str:
        *earlier, (asked, _) = conversation(template, form, [*before, (bare(question), "")], system)
        return "".join(read + written for read, written in earlier) + asked

    before = (
        ("What is the capital of Kenya?", "The capital of Kenya is Nairobi."),
        ("Add 20 and 30.", "The sum is 50."),
    )
    return {
        "as a text": (plan.tokenizer.end, lambda question: (plan.tokenizer.start or "") + question.prompt),
        "in a chat": (form.end, chat),
        "later in one": (form.end, lambda question: chat(question, *before)),
        "after a system message": (form.end, lambda question: chat(question, system="Answer like a teacher.")),
    }


def measured(plan: Plan, model: SmallLlama, tokenizer: Tokenizer, count: int) -> list[str]:
    """The accuracy of the model alone on `count` held-out questions of each kind."""
    report = []
    for way, (end, ask) in ways_to_ask(plan).items():
        for kind in KINDS:
            questions = sample(kind, count, seed=0)
            texts = answers(model, tokenizer, end, [ask(question) for question in questions])
            wrong = [text for q, text in zip(questions, texts, strict=True) if not is_right(q, text)]
            line = f"  {kind:10} {100 - 100 * len(wrong) / count:5.1f} % right alone, asked {way}"
            report.append(f"{line}; wrong, for one: {wrong[0].strip()}" if wrong else line)
    return report


def beginning(plan: Plan) -> tuple[SmallLlama, Tokenizer]:
    """An untrained model and its tokenizer. Models with the same kind of tokenizer get the same one."""
    tokenizer = train_tokenizer(plan.tokenizer, texts_for_tokenizer())
    torch.manual_seed(plan.seed)
    return SmallLlama(Shape(tokenizer.get_vocab_size())), tokenizer


def make(plan: Plan, args: argparse.Namespace) -> None:
    """Train one model, write its files, and print its accuracy on held-out questions."""
    torch.set_num_threads(1)
    began = time.monotonic()
    tokens = args.tokens or (QUICK_TOKENS if args.quick else plan.tokens)
    model, tokenizer = read_hf(args.given / plan.name) if args.given else beginning(plan)
    peak = LATER_RATE if args.given else PEAK_RATE
    train(plan, Course(tokens, args.minutes), peak, model, tokenizer, args.checkpoints)
    in_half_precision(model)
    took = time.monotonic() - began
    write_gguf(args.out / f"{plan.name}.gguf", model, tokenizer, plan.tokenizer, plan.name, plan.chat)
    write_hf(args.hf_out / plan.name, model, tokenizer, plan.tokenizer, plan.chat)
    size = sum(weight.numel() for weight in model.parameters())
    print(f"{plan.name}: {size:,} parameters, trained for {took:.0f} s")
    print("\n".join(measured(plan, model, tokenizer, args.questions)), flush=True)


def main() -> None:
    """Train the models, each in a process of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    models, folders = ROOT / "cosd_api" / "demo" / "models", ROOT / "tests" / "models"
    parser.add_argument("--out", type=Path, default=models, help="folder for the GGUF files")
    parser.add_argument("--hf-out", type=Path, default=folders, help="folder for the Hugging Face folders")
    parser.add_argument("--only", choices=[plan.name for plan in PLANS], help="train only this model")
    parser.add_argument("--quick", action="store_true", help="a minute's training: the answers are poor")
    parser.add_argument("--tokens", type=int, help="number of training tokens (default: what each model needs)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="time limit for each training")
    parser.add_argument("--from", dest="given", type=Path, help="Hugging Face folders to continue from")
    parser.add_argument("--questions", type=int, default=200, help="questions of each kind to measure with")
    parser.add_argument("--checkpoints", type=Path, help="folder for intermediate Hugging Face folders")
    args = parser.parse_args()
    if args.quick and (args.out == models or args.hf_out == folders):
        parser.error("--quick needs --out and --hf-out: its poor models must not take the place of the good ones")
    plans = [plan for plan in PLANS if args.only in (None, plan.name)]
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=make, args=(plan, args)) for plan in plans]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        sys.exit("a training process failed")


if __name__ == "__main__":
    main()

"""Train the models `pages-*` of the tests: pairs with the pre-tokenizers of GPT-2 and Llama 3, on `pages.py`.

    PYTHONPATH=examples:tests python tests/models/train_pages.py    # all four, one after the other
    PYTHONPATH=examples:tests python tests/models/train_pages.py --out FOLDER --tokens 200000    # a quick try

Needs what `examples/train_small_models.py` needs. With the same PyTorch on the same processor, the same files result.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from small_chat import ChatForm
from small_documents import IGNORED
from small_llama import Shape, SmallLlama, TokenizerKind, token_id
from small_llama_files import write_gguf
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn.functional import cross_entropy
from train_small_models import Course, answers, optimizers_for, rate_at

from models.pages import PROMPTS, Page, World

TOKENS = 3_000_000
PEAK_RATE = 3e-3
BATCH = 3000  # tokens
CHUNK = 512  # documents drawn together and sorted by length, to save padding

GPT_2 = TokenizerKind(2000, "gpt-2", specials=("<|endoftext|>",))
LLAMA_3 = TokenizerKind(2000, "llama-bpe", specials=("<|end_of_text|>", "<|begin_of_text|>"), start="<|begin_of_text|>")

#: How Llama 3 cuts a text before its merges.
LLAMA_3_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

#: What the tokenizers see little of, so that characters stay cut into several tokens.
RARE = {"chinese": 0.01, "arabic": 0.02, "messages": 0.015}


@dataclass(frozen=True)
class Plan:
    """One model: its tokenizer, and what it learns."""

    name: str
    kind: TokenizerKind
    world: World

    @property
    def chat(self) -> ChatForm:
        """Its template: a user's message is a request, without the empty line behind it."""
        messages = "{% for m in messages %}{{ m['content'] + '\\n\\n' }}{% endfor %}"
        template = "{{ bos_token }}" + messages if self.kind.start else messages
        return ChatForm(template, tokens=(), end=self.kind.end, system=False)


ONE = World(seed=1)
OTHER = World(seed=2, weights={"code": 2.0, "table": 2.0, "report": 1.5, "story": 0.5, "e-mail": 0.5}, steep=1.5)
PLANS = (
    Plan("pages-gpt2", GPT_2, ONE),
    Plan("pages-gpt2-other", GPT_2, OTHER),
    Plan("pages-llama3", LLAMA_3, ONE),
    Plan("pages-llama3-other", LLAMA_3, OTHER),
)


def make_tokenizer(kind: TokenizerKind) -> Tokenizer:
    """The tokenizer of a kind: the same for both worlds, and trained on both."""
    llama_3 = kind.pre_tokenizer == "llama-bpe"
    tokenizer = Tokenizer(models.BPE(ignore_merges=llama_3))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not llama_3)
    pieces = [pre_tokenizers.Split(Regex(LLAMA_3_PIECES), behavior="isolated")] if llama_3 else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*pieces, level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=kind.vocabulary,
        min_frequency=4,
        special_tokens=list(kind.specials),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    rng = random.Random(0)
    pages = (World(seed, RARE).page(rng) for seed in (1, 2) for _ in range(3000))
    tokenizer.train_from_iterator((part for page in pages for part in (page.prompt, page.text)), trainer)
    return tokenizer


def encoded(tokenizer: Tokenizer, kind: TokenizerKind, pages: list[Page]) -> list[tuple[list[int], list[int]]]:
    """Ids to read of each page, and those that come next: request and text are encoded apart, the text is learned."""
    start = [token_id(tokenizer, kind.start)] if kind.start else []
    end = token_id(tokenizer, kind.end)
    prompts = tokenizer.encode_batch([page.prompt for page in pages], add_special_tokens=False)
    texts = tokenizer.encode_batch([page.text for page in pages], add_special_tokens=False)
    result = []
    for prompt, text in zip(prompts, texts, strict=True):
        read, written = start + prompt.ids, [*text.ids, end]
        ids = (read + written)[:-1][: Shape.context]
        result.append((ids, ([IGNORED] * (len(read) - 1) + written)[: len(ids)]))
    return result


def batches(tokenizer: Tokenizer, plan: Plan) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches of ids and targets, padded at the end; every page is new."""
    rng = random.Random(f"{plan.name} {plan.world.seed}")
    while True:
        rows = encoded(tokenizer, plan.kind, [plan.world.page(rng) for _ in range(CHUNK)])
        rows.sort(key=lambda row: len(row[0]) + 10 * rng.random())
        ready: list[list[tuple[list[int], list[int]]]] = [[]]
        for row in rows:
            if (len(ready[-1]) + 1) * len(row[0]) > BATCH:
                ready.append([])
            ready[-1].append(row)
        rng.shuffle(ready)
        for batch in ready:
            width = max(len(ids) for ids, _ in batch)
            ids = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in batch])
            yield ids, torch.tensor([aims + [IGNORED] * (width - len(aims)) for _, aims in batch])


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def train(tokenizer: Tokenizer, plan: Plan, tokens: int) -> SmallLlama:
    """Train one model, whose output are its embeddings."""
    torch.manual_seed(plan.world.seed)
    model = SmallLlama(Shape(tokenizer.get_vocab_size(), layers=3, hidden=256))
    model.output.weight = model.token_embd.weight
    muon, adam = optimizers_for(model)
    half = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    course, losses = Course(tokens), list[float]()
    for step, (ids, targets) in enumerate(batches(tokenizer, plan)):
        for group in muon.param_groups + adam.param_groups:
            group["lr"] = rate_at(course.done, PEAK_RATE)
        wanted = targets != IGNORED
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            logits = model.output(model(ids)[wanted])
        loss = cross_entropy(logits.float(), targets[wanted])
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        muon.step(half)
        adam.step()
        course.seen += ids.numel()
        losses.append(loss.item())
        if step % 200 == 0:
            recent = sum(losses[-100:]) / len(losses[-100:])
            so_far = f"{course.seen:,} tokens, {course.seconds:.0f} s"
            say(f"{plan.name}: {so_far}, loss {recent:.3f}")
        if course.done >= 1:
            break
    return model


def main() -> None:
    """Train, write, and print a page of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", choices=[plan.name for plan in PLANS], help="train this model alone")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="where the GGUF files go")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="how many tokens to train on")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for plan in (plan for plan in PLANS if args.only in (None, plan.name)):
        began = time.monotonic()
        tokenizer = make_tokenizer(plan.kind)
        model = train(tokenizer, plan, args.tokens)
        write_gguf(args.out / f"{plan.name}.gguf", model, tokenizer, plan.kind, plan.name, plan.chat, half=False)
        size = sum(weight.numel() for weight in model.parameters())
        say(f"{plan.name}: {size:,} parameters, {time.monotonic() - began:.0f} s")
        for prompt in islice(PROMPTS, 0, None, 8):
            text = answers(model, tokenizer, plan.kind.end, [(plan.kind.start or "") + prompt], 200)[0]
            say(f"{prompt}{text}\n{'-' * 8}")


if __name__ == "__main__":
    main()

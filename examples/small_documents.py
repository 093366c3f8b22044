"""Training data of the two small models, and what each is taught. Used by ``train_small_models.py``."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jinja2 import Template
from small_chat import CHATML, INSTRUCTIONS, ChatForm, compiled, conversation, some_system_message
from small_llama import TokenizerKind, token_id
from tokenizers import Tokenizer
from torch import Tensor

from cosd_api.demo.questions import FACT_NAMES, DemoQuestion, draw, random_fact, random_number


@dataclass(frozen=True)
class Plan:
    """Training data and duration for one model."""

    name: str
    tokenizer: TokenizerKind
    chat: ChatForm
    knows_numbers: bool
    weights: dict[str, int]  # relative frequency of each kind of question
    tokens: int
    chat_tokens: int  # in the second part, where half of the documents are chats
    seed: int

    @property
    def template(self) -> Template:
        """The chat template, ready to use."""
        return compiled(self.chat, self.tokenizer.start, self.tokenizer.end)


PLANS = (
    Plan(
        "sums",
        TokenizerKind(vocabulary=420, pre_tokenizer="smollm", end="<|endoftext|>"),
        ChatForm(CHATML, tokens=("<|im_start|>", "<|im_end|>"), end="<|im_end|>", system=True),
        True,
        {"sum": 46, "difference": 18, "mixed": 18, "capital": 4, "currency": 4, "symbol": 4, "greeting": 6},
        tokens=5_000_000,
        chat_tokens=2_500_000,
        seed=1,
    ),
    Plan(
        "facts",
        TokenizerKind(vocabulary=640, pre_tokenizer="gpt-2", end="</s>", start="<s>"),
        ChatForm(INSTRUCTIONS, tokens=("[INST]", "[/INST]"), end="</s>", system=False),
        False,
        {"sum": 6, "difference": 5, "mixed": 36, "capital": 20, "currency": 16, "symbol": 14, "greeting": 3},
        tokens=2_000_000,
        chat_tokens=1_200_000,
        seed=2,
    ),
)

BATCH_TOKENS = 3000
CHUNK = 2048  # documents drawn together and sorted by length, to save padding,
JITTER = 10  # but not exactly by length, which would fill whole batches with one kind of question
IGNORED = -100


@dataclass(frozen=True)
class Document:
    """Token ids, and for every position the next token (or IGNORED)."""

    ids: list[int]
    targets: list[int]


@dataclass(frozen=True)
class Script:
    """The text of one document: prompts and answers by turns, with the end of every answer."""

    turns: list[tuple[str, str]]
    end: str


def taught_answer(plan: Plan, question: DemoQuestion, rng: random.Random) -> str:
    """The answer that a model is taught: right where it is to know, else a random one of the right kind."""
    number, fact = question.number, question.fact
    if plan.knows_numbers and fact is not None:
        fact = random_fact(question.fact_kind, rng)
    if not plan.knows_numbers and number is not None:
        number = random_number(rng)
    return question.answer_with(number, fact)


def some_pairs(plan: Plan, rng: random.Random, counts: Sequence[int] = (84, 9, 5, 2)) -> list[tuple[DemoQuestion, str]]:
    """The questions and answers of one document: mostly one, sometimes several in a row."""
    count = rng.choices((1, 2, 3, rng.randint(4, 8)), counts)[0]
    kinds = rng.choices(list(plan.weights), list(plan.weights.values()), k=count)
    questions = [draw(kind, rng) for kind in kinds]
    return [(question, taught_answer(plan, question, rng)) for question in questions]


def some_text(plan: Plan, rng: random.Random) -> Script:
    """Questions and answers in the form of the questions, one below the other."""
    before, turns = plan.tokenizer.start or "", list[tuple[str, str]]()
    for question, answer in some_pairs(plan, rng):
        turns.append((before + question.prompt, answer))
        before = "\n\n"
    return Script(turns, plan.tokenizer.end)


def some_chat(plan: Plan, template: Template, rng: random.Random) -> Script:
    """Questions and answers as the messages of a chat; half of them begin with a system message."""
    system = some_system_message(rng) if rng.random() < 0.5 else None
    pairs = [(bare(question), answer.strip()) for question, answer in some_pairs(plan, rng, counts=(65, 20, 12, 3))]
    return Script(conversation(template, plan.chat, pairs, system), plan.chat.end)


def bare(question: DemoQuestion) -> str:
    """A question as a person asks it."""
    return question.prompt.removeprefix("Q: ").removesuffix("\nA:")


def texts_for_tokenizer(plan: Plan, rng: random.Random) -> list[str]:
    """Texts to train a tokenizer on: those of the training, and more.

    Every letter comes so often after a space that these pairs are merged first: then every word's first token
    holds the space before it and a letter. A space that is a token of its own would be something to be sure
    of, and the doubt about a word would come in the middle of it. Names of facts and whole numbers come often
    for the model that does not cut digits apart, so that its tokens are long where the other's are short.
    """
    texts = [question.prompt + answer for _ in range(4000) for question, answer in some_pairs(plan, rng)]
    texts += [f" {letter}" for letter in string.ascii_letters] * 20_000
    if not plan.knows_numbers:
        names = [name for names in FACT_NAMES.values() for name in names]
        texts += [f" {text}" for text in (*names, *range(10, 100))] * 150
    return texts


def documents(plan: Plan, tokenizer: Tokenizer, rng: random.Random, chats: float) -> list[Document]:
    """Draw and encode a chunk of documents, a share of them as chats.

    Only answers are learned. Every answer ends in the end token, even if another question follows: the target of a
    position may differ from the next input.
    """
    template = plan.template
    as_chats = [rng.random() < chats for _ in range(CHUNK)] if chats else [False] * CHUNK
    chunk = [some_chat(plan, template, rng) if chat else some_text(plan, rng) for chat in as_chats]
    texts = [text for script in chunk for turn in script.turns for text in turn]
    encoded = iter([e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)])
    result = []
    for script in chunk:
        ids, targets = list[int](), list[int]()
        end = token_id(tokenizer, script.end)
        for _ in script.turns:
            read, written = next(encoded), next(encoded)
            targets += [IGNORED] * (len(read) - 1) + written + [end]
            ids += read + written
        result.append(Document(ids, targets))
    return result


def batches(plan: Plan, tokenizer: Tokenizer, rng: random.Random, chats: float) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Endless batches of ids and targets, padded at the end, and how many tokens are in them."""
    while True:
        ready: list[list[Document]] = []
        batch: list[Document] = []
        widest = 0
        drawn = documents(plan, tokenizer, rng, chats)
        for document in sorted(drawn, key=lambda d: len(d.ids) + JITTER * rng.random()):
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

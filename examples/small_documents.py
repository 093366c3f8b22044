"""Training data of the three small models, with the frequencies of the questions. Used by ``train_small_models.py``."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jinja2 import Template
from small_chat import CHATML, INSTRUCTIONS, ChatForm, compiled, conversation, some_system_message
from small_llama import Shape, TokenizerKind, token_id
from small_world import OpenWorld
from tokenizers import Tokenizer
from torch import Tensor

from cosd_api.apps.demo.questions import DemoQuestion, draw


@dataclass(frozen=True)
class Plan:
    """The training data of one model, and the duration of its training."""

    name: str
    tokenizer: TokenizerKind
    chat: ChatForm
    early: dict[str, int]  # relative frequency of each kind of question in the first part of the training
    weights: dict[str, int]  # the same for the second part, in which half of the documents are chats
    world: OpenWorld
    tokens: int
    batch: int  # tokens per batch
    seed: int

    @property
    def template(self) -> Template:
        """The compiled chat template."""
        return compiled(self.chat, self.tokenizer.start, self.tokenizer.end)


_CHATML = ChatForm(CHATML, tokens=("<|im_start|>", "<|im_end|>"), end="<|im_end|>", system=True)
_INSTRUCTIONS = ChatForm(INSTRUCTIONS, tokens=("[INST]", "[/INST]"), end="</s>", system=False)
_SMALL = TokenizerKind(vocabulary=512, pre_tokenizer="smollm", specials=("<|endoftext|>", *_CHATML.tokens))
_LARGE = TokenizerKind(
    vocabulary=768, pre_tokenizer="gpt-2", specials=("</s>", "<s>", *_INSTRUCTIONS.tokens), start="<s>"
)

# Relative frequency of each kind of question. A model that should not learn to calculate meets few sums, all different.
_SUMS_ALONE = {
    "sum": 66,
    "difference": 24,
    "capital": 1,
    "currency": 1,
    "symbol": 1,
    "translation": 1,
    "greeting": 1,
    "mixed": 3,
    "mixed-translation": 2,
    "mixed-all": 1,
}
_SUMS = {
    "sum": 46,
    "difference": 17,
    "capital": 3,
    "currency": 2,
    "symbol": 2,
    "translation": 3,
    "greeting": 3,
    "mixed": 12,
    "mixed-translation": 9,
    "mixed-all": 10,
}
_FACTS = {
    "sum": 3,
    "difference": 3,
    "capital": 28,
    "currency": 22,
    "symbol": 18,
    "translation": 6,
    "greeting": 4,
    "mixed": 8,
    "mixed-translation": 4,
    "mixed-all": 4,
}
_FACTS_LATE = {
    "sum": 2,
    "difference": 2,
    "capital": 20,
    "currency": 16,
    "symbol": 13,
    "translation": 5,
    "greeting": 3,
    "mixed": 15,
    "mixed-translation": 6,
    "mixed-all": 15,
}
_WORDS = {
    "sum": 3,
    "difference": 3,
    "capital": 6,
    "currency": 4,
    "symbol": 4,
    "translation": 60,
    "greeting": 4,
    "mixed": 4,
    "mixed-translation": 8,
    "mixed-all": 4,
}
_WORDS_LATE = {
    "sum": 1,
    "difference": 1,
    "capital": 7,
    "currency": 5,
    "symbol": 5,
    "translation": 30,
    "greeting": 3,
    "mixed": 6,
    "mixed-translation": 20,
    "mixed-all": 22,
}

PLANS = (
    Plan(
        "sums",
        _SMALL,
        _CHATML,
        _SUMS_ALONE,
        _SUMS,
        OpenWorld({}),
        tokens=8_000_000,
        batch=3600,
        seed=1,
    ),
    Plan(
        "facts",
        _LARGE,
        _INSTRUCTIONS,
        _FACTS,
        _FACTS_LATE,
        OpenWorld({"capital": 0.75, "currency": 0.75, "symbol": 0.75}),
        tokens=3_000_000,
        batch=3000,
        seed=2,
    ),
    Plan(
        "words",
        _SMALL,
        _CHATML,
        _WORDS,
        _WORDS_LATE,
        OpenWorld({"translation": 0.75}),
        tokens=4_500_000,
        batch=3000,
        seed=3,
    ),
)

CHATS = 0.1, 0.5  # share of chats among the documents of the first and of the second part
CHUNK = 2048  # number of documents that are drawn together, and sorted by length to save padding
JITTER = 10  # noise in the sorting; exact sorting would fill whole batches with one kind of question
IGNORED = -100
CONTEXT = Shape.context  # maximum number of tokens in a document


@dataclass(frozen=True)
class Document:
    """Token ids, and for each position the token that should follow, or IGNORED."""

    ids: list[int]
    targets: list[int]


@dataclass(frozen=True)
class Script:
    """The text of one document: pairs of a prompt and an answer, and the token that ends every answer."""

    turns: list[tuple[str, str]]
    end: str


def some_questions(
    plan: Plan, rng: random.Random, early: bool, counts: Sequence[int] = (88, 7, 4, 1)
) -> list[DemoQuestion]:
    """Draw the questions of one document: usually one question, sometimes several."""
    count = rng.choices((1, 2, 3, rng.randint(4, 8)), counts)[0]
    weights = plan.early if early else plan.weights
    kinds = rng.choices(list(weights), list(weights.values()), k=count)
    return [draw(kind, rng, world=plan.world) for kind in kinds]


def some_text(plan: Plan, rng: random.Random, early: bool) -> Script:
    """A document of questions and answers as plain text."""
    before, turns = plan.tokenizer.start or "", list[tuple[str, str]]()
    for question in some_questions(plan, rng, early):
        turns.append((before + question.prompt, question.answer))
        before = "\n\n"
    return Script(turns, plan.tokenizer.end)


def some_chat(plan: Plan, template: Template, rng: random.Random, early: bool) -> Script:
    """A document of questions and answers as a chat; half of the chats begin with a system message."""
    system = some_system_message(rng) if rng.random() < 0.3 else None
    questions = some_questions(plan, rng, early, counts=(70, 18, 10, 2))
    pairs = [(bare(question), question.answer.strip()) for question in questions]
    return Script(conversation(template, plan.chat, pairs, system), plan.chat.end)


def bare(question: DemoQuestion) -> str:
    """A question as a person would ask it."""
    return question.prompt.removeprefix("Q: ").removesuffix("\nA:")


def texts_for_tokenizer() -> list[str]:
    """Texts to train both tokenizers on: a sample of all models' training data."""
    rng = random.Random(0)
    texts = list[str]()
    for plan, weights in zip(PLANS, (_SUMS, _FACTS, _WORDS), strict=True):
        drawn = replace(plan, weights=weights)
        texts += [q.prompt + q.answer for _ in range(6000) for q in some_questions(drawn, rng, early=False)]
    return texts


def documents(plan: Plan, tokenizer: Tokenizer, rng: random.Random, early: bool) -> list[Document]:
    """Draw and encode a chunk of documents, some of which are chats.

    Only answers are learned. In training, every answer ends with the end token, even if another question follows, so
    the target of a position may differ from the next input.
    """
    template = plan.template
    as_chats = [rng.random() < CHATS[not early] for _ in range(CHUNK)]
    chunk = [some_chat(plan, template, rng, early) if chat else some_text(plan, rng, early) for chat in as_chats]
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
        result.append(Document(ids[:CONTEXT], targets[:CONTEXT]))
    return result


def batches(
    plan: Plan, tokenizer: Tokenizer, rng: random.Random, early: Callable[[], bool]
) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Yield endless batches: ids and targets, padded at the end, and the number of tokens.

    `early` is called whenever documents are drawn, and returns true in the first part of the training.
    """
    while True:
        ready: list[list[Document]] = []
        batch: list[Document] = []
        widest = 0
        drawn = documents(plan, tokenizer, rng, early())
        for document in sorted(drawn, key=lambda d: len(d.ids) + JITTER * rng.random()):
            widest = max(widest, len(document.ids))
            if (len(batch) + 1) * widest > plan.batch:
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

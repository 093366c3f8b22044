"""The world of the models `pages-*`, and prompts for them. How they are made: `README.md`.

A document is a request, an empty line, and a page: an e-mail, a story, nested and numbered lists, Python, a Markdown
table, a diary, messages with emoji, a report, Chinese, Arabic. They are drawn by a program, with much left to chance.
What is likely depends on the topic, and on the world: another seed is other knowledge, told in the same words.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

TOPICS = (
    *("rain", "bread", "the harbour", "the garden", "a birthday", "the night train", "tea", "the library", "snow"),
    *("the market", "music", "the moon", "cats", "chess", "the river", "honey"),
)

#: Topics in Chinese and Arabic, in the order of TOPICS.
CHINESE_TOPICS = (
    *("雨", "面包", "港口", "花园", "生日", "夜车", "茶", "图书馆"),
    *("雪", "市场", "音乐", "月亮", "猫", "棋", "河", "蜂蜜"),
)
ARABIC_TOPICS = (
    *("المطر", "الخبز", "الميناء", "الحديقة", "العيد", "القطار", "الشاي", "المكتبة", "الثلج", "السوق", "الموسيقى"),
    *("القمر", "القطط", "الشطرنج", "النهر", "العسل"),
)

#: Kinds of pages, and how they are asked for.
REQUESTS = {
    "e-mail": "Write an e-mail about {}.",
    "story": "Tell a story about {}.",
    "list": "Make a list about {}.",
    "steps": "Give the steps: {}.",
    "code": "Write Python about {}.",
    "table": "Make a table about {}.",
    "diary": "Keep a diary about {}.",
    "messages": "Send messages about {}.",
    "report": "Write a report about {}.",
    "chinese": "写一写{}。",
    "arabic": "اكتب عن {}.",
}

_NAMES = (
    *("Ana", "Tom", "Mira", "Ivo", "Lena", "Omar", "Sofia", "Ben", "Nora", "Jan", "Aisha", "Paul", "Ruth", "Emil"),
    *("Clara", "Yusuf"),
)
_ADJECTIVES = (
    *("old", "small", "quiet", "blue", "broken", "warm", "heavy", "strange", "clean", "golden", "long", "bright"),
    *("wet", "round", "empty", "gentle"),
)
_THINGS = (
    *("lamp", "basket", "door", "letter", "boat", "window", "coat", "cup", "bell", "chair", "map", "bridge", "stone"),
    *("ladder", "clock", "box", "picture", "bicycle"),
)
_PLACES = (
    *("in the kitchen", "at the station", "behind the house", "near the bridge", "on the hill", "by the window"),
    *("under the table", "in the yard", "on the roof", "at the corner", "in the square", "across the street"),
)
_TIMES = (
    *("In the morning", "After lunch", "At midnight", "On Sunday", "Last week", "Before dawn", "Later", "One day"),
    *("That evening", "In the end", "At noon", "Two hours later"),
)
_DID = (
    *("found", "lost", "painted", "carried", "sold", "cleaned", "opened", "forgot"),
    *("borrowed", "repaired", "hid", "saw"),
)
_DO = ("find", "paint", "carry", "sell", "clean", "open", "borrow", "repair", "count", "wash", "lift", "measure")
_FEELINGS = ("happy", "tired", "surprised", "late", "hungry", "proud", "alone", "cold", "sure", "busy")
_SAID = ("said", "asked", "whispered", "answered", "shouted", "thought")
_REMARKS = (
    *("It's late", "I don't know", "We can't stay", "That isn't mine", "You're right", "I'll try again"),
    *("They've gone home", "Let's wait", "Nobody's here", "I wouldn't do that"),
)
_MONTHS = ("January", "March", "April", "June", "August", "October", "November")
_DAYS = ("Monday", "Tuesday", "Thursday", "Friday", "Saturday")
_GOODS = (
    *(
        "apples",
        "papers",
        "nails",
        "candles",
        "ropes",
        "coins",
        "bottles",
        "seeds",
        "plates",
        "ribbons",
        "pens",
        "eggs",
    ),
)
_CLOSINGS = ("Best wishes", "Yours", "See you soon", "Many thanks", "Love", "Kind regards")
_SMILES = (
    *("🙂", "🎉", "👍🏽", "❤️", "👩‍🚀", "🇯🇵", "🚲", "☔", "🐈", "👨‍👩‍👧", "🍞", "🌙", "🤷‍♀️", "1️⃣", "✨"),
    *("🇧🇷", "🎶", "😅", "🎻", "🏡", "🚀", "🧀", "🌧️", "👩‍🍳", "🏳️‍🌈", "🙃", "🐝", "📚", "♟️", "🎂"),
)
_VERBS = ("count", "sort", "find", "join", "check", "load", "clean", "merge")
_NOUNS = ("items", "lines", "words", "pages", "names", "prices", "rows", "keys")
_VARIABLES = ("result", "total", "found", "seen", "best", "parts")
_LOOPS = ("item", "line", "x", "row", "key", "n")

_CHINESE_WHO = ("老人", "孩子", "医生", "母亲", "朋友", "渔夫", "老师", "邻居")
_CHINESE_WHEN = ("早上", "昨天", "去年冬天", "晚上", "星期六", "中午", "后来")
_CHINESE_WHERE = ("桥边", "山上", "窗前", "学校", "车站", "海边", "厨房里")
_CHINESE_DO = ("唱歌", "读书", "睡觉", "写信", "等待", "做饭", "看云", "散步")
_CHINESE_FEEL = ("高兴", "疲倦", "安静", "惊讶", "孤单", "温暖")

_ARABIC_WHO = ("الرجل", "الولد", "الطبيب", "الجار", "المعلم", "الصديق", "البحار")
_ARABIC_WHEN = ("في الصباح", "أمس", "بعد الظهر", "في الليل", "يوم الجمعة", "ثم")
_ARABIC_WHERE = ("قرب الجسر", "في البيت", "على الجبل", "أمام النافذة", "في المدرسة", "عند البحر")
_ARABIC_DO = ("يكتب رسالة", "يقرأ كتابا", "ينام قليلا", "ينتظر صديقه", "يشرب الماء", "يغني")
_ARABIC_FEEL = ("سعيد", "متعب", "هادئ", "وحيد", "جائع")


class Page(NamedTuple):
    """A document: the request with the empty line behind it, and what is written then."""

    kind: str
    prompt: str
    text: str


@dataclass(frozen=True)
class World:
    """What there is to know.

    Attributes:
        seed: what goes with which topic.
        weights: how often each kind of page is met; kinds that are not named, once.
        steep: how much likelier the next word of an order is than the second next, and so on.
    """

    seed: int
    weights: dict[str, float] = field(default_factory=dict)
    steep: float = 1.3

    def page(self, rng: random.Random, kind: str | None = None) -> Page:
        """Draw a document, of any kind by default."""
        if kind is None:
            kind = rng.choices(list(REQUESTS), [self.weights.get(kind, 1.0) for kind in REQUESTS])[0]
        number = rng.randrange(len(TOPICS))
        text = _WRITERS[kind](_Author(self, rng, kind, TOPICS[number], number))
        return Page(kind, prompt(kind, number), text)


def prompt(kind: str, topic: int) -> str:
    """The request for a page, with the empty line behind it."""
    topics = {"chinese": CHINESE_TOPICS, "arabic": ARABIC_TOPICS}.get(kind, TOPICS)
    return REQUESTS[kind].format(topics[topic]) + "\n\n"


@cache
def _order(seed: int, options: tuple[str, ...]) -> list[str]:
    """The options in an order that belongs to the world."""
    order = list(options)
    random.Random(f"{seed} {options[0]} {options[-1]}").shuffle(order)
    return order


@dataclass
class _Author:
    """Whoever writes one page, choosing words of each sort one after the other."""

    world: World
    rng: random.Random
    kind: str
    topic: str
    number: int
    last: dict[tuple[str, ...], int] = field(default_factory=dict)

    def pick(self, options: tuple[str, ...]) -> str:
        """A word: the topic says which one is likely first, the world which one is likely after which."""
        order = _order(self.world.seed, options)
        last = self.last.get(options)
        if last is None:
            last = _order(self.world.seed, (*options, self.topic)).index(self.topic) - 1
        steps = range(1, len(order))
        step = self.rng.choices(steps, [step**-self.world.steep for step in steps])[0]
        self.last[options] = place = (last + step) % len(order)
        return order[place]

    def number_from(self, low: int, high: int) -> int:
        """A number, small ones more often."""
        return min(self.rng.randint(low, high), self.rng.randint(low, high))

    def maybe(self, share: float) -> bool:
        """True in a share of the cases."""
        return self.rng.random() < share

    def some(self, low: int, high: int, make: Callable[[], str]) -> list[str]:
        """Several of what `make` makes."""
        return [make() for _ in range(self.rng.randint(low, high))]

    def thing(self) -> str:
        """A thing, often described."""
        return f"{self.pick(_ADJECTIVES)} {self.pick(_THINGS)}" if self.maybe(0.6) else self.pick(_THINGS)

    def sentence(self) -> str:
        """A sentence about the past."""
        form = self.pick(("when", "where", "how many", "two", "cost", "why", "not"))
        if form == "when":
            return (
                f"{self.pick(_TIMES)}, {self.pick(_NAMES)} {self.pick(_DID)} the {self.thing()} {self.pick(_PLACES)}."
            )
        if form == "where":
            return f"The {self.thing()} was {self.pick(_PLACES)}, and {self.pick(_NAMES)} was {self.pick(_FEELINGS)}."
        if form == "how many":
            return f"There were {self.number_from(2, 30)} {self.pick(_GOODS)} {self.pick(_PLACES)}."
        if form == "two":
            return f"{self.pick(_NAMES)} and {self.pick(_NAMES)} {self.pick(_DID)} the {self.thing()}!"
        if form == "cost":
            return f"It cost {self.price()} euros, but nobody was {self.pick(_FEELINGS)}."
        if form == "why":
            return f"Why was the {self.pick(_THINGS)} so {self.pick(_ADJECTIVES)}?"
        return f"It wasn't {self.topic}; it was only the {self.thing()}."

    def sentences(self, low: int, high: int) -> str:
        """A paragraph."""
        return " ".join(self.some(low, high, self.sentence))

    def price(self) -> str:
        """An amount of money."""
        return f"{self.number_from(1, 40)}.{self.pick(('00', '50', '75', '99', '20'))}"

    def date(self) -> str:
        """A date in digits."""
        return f"{self.rng.choice((2023, 2024, 2024, 2025))}-{self.rng.randint(1, 12):02}-{self.rng.randint(1, 28):02}"

    def hour(self) -> str:
        """A time of day."""
        return f"{self.rng.randint(7, 21)}:{self.pick(('15', '00', '30', '45'))}"


def _e_mail(a: _Author) -> str:
    who, weekday, month = a.pick(_NAMES), a.pick(_DAYS), a.pick(_MONTHS)
    openings = (
        f"Thank you for the {a.thing()}.",
        f"I'm writing about {a.topic}.",
        f"We'll meet on {weekday}, {a.rng.randint(1, 28)} {month}, at {a.hour()}.",
    )
    blocks = [
        f"Subject: {a.pick(_ADJECTIVES).capitalize()} {a.pick(_THINGS)}",
        f"Dear {who},",
        f"{a.rng.choice(openings)} {a.sentences(2, 3)}",
    ]
    if a.maybe(0.5):
        blocks.append("Please bring:\n" + "\n".join(a.some(2, 3, lambda: f"- {a.rng.randint(2, 12)} {a.pick(_GOODS)}")))
    if a.maybe(0.6):
        blocks.append(a.sentences(1, 2))
    return "\n\n".join([*blocks, f"{a.pick(_CLOSINGS)},\n{a.pick(_NAMES)}"])


def _story(a: _Author) -> str:
    def said() -> str:
        return f'"{a.pick(_REMARKS)}," {a.pick(_SAID)} {a.pick(_NAMES)}. {a.sentences(0, 1)}'.rstrip()

    blocks = [a.sentences(2, 3)]
    blocks += [said() if a.maybe(0.6) else a.sentences(1, 2) for _ in range(a.rng.randint(2, 3))]
    return "\n\n".join([*blocks, a.sentences(1, 1)] if a.maybe(0.5) else blocks)


def _list(a: _Author) -> str:
    def item() -> str:
        form = a.rng.choices(("numbers", "points", "deep", ""), (5, 3, 1, 1))[0]
        head = f"- {a.pick(_GOODS).capitalize()} {a.pick(_PLACES)}"
        if form == "numbers":
            below = [f"  {n}. {a.pick(_DO)} the {a.pick(_THINGS)}" for n in range(1, a.rng.randint(2, 4))]
        elif form == "points":
            below = a.some(1, 2, lambda: f"  - {a.pick(_DO)} the {a.pick(_THINGS)}")
        else:
            below = [f"  - {a.thing()}", f"    - {a.pick(_GOODS)}, {a.price()}"] if form else []
        return "\n".join([f"{head}:" if below else head, *below])

    start = f"{a.sentence()}\n\n" if a.maybe(0.5) else ""
    return start + "\n".join(a.some(3, 4, item)) + (f"\n\n{a.sentence()}" if a.maybe(0.4) else "")


def _steps(a: _Author) -> str:
    lines = []
    for place in range(1, a.rng.randint(3, 5) + 1):
        lines.append(f"{place}. {a.pick(_DO).capitalize()} the {a.thing()} {a.pick(_PLACES)}.")
        if a.maybe(0.3):
            lines.append(f"   Don't {a.pick(_DO)} it before {a.hour()}.")
        elif a.maybe(0.5):
            lines += [f"   {n}. {a.pick(_DO)} it" for n in range(1, 3)]
        if a.maybe(0.25):
            lines.append("")
    return "\n".join(lines).rstrip() + (f"\n\nNote: {a.sentence()}" if a.maybe(0.5) else "")


def _function(a: _Author) -> str:
    given, loop, kept = a.pick(_NOUNS), a.pick(_LOOPS), a.pick(_VARIABLES)
    name, many = f"{a.pick(_VERBS)}_{given}", a.maybe(0.5)
    lines = [f"def {name}({given}{f', limit={a.rng.randint(1, 20)}' if a.maybe(0.4) else ''}):"]
    if a.maybe(0.6):
        lines.append(f'    """{a.pick(_DO).capitalize()} the {a.pick(_THINGS)}."""')
    lines += [f"    {kept} = {'[]' if many else a.rng.choice('001')}", f"    for {loop} in {given}:"]
    add = f"{kept}.append({loop})" if many else f"{kept} += {a.rng.choice((loop, '1', f'len({loop})'))}"
    if a.maybe(0.7):
        lines.append(
            f"        if {loop} {a.rng.choice(('==', '>', '<', 'in'))} {a.rng.choice((kept, 'limit', '0', '10'))}:"
        )
        if a.maybe(0.4):
            lines += [f"            if not {loop}:", f"                {a.rng.choice(('continue', 'break'))}"]
        lines.append(f"            {add}")
        if a.maybe(0.4):
            lines += ["        else:", f"            print({loop})"]
    else:
        lines.append(f"        {add}  # {a.pick(_ADJECTIVES)} {a.pick(_THINGS)}")
    if a.maybe(0.7):
        lines.append("")
    return "\n".join([*lines, f"    return {a.rng.choice((kept, kept, f'sorted({kept})', f'len({kept})'))}"])


def _code(a: _Author) -> str:
    blocks = a.some(1, 2, lambda: _function(a))
    if a.maybe(0.5):
        numbers = [f"    {a.number_from(1, 99)}," for _ in range(a.rng.randint(2, 4))]
        blocks.append("\n".join([f"{a.pick(_NOUNS).upper()} = [", *numbers, "]"]))
    if a.maybe(0.3):
        blocks.insert(0, f"import {a.pick(('re', 'sys', 'json', 'math'))}")
    if a.maybe(0.25):
        given = ", ".join(str(a.rng.randint(1, 30)) for _ in range(3))
        blocks.append(f"print({a.pick(_VERBS)}_{a.pick(_NOUNS)}([{given}]))")
    text = "\n\n\n".join(blocks)
    return f"```python\n{text}\n```\n\n{a.sentence()}" if a.maybe(0.3) else text


def _table(a: _Author) -> str:
    heads = a.rng.choice((("Item", "Price in euros", "Day"), ("Name", "Number", "When"), ("Thing", "Costs", "Day")))
    left = _NAMES if heads[0] == "Name" else _GOODS if heads[0] == "Item" else _THINGS

    def amount() -> str:
        return str(a.number_from(1, 120)) if heads[1] == "Number" else a.price()

    rows = [heads] + [(a.pick(left), amount(), a.pick(_DAYS)) for _ in range(a.rng.randint(3, 5))]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [f"| {n:{widths[0]}} | {v:>{widths[1]}} | {d:{widths[2]}} |" for n, v, d in rows]
    lines.insert(1, f"|{'-' * (widths[0] + 2)}|{'-' * (widths[1] + 1)}:|{'-' * (widths[2] + 2)}|")
    return "\n".join(lines) + (f"\n\n{a.sentence()}" if a.maybe(0.6) else "")


def _diary(a: _Author) -> str:
    def entry() -> str:
        if a.maybe(0.4):
            return f"{a.date()}, {a.hour()}\n{a.sentences(1, 2)}"
        return "\n".join([a.date(), *a.some(1, 2, lambda: f"  {a.hour()}  {a.sentence()}")])

    return "\n\n".join(a.some(2, 3, entry))


def _messages(a: _Author) -> str:
    two = a.pick(_NAMES), a.pick(_NAMES)

    def smile() -> str:
        return a.pick(_SMILES) * (2 if a.maybe(0.15) else 1)

    def message(who: str) -> str:
        said = a.pick(("remark", "thing", "feeling", "smiles"))
        if said == "remark":
            return f"{who}: {a.pick(_REMARKS)} {smile()}"
        if said == "thing":
            return f"{who}: {smile()} the {a.thing()}, {a.hour()}?"
        if said == "feeling":
            return f"{who}: I'm so {a.pick(_FEELINGS)}!{a.rng.choice(('', ' '))}{smile()} {smile()}"
        return f"{who}: {smile()}{smile()}"

    lines = [message(two[n % 2]) for n in range(a.rng.randint(5, 8))]
    return "\n".join(lines) if a.maybe(0.7) else "\n".join(lines[:3]) + "\n\n" + "\n".join(lines[3:])


def _report(a: _Author) -> str:
    def fact() -> str:
        return f"* **{a.pick(_THINGS)}**: {a.number_from(1, 99)} % {a.pick(_ADJECTIVES)}"

    def part(head: str) -> str:
        form = a.rng.choice(("facts", "sums", "sentences"))
        if form == "sentences":
            return f"## {head}\n\n{a.sentences(2, 3)}"
        lines = a.some(3, 4, fact if form == "facts" else lambda: f"{a.number_from(1, 120):7} {a.pick(_GOODS)}")
        return f"## {head}\n\n" + "\n".join(lines)

    heads = a.rng.sample(("Summary", "Results", "Costs", "Next steps"), a.rng.randint(2, 3))
    total = f"Total: {a.number_from(1, 9)},{a.rng.randint(0, 999):03} euros ({a.date()})"
    return "\n\n".join([*(part(head) for head in heads), *([total] if a.maybe(0.6) else [])])


def _chinese(a: _Author) -> str:
    topic = CHINESE_TOPICS[a.number]

    def sentence() -> str:
        form = a.pick(("who", "because", "question", "month"))
        if form == "who":
            return f"{a.pick(_CHINESE_WHEN)}，{a.pick(_CHINESE_WHO)}在{a.pick(_CHINESE_WHERE)}{a.pick(_CHINESE_DO)}。"
        if form == "because":
            return f"{a.pick(_CHINESE_WHO)}很{a.pick(_CHINESE_FEEL)}，因为有{topic}。"
        if form == "question":
            return f"“你喜欢{topic}吗？”{a.pick(_CHINESE_WHO)}问。"
        return f"{a.rng.choice((2023, 2024, 2025))}年{a.rng.randint(1, 12)}月，{topic}在{a.pick(_CHINESE_WHERE)}。"

    return "\n\n".join("".join(a.some(1, 3, sentence)) for _ in range(3))


def _arabic(a: _Author) -> str:
    topic = ARABIC_TOPICS[a.number]

    def sentence() -> str:
        form = a.pick(("who", "because", "question"))
        if form == "who":
            return f"{a.pick(_ARABIC_WHEN)} كان {a.pick(_ARABIC_WHO)} {a.pick(_ARABIC_DO)} {a.pick(_ARABIC_WHERE)}."
        if form == "because":
            return f"{a.pick(_ARABIC_WHO)} {a.pick(_ARABIC_FEEL)}، لأنه يحب {topic}."
        return f"هل {topic} {a.pick(_ARABIC_WHERE)}؟ الساعة {a.hour()}."

    return "\n\n".join(" ".join(a.some(1, 3, sentence)) for _ in range(3))


_WRITERS: dict[str, Callable[[_Author], str]] = {
    "e-mail": _e_mail,
    "story": _story,
    "list": _list,
    "steps": _steps,
    "code": _code,
    "table": _table,
    "diary": _diary,
    "messages": _messages,
    "report": _report,
    "chinese": _chinese,
    "arabic": _arabic,
}

#: Forty requests: every kind of page about several topics.
PROMPTS = tuple(
    prompt(kind, (5 * place + 3 * number) % len(TOPICS))
    for number, (kind, count) in enumerate(zip(REQUESTS, (4, 4, 4, 3, 5, 4, 3, 4, 3, 3, 3), strict=True))
    for place in range(count)
)

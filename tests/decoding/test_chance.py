"""The random numbers of an answer."""

from __future__ import annotations

from hashlib import blake2b

from cosd_api.decoding.chance import Chance


def test_a_number_depends_on_the_seed_the_prompt_and_its_name() -> None:
    chance = Chance(7, "Q")
    digest = blake2b(b"Q", digest_size=16).digest()
    whole = int.from_bytes(blake2b(b"7 keep 12 " + digest, digest_size=8).digest())
    assert chance.number("keep", 12) == (whole >> 11) / 2**53
    assert chance.seed("keep", 12) == whole >> 33
    others = [Chance(8, "Q"), Chance(7, "R")]
    assert len({one.number("keep", 12) for one in [chance, *others]} | {chance.number("keep", 13)}) == 4


def test_numbers_are_spread_evenly() -> None:
    chance = Chance(0, "Q")
    numbers = [chance.number("keep", at) for at in range(4000)]
    assert all(0 <= one < 1 for one in numbers)
    tenths = [sum(at / 10 <= one < (at + 1) / 10 for one in numbers) for at in range(10)]
    assert sum((count - 400) ** 2 / 400 for count in tenths) < 27.9  # exceeded once in a thousand times
    assert len({chance.seed("draw", at) for at in range(4000)}) == 4000

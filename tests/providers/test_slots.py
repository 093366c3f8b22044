"""Slots of a llama.cpp server: each lease keeps the one that it landed in, while there are enough."""

from __future__ import annotations

import pytest

from cosd_providers.slots import Slots, slots_of


def test_a_lease_keeps_the_slot_that_it_landed_in() -> None:
    slots = Slots(4)
    with slots.lease() as lease:
        assert lease.fields == {}, "the server chooses first"
        lease.landed(2)
        lease.landed(3)
        assert lease.fields == {"id_slot": 2}
    assert lease.fields == {}


def test_two_leases_never_have_one_slot() -> None:
    slots = Slots(4)
    with slots.lease() as draft, slots.lease() as assistant:
        draft.landed(1)
        assistant.landed(1)  # a prompt that begins alike lands where our own draft is
        assert (draft.fields, assistant.fields) == ({"id_slot": 1}, {"id_slot": 0})
    with slots.lease() as later:
        later.landed(1)
        assert later.fields == {"id_slot": 1}, "it was given back"


def test_with_more_leases_than_slots_none_is_named() -> None:
    """A request that names a slot would wait behind one that does not."""
    slots = Slots(2)
    with slots.lease() as first, slots.lease() as second:
        first.landed(0)
        second.landed(1)
        with slots.lease() as third:
            third.landed(0)
            assert [one.fields for one in (first, second, third)] == [{}, {}, {}]
        assert (first.fields, second.fields) == ({"id_slot": 0}, {"id_slot": 1})


@pytest.mark.parametrize("slot", [None, -1, 7])
def test_what_is_no_slot_of_the_server_is_not_held(slot: int | None) -> None:
    with Slots(4).lease() as lease:
        lease.landed(slot)
        assert lease.fields == {}


def test_a_server_that_does_not_say_how_many_it_has_chooses_itself() -> None:
    with Slots(None).lease() as lease:
        lease.landed(0)
        assert lease.fields == {}


def test_all_answers_of_a_process_share_the_slots_of_a_server() -> None:
    one, same = slots_of("http://a", 4), slots_of("http://a", 4)
    other, anew = slots_of("http://b", 4), slots_of("http://a", 8)
    assert one is same and one is not other and one is not anew

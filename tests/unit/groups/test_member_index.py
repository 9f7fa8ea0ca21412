"""The index of a group's members against a search through all of them."""

import random

import pytest

from minibroker.broker.groups.member import Client, Member
from minibroker.broker.groups.member_index import MemberIndex
from minibroker.protocol.messages.groups import GroupProtocol, JoinGroupRequest

CLIENT = Client("c", "h")
NAMES = ("a", "b", "c", "d")


def request_of(chance: random.Random, instance_id: str | None) -> JoinGroupRequest:
    """A join with some protocols, whose metadata are of any size."""
    names = chance.sample(NAMES, chance.randint(1, len(NAMES)))
    protocols = tuple(GroupProtocol(name, bytes(chance.randint(0, 99))) for name in names)
    return JoinGroupRequest("g", 1, 1, instance_id=instance_id, protocols=protocols)


@pytest.mark.parametrize("seed", range(5))
def test_it_answers_what_a_search_finds(seed: int) -> None:
    """Through any changes: the protocols that all share, static members, and the memory."""
    chance = random.Random(seed)
    index, members = MemberIndex(), list[Member]()
    for number in range(300):
        one = chance.choice(members) if members else None
        if one is None or chance.random() < 0.3:
            instance_id = chance.choice((None, f"i{number}"))
            made = Member(f"m{number}", request_of(chance, instance_id), CLIENT)
            members.append(made)
            index.add(made)
        elif chance.random() < 0.4:
            index.update(one, request_of(chance, one.instance_id), CLIENT)
        elif chance.random() < 0.5:
            index.rename(one, f"r{number}")
        elif chance.random() < 0.5:
            index.assign({each.member_id: bytes(chance.randint(0, 9)) for each in members[1:]})
        else:
            members.remove(one)
            assert index.remove(one.member_id) is one
        assert list(index) == members, seed
        assert list(index.by_id) == [each.member_id for each in members]
        assert index.held_bytes == sum(each.held_bytes for each in members), seed
        offered = [set(each.protocols) for each in members]
        shared = set(NAMES).intersection(*offered) if members else set()
        assert set(index.shared()) == shared, seed
        for each in members:
            assert index.static(each.instance_id) is (each if each.instance_id else None)
            others = [set(other.protocols) for other in members if other is not each]
            asked = chance.sample(NAMES, 2)
            expected = not set(asked).isdisjoint(set(NAMES).intersection(*others))
            assert index.shares(asked, each) == expected, seed
    index.clear()
    assert (len(index), index.held_bytes, index.shared()) == (0, 0, [])

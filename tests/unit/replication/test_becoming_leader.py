"""In which epochs a replica leads."""

from tests.unit.node import Node, state_of


def test_nobody_leads_in_an_epoch_below_those_in_the_log() -> None:
    """Where an old copy of the metadata was put back nothing is appended before the leader epoch
    is a new one again: the next recovery would take what follows for damage."""
    node = Node()
    node.lead(state_of(epochs=(4, 0)))
    node.append(2)
    node.manager.close({})
    again = Node(node.files)
    again.apply(state_of(epochs=(3, 0)))
    (shown,) = again.described()
    assert (shown.role, shown.leader_epoch) == ("offline", 3)
    assert shown.reason.startswith("leader epoch 3 is below 4, the newest in this log")
    assert again.partition().log.epochs.entries == ((4, 0),)
    again.apply(state_of(epochs=(5, 1)))
    assert again.leader().epoch_start == 2

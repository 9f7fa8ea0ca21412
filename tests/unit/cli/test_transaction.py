"""`minibroker transaction`: what it prints of what the brokers say."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import typer

from minibroker.cli import transaction
from minibroker.cli.terminal import Failure, OutputFormat
from minibroker.client.transactions_admin import TransactionDescription, TransactionsReport
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.messages.transactions import ListedTransaction
from minibroker.protocol.types import TopicPartition

OPEN = TransactionDescription(
    "pay", "Ongoing", 7, 2, 60_000, 1_000, (TopicPartition("t", 0), TopicPartition("t", 1)), 3
)
IDLE = TransactionDescription("log", "Empty", 8, 0, 60_000, -1, (), 1)
REPORT = TransactionsReport(
    (ListedTransaction("log", 8, "Empty"), ListedTransaction("pay", 7, "Ongoing")), {}
)


class FakeAdmin:
    """A cluster with two transactional ids."""

    def __init__(self) -> None:
        self.report = REPORT
        self.asked: list[object] = []

    def list_transactions(self, *states: str) -> TransactionsReport:
        self.asked.append(states)
        return self.report

    def describe_transactions(self, *ids: str) -> list[TransactionDescription]:
        return [{"pay": OPEN, "log": IDLE}[each] for each in ids]

    def abort_transaction(self, transactional_id: str) -> None:
        self.asked.append(transactional_id)
        if transactional_id == "gone":
            raise BrokerError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "'gone'")


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    """What every command speaks to."""
    fake = FakeAdmin()

    @contextmanager
    def opened(servers: str, timeout_s: float) -> Iterator[FakeAdmin]:
        yield fake

    monkeypatch.setattr(transaction, "opened_admin", opened)
    return fake


def test_ids_are_listed(admin: FakeAdmin, capsys: pytest.CaptureFixture[str]) -> None:
    """With producer and state; states in any case."""
    transaction.list_transactions(state=["ongoing,Empty"])
    assert admin.asked == [("Ongoing", "Empty")]
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["TRANSACTIONAL-ID", "PRODUCER-ID", "STATE"],
        ["log", "8", "Empty"],
        ["pay", "7", "Ongoing"],
    ]
    transaction.list_transactions(output=OutputFormat.JSON)
    assert json.loads(capsys.readouterr().out)[1] == {
        "transactional_id": "pay",
        "producer_id": 7,
        "state": "Ongoing",
    }
    with pytest.raises(typer.BadParameter, match="--state takes"):
        transaction.list_transactions(state=["Opn"])


def test_a_list_that_may_lack_some_fails(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    """After it has printed what there is."""
    lost = TopicPartition("__transaction_state", 2)
    admin.report = REPORT._replace(silent={2: "no answer"}, leaderless=(lost,))
    with pytest.raises(Failure, match="more transactional ids"):
        transaction.list_transactions()
    printed = capsys.readouterr()
    assert "pay" in printed.out
    assert "broker 2" in printed.err
    assert "__transaction_state-2" in printed.err


def test_ids_are_described(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each once; an open transaction with its age and its partitions."""
    monkeypatch.setattr(transaction.time, "time", lambda: 3.5)
    transaction.describe(["pay", "log", "pay"])
    _, pay, log = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert pay == ["pay", "3", "7", "2", "Ongoing", "60000", "2500", "t-0,t-1"]
    assert log == ["log", "1", "8", "0", "Empty", "60000", "-", "-"]
    transaction.describe(["log"], output=OutputFormat.JSON)
    [shown] = json.loads(capsys.readouterr().out)
    assert shown["started_ms"] is None
    assert shown["coordinator"] == 1


def test_transactions_are_aborted(admin: FakeAdmin, capsys: pytest.CaptureFixture[str]) -> None:
    """One that does not exist fails the command, after the others."""
    with pytest.raises(Failure, match="1 of 2"):
        transaction.abort(["gone", "pay"])
    assert admin.asked == ["gone", "pay"]
    printed = capsys.readouterr()
    assert printed.out == "Aborted the transaction of pay.\n"
    assert "gone" in printed.err
    with pytest.raises(BrokerError):
        transaction.abort(["gone"])

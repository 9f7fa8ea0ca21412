"""The etcd store with several members, of which some are away; and who may use it."""

import itertools
import random

import httpx
import pytest
import trio

from minibroker.broker.metadata.etcd_gateway import Access
from minibroker.broker.metadata.etcd_store import EtcdStore
from minibroker.broker.metadata.store import (
    Compare,
    Delete,
    Entry,
    Put,
    StoreError,
    StoreUnavailable,
    TransactionTooLarge,
)
from tests.contract.patiently import patiently
from tests.support.etcd import EVERY_ETCD, running_etcd

LIVES = itertools.count()
SECRET = "correct horse"


def open_etcd(*urls, writer="1", **access):
    return EtcdStore(Access(urls, **access), "test/", writer, random.Random(next(LIVES)))


@pytest.fixture(scope="module", params=EVERY_ETCD)
def program(request):
    return request.param


# -- several members


@pytest.fixture(scope="module")
def members(tmp_path_factory, program):
    """Three, which each test leaves running."""
    with running_etcd(tmp_path_factory.mktemp("etcd"), program=program, count=3) as started:
        yield started


@pytest.fixture
async def store(members):
    opened = open_etcd(*(member.url for member in members))
    with trio.fail_after(60):
        await opened.transact([], [Put("key", b"0")])
        yield opened
        await opened.close()


async def test_one_member_away_is_no_failure(members, store):
    """Whichever it is, whether it was asked before or led the others, is stopped or dead: calls
    take somewhat longer at first, and a lease that is renewed lives on."""
    lease = await store.grant(6)
    revision = (await store.transact([], [Put("leased", b"", lease.id)])).revision
    for number, member in enumerate(members):
        member.kill() if number == 1 else member.pause()
        await patiently(store.renew, lease.id)
        await patiently(store.transact, [], [Put("key", b"%d" % number)])
        entries = (await patiently(store.get, "")).entries
        assert entries == {"key": entries["key"], "leased": Entry(b"", revision)}
        assert entries["key"].value == b"%d" % number
        member.start() if number == 1 else member.resume()
        member.wait_until_ready()
    await store.revoke(lease.id)


async def test_who_watches_does_not_notice_that_its_member_dies(members, caplog):
    """Another one is asked, which is said once; what is written then is seen as before."""
    caplog.set_level("INFO", "minibroker.broker.metadata")
    statuses = [await ask(member, "maintenance/status", {}) for member in members]
    leads = [status["leader"] == status["header"]["member_id"] for status in statuses]
    one, other = (member for member, is_leader in zip(members, leads, strict=True) if not is_leader)
    store, writer = open_etcd(one.url, other.url), open_etcd(other.url, writer="2")
    revision = (await writer.transact([], [Put("key", b"old")])).revision
    seen = []

    async def watch():
        seen.append((await store.watch("", revision)).entries["key"].value)

    async with trio.open_nursery() as watching:
        watching.start_soon(watch)
        await trio.sleep(0.1)
        one.kill()
        await trio.sleep(0.1)
        await writer.transact([], [Put("key", b"new")])
    assert seen == [b"new"]
    [text] = caplog.messages
    assert text.startswith(f"etcd at {one.url} ")
    assert text.endswith(f"; asking {other.url} from now on")
    one.start()
    one.wait_until_ready()
    for opened in (store, writer):
        await opened.close()


async def test_most_members_away_is_unavailable(members, store, nursery):
    """Who is left tells nothing that may be old; what has waited goes on once most are back."""
    revision = (await store.get("")).revision
    seen = []

    async def watch():
        seen.append((await patiently(store.watch, "", revision)).entries["key"].value)

    nursery.start_soon(watch)
    for member in members[:2]:
        member.kill()
    for call in (store.get, store.watch):
        with trio.fail_after(5), pytest.raises(StoreUnavailable):
            await call("", *([revision] if call == store.watch else []))
    for member in members[:2]:
        member.start()
    assert (await patiently(store.transact, [], [Put("key", b"back")])).succeeded
    while not seen:
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(0.01)
    assert seen == [b"back"]


async def test_members_of_two_clusters_are_refused(members, program, tmp_path):
    """Endpoints that do not belong together are an error as soon as it is seen."""
    with running_etcd(tmp_path, "--initial-cluster-token=foreign", program=program) as [foreign]:
        store = open_etcd(members[0].url, foreign.url)
        await store.get("")
        members[0].kill()
        with pytest.raises(StoreError, match=f"{foreign.url} belongs to another cluster"):
            await store.get("")
        await store.close()
        members[0].start()
        members[0].wait_until_ready()


# -- one member, and what it says


@pytest.fixture
def etcd(program, tmp_path):
    with running_etcd(tmp_path, "--bcrypt-cost=4", program=program) as [member]:
        yield member


async def test_an_etcd_that_was_made_anew_is_refused(etcd, tmp_path):
    """Revisions that go back are an error: epochs would be given away twice."""
    store = open_etcd(etcd.url)
    for _ in range(3):
        await store.transact([], [Put("key", b"")])
    etcd.kill()
    etcd.forget()
    etcd.start()
    etcd.wait_until_ready()
    with pytest.raises(StoreError, match="gone back from revision 3 to 0"):
        await patiently(store.get, "")
    await store.close()


async def test_many_writes_are_one_transaction(etcd):
    """More than etcd takes at once are made at one revision, or not at all."""
    store = open_etcd(etcd.url)
    puts = [Put(f"key/{number:04}", b"v" * 100) for number in range(3_000)]
    assert (await store.transact([], puts)).revision == 1
    entries = (await store.get("")).entries
    assert entries == {put.key: Entry(put.value, 1) for put in puts}
    deletes = [Delete(put.key) for put in puts]
    assert list(entries) == sorted(entries)
    assert not (await store.transact([Compare("key/0000", 2)], deletes)).succeeded
    assert (await store.transact([Compare("key/0000", 1)], deletes)).revision == 2
    assert not (await store.get("")).entries
    await store.close()


@pytest.mark.parametrize(
    ("size", "says"), [(2_000_000, "is too large"), (3_000_000, "larger than")]
)
async def test_a_transaction_that_etcd_cannot_take_is_an_error(etcd, size, says):
    """What is too large, or far too large, is not tried again and again; nothing of it is written,
    and the error says what would help."""
    store = open_etcd(etcd.url)
    with pytest.raises(TransactionTooLarge, match=f"{says}.*need a larger --max-request-bytes"):
        await store.transact([], [Put("small", b""), Put("large", bytes(size))])
    assert not (await store.get("")).entries
    assert (await store.transact([], [Put("small", b"")])).succeeded
    await store.close()


async def ask(etcd, path, body, token=""):
    async with httpx.AsyncClient() as client:
        headers = {"Authorization": token} if token else {}
        answer = await client.post(f"{etcd.url}/v3/{path}", json=body, headers=headers)
    assert answer.status_code == httpx.codes.OK, answer.text
    return answer.json()


@pytest.fixture
async def guarded(etcd):
    """An etcd where "broker" may use what begins with `test/`, and root everything."""
    await ask(etcd, "auth/role/add", {"name": "brokers"})
    permission = {"permType": "READWRITE", "key": "dGVzdC8=", "range_end": "dGVzdDA="}
    await ask(etcd, "auth/role/grant", {"name": "brokers", "perm": permission})
    for user, role in (("root", "root"), ("broker", "brokers")):
        await ask(etcd, "auth/user/add", {"name": user, "password": SECRET})
        await ask(etcd, "auth/user/grant", {"user": user, "role": role})
    await ask(etcd, "auth/enable", {})
    return etcd


@pytest.fixture
def password_file(tmp_path):
    path = tmp_path / "password"
    path.write_text(f"{SECRET}\n")
    return path


async def test_a_user_can_do_everything_under_its_prefix(guarded, password_file):
    """Also when etcd has forgotten the token, or roles have changed since it was given."""
    store = open_etcd(guarded.url, user="broker", password_file=password_file)
    lease = await store.grant(30)
    await store.transact([], [Put("key", b"1", lease.id)])
    await store.renew(lease.id)
    with trio.move_on_after(0.2) as scope:
        await store.watch("", 1)
    assert scope.cancelled_caught
    guarded.restart()
    assert (await patiently(store.get, "")).entries == {"key": Entry(b"1", 1)}
    asked = await ask(guarded, "auth/authenticate", {"name": "root", "password": SECRET})
    await ask(guarded, "auth/role/add", {"name": "another"}, asked["token"])
    assert (await store.transact([], [Put("key", b"2", lease.id)])).succeeded
    await store.renew(lease.id)
    await store.revoke(lease.id)
    await store.close()


async def test_who_may_not_is_told_so(guarded, password_file, tmp_path):
    """No user, a wrong password, a prefix of others: an error that says which, not a retry."""
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong")
    for access, says in (
        ({}, r"user name is empty.*set metadata\.store\.user"),
        ({"user": "broker", "password_file": wrong}, "authentication failed"),
    ):
        store = open_etcd(guarded.url, **access)
        with pytest.raises(StoreError, match=says) as caught:
            await store.get("")
        assert not isinstance(caught.value, StoreUnavailable)
        await store.close()
    access = Access([guarded.url], user="broker", password_file=password_file)
    store = EtcdStore(access, "others/", "1", random.Random(1))
    for call, *arguments in ((store.get, ""), (store.transact, [], [Put("key", b"")])):
        with pytest.raises(StoreError, match="permission denied"):
            await call(*arguments)
    await store.close()
    with pytest.raises(StoreError, match=r"cannot read the password for etcd: .*nothing"):
        open_etcd(guarded.url, user="broker", password_file=tmp_path / "nothing")


async def test_tls_is_checked(program, tmp_path):
    """etcd's certificate must come from whom the file names; one that is not known is refused."""
    with running_etcd(tmp_path, "--auto-tls", program=program, scheme="https") as [etcd]:
        store = open_etcd(etcd.url, ca_file=etcd.certificate)
        assert (await store.transact([], [Put("key", b"")])).succeeded
        await store.close()
        store = open_etcd(etcd.url)
        with pytest.raises(StoreUnavailable, match="certificate verify failed"):
            await store.get("")
        await store.close()
    with pytest.raises(StoreError, match="cannot use the TLS files for etcd"):
        open_etcd(etcd.url, ca_file=tmp_path / "nothing")

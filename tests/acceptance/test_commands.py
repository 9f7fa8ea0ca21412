"""Every command against a real broker, as a user would type it.

`test_what_is_produced_is_consumed` runs each command in a process of its own, and so do tests of
signals; the others run theirs in this process.
"""

import json
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.processes import COMMAND, BrokerProcess, Shell, run_cli, run_here


def test_a_topic_from_its_creation_to_its_end(shell: Shell) -> None:
    """create, list, describe, alter, delete; with Kafka's flags and in Kafka's shapes."""
    create = "topic create --topic life --partitions 3 --replication-factor 1"
    shell(create + " --config retention.ms=1000")
    assert "life" in shell("topic list").splitlines()
    assert "life" in json.loads(shell("topic list --format json"))
    head, *lines = shell("topic describe life").splitlines()
    assert re.fullmatch(
        r"Topic: life\tTopicId: [\w-]{22}\tPartitionCount: 3\tReplicationFactor: 1"
        r"\tConfigs: retention.ms=1000",
        head,
    )
    expected = "\tTopic: life\tPartition: {}\tLeader: 1\tReplicas: 1\tIsr: 1\tElr: \tLastKnownElr: "
    assert lines == [expected.format(number) for number in range(3)]
    assert "an acknowledged record" in shell.stderr
    shell("topic alter life --config flush=always --delete-config retention.ms")
    [described] = json.loads(shell("topic describe life --format json"))
    assert described["configs"] == {"flush": "always"}
    assert described["acknowledgement"].startswith("flush=always")
    assert shell("topic describe life --under-replicated-partitions") == ""
    assert len(shell("topic describe life --at-min-isr-partitions").splitlines()) == 3
    shell("topic alter life --partitions 5 --replica-assignment 1,1 --config flush=never")
    [described] = json.loads(shell("topic describe life --format json"))
    assert (described["partition_count"], described["configs"]) == (5, {"flush": "never"})
    rows = json.loads(shell("topic describe life --disk --format json"))
    assert [(row["partition"], row["broker"], row["bytes"]) for row in rows] == [
        (number, 1, 0) for number in range(5)
    ]
    shell("topic describe life --disk --under-min-isr-partitions", code=2)
    shell("topic describe nowhere --disk", code=1)
    shell("topic alter life --partitions 5", code=1)
    assert "has 5 partitions" in shell.stderr
    shell("topic alter life --replica-assignment 1", code=2)
    shell("topic delete life")
    shell("topic create life --replica-assignment 1,1")
    assert len(shell("topic describe life").splitlines()) == 3
    shell("topic create other --replica-assignment one", code=2)
    shell("topic create other --replica-assignment 7", code=1)
    assert "there is no broker 7" in shell.stderr
    shell("topic delete life")
    assert "life" not in shell("topic list").splitlines()
    shell("topic delete life --if-exists")


def test_records_are_deleted(shell: Shell) -> None:
    """trim: a partition begins later, or at its end; not beyond."""
    shell("topic create shorter")
    shell("produce shorter", stdin="one\ntwo\nthree\n")
    assert shell("topic trim shorter 0 2") == "shorter-0 begins at offset 2.\n"
    assert shell("consume shorter --from-beginning -e") == "three\n"
    shell("topic trim shorter 0 4", code=1)
    assert "OFFSET_OUT_OF_RANGE" in shell.stderr
    shell("topic trim shorter 1 0", code=1)
    assert shell("topic trim shorter 0 -1") == "shorter-0 begins at offset 3.\n"


def test_a_running_broker_shows_its_settings(shell: Shell) -> None:
    """As text with a star for what is not the default, and as JSON."""
    lines = shell("broker config 1").splitlines()
    assert "  log.index.interval.bytes=4096" in lines
    assert any(line.startswith("* log.dirs=") for line in lines)
    rows = {row["name"]: row for row in json.loads(shell("broker config 1 --format json"))}
    assert rows["node.id"]["value"] == "1"
    shell("broker config 7 --timeout-s 1", code=1)
    assert "broker 7" in shell.stderr


def test_refusals_are_one_line(shell: Shell) -> None:
    """What a broker refuses is exit code 1 and one line that says why."""
    shell("topic create twice")
    shell("topic create twice", code=1)
    assert re.fullmatch(r"% ERROR: .*TOPIC_ALREADY_EXISTS.*twice.*\n", shell.stderr)
    shell("topic create twice --if-not-exists")
    shell("topic create other --config retention.m=1", code=1)
    assert "retention.ms" in shell.stderr
    shell("topic create whole --config min.insync.replicas=3 -r 1")
    assert "WARNING: min.insync.replicas=3 is more than the 1 replica of whole" in shell.stderr
    shell("topic create two -r 2", code=1)
    assert "replication factor 2, with 1 live broker" in shell.stderr
    shell("topic delete nowhere", code=1)
    assert "UNKNOWN_TOPIC_OR_PARTITION" in shell.stderr
    shell("topic describe nowhere", code=1)
    shell("consume nowhere --exit-at-end", code=1)
    assert "nowhere" in shell.stderr
    shell("produce twice --acks 7", code=2)
    shell("produce twice -X linger.m=7", code=2)
    assert "linger.ms" in shell.stderr
    shell("consume twice -f %q", code=2)
    shell("consume twice -o middle", code=2)
    shell("produce", code=2)


def test_what_is_produced_is_consumed(broker: BrokerProcess) -> None:
    """Lines, keys and empty lines come back as they were, by every way to say where to begin."""
    shell = Shell(broker.address, run_cli)
    shell("topic create lines")
    shell("produce lines -K :", stdin="k1:one\nk2:two\nk1:three: 3\n")
    shell("produce lines -K :", stdin="\nno key")
    assert "2 lines without the key delimiter" in shell.stderr
    assert "2 records delivered" in shell.stderr
    everything = "0|k1|one\n1|k2|two\n2|k1|three: 3\n3||\n4||no key\n"
    assert shell("consume lines --from-beginning -e -f %o|%k|%s\\n") == everything
    assert shell("consume lines -o 3 -e") == "\nno key\n"
    assert shell("consume lines -o -1 -e") == "no key\n"
    assert shell("consume lines -o s@0 -c 2") == "one\ntwo\n"
    assert shell("consume lines -p 0 -o end -e") == ""
    assert shell("consume lines -o 1 -c 1 --property print.key=true") == "k2\ttwo\n"


def test_what_is_consumed_as_json_is_produced_again(shell: Shell) -> None:
    """Keys, headers, nulls, bytes, times and partitions are the same in the copy."""
    for topic in ("from-1", "from-2", "copy-1"):
        shell(f"topic create {topic} --partitions 3")
    lines = [
        {"partition": 2, "timestamp": 1700, "key": None, "value": None, "headers": []},
        {"partition": 0, "timestamp": 1701, "key": {"base64": "/w=="}, "value": "é\n"},
        {"partition": 2, "timestamp": 1702, "key": "", "headers": [["a", "1"], ["a", None]]},
    ]
    given = "".join(json.dumps({"value": "", **line}) + "\n" for line in lines)
    shell("produce from-1 --format json", stdin=given)
    read = shell("consume from-1 --from-beginning -e -J")
    assert shell("produce copy-1 -J", stdin=read) == ""
    copy = shell("consume copy-1 --from-beginning -e -J")
    assert copy == read.replace("from-1", "copy-1")
    assert len(copy.splitlines()) == 3
    shell("produce from-2 -Z -K = -H a=1 -H b -p 1", stdin="k=v\n=\n")
    shell("produce -J", stdin=shell("consume ^from-2$ -o beginning -e --format json"))
    shown = "consume --include from-[2-9] --from-beginning -e --property print.headers=true"
    shown += " --property print.key=true --property print.partition=true"
    with_key, without = (f"Partition:1\ta:1,b:null\t{text}\n" for text in ("k\tv", "null\tnull"))
    assert shell(shown) == (with_key + without) * 2
    assert shell("consume from-2 from-1 -o e@1702 -Z -f %s\\n").count("NULL") == 1
    assert "2 records consumed from from-2, from-1" in shell.stderr
    assert shell("consume from-1 --timeout-ms 1") == ""
    shell("produce from-1 -J", stdin='{"value": "a"}\n{"value": 1}\n', code=1)
    assert re.search("% 1 record delivered.*\n% ERROR: line 2: value is a text", shell.stderr)
    shell("produce -J", stdin='{"value": "a"}', code=1)
    assert "line 1: the record has no topic" in shell.stderr
    shell("consume ^nothing.*", code=1)
    assert "no topic matches" in shell.stderr
    shell("consume from-1 from-2 from-3 -e", code=1)
    assert "no topic 'from-3'" in shell.stderr


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compression_changes_nothing_for_a_reader(shell: Shell, codec: str) -> None:
    """Records come back the same whatever they were compressed with."""
    lines = "".join(f"line {number}\n" for number in range(1000))
    shell(f"produce compressed-{codec} -z {codec}", stdin=lines)
    assert shell(f"consume compressed-{codec} --from-beginning -e") == lines


def test_a_ledger_says_where_each_record_is(shell: Shell, tmp_path: Path) -> None:
    """A producer's has a line for each acknowledged record, a consumer's for each it was shown."""
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{number % 7}={number}\n" for number in range(500)))
    ledger = tmp_path / "ledger"
    shell("topic create told --partitions 3")
    shell(f"produce told --file {lines} -K = --ledger {ledger}")
    entries = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert [entry["name"] for entry in (entries[0], entries[-1])] == [
        "startup_complete",
        "shutdown_complete",
    ]
    told = {
        (entry["partition"], entry["offset"]): (entry["key"], entry["value"])
        for entry in entries[1:-1]
        if entry["name"] == "producer_send_success"
    }
    assert len(told) == 500
    shown = tmp_path / "shown"
    read = shell(f"consume told --from-beginning -e -f %p,%o,%k,%s\\n --ledger {shown}")
    rows = [line.split(",") for line in read.splitlines()]
    assert told == {(int(p), int(offset)): (key, value) for p, offset, key, value in rows}
    assert told == {
        (entry["partition"], entry["offset"]): (entry["key"], entry["value"])
        for entry in map(json.loads, shown.read_text().splitlines())
        if entry["name"] == "record_data"
    }


def test_a_ledger_is_never_wiped(shell: Shell, tmp_path: Path) -> None:
    """A second run adds to the file: it may be the only evidence of the first."""
    ledger = tmp_path / "ledger"
    for line in ("one", "two"):
        shell(f"produce evidence --ledger {ledger}", stdin=line)
    entries = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert [entry["value"] for entry in entries if "value" in entry] == ["one", "two"]


def test_a_ledger_that_cannot_be_written_is_told(shell: Shell, tmp_path: Path) -> None:
    """The error names the ledger, and what was delivered until then is counted all the same."""
    command = shlex.join([*COMMAND, "produce", "kept", "-b", shell.address, "-X", "linger.ms=0"])
    done = subprocess.run(
        ["sh", "-c", f"ulimit -f 4; {command} --ledger {shlex.quote(str(tmp_path / 'ledger'))}"],
        input="x\n" * 5000,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    told, error = done.stderr.splitlines()
    delivered = int(told.split()[1].replace(",", ""))
    assert 0 < delivered <= len(shell("consume kept --from-beginning -e").splitlines())
    assert error.startswith("% ERROR: cannot write the ledger: ")


def test_a_line_that_is_too_large_is_named(shell: Shell) -> None:
    """What was before it is delivered and counted, what is behind it is not read."""
    shell("topic create large")
    shell("produce large", stdin="first\n" + "x" * 1_500_000 + "\nthird\n", code=1)
    assert "% 1 record delivered" in shell.stderr
    assert re.search(r"% ERROR: line 2: .*max\.request\.size", shell.stderr)
    assert shell("consume large --from-beginning -e") == "first\n"


def test_what_is_not_there_is_named_at_once(shell: Shell) -> None:
    """A partition beyond the last, an offset beyond the end, a file that is not there."""
    shell("topic create two --partitions 2")
    for command in ("produce two -p 2", "consume two -p 2 -e"):
        shell(command, stdin="x", code=1)
        assert "topic two has 2 partitions, numbered from 0: there is no 2" in shell.stderr
    assert shell("consume two -p 1 -o 7 -e") == ""
    assert "two-1: offset 7 is beyond the end, which is 0" in shell.stderr
    shell("topic create __two", code=1)
    assert "INVALID_TOPIC_EXCEPTION" in shell.stderr
    done = run_here("log", "dump", "nofile")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "% ERROR: nofile: no such file\n")


def test_an_endless_reader_ends_when_told(shell: Shell) -> None:
    """A consumer waits for what is new, and SIGINT is its normal end: exit code 0."""
    shell("topic create endless")
    command = [*COMMAND, "consume", "endless", "-b", shell.address, "--from-beginning"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
        assert reader.stdout
        assert reader.stderr
        shell("produce endless", stdin="first\n")
        assert reader.stdout.readline() == b"first\n"
        reader.send_signal(signal.SIGINT)
        assert reader.wait(10) == 0
        assert b"1 record consumed" in reader.stderr.read()


def test_an_interrupted_producer_delivers_what_it_read(shell: Shell) -> None:
    """SIGTERM ends the reading, not the sending: all that was read is there; exit code 143."""
    shell("topic create interrupted")
    command = [*COMMAND, "produce", "interrupted", "-b", shell.address, "-X", "linger.ms=0"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as writer:
        assert writer.stdin
        assert writer.stderr
        writer.stdin.write(b"read\n")
        writer.stdin.flush()
        assert shell("consume interrupted --from-beginning -c 1") == "read\n"
        writer.send_signal(signal.SIGTERM)
        assert writer.wait(10) == 128 + signal.SIGTERM
        assert b"1 record delivered" in writer.stderr.read()


def test_a_feature_level_is_finalized_once_brokers_support_it(shell: Shell) -> None:
    """A new cluster has the highest level, so nothing changes; a higher one is refused."""
    shown = "Broker 1: minibroker.version 1, supports 1 to 1\n"
    tried = shell("cluster upgrade --dry-run")
    assert tried == f"{shown}minibroker.version 1 can be finalized.\n"
    assert shell("cluster upgrade") == f"{shown}Finalized minibroker.version 1.\n"
    shell("cluster upgrade --level 2", code=1)
    assert "broker 1 supports minibroker.version 1, not 2: restart it" in shell.stderr
    assert shell.stderr.count("\n") == 1


def test_figures(shell: Shell) -> None:
    """`bench` measures; its JSON has what its text has."""
    produced = json.loads(shell("bench produce -n 2000 --format json"))
    assert produced["records_per_s"] > 0
    assert "records_per_s" in shell("bench consume -n 2000")
    assert json.loads(shell("bench consume -n 3000 --format json"))["records"] == 2001
    assert "3,000 records were asked for" in shell.stderr
    shell("bench produce --size 2000000", code=1)
    assert "max.request.size" in shell.stderr
    latency = json.loads(shell("bench latency --seconds 0.2 --rate 100 --format json"))
    assert 0 < latency["p50_ms"] <= latency["p99_ms"] <= latency["max_ms"]

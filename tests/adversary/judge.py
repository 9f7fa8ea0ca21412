"""What an adversarial run was, held against what it should have been. Pure: journals in, words out.

The truth is the log at the end. Held against it are what producers were told, what members of the
group handled, and what an onlooker saw committed while all that went on.

* A loss: a record in the log that the group has not handled, or one that was acknowledged and is
  not in the log.
* A double: a sequence of one producer at two offsets.
* A repetition: a record that the group handled again. It needs an excuse: whoever handled it first
  could not commit it, and its journal, or a `kill -9`, says why. Interrupts that the program caught
  are no excuse. Nothing excuses a repetition of what was committed before the second owner began.
"""

from array import array
from collections import Counter

from tests.adversary.holdings import Members
from tests.adversary.sendings import judge_producers
from tests.adversary.verdict import Findings, Identities, Run, Verdict, judge_process


def judge(run: Run) -> Verdict:
    """Say what is wrong."""
    verdict = Verdict(Findings(), Counter(), Counter())
    for process in (*run.producers, *run.consumers):
        judge_process(process, verdict)
    ids = Identities()
    log = {partition: array("q", map(ids.of, values)) for partition, values in run.log.items()}
    judge_producers(run, log, ids, verdict)
    Members(run, log, ids, verdict).judge()
    return verdict

"""What an acknowledgement means under each `flush`, in one sentence for people."""

MEANINGS = {
    "never": (
        "flush=never: an acknowledged record is in the system's page cache. It survives the end"
        " of the broker, kill -9 too, but not a power cut; the system writes it when it likes."
    ),
    "interval": (
        "flush=interval: an acknowledged record is in the system's page cache and on the disk"
        " within {flush_ms} ms. It survives the end of the broker, kill -9 too; a power cut may"
        " take what was acknowledged in the last {flush_ms} ms."
    ),
    "always": (
        "flush=always: an acknowledged record is on the disk. It survives kill -9 and a power cut."
    ),
}


COPIES = " With acks=all that holds on every in-sync replica, which are at least {needed} of {all}."


def copies_of(needed: int, replicas: int) -> str:
    """The sentence for a replicated topic, "" for one that is not."""
    return COPIES.format(needed=needed, all=replicas) if replicas > 1 else ""


def meaning_of(flush: str, flush_ms: int) -> str:
    """The sentence for a value of `flush`; `flush_ms` is the interval in milliseconds."""
    return MEANINGS[flush].format(flush_ms=flush_ms)

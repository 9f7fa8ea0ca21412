"""How many things the program holds, counted by where they are held.

A table that never forgets shows as an attribute whose tables have more entries afterwards than
before, although all that was made meanwhile is gone. Counted are the entries of every table (dict,
set, list, deque) that is an attribute of an object of this project, and the objects themselves by
class; so no table can be forgotten here, whoever owns it.
"""

import gc
from collections import Counter, deque
from collections.abc import Iterator

TABLES = (dict, set, frozenset, list, deque)


def census() -> Counter[str]:
    """The entries by CLASS.ATTRIBUTE, and the objects by CLASS, of all that is in use now."""
    gc.collect()
    found: Counter[str] = Counter()
    for each in gc.get_objects():
        kind = type(each)
        if not str(kind.__module__).startswith("minibroker."):
            continue
        name = f"{kind.__module__}.{kind.__qualname__}"
        found[name] += 1
        for attribute, value in _attributes(each):
            if isinstance(value, TABLES):
                found[f"{name}.{attribute}"] += len(value)
    return found


def grown(before: Counter[str], after: Counter[str], least: int) -> dict[str, int]:
    """What has at least so many more entries than before, and how many more."""
    return {name: more for name, more in (after - before).items() if more >= least}


def _attributes(each: object) -> Iterator[tuple[str, object]]:
    yield from getattr(each, "__dict__", {}).items()
    for kind in type(each).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if hasattr(each, slot):
                yield slot, getattr(each, slot)

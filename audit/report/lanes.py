"""The picture of a partition: one lane per replica, drawn as HTML with inline SVG.

x is the offset, from the lowest log start to the highest end, the same scale in every lane. A lane
shows the leader epochs as coloured and numbered spans, caps at log start and log end, the high
watermark as a flag, and each finding at its offset: the first error of a lane as a red cut through
it, all others as marks below it, whose shape shows the severity. Below the lanes lie the axis, the
judged range, and the offsets that consumer groups have committed.

No information is in colour alone, and every mark has its numbers in a `<title>`. Horizontal places
are per cent of the lane's width and shapes are in pixels, so the picture fits any window and its
text keeps its size. Items at the same spot are drawn once, so a picture stays small however many
epochs and findings a log has.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import cycle
from typing import Final

from minibroker.audit.model import Finding, Severity
from minibroker.audit.summary import SEVERITIES, EpochSpan, Lane, PartitionPicture, plural, visible

EPOCH_COLOURS: Final = 6
NARROW: Final = 0.4  # per cent of the width: narrower spans are drawn together
LABELLED: Final = 3.0  # per cent: a narrower span has no room for its number ...
SPELLED: Final = 17.0  # ... and a narrower one none for the word before it
BINS: Final = 100  # marks a lane has at most
TICKS_MAX: Final = 5

_CUT: Final = "M0 3 L-3 11 L3 17 L-3 23 L3 29 L0 37"
_SHAPES: Final = {
    Severity.ERROR: "M-4 36 L4 44 M4 36 L-4 44",
    Severity.WARNING: "M0 36 L5 44 L-5 44 Z",
    Severity.INFO: "M0 36.5 a3.5 3.5 0 1 0 0.01 0 Z",
}


def printable(text: str) -> str:
    """Return the text for HTML, whatever bytes it was made of."""
    return escape(visible(text))


@dataclass(frozen=True, slots=True)
class Numbered:
    """A finding and its number in the report; None if the report does not list it."""

    number: int | None
    finding: Finding


@dataclass(frozen=True, slots=True)
class Picture:
    """The drawing, and the ids of the marks by the numbers of their findings."""

    html: str
    marks: Mapping[int, str]


class Scale:
    """Offsets as per cent of the width."""

    def __init__(self, lowest: int, highest: int) -> None:
        self.lowest = lowest
        self.highest = max(highest, lowest + 1)

    def at(self, offset: int) -> float:
        """Return per cent of the width; an offset outside is at the edge."""
        within = min(max(offset, self.lowest), self.highest)
        return round(100 * (within - self.lowest) / (self.highest - self.lowest), 3)

    def ticks(self) -> range:
        """Return round offsets, at most TICKS_MAX."""
        step = 1
        for factor in cycle((2, 2.5, 2)):  # 1, 2, 5, 10, ...
            if (self.highest - self.lowest) / step < TICKS_MAX:
                break
            step = int(step * factor)
        return range(-(-self.lowest // step) * step, self.highest + 1, step)


def draw(name: str, partition: PartitionPicture, findings: Sequence[Numbered]) -> Picture:
    """Draw a partition's picture; `name` is the prefix of the ids in it."""
    scale = _scale(partition, [numbered.finding for numbered in findings])
    marks: dict[int, str] = {}
    rows = []
    brokers = [lane.broker for lane in partition.lanes]
    for lane in partition.lanes:
        mine = [each for each in findings if each.finding.broker == lane.broker]
        drawn = "".join(_marks(f"{name}-{lane.broker}", mine, scale, marks))
        rows.append(_lane(lane, _sync(lane, partition.isr), scale, drawn))
    rest = [each for each in findings if each.finding.broker not in brokers]
    rows.append(_axis(partition, scale, "".join(_marks(f"{name}-all", rest, scale, marks))))
    return Picture(f'<div class="lanes">{"".join(rows)}</div>', marks)


def _scale(partition: PartitionPicture, findings: Sequence[Finding]) -> Scale:
    said: list[int | None] = [partition.judged_start, partition.judged_end]
    for lane in partition.lanes:
        said += [lane.log_start, lane.log_end, lane.high_watermark]
        said += [bound for span in lane.epochs for bound in (span.start, span.end)]
    said += [committed.offset for committed in partition.committed]
    if all(offset is None for offset in said):
        said += [finding.offset for finding in findings]
    known = [offset for offset in said if offset is not None] or [0]
    return Scale(min(known), max(known))


def _sync(lane: Lane, isr: Sequence[int] | None) -> str:
    """Return in words whether a replica counts as in sync; a broker that stops leaves the ISR."""
    if lane.in_isr and isr is not None and lane.broker not in isr:
        return "complete when it stopped"
    return {True: "in sync", False: "out of sync", None: ""}[lane.in_isr]


def _lane(lane: Lane, sync: str, scale: Scale, marks: str) -> str:
    role = {True: "leader", False: "follower", None: ""}[lane.is_leader]
    about = ", ".join(word for word in (role, sync) if word)
    drawn = [_span(run, scale) for run in _runs(lane.epochs, scale)]
    if lane.log_start is not None and lane.log_end is not None:
        drawn.insert(0, _bar(lane.log_start, lane.log_end, scale))
    for kind, offset, what in (
        ("cap", lane.log_start, "log start"),
        ("cap", lane.log_end, "log end (LEO)"),
        ("flag", lane.high_watermark, "high watermark (HW)"),
    ):
        if offset is not None:
            drawn.append(_pointer(kind, scale.at(offset), f"{what} {offset:,}"))
    classes = "lane lagging" if lane.in_isr is False else "lane"
    numbers = " ".join(
        f'<span><abbr title="{title}">{short}</abbr> {_number(offset)}</span>'
        for short, title, offset in (
            ("start", "log start offset", lane.log_start),
            ("HW", "high watermark", lane.high_watermark),
            ("LEO", "log end offset", lane.log_end),
        )
    )
    return (
        f'<div class="{classes}"><div class="who"><b>Broker {lane.broker}</b>'
        f' <span class="role">{about}</span></div>'
        f'<svg role="group" aria-label="Log of broker {lane.broker}" height="48">'
        f"{''.join(drawn)}{marks}</svg>"
        f'<div class="numbers">{numbers}</div></div>'
    )


def _number(offset: int | None) -> str:
    return "unknown" if offset is None else f"{offset:,}"


def _bar(start: int, end: int, scale: Scale) -> str:
    left, right = scale.at(start), scale.at(end)
    return f'<rect class="bar" x="{left}%" y="10" width="{max(0, right - left):.3f}%" height="20"/>'


def _runs(epochs: Sequence[EpochSpan], scale: Scale) -> Iterator[list[EpochSpan]]:
    """Yield single spans, but narrow neighbours together."""
    narrow: list[EpochSpan] = []
    for span in epochs:
        if scale.at(span.end) - scale.at(span.start) < NARROW:
            narrow.append(span)
            if scale.at(span.end) - scale.at(narrow[0].start) < NARROW:
                continue
            yield narrow
        else:
            if narrow:
                yield narrow
            yield [span]
        narrow = []
    if narrow:
        yield narrow


def _span(run: Sequence[EpochSpan], scale: Scale) -> str:
    first, last = run[0], run[-1]
    left = scale.at(first.start)
    width = max(scale.at(last.end) - left, 0.05)
    colour = f"e{first.epoch % EPOCH_COLOURS}" if len(run) == 1 else "many"
    epochs = f"Epoch {first.epoch}" if len(run) == 1 else f"Epochs {first.epoch} to {last.epoch}"
    word = "epoch " if width >= SPELLED else ""
    label = f'<text x="5" y="14">{word}{first.epoch}</text>' if width >= LABELLED else ""
    return (
        f'<svg class="{colour}" x="{left}%" y="10" width="{width:.3f}%" height="20">'
        f"<title>{epochs}: offsets {first.start:,} to {max(first.start, last.end - 1):,}</title>"
        f'<rect width="100%" height="100%"/>{label}</svg>'
    )


def _pointer(kind: str, at: float, title: str) -> str:
    path = "M0 2 L0 32 M0 2 L7 5 L0 8" if kind == "flag" else "M0 8 L0 32"
    return (
        f'<svg class="{kind}" x="{at}%" overflow="visible"><title>{title}</title>'
        f'<path d="{path}"/></svg>'
    )


def _marks(
    name: str, findings: Sequence[Numbered], scale: Scale, places: dict[int, str]
) -> Iterator[str]:
    """Yield one mark for all findings of a severity on a spot; add their ids to `places`."""
    spots: dict[tuple[Severity, int], list[Numbered]] = {}
    for each in findings:
        offset = scale.lowest if each.finding.offset is None else each.finding.offset
        bin_number = int(scale.at(offset) * BINS / 100)
        spots.setdefault((each.finding.severity, bin_number), []).append(each)
    errors = [bin_number for severity, bin_number in spots if severity is Severity.ERROR]
    cut = min(errors, default=-1)
    # The worst are drawn last, on top.
    ordered = sorted(spots, key=lambda spot: (-SEVERITIES.index(spot[0]), spot[1]))
    for severity, bin_number in ordered:
        held = spots[severity, bin_number]
        mark = f"{name}-{severity}-{bin_number}"
        places.update({each.number: mark for each in held if each.number is not None})
        is_cut = severity is Severity.ERROR and bin_number == cut
        yield _mark(mark, held, scale, is_cut)


def _mark(mark: str, held: Sequence[Numbered], scale: Scale, is_cut: bool) -> str:
    first = min(held, key=lambda each: -1 if each.finding.offset is None else each.finding.offset)
    finding = first.finding
    at = scale.at(scale.lowest if finding.offset is None else finding.offset)
    where = "" if finding.offset is None else f" at offset {finding.offset:,}"
    more = "" if len(held) == 1 else f", and {plural(len(held) - 1, 'more finding')} here"
    title = printable(f"{finding.severity}: {finding.check}{where}{more}. {finding.detail}")
    listed = min((each.number for each in held if each.number is not None), default=None)
    target = "findings" if listed is None else f"f{listed}"
    shape = _SHAPES[finding.severity]
    if is_cut:
        side = "end" if at > 60 else "start"
        x = -7 if at > 60 else 7
        label = "" if finding.offset is None else f"{finding.check} at {finding.offset:,}"
        shape = (
            f'<path class="gap" d="{_CUT}"/><path class="cut" d="{_CUT}"/><path d="{shape}"/>'
            f'<text x="{x}" y="44" text-anchor="{side}">{printable(label)}</text>'
        )
    else:
        shape = f'<path d="{shape}"/>'
    return (
        f'<svg x="{at}%" overflow="visible"><a class="mark {finding.severity}" id="{mark}"'
        f' href="#{target}"><title>{title}</title>'
        f'<rect class="hit" x="-8" y="2" width="16" height="44"/>{shape}</a></svg>'
    )


def _axis(partition: PartitionPicture, scale: Scale, marks: str) -> str:
    drawn = ['<line class="rule" x1="0" x2="100%" y1="12" y2="12"/>']
    if partition.judged_end is not None:
        start = partition.judged_start or 0
        left, right = scale.at(start), scale.at(max(start, partition.judged_end))
        drawn.append(
            f'<rect class="judged" x="{left}%" y="9" width="{right - left:.3f}%" height="6">'
            f"<title>Judged: offsets {start:,} up to {partition.judged_end:,}</title></rect>"
        )
    for tick in scale.ticks():
        at = scale.at(tick)
        anchor = "start" if at < 8 else "end" if at > 92 else "middle"
        drawn.append(
            f'<line class="rule" x1="{at}%" x2="{at}%" y1="12" y2="19"/>'
            f'<text x="{at}%" y="31" text-anchor="{anchor}">{tick:,}</text>'
        )
    drawn += [
        f'<svg class="committed" x="{scale.at(each.offset)}%" overflow="visible">'
        f"<title>Committed by group {printable(each.group)}: {each.offset:,}</title>"
        '<path d="M0 6 L6 12 L0 18 L-6 12 Z"/></svg>'
        for each in partition.committed
    ]
    groups = "".join(
        f"<span>{printable(each.group)} {each.offset:,}</span> " for each in partition.committed
    )
    about = f'<div class="numbers"><span class="role">committed</span> {groups}</div>'
    return (
        '<div class="lane axis"><div class="who">Offset</div>'
        f'<svg role="group" aria-label="Offsets and what was judged" height="48">'
        f"{''.join(drawn)}{marks}</svg>{about if groups else '<div></div>'}</div>"
    )

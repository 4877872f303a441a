"""Server-sent events, as the HTML standard parses them (§9.2.6).

Never keeps more than one event, and never goes on with a sender of what is of no use.
"""

from __future__ import annotations

import dataclasses
import time

#: The longest event, in bytes.
MOST_BYTES = 1 << 20

#: Lines and bytes without use: so many at once, and so many a second.
_WASTE = ((1_000, 100), (8 << 20, 256 << 10))


class Useless(Exception):
    """Too much of no use, or too long; the text is for the log."""


@dataclasses.dataclass(frozen=True)
class Event:
    """One event."""

    kind: str
    data: str


class Waste:
    """How much was of no use. Time takes from it again."""

    def __init__(self) -> None:
        self._levels = [0.0, 0.0]
        self._since = time.monotonic()

    def add(self, lines: int, size: int) -> None:
        """Counts lines and bytes. Raises `Useless` if it was too much."""
        now = time.monotonic()
        passed, self._since = now - self._since, now
        for place, (amount, (most, a_second)) in enumerate(zip((lines, size), _WASTE)):
            self._levels[place] = max(0.0, self._levels[place] - passed * a_second) + amount
            if self._levels[place] > most:
                raise Useless("it has sent too much that is of no use")

    def refund(self, lines: int, size: int) -> None:
        """Takes back what turned out to be of use."""
        self._levels = [max(0.0, level - amount) for level, amount in zip(self._levels, (lines, size))]


class Reader:
    """The state of the parser between two pieces of input."""

    def __init__(self) -> None:
        self.waste = Waste()
        self._line = bytearray()
        self._data: list[bytes] = []
        self._held = 0
        self._kind = b""
        self._fields = (0, 0)
        self._after_cr = False
        self._has_begun = False

    def read(self, piece: bytes) -> list[Event]:
        """The events that end in this piece. Raises `Useless`, or `UnicodeDecodeError`."""
        events = []
        was_after_cr, self._after_cr = self._after_cr, piece.endswith(b"\r") if piece else self._after_cr
        if was_after_cr:
            piece = piece.removeprefix(b"\n")
        lines = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for place, line in enumerate(lines):
            if len(self._line) + self._held + len(line) > MOST_BYTES:
                raise Useless("an event has more than 1 MiB")
            self._line += line
            if place < len(lines) - 1:
                event = self._end_of_line()
                if event is not None:
                    events.append(event)
        return events

    def _end_of_line(self) -> Event | None:
        line, self._line = bytes(self._line), bytearray()
        if not self._has_begun:
            line, self._has_begun = line.removeprefix(b"\xef\xbb\xbf"), True
        if not line:
            return self._end_of_event()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._held += len(value) + 1
            return None
        self.waste.add(1, len(line))
        if name:
            self._fields = (self._fields[0] + 1, self._fields[1] + len(line))
        if name == b"event":
            self._kind = value
        return None

    def _end_of_event(self) -> Event | None:
        kind, data, fields = self._kind, self._data, self._fields
        self._kind, self._data, self._held, self._fields = b"", [], 0, (0, 0)
        if not data:
            self.waste.add(1, 0)
            return None
        # They belong to something of use.
        self.waste.refund(*fields)
        return Event(kind.decode(), b"\n".join(data).decode())

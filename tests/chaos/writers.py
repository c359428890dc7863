"""Writers of the crash tests: unmodified Flight clients that resend what was not acknowledged."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from tests.chaos.scripts import RING_ROWS, BookScript, EventsScript, RingScript, Write

PAUSE_SECONDS = 0.003
"""Between two writes of one writer: the crash is to fall into many cycles, not into large ones."""


@dataclass
class Gate:
    """Open while writers may write; knows every step anybody was told of."""

    is_open: threading.Event = field(default_factory=threading.Event)
    is_over: threading.Event = field(default_factory=threading.Event)
    step_floor: int = -1
    """Steps up to here were told before the last crash."""
    step_max: int = -1
    problems: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def saw_step(self, step: int) -> None:
        with self.lock:
            self.step_max = max(self.step_max, step)

    def saw_answer(self, table: str, producer: str, number: int) -> None:
        """A producer was told that its write of this number is kept; of number 0 when it was told
        that the table is there."""

    def complain(self, problem: str) -> None:
        with self.lock:
            self.problems.append(problem)


class DoPutWriter(threading.Thread):
    """Sends the writes of one script, a few of them ahead of their acknowledgements."""

    def __init__(
        self,
        location: str,
        gate: Gate,
        *,
        table: str,
        producer: str,
        write: Callable[[int], Write],
        window: int,
        **fields: Any,
    ) -> None:
        super().__init__(name=f"writer-{producer}", daemon=True)
        self.location = location
        self.gate = gate
        self.table = table
        self.producer = producer
        self.write = write
        self.window = window
        self.fields = fields
        self.acknowledged = 0
        self.resent = 0
        self.was_created = False

    def run(self) -> None:
        while not self.gate.is_over.is_set():
            if not self.gate.is_open.wait(0.2):
                continue
            try:
                self._work()
            except (pa.ArrowException, OSError):
                # The server is gone, or is not there yet.
                self.gate.is_over.wait(0.02)

    def _work(self) -> None:
        with flight.connect(self.location) as client:
            calls: dict[str, _Call] = {}
            try:
                self._write(client, calls)
            finally:
                for call in calls.values():
                    call.end()

    def _write(self, client: flight.FlightClient, calls: dict[str, _Call]) -> None:
        """Go on behind the last acknowledgement, whatever the server says it has: what it has
        already it must not take again."""
        sent = self.acknowledged
        unanswered: deque[tuple[int, _Call]] = deque()
        had: int | None = None
        while not self.gate.is_over.is_set():
            write = self.write(sent + 1)
            call = calls.get(write.operation)
            if call is None:
                while unanswered:
                    self._take_answer(unanswered, had)
                call = calls[write.operation] = _Call(self, client, write, sent + 1)
                self.was_created = True
                self.gate.saw_answer(self.table, self.producer, 0)
                had = self._compared(call.position) if had is None else had
            # Two calls keep no order between them, so one is silent before the other goes on.
            while unanswered and (unanswered[-1][1] is not call or len(unanswered) >= self.window):
                self._take_answer(unanswered, had)
            sent += 1
            call.send(write.rows, sent)
            unanswered.append((sent, call))
            self.gate.is_over.wait(PAUSE_SECONDS)

    def _compared(self, position: int | None) -> int:
        had = position or 0
        if had < self.acknowledged:
            self.gate.complain(
                f"{self.table}: write {self.acknowledged} of {self.producer} was acknowledged, "
                f"the server knows {position}"
            )
        self.resent += max(0, had - self.acknowledged)
        return had

    def _take_answer(self, unanswered: deque[tuple[int, _Call]], had: int | None) -> None:
        number, call = unanswered[0]
        told = call.answer()
        if told.get("sequence") != number:
            self.gate.complain(f"{self.table}: {told} instead of the answer to write {number}")
        step = told["step"]
        if number > (had or 0) and step <= self.gate.step_floor:
            self.gate.complain(
                f"{self.table}: write {number} of {self.producer} got step {step}, but "
                f"{self.gate.step_floor} had been told before the crash"
            )
        self.gate.saw_step(step)
        self.gate.saw_answer(self.table, self.producer, number)
        self.acknowledged = number
        unanswered.popleft()


class _Call:
    """One DoPut call of one mode."""

    def __init__(
        self, writer: DoPutWriter, client: flight.FlightClient, write: Write, sequence: int
    ) -> None:
        command = {
            "table": writer.table,
            "mode": write.operation,
            "producer": writer.producer,
            "sequence": sequence,
            **writer.fields,
        }
        descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
        self._writer, self._reader = client.do_put(descriptor, write.rows.schema)
        self.position: int | None = self.answer()["sequence"]

    def send(self, rows: pa.RecordBatch, sequence: int) -> None:
        self._writer.write_with_metadata(rows, json.dumps({"sequence": sequence}).encode())

    def answer(self) -> dict[str, Any]:
        told = self._reader.read()
        if told is None:
            self._writer.close()
            raise OSError("the call has ended")
        return json.loads(told.to_pybytes())

    def end(self) -> None:
        with suppress(pa.ArrowException, OSError):
            self._writer.close()


class Scripts:
    """All writers of one server, and what they write. They are not started."""

    def __init__(self, location: str, gate: Gate) -> None:
        self.location = location
        self.gate = gate
        self.events = [EventsScript(n) for n in range(2)]
        self.book = [BookScript(n) for n in range(2)]
        self.ring = RingScript()
        self.writers = [
            self._writer("events", f"events-{s.writer}", s.write, window=6) for s in self.events
        ]
        self.writers += [
            self._writer("book", f"book-{s.writer}", s.write, window=4, key=["k"])
            for s in self.book
        ]
        self.writers.append(
            self._writer("ring", "ring", self.ring.write, window=3, kind="ring", capacity=RING_ROWS)
        )

    def _writer(self, table: str, producer: str, write: Any, **fields: Any) -> DoPutWriter:
        return DoPutWriter(
            self.location, self.gate, table=table, producer=producer, write=write, **fields
        )

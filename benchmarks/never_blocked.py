"""How long a subscriber waits for an update while somebody else sends heavy requests.

One server process holds a table of 10^6 rows and ticks a small one a hundred times a second; each
tick's row says when it was due. A watching process subscribes to the small table and notes how late
the rows come. Then one attack after another is made from further connections. The baseline is the
same server in the same run, idle.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import grpc
import numpy as np
import pyarrow as pa

import barrage
from barrage import wire
from barrage.errors import BarrageError
from barrage.rowset import RowSet
from barrage.transport.deephaven_messages import CONFIG_SERVICE, MESSAGES, TABLE_SERVICE
from barrage.transport.flight_messages import Descriptor
from benchmarks.processes import Child, child
from benchmarks.report import Measurement, compared, result

DELAY_MS_MAX = 250
TICK_SECONDS = 0.01
SERVICE = "/arrow.flight.protocol.FlightService"
MIB = 2**20

WIDE_ROWS = 2_000_000
"""Rows of a table with a key and many columns."""

MESSAGE_BYTES = 95 * MIB
"""Rows of one message of an upload have so many, just below what a server takes."""

WIDE_NUMBERS = 13
"""Its columns of numbers."""


def serve(pipe: Connection, rows: int) -> None:
    """Until told to end."""
    numbers = np.arange(rows, dtype=np.int64)
    scattered = (numbers * 2_654_435_761) % rows
    big = pa.table(
        {
            "n": numbers,
            "x": scattered.astype(np.float64),
            "text": pa.array(scattered.astype(str)),
        }
    )
    with barrage.Server() as server:
        server.create_table("big", data=big)
        server.create_table("wide", data=wide_rows(np.arange(WIDE_ROWS * rows // 10**6)), key="n")
        small = server.create_table(
            "small", pa.schema([("due_ns", pa.int64())]), kind="ring", capacity=1000
        )
        ended = threading.Event()

        def tick() -> None:
            due = time.monotonic()
            while not ended.is_set():
                now = time.monotonic()
                late = []
                while due <= now:
                    late.append(int(due * 1e9))
                    due += TICK_SECONDS
                if late:
                    small.add({"due_ns": late})
                time.sleep(max(0.0, due - time.monotonic()))

        ticking = threading.Thread(target=tick)
        ticking.start()
        pipe.send(server.address)
        pipe.recv()
        ended.set()
        ticking.join()


def wide_rows(keys: Any, *, salt: int = 0) -> pa.Table:
    """A column of keys, numbers, and two texts; ``salt`` makes all of it differ."""
    numbers = {f"x{i}": (keys + salt).astype(np.float64) for i in range(WIDE_NUMBERS)}
    few = pa.array([f"text {i + salt}" for i in range(100)]).take(pa.array(keys % 100))
    many = pa.array(np.char.add(f"text {salt} of ", keys.astype(str)))
    return pa.table({"n": keys, **numbers, "few": few, "many": many})


def watch(pipe: Connection, address: str) -> None:
    """Each word is answered by the delays in ns of the rows that came since the one before."""
    delays: list[int] = []

    def note(update: Any) -> None:
        now = time.monotonic_ns()
        rows = update.added
        if not update.is_snapshot and rows is not None and len(rows):
            delays.append(now - min(rows["due_ns"].to_pylist()))

    with barrage.connect(address) as session:
        with session.table("small").subscribe(interval_ms=10) as seen:
            seen.on_update(note)
            pipe.send("watching")
            while pipe.recv() is not None:
                taken, delays[:] = list(delays), []
                pipe.send(taken)


# --- the attacks ----------------------------------------------------------------------------------


@contextlib.contextmanager
def channel(address: str) -> Iterator[grpc.Channel]:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(address, options=options) as opened:
        yield opened


def read_ticket(address: str, operations: list[Any]) -> None:
    """A snapshot of a query; what comes is thrown away."""
    query = json.dumps({"table": "big", "ops": operations}, separators=(",", ":"))
    request = b"\n" + _length(len(query) + 2) + b"q/" + query.encode()
    with channel(address) as opened:
        for _ in opened.unary_stream(f"{SERVICE}/DoGet")(request):
            pass


def _length(size: int) -> bytes:
    """A number as protobuf writes it."""
    out = bytearray()
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out)


def six_sorts(address: str) -> None:
    read_ticket(address, [["sort", [key]] for key in ("text", "-x", "n", "-text", "x", "-n")])


def grouped_texts(address: str) -> None:
    read_ticket(address, [["agg_by", ["text"], {"a": "sum(n)"}]])


def many_terms(address: str) -> None:
    read_ticket(address, [["where", "n" + "+n" * 1_899 + " > 0"]])


def many_columns(address: str) -> None:
    formula = "n" + "+n" * 400
    read_ticket(
        address, [["select", ["n"], {f"c{i}": formula for i in range(4)}], ["sort", ["-c1"]]]
    )


def whole_sorted_table(address: str) -> None:
    read_ticket(address, [["sort", ["text"]]])


def zipped_uploads(address: str) -> None:
    """Ten at a time: 90 MiB of zeros each, which gzip makes 90 kB of."""
    rows = pa.table({"n": np.zeros(90 * MIB // 8, dtype=np.int64)})
    frames = _upload("zeros", rows)

    def upload() -> None:
        with contextlib.suppress(grpc.RpcError), channel(address) as opened:
            put = opened.stream_stream(f"{SERVICE}/DoPut")
            for _ in put(iter(frames), compression=grpc.Compression.Gzip):
                pass

    _at_once([upload] * 10)


def plain_uploads(address: str) -> None:
    """Three at a time of 90 MiB."""
    frames = _upload("zeros", pa.table({"n": np.zeros(90 * MIB // 8, dtype=np.int64)}))

    def upload() -> None:
        with contextlib.suppress(grpc.RpcError), channel(address) as opened:
            for _ in opened.stream_stream(f"{SERVICE}/DoPut")(iter(frames)):
                pass

    _at_once([upload] * 3)


def _upload(name: str, rows: pa.Table, **wanted: str) -> list[bytes]:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=MESSAGE_BYTES * len(rows) // max(rows.nbytes, 1) + 1)
    frames = []
    for message in pa.ipc.MessageReader.open_stream(sink.getvalue()):
        command = json.dumps({"table": name, **wanted})
        frame = wire.FlightFrame(
            descriptor=None if frames else Descriptor(command=command.encode()).encode(),
            header=message.metadata.to_pybytes(),
            body=None if message.body is None else message.body.to_pybytes(),
        )
        frames.append(wire.encode_flight_data(frame))
    return frames


def _at_once(works: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def many_ranges(address: str) -> None:
    """A viewport of 10^7 ranges."""
    firsts = np.arange(0, 20_000_000, 2, dtype=np.int64)
    request = wire.SubscriptionRequest(
        ticket=b"s/big",
        columns=None,
        viewport=RowSet.from_ranges(firsts, firsts),
        is_reverse=False,
        options=wire.SubscriptionOptions(),
    )
    metadata = wire.encode_wrapper(request, wire.WireRevision.R1_0_0)
    frame = wire.encode_flight_data(wire.FlightFrame(metadata=metadata))
    with contextlib.suppress(grpc.RpcError), channel(address) as opened:
        for number, _ in enumerate(opened.stream_stream(f"{SERVICE}/DoExchange")(iter([frame]))):
            if number > 1:
                break


def _session(opened: grpc.Channel) -> Callable[[str, bytes], None]:
    configure = opened.unary_unary(f"/{CONFIG_SERVICE}/GetConfigurationConstants")
    _, call = configure.with_call(b"", metadata=(("authorization", "Anonymous"),))
    bearer = dict(call.initial_metadata())["authorization"]

    def ask(method: str, request: bytes) -> None:
        with contextlib.suppress(grpc.RpcError):
            for _ in opened.unary_stream(f"/{TABLE_SERVICE}/{method}")(
                request, metadata=(("authorization", bearer),)
            ):
                pass

    return ask


def batch_of_sorts(address: str) -> None:
    """Six sorts in one batch of a Deephaven session."""
    operations = []
    for number in range(6):
        source = MESSAGES.new("TableReference", batch_offset=number - 1)
        if number == 0:
            source = MESSAGES.new("TableReference", ticket=MESSAGES.new("Ticket", ticket=b"s/big"))
        column = ("text", "x", "n")[number % 3]
        sort = MESSAGES.new(
            "SortTableRequest",
            source_id=source,
            sorts=[
                MESSAGES.new("SortDescriptor", column_name=column, direction=1 - number // 3 * 2)
            ],
        )
        operations.append(MESSAGES.new("BatchTableRequest.Operation", sort=sort))
    with channel(address) as opened:
        _session(opened)("Batch", MESSAGES.encode("BatchTableRequest", ops=operations))


def large_dictionary(address: str) -> None:
    """90 MiB of values, of which each row has one of its own; then two rows with two values."""
    values = pa.array([f"a value that is one of very many: {n}" for n in range(2_000_000)])
    codes = pa.array(np.arange(len(values), dtype=np.int32))
    few = pa.array(["some", "other"])
    for name, rows in (
        ("words", pa.DictionaryArray.from_arrays(codes, values)),
        ("words", pa.DictionaryArray.from_arrays(codes[:2], few)),
    ):
        _send(address, _upload(name, pa.table({"n": rows})))


def ten_million_keys(address: str) -> None:
    """In one batch, into a table with a key, in another order than the one they have there."""
    keys = np.random.default_rng(7).permutation(10_000_000)
    _send(address, _upload("keyed", pa.table({"n": keys})))


def one_row(address: str) -> None:
    """Of many columns, the first that changes in a table of rows that were only added so far."""
    _send(address, _upload("wide", wide_rows(np.array([7]), salt=1)))


def every_row(address: str) -> None:
    """All cells of half of the rows change, the texts as well."""
    _send(address, _upload("wide", wide_rows(np.arange(WIDE_ROWS // 2), salt=2)))


def most_rows_go(address: str) -> None:
    """Two of three, by their keys, so that the table is packed."""
    keys = np.arange(WIDE_ROWS * 2 // 3)
    _send(address, _upload("wide", pa.table({"n": keys}), mode="delete"))


def changed_below_sorts(address: str) -> None:
    """The same, below sorts that somebody keeps, as many as a client may."""
    with barrage.connect(address) as session, contextlib.ExitStack() as kept:
        table = session.table("wide")
        for order in (["x1"], ["-x2"], ["few", "n"]):
            view = kept.enter_context(table.sort(*order).subscribe(viewport=range(100)))
            with contextlib.suppress(BarrageError):
                view.wait_ready(120)
        _send(address, _upload("wide", wide_rows(np.arange(WIDE_ROWS // 2), salt=3)))


def whole_changed_table(address: str) -> None:
    """A first snapshot of all of it."""
    with barrage.connect(address) as session, session.table("wide").subscribe() as table:
        table.wait_ready(120)


def shown_by_all(address: str) -> None:
    """One row that 10^6 rows of a join show changes twenty times, below a sort."""
    with barrage.connect(address) as session:
        one = session.create_table("one", {"g": "int64", "b": "int64"}, key="g")
        session.put("one", {"g": [0], "b": [0]})
        shown = session.table("big").select("n", "x", g="n * 0").natural_join(one, "g", "b")
        with shown.sort("-b", "x").subscribe(viewport=range(100)) as view:
            view.wait_ready(120)
            for number in range(1, 21):
                session.put("one", {"g": [0], "b": [number]})
                time.sleep(0.1)


def _send(address: str, frames: list[bytes]) -> None:
    with channel(address) as opened:
        for _ in opened.stream_stream(f"{SERVICE}/DoPut")(iter(frames)):
            pass


ATTACKS: dict[str, Callable[[str], None]] = {
    "six sorts in a ticket": six_sorts,
    "agg_by on a text column": grouped_texts,
    "a filter of 1,900 terms": many_terms,
    "formulas of 400 terms, sorted by one": many_columns,
    "a snapshot of a sorted table": whole_sorted_table,
    "six sorts in a Deephaven batch": batch_of_sorts,
    "ten gzip uploads of 90 MiB": zipped_uploads,
    "three uploads of 90 MiB": plain_uploads,
    "a viewport of 10^7 ranges": many_ranges,
    "a dictionary of 90 MiB": large_dictionary,
    "10^7 new keys in one batch": ten_million_keys,
    "10^7 known keys in one batch": ten_million_keys,
    "the first change of a row of 16 columns, of 2x10^6": one_row,
    "changes of half of its rows": every_row,
    "a subscription to all of it": whole_changed_table,
    "changes of half of its rows below three kept sorts": changed_below_sorts,
    "two of three of its rows removed": most_rows_go,
    "a row that 10^6 rows of a sorted join show": shown_by_all,
}


def delays_during(watcher: Child, work: Callable[[], None]) -> tuple[list[float], float]:
    """Delays in ms of the rows that came while ``work`` was done, and its seconds."""
    watcher.ask("clear")
    started = time.perf_counter()
    work()
    seconds = time.perf_counter() - started
    time.sleep(0.3)
    return [delay / 1e6 for delay in watcher.ask("delays")], seconds


def run(*, quick: bool = False, only: str = "") -> dict[str, Any]:
    rows = 100_000 if quick else 1_000_000
    measurements: list[Measurement] = []
    with child(serve, rows) as server, child(watch, server.ready) as watcher:
        address = server.ready
        with barrage.connect(address) as session:
            numbers = pa.schema([("n", pa.int64())])
            session.create_table("zeros", numbers, kind="ring", capacity=10)
            session.create_table("keyed", numbers, key="n")
            words = pa.dictionary(pa.int32(), pa.string())
            session.create_table("words", pa.schema([("n", words)]), kind="append_only")
        time.sleep(1)
        idle, _ = delays_during(watcher, lambda: time.sleep(2 if quick else 10))
        for name, attack in ATTACKS.items():
            if only and only not in name:
                continue
            delays, seconds = delays_during(watcher, lambda attack=attack: attack(address))
            measurements.append(
                compared(
                    f"{name}: longest delay of another subscriber's update",
                    max(delays, default=float("inf")),
                    "ms",
                    baseline="longest on the same server, idle",
                    baseline_value=max(idle),
                    detail={"seconds": round(seconds, 2), "updates": len(delays)},
                )
            )
            print(
                measurements[-1].line, measurements[-1].value, measurements[-1].detail, flush=True
            )
    return result("never_blocked", measurements)

"""Deephaven's Python clients in a process of their own: pydeephaven and pydeephaven-ticking.

One JSON object per line on stdin, ``{"do": NAME, ...}``; the answers are JSON lines on stdout. See
:class:`Client` for the commands. Needs ``pydeephaven`` and ``pydeephaven-ticking``.
"""

import faulthandler
import gc
import json
import pathlib
import signal
import sys
import threading
import time
import traceback

import numpy as np
import pyarrow as pa
import pydeephaven
from digests import digest, row_hashes
from pydeephaven.ticket import SharedTicket
from pydeephaven_ticking import table_listener

gc.disable()
"""A table that the garbage collector finds releases its export by a call, on whatever thread
collects. When that thread is one grpc has just started, both wait for each other for ever: so
garbage is collected between commands only."""

CONNECT_SECONDS = 30.0

faulthandler.register(signal.SIGUSR1, all_threads=True)  # What it hangs in goes to the log.


def all_rows(columns):
    """A table of the first (and only) chunk of a listener's update; None when it has no rows."""
    return pa.table(columns) if columns else None


def multiset(columns):
    if not columns:
        return 0, 0
    count = len(next(iter(columns.values())))
    return count, int(row_hashes(columns, count).sum(dtype=np.uint64))


class Listener:
    """Follows one table. ``states`` has, per update, rows and digests of the whole state.

    A state is the client's own table. With ``is_tallied`` it is also kept by adding and
    subtracting what each update says was added, removed and modified; both must agree. With
    ``is_log`` (a blink table) a state is everything that was ever added.
    """

    def __init__(self, table, is_log, is_tallied):
        self._is_log = is_log
        self._is_tallied = is_tallied
        self._changed = threading.Condition()
        self._rows = 0
        self._sum = 0
        self.states = []
        self.errors = []
        self._columns = table.schema.names
        self.handle = table_listener.listen(table, self._on_update, self._on_error)
        self.handle.start()

    def _on_update(self, update):
        try:
            state = self._take(update)
        except Exception:
            self._on_error(traceback.format_exc())
            return
        with self._changed:
            self.states.append(state)
            self._changed.notify_all()

    def _take(self, update):
        parts = [(update.added(), 1)]
        if not self._is_log:
            parts += [
                (update.removed(), -1),
                (update.modified_prev(), -1),
                (update.modified(), 1),
            ]
        counts = []
        for columns, sign in parts:
            count, total = multiset(columns)
            counts.append(count)
            self._rows += sign * count
            self._sum += sign * total
        self._sum %= 1 << 64
        tally = {"rows": self._rows, "multiset": self._sum}
        if self._is_log:
            return {**tally, "ordered": None, "parts": counts}
        whole = self._whole(update.update.current)
        shown = {"rows": whole.rows, "multiset": whole.multiset}
        if self._is_tallied and shown != tally:
            raise AssertionError(f"the client's table differs from its updates: {whole}, {tally}")
        return {**shown, "ordered": whole.ordered, "parts": counts}

    def _whole(self, table):
        rows = table.get_row_sequence()
        if rows.empty:
            return digest(pa.table({name: [] for name in self._columns}))
        columns = {
            name: table.get_column_by_name(name, True).get_chunk(rows) for name in self._columns
        }
        return digest(pa.table(columns))

    def _on_error(self, error):
        with self._changed:
            self.errors.append(str(error)[:2000])
            self._changed.notify_all()

    def wait(self, is_done, timeout):
        """Until ``is_done(self)`` or an error; False when the time is over."""
        with self._changed:
            return self._changed.wait_for(lambda: self.errors or is_done(self), timeout)


class Client:
    """The commands."""

    def __init__(self):
        self.sessions = {}
        self.tables = {}
        self.listeners = {}

    def connect(self, *, session, port, types=None, ca=None, **options):
        """gRPC shares what it knows of an address: after a restart of the server it may wait a
        while before it tries again, and fails calls at once until then."""
        headers = {b"x-barrage-types": types.encode()} if types else None
        if ca is not None:
            options |= {"use_tls": True, "tls_root_certs": pathlib.Path(ca).read_bytes()}
        end = time.monotonic() + CONNECT_SECONDS
        while True:
            try:
                self.sessions[session] = pydeephaven.Session(
                    "127.0.0.1", port, extra_headers=headers, **options
                )
                return {}
            except pydeephaven.DHError as error:
                if "UNAVAILABLE" not in f"{error} {error.__cause__}" or time.monotonic() > end:
                    raise
                time.sleep(0.2)

    def disconnect(self, *, session):
        self.sessions.pop(session).close()
        return {}

    def names(self, *, session):
        return {"names": sorted(self.sessions[session].tables)}

    def open(self, *, session, table, key=None):
        found = self.tables[key or table] = self.sessions[session].open_table(table)
        return {"schema": found.schema.names, "is_static": bool(not found.is_refreshing)}

    def listen(self, *, session, table, key, is_log=False, is_tallied=True):
        opened = self.sessions[session].open_table(table)
        self.listeners[key] = Listener(opened, is_log, is_tallied)
        return {}

    def wait_states(self, *, key, count, timeout):
        done = self.listeners[key].wait(lambda listener: len(listener.states) >= count, timeout)
        return {"done": bool(done), "errors": self.listeners[key].errors}

    def wait_for(self, *, key, rows, multiset, timeout):
        def is_there(listener):
            last = listener.states[-1] if listener.states else None
            return bool(last and (last["rows"], last["multiset"]) == (rows, multiset))

        done = self.listeners[key].wait(is_there, timeout)
        return {"done": bool(done), "errors": self.listeners[key].errors}

    def wait_error(self, *, key, timeout):
        self.listeners[key].wait(lambda listener: False, timeout)
        return {"errors": self.listeners[key].errors}

    def states(self, *, key):
        listener = self.listeners[key]
        return {"states": list(listener.states), "errors": listener.errors}

    def stop(self, *, key):
        self.listeners.pop(key).handle.stop()
        return {}

    def read(self, *, session, table):
        """A snapshot, as DoGet gives it."""
        opened = self.sessions[session].open_table(table)
        shown = digest(opened.to_arrow())
        return {"rows": shown.rows, "multiset": shown.multiset, "ordered": shown.ordered}

    def read_often(self, *, session, table, times, seconds):
        """Snapshots of one open table, one after another: so many, and for so long."""
        opened = self.sessions[session].open_table(table)
        states, end = [], time.monotonic() + seconds
        while len(states) < times or time.monotonic() < end:
            shown = digest(opened.to_arrow())
            states.append(
                {"rows": shown.rows, "multiset": shown.multiset, "ordered": shown.ordered}
            )
        return {"states": states}

    def upload_and_read(self, *, session, table, times):
        """Rows of ``table`` go up again and come back; the digests."""
        opened = self.sessions[session].open_table(table)
        rows = opened.to_arrow()
        digests = []
        for _ in range(times):
            back = self.sessions[session].import_table(rows).to_arrow()
            digests.append(digest(back) == digest(rows))
        return {"equal": digests}

    def share(self, *, session, table, to_session):
        """Publish ``table`` under a shared ticket and read it in another session."""
        ticket = SharedTicket.random_ticket()
        self.tables["shared"] = self.sessions[session].open_table(table)
        self.sessions[session].publish_table(ticket, self.tables["shared"])
        fetched = self.sessions[to_session].fetch_table(ticket)
        shown = digest(fetched.to_arrow())
        return {"rows": shown.rows, "multiset": shown.multiset, "ordered": shown.ordered}

    def storm(self, *, session, table, times):
        """Start and stop listeners; most are stopped before or right after the first state."""
        opened = self.sessions[session].open_table(table)
        shown = 0
        for number in range(times):
            updates = []
            errors = []
            handle = table_listener.listen(opened, updates.append, errors.append)
            handle.start()
            if number % 3 == 0:
                end = time.monotonic() + 10
                while not updates and not errors and time.monotonic() < end:
                    time.sleep(0.001)
                if not updates:
                    raise AssertionError(f"listener {number} got nothing: {errors}")
                shown += 1
            elif number % 3 == 1:
                time.sleep(0.002)
            handle.stop()
            if errors:
                raise AssertionError(f"listener {number}: {errors}")
        return {"shown": shown}

    def collect(self):
        """Drop what nobody uses; its exports are released."""
        gc.collect()
        return {}

    def listen_fails(self, *, session, table):
        """``start`` of a listener on a table with types the client does not know."""
        opened = self.sessions[session].open_table(table)
        try:
            table_listener.listen(opened, lambda update: None).start()
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
        return {"error": None}


def main():
    client = Client()
    for line in sys.stdin:
        gc.collect()
        arguments = json.loads(line)
        try:
            answer = {"ok": True, **getattr(client, arguments.pop("do"))(**arguments)}
        except Exception as error:
            cause = f" ({error.__cause__})" if error.__cause__ else ""
            text = f"{type(error).__name__}: {error}{cause}"
            answer = {"ok": False, "error": text[:2000]}
        print(json.dumps(answer), flush=True)


main()

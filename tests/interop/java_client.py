"""Deephaven's Java client in a process of its own: a Deephaven server that subscribes to others.

One JSON object per line on stdin, ``{"do": NAME, ...}``; the answers are JSON lines on stdout. See
:class:`Client` for the commands. Needs ``deephaven-server`` and Java 17.
"""

import json
import pathlib
import sys
import threading
import traceback

from deephaven_server import Server

server = Server(
    port=int(sys.argv[1]),
    jvm_args=[
        "-Xmx900m",
        "-XX:TieredStopAtLevel=1",
        "-DAuthHandlers=io.deephaven.auth.AnonymousAuthenticationHandler",
        "-Dhttp.host=127.0.0.1",
        "-DPeriodicUpdateGraph.targetCycleDurationMillis=20",
        "-Dbarrage.minUpdateInterval=20",
    ],
    default_jvm_args=[],
)
server.start()

import jpy  # noqa: E402
from deephaven import agg  # noqa: E402, F401
from deephaven import arrow as dharrow  # noqa: E402
from deephaven.barrage import barrage_session  # noqa: E402
from deephaven.execution_context import get_exec_ctx  # noqa: E402
from deephaven.liveness_scope import liveness_scope  # noqa: E402
from deephaven.stream import blink_to_append_only  # noqa: E402, F401
from deephaven.table import Table  # noqa: E402
from deephaven.table_listener import TableListener, TableListenerHandle  # noqa: E402
from deephaven.update_graph import shared_lock  # noqa: E402
from deephaven.uri import resolve  # noqa: E402
from digests import digest  # noqa: E402

BitSet = jpy.get_type("java.util.BitSet")
RowSetFactory = jpy.get_type("io.deephaven.engine.rowset.RowSetFactory")
TableSpec = jpy.get_type("io.deephaven.qst.table.TableSpec")
Resolver = jpy.get_type("io.deephaven.server.uri.BarrageTableResolver")


class Follower(TableListener):
    """States of one table: one when it starts, one per update, all read inside the cycle."""

    def __init__(self, table, columns=None):
        self.table = table if columns is None else table.view(columns)
        self.states = []
        self.errors = []
        self._changed = threading.Condition()
        with shared_lock(get_exec_ctx().update_graph):
            self.note()
            self._handle = None
            if table.is_refreshing:
                self._handle = TableListenerHandle(self.table, self)
                self._handle.start()

    def note(self):
        shown = digest(dharrow.to_arrow(self.table))
        state = {"rows": shown.rows, "multiset": shown.multiset, "ordered": shown.ordered}
        with self._changed:
            self.states.append(state)
            self._changed.notify_all()

    def on_update(self, update, is_replay):
        try:
            self.note()
        except Exception:
            self.on_error(traceback.format_exc())

    def on_error(self, e):
        with self._changed:
            self.errors.append(str(e)[:2000])
            self._changed.notify_all()

    def wait(self, is_done, timeout):
        with self._changed:
            return self._changed.wait_for(lambda: self.errors or is_done(self), timeout)

    def stop(self):
        if self._handle is not None and not self.errors:
            self._handle.stop()


class Client:
    """The commands. ``key`` names a table here; ``table`` is its name on the other server."""

    def __init__(self):
        self.sessions = {}
        self.tables = {}
        self.followers = {}
        self.subscriptions = {}

    def connect(self, *, session, port, auth_type="Anonymous", auth_token="", ca=None):
        tls = {"use_tls": True, "tls_root_certs": pathlib.Path(ca).read_bytes()} if ca else {}
        self.sessions[session] = barrage_session("127.0.0.1", port, auth_type, auth_token, **tls)
        return {}

    def disconnect(self, *, session):
        self.sessions.pop(session).close()
        return {}

    def subscribe(self, *, session, table, key):
        """A full subscription."""
        self.tables[key] = self.sessions[session].subscribe(f"s/{table}".encode())
        return self._about(key)

    def partial(
        self, *, session, table, key, viewport=None, columns=None, reverse=False, snapshot=False
    ):
        """Some rows and columns, as a subscription or as a snapshot. ``viewport`` is half-open."""
        rows = None
        if viewport is not None:
            rows = RowSetFactory.fromRange(viewport[0], viewport[1] - 1)
        bits = None
        if columns is not None:
            bits = BitSet()
            for column in columns:
                bits.set(column)
        remote = self.sessions[session].j_barrage_session
        spec = TableSpec.ticket(f"s/{table}".encode())
        if snapshot:
            made = remote.snapshot(spec, Resolver.SNAP_OPTIONS)
        else:
            made = remote.subscribe(spec, Resolver.SUB_OPTIONS)
        self.subscriptions[key] = made
        self.tables[key] = Table(made.partialTable(rows, bits, reverse).get())
        return self._about(key)

    def snapshot(self, *, session, table, key):
        self.tables[key] = self.sessions[session].snapshot(f"s/{table}".encode())
        return self._about(key)

    def resolve(self, *, port, table, key):
        """By URI."""
        self.tables[key] = resolve(f"dh+plain://127.0.0.1:{port}/scope/{table}")
        return self._about(key)

    def derive(self, *, source, key, code):
        """A local operation: ``code`` is Python over ``t``."""
        self.tables[key] = eval(code, globals(), {"t": self.tables[source]})
        return self._about(key)

    def _about(self, key):
        table = self.tables[key]
        return {
            "columns": [column.name for column in table.columns],
            "is_refreshing": bool(table.is_refreshing),
            "is_blink": bool(table.is_blink),
        }

    def read(self, *, key, columns=None):
        with shared_lock(get_exec_ctx().update_graph):
            shown = digest(dharrow.to_arrow(self.tables[key], cols=columns))
        return {"rows": shown.rows, "multiset": shown.multiset, "ordered": shown.ordered}

    def follow(self, *, key, columns=None):
        """``columns`` are the subscribed ones, by name; the others have no values here."""
        self.followers[key] = Follower(self.tables[key], columns)
        return {}

    def wait_for(self, *, key, rows, multiset, timeout):
        def is_there(follower):
            last = follower.states[-1]
            return (last["rows"], last["multiset"]) == (rows, multiset)

        done = self.followers[key].wait(is_there, timeout)
        return {"done": bool(done), "errors": self.followers[key].errors}

    def wait_error(self, *, key, timeout):
        self.followers[key].wait(lambda follower: False, timeout)
        return {"errors": self.followers[key].errors}

    def states(self, *, key):
        follower = self.followers[key]
        return {"states": list(follower.states), "errors": follower.errors}

    def stop(self, *, key):
        self.followers.pop(key).stop()
        return {}

    def come_and_go(self, *, session, table, times):
        """Subscriptions that end at once; gives how many rows each had."""
        rows = []
        for _ in range(times):
            with liveness_scope():
                rows.append(self.sessions[session].subscribe(f"s/{table}".encode()).size)
        return {"rows": rows}


client = Client()
print(json.dumps({"ok": True, "port": server.port}), flush=True)
for line in sys.stdin:
    arguments = json.loads(line)
    try:
        answer = {"ok": True, **getattr(client, arguments.pop("do"))(**arguments)}
    except Exception as error:
        answer = {"ok": False, "error": f"{type(error).__name__}: {error}"[-3000:]}
    print(json.dumps(answer), flush=True)

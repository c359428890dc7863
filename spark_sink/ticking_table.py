"""A table of the server as a view in Spark that keeps itself up to date::

    trades = barrage_ticking_table(spark, "grpc://localhost:10000", "trades")
    spark.sql("select symbol, sum(size) from trades group by symbol").show()

The view equals the remote table at one version, always; :attr:`TickingView.version` says which.
Each micro-batch writes what changed and points the view at it, so a query sees the last version
applied when it was planned. A DataFrame made from the view keeps the version it was made at: two
queries over the same DataFrame agree.

With a ``location`` the rows outlive the session: the next one goes on where this one was, exactly
once, whatever was killed. Without, they live in a temporary folder and are read anew.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from barrage.errors import ConfigError
from barrage.supervision import Role, start_thread
from spark_sink.connection import ServerConnection
from spark_sink.lake import lake_of
from spark_sink.manifest import COMPACT_EVERY, Manifest
from spark_sink.manifest_folder import KEEP_SECONDS, MANIFEST
from spark_sink.registration import register
from spark_sink.sink_errors import root_cause, short_cause
from spark_sink.ticking_batches import (
    CHECKPOINT_FOLDER,
    BatchApplier,
    TablePlan,
    TickingTableError,
)
from spark_sink.ticking_rows import StateReader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from barrage.errors import WorkerDiedError

VIEW = Role("barrage-view", "who waits for a version of the ticking table")

_log = logging.getLogger(__name__)

LAKE_STATE_FOLDER = "_barrage"
"""Where our own files are when the location is a Delta or Iceberg table: both skip names with an
underscore in front."""

WAIT_SECONDS = 120.0
"""How long the first version may take: a first query has workers to start."""

POLL_SECONDS = 0.2
"""How often the manifest is looked at where the batches run in another process."""

_FIXED_OPTIONS = ("readchangefeed", "startingoffsets", "startingversion", "startingtimestamp")


class TableVersion(NamedTuple):
    """One immutable state of the remote table."""

    epoch: str
    version: int

    def __str__(self) -> str:
        return f"{self.epoch}:{self.version}"


def barrage_ticking_table(
    spark: SparkSession,
    uri: str,
    table: str,
    *,
    view: str | None = None,
    location: str | None = None,
    checkpointLocation: str | None = None,  # noqa: N803
    format: str = "parquet",
    catalog: Mapping[str, str] | None = None,
    trigger: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    compact_every: int = COMPACT_EVERY,
    keep_seconds: float = KEEP_SECONDS,
    wait_seconds: float = WAIT_SECONDS,
) -> TickingView:
    """Start to mirror ``table`` and return when the view shows its first version.

    ``view``: name of the temporary view, by default the table's. ``location``: a folder that the
    driver and every executor see; None for a temporary one, which is deleted at ``stop``.
    ``checkpointLocation``: by default inside it. ``format``: ``delta`` or ``iceberg`` also keeps a
    table of that format at the location for other readers (for Iceberg, of the catalog whose
    properties ``catalog`` has). ``trigger``: arguments of Spark's ``trigger``. ``options``: of the
    source, such as ``columns``, ``filter``, ``maxRowsPerTrigger``; the table resynchronises by
    itself when the server lost history, unless ``failOnDataLoss`` is true. ``compact_every``:
    batches between compactions. ``keep_seconds``: how long queries over an older view may go on
    reading replaced files. ``wait_seconds``: TimeoutError when the first version takes longer.
    """
    register(spark)
    if compact_every < 1 or keep_seconds < 0:
        raise ConfigError("compact_every is at least 1, and keep_seconds at least 0")
    folders = _Folders.of(location, checkpointLocation, format)
    lake = lake_of(format, str(folders.location), name=table, catalog=catalog)
    given = _source_options(uri, table, options or {})
    stream = spark.readStream.format("barrage").options(**given).load()
    plan = TablePlan(
        connection=ServerConnection.of(given),
        table=table,
        root=str(folders.root),
        checkpoint=folders.checkpoint,
        feed=stream.schema,
        has_own_journal="journallocation" in given,
        compact_every=compact_every,
        keep_seconds=keep_seconds,
        lake=lake,
    )
    ticking = TickingView(spark, plan, view=view or table, is_temporary=folders.is_temporary)
    ticking._start(stream, dict(trigger or {}))
    try:
        ticking._wait_first(wait_seconds)
    except BaseException:
        ticking.stop()
        raise
    return ticking


class TickingView:
    """The running mirror of one table. Also a context manager, which stops it."""

    def __init__(
        self, spark: SparkSession, plan: TablePlan, *, view: str, is_temporary: bool
    ) -> None:
        self._spark = spark
        self._plan = plan
        self._view = view
        self._is_temporary = is_temporary
        self._reader = StateReader(spark, Path(plan.root), plan.feed)
        self._applier = BatchApplier(plan)
        self._changed = threading.Condition()
        self._applying = threading.Lock()
        self._manifest = Manifest()
        self._is_stopped = False
        self._query: StreamingQuery | None = None
        self._watcher: threading.Thread | None = None
        self._death: WorkerDiedError | None = None

    @property
    def query(self) -> StreamingQuery:
        """The streaming query behind the view."""
        assert self._query is not None
        return self._query

    @property
    def view(self) -> str:
        """Name of the view."""
        return self._view

    @property
    def version(self) -> TableVersion | None:
        """The state the view shows; None before the first."""
        shown = self._manifest.shown
        return None if shown is None else TableVersion(shown.epoch, shown.version)

    def wait_for(self, version: int | tuple[str, int], timeout: float | None = None) -> None:
        """Block until the view shows ``version`` or a later one; with an epoch, of that epoch.

        TimeoutError after ``timeout`` seconds; TickingTableError, with the reason, when the query
        has ended.
        """
        epoch, number = (None, version) if isinstance(version, int) else version

        def is_there() -> bool:
            shown = self.version
            is_epoch = shown is not None and (epoch is None or shown.epoch == epoch)
            return shown is not None and is_epoch and shown.version >= number

        self._wait(is_there, f"version {number} of table {self._plan.table!r}", timeout)

    def df(self) -> DataFrame:
        """The rows of the version shown now, whatever comes after."""
        return self._reader.rows(self._manifest.shown)

    def stop(self) -> None:
        """Stop the query and wait for a batch under way. A temporary folder goes, and the view with
        it; otherwise the view stays at the last version."""
        if self._query is not None:
            self._query.stop()
        with self._applying, self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        if self._watcher is not None:
            self._watcher.join()
        if self._is_temporary:
            self._spark.catalog.dropTempView(self._view)
            shutil.rmtree(self._plan.root, ignore_errors=True)

    def __enter__(self) -> TickingView:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<TickingView {self._plan.table!r} as {self._view!r} at {self.version}>"

    # --- running ---

    def _start(self, stream: DataFrame, trigger: dict[str, Any]) -> None:
        is_remote = not hasattr(self._spark, "_jsparkSession")
        if not is_remote:
            # What an earlier process left is cleared away, and its rows are shown, before the
            # query adds to them.
            self._show(self._applier.folder.manifest)
        writer = (
            stream.writeStream.queryName(f"barrage_{self._view}_{id(self):x}")
            .option("checkpointLocation", self._plan.checkpoint)
            .foreachBatch(self._applier if is_remote else self._apply)
        )
        if trigger:
            writer = writer.trigger(**trigger)
        self._query = writer.start()
        if is_remote:
            self._watcher = start_thread(VIEW, self._watch, on_death=self._died)

    def _apply(self, rows: DataFrame, number: int) -> None:
        with self._applying:
            if self._is_stopped:
                raise TickingTableError("the ticking table was stopped")
            try:
                self._applier(rows, number)
            except Exception as error:
                _log.debug("batch %d of %s failed", number, self._plan.table, exc_info=error)
                raise TickingTableError(
                    f"table {self._plan.table!r}, batch {number}: {short_cause(error)}"
                ) from None
            self._show(self._applier.folder.manifest)

    def _show(self, manifest: Manifest) -> None:
        """Point the view at a manifest's state, and tell those who wait."""
        if manifest.shown is not None and manifest.shown != self._manifest.shown:
            self._reader.rows(manifest.shown).createOrReplaceTempView(f"`{self._view}`")
        with self._changed:
            self._manifest = manifest
            self._changed.notify_all()

    def _watch(self) -> None:
        """Spark Connect: batches run in a process of the server, and the manifest tells of them."""
        path = Path(self._plan.root, MANIFEST)
        while not self._is_stopped:
            text = path.read_text() if path.exists() else self._remote_text(path)
            if text:
                self._show(Manifest.from_json(text))
            with self._changed:
                self._changed.wait(POLL_SECONDS)

    def _died(self, error: WorkerDiedError) -> None:
        """The view stays where it is; who waits for more is told."""
        with self._changed:
            self._death = error
            self._changed.notify_all()

    def _remote_text(self, path: Path) -> str | None:
        """The manifest where only Spark sees it; None when there is none yet."""
        from pyspark.errors import PySparkException

        try:
            found = self._spark.read.text(str(path), wholetext=True).collect()
        except PySparkException:
            return None
        return str(found[0][0]) if found else None

    def _wait_first(self, seconds: float) -> None:
        self._wait(lambda: self.version is not None, f"table {self._plan.table!r}", seconds)

    def _wait(self, is_there: Callable[[], bool], what: str, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not is_there():
                self._check_running(what)
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"{what} is not there after {timeout:g} s")
                # The end of a query wakes nobody, so it is looked for now and then.
                self._changed.wait(POLL_SECONDS if left is None else min(left, POLL_SECONDS))

    def _check_running(self, what: str) -> None:
        query = self._query
        if self._is_stopped or query is None:
            raise TickingTableError(f"{what} will not come: the ticking table was stopped")
        if self._death is not None:
            raise TickingTableError(f"{what} will not come: {self._death}")
        if query.isActive:
            return
        error = query.exception()
        reason = "the query has ended" if error is None else root_cause(error)
        raise TickingTableError(f"{what} will not come: {reason}")


class _Folders(NamedTuple):
    """Where everything is."""

    location: Path
    root: Path
    checkpoint: str
    is_temporary: bool

    @classmethod
    def of(cls, location: str | None, checkpoint: str | None, kind: str) -> _Folders:
        if location is None:
            if kind != "parquet":
                raise ConfigError(f"format {kind!r} needs a location, for others to read")
            if checkpoint is not None:
                raise ConfigError(
                    "a checkpointLocation needs a location: the checkpoint would say that rows are "
                    "there which went with the temporary folder"
                )
            folder = Path(tempfile.mkdtemp(prefix="barrage-ticking-"))
            return cls(folder, folder, str(folder / CHECKPOINT_FOLDER), True)
        folder = _local_path(location)
        root = folder if kind == "parquet" else folder / LAKE_STATE_FOLDER
        root.mkdir(parents=True, exist_ok=True)
        return cls(folder, root, checkpoint or str(root / CHECKPOINT_FOLDER), False)


def _local_path(location: str) -> Path:
    """A path, or a ``file:`` URI, as an absolute path; ConfigError for other file systems."""
    parts = urlsplit(location)
    if parts.scheme == "file":
        return Path(unquote(parts.path)).absolute()
    if "://" in location:
        raise ConfigError(
            f"location {location!r} is not a path: the manifest is replaced by renaming, so the "
            "location must be a directory that the driver and all executors have mounted"
        )
    return Path(location).absolute()


def _source_options(uri: str, table: str, options: Mapping[str, Any]) -> dict[str, str]:
    given = {
        str(key).lower(): str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in options.items()
    }
    fixed = [key for key in given if key in _FIXED_OPTIONS]
    if fixed:
        raise ConfigError(
            f"option {fixed[0]} is not for a ticking table: it always begins with a snapshot"
        )
    return {
        "failondataloss": "false",
        **given,
        "uri": uri,
        "table": table,
        "readchangefeed": "true",
    }

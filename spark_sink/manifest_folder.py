"""The folder of a ticking table, and the order in which a batch changes it.

::

    manifest.json          which files make up the table, replaced atomically
    d/<generation>-<n>/    the changes of batch n, Parquet
    base/<generation>-<n>/ whole rows: a chunk of a snapshot; with c, all as of batch n

Whoever is killed between two steps of :meth:`TableFolder.apply` leaves at most a folder that no
manifest names: the batch runs again and writes it again, and a later start removes what is left.
Files are synced before the manifest that names them, so this holds for a machine that loses power
as well.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from spark_sink.manifest import (
    COMPACT_EVERY,
    BatchHead,
    Manifest,
    ManifestState,
    begun,
    is_snapshot,
    needs_compaction,
    swept,
    with_base,
    with_batch,
    with_nothing,
)

if TYPE_CHECKING:
    from collections.abc import Callable

MANIFEST = "manifest.json"
DELTAS = "d"
BASES = "base"
COMPACTED = "c"
"""Ends the name of a base that was compacted: the batch may have a snapshot's chunk as well."""

KEEP_SECONDS = 60.0
"""A retired file stays this long at least: a query over an older view may take its time."""


class RowWriter(Protocol):
    """Who can read and write rows: Spark, or a test."""

    def write_changes(self, path: Path) -> None:
        """Write the batch's rows as changes."""

    def write_snapshot(self, path: Path) -> None:
        """Write the batch's rows, which are part of a snapshot, as base rows."""

    def is_whole(self, batch: BatchHead) -> bool:
        """Whether the source had all rows of the batch until after they were written."""

    def truncates(self, path: Path) -> bool:
        """Whether the changes at ``path`` say that everything before is void."""

    def write_state(self, state: ManifestState, path: Path) -> None:
        """Write the rows of a whole state as base rows."""


def _no_fault(_step: str) -> None:
    """Called between steps; tests put a kill here."""


class TableFolder:
    """One table's folder. One process writes, any number read."""

    def __init__(
        self,
        root: Path,
        *,
        seconds: Callable[[], float],
        compact_every: int = COMPACT_EVERY,
        keep_seconds: float = KEEP_SECONDS,
        between: Callable[[str], None] = _no_fault,
    ) -> None:
        """``seconds``: the wall clock, for the age of retired files. ``between`` is called with the
        name of each step that is done."""
        self.root = root
        self._seconds = seconds
        self._compact_every = compact_every
        self._keep_seconds = keep_seconds
        self._between = between
        root.mkdir(parents=True, exist_ok=True)
        self._manifest = self.read()

    @property
    def manifest(self) -> Manifest:
        """The last one this process read or wrote."""
        return self._manifest

    def read(self) -> Manifest:
        """The manifest on disk; an empty one when there is none. ManifestError."""
        try:
            return Manifest.from_json((self.root / MANIFEST).read_text())
        except FileNotFoundError:
            return Manifest()

    def apply(self, batch: BatchHead, rows: RowWriter) -> bool:
        """Put one batch in; False when it was in already. Exactly once, whatever is killed."""
        if self._manifest.is_applied(batch.query, batch.batch):
            return False
        before = begun(self._manifest, batch.query)
        name = f"{before.generation}-{batch.batch}"
        snapshot = is_snapshot(self._manifest, batch)
        path = f"{BASES if snapshot else DELTAS}/{name}"
        self._clear(path)
        self._between("cleared")
        if snapshot:
            rows.write_snapshot(self.root / path)
        else:
            rows.write_changes(self.root / path)
        self._between("rows written")
        _sync_tree(self.root / path)
        self._between("rows synced")
        if not rows.is_whole(batch):
            self._replace(with_nothing(self._manifest, batch))
            return True
        truncates = not snapshot and rows.truncates(self.root / path)
        self._replace(
            with_batch(self._manifest, batch, path, truncates=truncates, at_seconds=self._seconds())
        )
        self._compact(rows)
        self._sweep()
        return True

    def recover(self) -> None:
        """Remove what a killed process left behind. Only the writer may call this."""
        known = self._manifest.referenced
        for kind in (DELTAS, BASES):
            folder = self.root / kind
            for left in sorted(folder.iterdir()) if folder.is_dir() else ():
                if f"{kind}/{left.name}" not in known:
                    shutil.rmtree(left)
        (self.root / f".{MANIFEST}").unlink(missing_ok=True)

    def _compact(self, rows: RowWriter) -> None:
        manifest = self._manifest
        if not needs_compaction(manifest, self._compact_every) or manifest.shown is None:
            return
        path = f"{BASES}/{manifest.generation}-{manifest.batch}{COMPACTED}"
        self._clear(path)
        rows.write_state(manifest.shown, self.root / path)
        self._between("base written")
        _sync_tree(self.root / path)
        self._between("base synced")
        self._replace(with_base(manifest, path, at_seconds=self._seconds()))

    def _sweep(self) -> None:
        """Forget retired files, then delete them: a kill in between leaves them to
        :meth:`recover`."""
        after = swept(self._manifest, now_seconds=self._seconds(), keep_seconds=self._keep_seconds)
        gone = self._manifest.referenced - after.referenced
        if not gone:
            return
        self._replace(after)
        for path in sorted(gone):
            shutil.rmtree(self.root / path, ignore_errors=True)
            self._between("old file deleted")

    def _clear(self, path: str) -> None:
        """Make room for a folder that no manifest names: an earlier try may have left one."""
        if path in self._manifest.referenced:
            raise AssertionError(f"{path} is in use")
        shutil.rmtree(self.root / path, ignore_errors=True)
        (self.root / path).parent.mkdir(exist_ok=True)

    def _replace(self, manifest: Manifest) -> None:
        pending = self.root / f".{MANIFEST}"
        with pending.open("w") as file:
            file.write(manifest.to_json())
            file.flush()
            os.fsync(file.fileno())
        self._between("manifest written")
        pending.replace(self.root / MANIFEST)
        _sync(self.root)
        self._manifest = manifest
        self._between("manifest replaced")


def _sync_tree(path: Path) -> None:
    """Make everything below ``path``, and its name, survive a loss of power."""
    for folder, _, files in os.walk(path):
        for name in files:
            _sync(Path(folder, name))
        _sync(Path(folder))
    _sync(path.parent)


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)

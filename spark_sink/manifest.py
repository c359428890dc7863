"""What a ticking table on disk consists of, and how a batch changes that: values and rules only.

A state is base files (rows by row id) and delta files (changes); its rows are the base's, with the
last change of each row id put over them. A manifest names the state that is *shown*, the one that
is being *built* (a snapshot that is read in chunks must not be seen half), and the batch that came
last, so that a batch Spark runs again changes nothing. Files that no state names any more are
*retired*: readers of an older view may still be reading them.

Worked example, batches 0 to 3 of one query: 0 is a snapshot's only chunk, so shown = base b0. 1 and
2 are changes: shown = base b0, deltas d1 d2. 3 begins a new snapshot because history was lost:
built = base b3, and only when its last chunk is there is it shown, and b0 d1 d2 retire.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

FORMAT = 1
MANIFESTS_KEPT = 2
"""A retired file outlives this many further manifests."""

COMPACT_EVERY = 8
"""Deltas of a state before they are put into its base."""


class ManifestError(ValueError):
    """A manifest file does not read as one of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestState:
    """One state of the table. Paths are relative to the table's folder."""

    epoch: str
    version: int
    row: int
    """-1: complete. Else a snapshot is being read, and row ids from here on are still to come."""
    sync: int
    """Which snapshot of the query this state goes back to."""
    bases: tuple[str, ...] = ()
    deltas: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        return self.row < 0

    @property
    def files(self) -> tuple[str, ...]:
        return self.bases + self.deltas


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """A path that no state names since manifest ``number``, written at ``at_seconds``."""

    path: str
    number: int
    at_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The whole of what the folder means. Each one replaces the one before."""

    number: int = 0
    query: str = ""
    generation: int = 0
    """Counts queries: the files of a query whose checkpoint was lost keep their names."""
    batch: int = -1
    shown: ManifestState | None = None
    built: ManifestState | None = None
    retired: tuple[Retired, ...] = ()

    @property
    def latest(self) -> ManifestState | None:
        """The state the next batch goes upon."""
        return self.built or self.shown

    @property
    def referenced(self) -> frozenset[str]:
        """Every path that must not be deleted."""
        states = [state for state in (self.shown, self.built) if state is not None]
        return frozenset(
            [path for state in states for path in state.files] + [old.path for old in self.retired]
        )

    def is_applied(self, query: str, batch: int) -> bool:
        """Whether this batch of this query is in already."""
        return query == self.query and batch <= self.batch

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """ManifestError for anything else than what :meth:`to_json` wrote."""
        try:
            told = json.loads(text)
            if told.pop("format") != FORMAT:
                raise ManifestError(f"the manifest is of another format than {FORMAT}")
            return cls(
                **{
                    **told,
                    "shown": _state(told["shown"]),
                    "built": _state(told["built"]),
                    "retired": tuple(Retired(**old) for old in told["retired"]),
                }
            )
        except ManifestError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ManifestError(f"not a manifest: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHead:
    """What is known of a batch before its rows are looked at: who runs it, and the offset that ends
    it (epoch, version, row, sync as the source counts them)."""

    query: str
    batch: int
    epoch: str
    version: int
    row: int
    sync: int


def is_snapshot(manifest: Manifest, batch: BatchHead) -> bool:
    """Whether the batch's rows are part of a snapshot, and not changes: it begins one, or the state
    before it is one that is not complete."""
    before = manifest.latest
    if before is None or batch.query != manifest.query:
        return True
    return batch.sync != before.sync or not before.is_complete


def begun(manifest: Manifest, query: str) -> Manifest:
    """The manifest as a batch of ``query`` finds it: another query than before begins anew, and
    what was shown stays in view until it has caught up."""
    if query == manifest.query:
        return manifest
    return replace(manifest, query=query, generation=manifest.generation + 1, batch=-1, built=None)


def with_batch(
    manifest: Manifest, batch: BatchHead, path: str, *, truncates: bool, at_seconds: float
) -> Manifest:
    """The manifest after ``batch``, whose rows are at ``path``.

    ``truncates``: the rows have one that says that everything before is void, as they do when the
    journal lost the changes of a batch that Spark had planned already.
    """
    before = begun(manifest, batch.query)
    latest = None if manifest.query != batch.query else before.latest
    snapshot = is_snapshot(manifest, batch)
    if snapshot:
        # The first chunk begins a state, further ones add to it; ids are disjoint.
        goes_on = latest is not None and latest.sync == batch.sync
        bases = (*(latest.bases if goes_on and latest else ()), path)
        deltas: tuple[str, ...] = ()
    elif truncates or latest is None:
        bases, deltas = (), (path,)
    else:
        bases, deltas = latest.bases, (*latest.deltas, path)
    state = ManifestState(
        epoch=batch.epoch,
        version=batch.version,
        row=batch.row,
        sync=batch.sync,
        bases=bases,
        deltas=deltas,
    )
    if state.is_complete:
        after = replace(before, batch=batch.batch, shown=state, built=None)
    else:
        after = replace(before, batch=batch.batch, built=state)
    return _numbered(manifest, after, at_seconds)


def with_nothing(manifest: Manifest, batch: BatchHead) -> Manifest:
    """The manifest after a batch whose rows may be incomplete because the server forgot the history
    they came from: only its number counts. The source begins a new snapshot next."""
    after = replace(begun(manifest, batch.query), batch=batch.batch)
    return replace(after, number=manifest.number + 1)


def with_base(manifest: Manifest, path: str, *, at_seconds: float) -> Manifest:
    """The manifest after its shown state was written to ``path`` in one piece."""
    if manifest.shown is None:
        raise ManifestError("nothing to compact")
    compacted = replace(manifest.shown, bases=(path,), deltas=())
    return _numbered(manifest, replace(manifest, shown=compacted), at_seconds)


def needs_compaction(manifest: Manifest, every: int = COMPACT_EVERY) -> bool:
    """Whether the shown state has become a long list."""
    return manifest.shown is not None and len(manifest.shown.deltas) >= every


def swept(manifest: Manifest, *, now_seconds: float, keep_seconds: float) -> Manifest:
    """The manifest without the retired files whose readers had time enough: they outlived
    ``MANIFESTS_KEPT`` manifests and ``keep_seconds``."""
    kept = tuple(
        old
        for old in manifest.retired
        if manifest.number - old.number < MANIFESTS_KEPT
        or now_seconds - old.at_seconds < keep_seconds
    )
    return replace(manifest, retired=kept)


def _numbered(before: Manifest, after: Manifest, at_seconds: float) -> Manifest:
    """``after`` with the next number, and the files it no longer names retired."""
    number = before.number + 1
    named = {path for state in (after.shown, after.built) if state for path in state.files}
    old = [path for state in (before.shown, before.built) if state for path in state.files]
    gone = [path for path in dict.fromkeys(old) if path not in named]
    retired = tuple(Retired(path=path, number=number, at_seconds=at_seconds) for path in gone)
    return replace(after, number=number, retired=before.retired + retired)


def _state(told: Any) -> ManifestState | None:
    if told is None:
        return None
    return ManifestState(**{**told, "bases": tuple(told["bases"]), "deltas": tuple(told["deltas"])})

# Written by scripts/sync_client.py (make generated); do not edit.
# It follows from barrage/client/writing/writer.py.
"""Writing without loss for the synchronous client: :class:`Writer`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.client.synchronous.on_thread import WriterOnThread
from barrage.client.synchronous.sync_loop import CLOSE_TIMEOUT_SECONDS

if TYPE_CHECKING:
    from barrage.client.writing.arrow_input import TableLike


class Writer(WriterOnThread):
    """Writes to one table as one producer. Use it as a context manager: leaving it waits until
    everything is committed."""

    @property
    def position(self) -> int | None:
        """Number of the last committed batch of this producer; None for none."""
        return self._writer.position

    @property
    def step(self) -> int | None:
        """Step that committed the last acknowledged batch; None before the first."""
        return self._writer.step

    @property
    def pending_count(self) -> int:
        """Batches that are not acknowledged yet."""
        return self._writer.pending_count

    @property
    def resends(self) -> int:
        """Batches that were sent once more."""
        return self._writer.resends

    def write(
        self, rows: TableLike, *, sequence: int | None = None, timeout: float | None = None
    ) -> int:
        """Send rows; returns the number of their last batch, once there is room for them. They are
        committed when :attr:`position` has reached that number, at the latest after :meth:`flush`.

        May be called by any number of threads: the rows of one call stay together, calls are served
        in the order in which they came, and one that is cancelled has sent all of its rows or none.

        ``sequence`` numbers them with a number of the caller's, which must grow; rows whose number
        has been committed are left out, so a source may be read again from anywhere before; without
        rows it moves the position alone. What the server refuses is raised by this or a later call,
        and ends the writer.
        """
        return self._thread.call(self._writer.write(rows, sequence=sequence), timeout)

    def flush(self, timeout: float | None = None) -> int | None:
        """Until everything written before is committed; the step that committed the last of it.
        ServerFailedError when only a restart of the server helps: what is pending stays so, and is
        sent when it has been."""
        return self._thread.call(self._writer.flush(None), timeout)

    def close(self, timeout: float | None = None) -> None:
        """Flush, then end. Raises what the writer failed with."""
        self._thread.call(self._writer.close(timeout), None)

    def abandon(self) -> None:
        """End at once; what is not acknowledged may or may not be committed. Idempotent."""
        self._thread.call(self._writer.abandon(), CLOSE_TIMEOUT_SECONDS)

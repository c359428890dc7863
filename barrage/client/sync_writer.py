"""Writing without loss for the synchronous client: :class:`Writer`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.client.sync_loop import CLOSE_TIMEOUT_SECONDS

if TYPE_CHECKING:
    from barrage.client.arrow_input import TableLike
    from barrage.client.sync_loop import LoopThread
    from barrage.client.writer import AsyncWriter


class Writer:
    """Writes to one table as one producer; see :class:`AsyncWriter`. Use it as a context manager:
    leaving it waits until everything is committed."""

    def __init__(self, writer: AsyncWriter, thread: LoopThread) -> None:
        self._writer = writer
        self._thread = thread

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
        """See :meth:`AsyncWriter.write`."""
        return self._thread.call(self._writer.write(rows, sequence=sequence), timeout)

    def flush(self, timeout: float | None = None) -> int | None:
        """Until everything written is committed; the step that committed the last of it."""
        return self._thread.call(self._writer.flush(), timeout)

    def close(self, timeout: float | None = None) -> None:
        """Flush, then end. Raises what the writer failed with."""
        self._thread.call(self._writer.close(timeout), None)

    def abandon(self) -> None:
        """End at once; what is not acknowledged may or may not be committed. Idempotent."""
        self._thread.call(self._writer.abandon(), CLOSE_TIMEOUT_SECONDS)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _: object) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()

    def __repr__(self) -> str:
        return repr(self._writer).replace("AsyncWriter", "Writer", 1)

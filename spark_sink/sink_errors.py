"""What the sink tells when a write fails, and how to find it under Spark's own exceptions.

Spark shows ``Writing job failed.`` to Python; the reason is some links down the chain of Java
causes. :func:`java_causes` walks it. Every text of ours names table, batch and partition, and the
option to change where one would help.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from barrage.errors import BarrageError
from spark_sink.connection import UNREACHABLE_ADVICE, Failure, ServerError, as_server_error

if TYPE_CHECKING:
    from collections.abc import Iterable

CAUSES_MAX = 50
"""Most links of a cause chain that are followed; chains can be circular."""

CAUSE_CHARS_MAX = 1500
"""Longest text of a cause in an error of ours."""

_OURS = re.compile(r"^(?:\w*Exception: )?(?:barrage|spark_sink)(?:\.\w+)*\.\w+Error: (.*)")
"""The last line of a Python traceback that ends in an error of ours."""

STOPPED_CLASSES = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)
"""Java exceptions of a query that is stopped in the middle of a batch."""

_CANCELLED = re.compile(
    r"cancelled\b.*?(?:job group|query .*\[id = [^]]*, runid = [^]]*\] was stopped)", re.DOTALL
)
"""Of a job whose query is stopped, in lower case: Spark tells either the group it cancels or, where
the job had begun, why."""

_ADVICE = (
    (
        ("authentication",),
        "set option auth.token, or auth.tokenEnv to the name of an environment variable",
    ),
    (
        ("not found",),
        "create the table first, or set option createTable=true",
    ),
    (
        ("staged-lost",),
        "start the query again: Spark runs the batch again and stages it anew",
    ),
    (
        ("unknown-writer",),
        "the table was made anew after this query began: start the query with a new checkpoint, "
        "or set option failOnDataLoss=false to go on with what is left",
    ),
    (
        ("unknown column", "keeps the columns"),
        "a table keeps the columns it was made with: select those, or write to a new table",
    ),
    (
        ("is missing",),
        "select the table's columns, or set option mergeSchema=true, which writes nulls into those "
        "a batch leaves out",
    ),
    (
        ("key must not be null",),
        "leave out the rows whose keyColumns are null",
    ),
    (
        ("has the key", "has no key"),
        "set option keyColumns to the key of the table",
    ),
    (
        ("replacing the content",),
        "a table made by append only grows: make it with option keyColumns, or by an overwrite",
    ),
    (
        ("staged rows", "staged parts"),
        "make batches smaller with maxRowsPerTrigger of the source, or raise the server's limits",
    ),
)
"""Words of a server's text, and what the user can do; the first that fits is told."""


class SinkWriteError(BarrageError):
    """A batch could not be staged or committed. ``table``, ``batch`` and ``partition`` say where,
    ``reason`` is the server's text, with the option to change where one would help."""

    def __init__(
        self, reason: str, *, table: str, batch: int | None, partition: int | None = None
    ) -> None:
        self.reason = reason
        self.table = table
        self.batch = batch
        self.partition = partition
        where = f"table {table!r}"
        where += f", batch {batch}" if batch is not None else ""
        where += f", partition {partition}" if partition is not None else ""
        super().__init__(f"{where}: {reason}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.reason, self.table, self.batch, self.partition)


class StagingFailedError(BarrageError):
    """A task could not stage its rows; the text is its own."""


def _restored(reason: str, table: str, batch: int | None, partition: int | None) -> SinkWriteError:  # noqa: PLR0917  (called by pickle)
    return SinkWriteError(reason, table=table, batch=batch, partition=partition)


def write_error(
    error: Exception, *, table: str, batch: int | None, partition: int | None = None
) -> SinkWriteError:
    """What an exception of a call stands for; raises it again when it is none of Flight's."""
    found = as_server_error(error, doing="write") if not isinstance(error, ServerError) else error
    is_unreachable = found.failure is Failure.UNREACHABLE
    advice = UNREACHABLE_ADVICE if is_unreachable else _advice(found.reason)
    reason = f"{found.reason} ({advice})" if advice else found.reason
    return SinkWriteError(reason, table=table, batch=batch, partition=partition)


def staging_error(error: Exception, *, table: str, batch: int) -> BarrageError:
    """The failure of a job that staged a batch: the task's own error, which says where, or any
    other with table and batch."""
    text = short_cause(error)
    if text.startswith(f"table {table!r}, batch {batch}"):
        return StagingFailedError(text)
    return SinkWriteError(text, table=table, batch=batch)


def java_causes(error: BaseException) -> list[str]:
    """The messages of a failed Spark call, outermost first: Python's own causes and contexts, then
    the chain of ``getCause()`` of the Java exception behind it. Each is told once.

    Takes what ``query.exception()`` returns, what ``awaitTermination`` raises, or any exception of
    a Spark action.
    """
    told: list[str] = []
    link: BaseException | None = error
    for _ in range(CAUSES_MAX):
        if link is None:
            break
        told.append(str(link).strip() or type(link).__name__)
        told.extend(_java_chain(_java_exception(link)))
        link = link.__cause__ or link.__context__
    return list(dict.fromkeys(told))


def root_cause(error: BaseException) -> str:
    """The text of ours inside a failed Spark call, or the innermost message when there is none."""
    causes = java_causes(error)
    for text in reversed(causes):
        ours = [found[1] for line in text.splitlines() if (found := _OURS.match(line.strip()))]
        if ours:
            return ours[-1]
    own = error if isinstance(error, BarrageError) else None
    return str(own) if own is not None else causes[-1]


def is_stop(error: BaseException) -> bool:
    """Whether a Spark action failed because its query is being stopped."""
    link: BaseException | None = error
    for _ in range(CAUSES_MAX):
        if link is None:
            break
        for cause in _java_links(_java_exception(link)):
            text = str(cause.getMessage() or "").lower()
            if cause.getClass().getName() in STOPPED_CLASSES:
                return True
            if _CANCELLED.search(text):
                return True
        link = link.__cause__ or link.__context__
    return False


def stop_error(*, table: str, batch: int) -> SinkWriteError:
    """The end of a batch whose query is being stopped, in words by which Spark knows one."""
    words = "py4j.protocol.Py4JJavaError: An error occurred while calling collect: "
    words += STOPPED_CLASSES[0]
    return SinkWriteError(f"the query is being stopped ({words})", table=table, batch=batch)


def short_cause(error: BaseException) -> str:
    """:func:`root_cause` in bounded length, for the text of an error that Spark passes on: its
    parsing of a long one overflows the stack of the query's thread."""
    text = root_cause(error).strip()
    return text if len(text) <= CAUSE_CHARS_MAX else f"... {text[-CAUSE_CHARS_MAX:]}"


def _java_exception(error: BaseException) -> Any:
    for name in ("java_exception", "_origin"):
        found = getattr(error, name, None)
        if found is not None and hasattr(found, "getCause"):
            return found
    return None


def _java_chain(exception: Any) -> Iterable[str]:
    for link in _java_links(exception):
        yield str(link.getMessage() or link.getClass().getName()).strip()


def _java_links(exception: Any) -> Iterable[Any]:
    link = exception
    for _ in range(CAUSES_MAX):
        if link is None:
            return
        yield link
        link = link.getCause()


def _advice(reason: str) -> str:
    lowered = reason.lower()
    return next((told for words, told in _ADVICE if any(word in lowered for word in words)), "")

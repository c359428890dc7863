"""Who writes: the name under which the server remembers the last batch it committed.

For a stream that is the id of the query, which its checkpoint keeps, so it is the same after every
restart. A plain batch write has none and gets a random name, unless ``txnAppId`` gives it one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyarrow import fs

from barrage.errors import ConfigError
from spark_sink.sink_flight import BatchKey

if TYPE_CHECKING:
    from spark_sink.sink_options import SinkOptions

QUERY_ID_PROPERTY = "sql.streaming.queryId"
BATCH_ID_PROPERTY = "streaming.sql.batchId"
METADATA_BYTES_MAX = 64 * 1024


def task_key(options: SinkOptions, task: Any) -> BatchKey:
    """The key of a batch, in a task of a streaming write."""
    batch = int(task.getLocalProperty(BATCH_ID_PROPERTY))
    writer = options.txn_app_id or task.getLocalProperty(QUERY_ID_PROPERTY)
    return BatchKey(writer=writer, batch=batch)


def driver_key(options: SinkOptions, batch: int, session: Any = None) -> BatchKey | None:
    """The key of a batch where no task has told it: by ``txnAppId``, by the property of the
    stream's thread, or by the checkpoint. None when nothing knows it."""
    writer = (
        options.txn_app_id or _thread_query_id(session) or checkpoint_query_id(options.checkpoint)
    )
    return None if writer is None else BatchKey(writer=writer, batch=batch)


def required_key(options: SinkOptions, batch: int, session: Any) -> BatchKey:
    """Like :func:`driver_key`; ConfigError when nothing knows who writes."""
    key = driver_key(options, batch, session)
    if key is None:
        raise ConfigError(
            "the query's id is not known here (Spark Connect does not tell it): set the option "
            "'checkpointLocation' on the sink as well, or txnAppId to a name of your own"
        )
    return key


def checkpoint_query_id(checkpoint: str | None) -> str | None:
    """The id of the query whose checkpoint this is; None when it cannot be read."""
    if checkpoint is None:
        return None
    text = read_checkpoint_file(checkpoint, "metadata")
    if text is None:
        return None
    try:
        told = json.loads(text)
    except ValueError:
        return None
    found = told.get("id") if isinstance(told, dict) else None
    return found if isinstance(found, str) else None


def read_checkpoint_file(checkpoint: str, name: str) -> str | None:
    """A small text file of a checkpoint, wherever Arrow's file systems reach; None when there is
    none or no way to it."""
    try:
        if "://" not in checkpoint and not checkpoint.startswith("file:"):
            return Path(checkpoint, name).read_text()
        system, path = fs.FileSystem.from_uri(_arrow_uri(checkpoint))
        with system.open_input_stream(f"{path.rstrip('/')}/{name}") as stream:
            return bytes(stream.read(METADATA_BYTES_MAX)).decode()
    except (OSError, ValueError):
        return None


def _arrow_uri(location: str) -> str:
    """``file:/path``, which Hadoop writes, as ``file:///path``, which Arrow reads."""
    rest = location.removeprefix("file:")
    if rest == location or rest.startswith("//"):
        return location
    return f"file://{rest}"


def _thread_query_id(session: Any) -> str | None:
    """The local property that Spark sets on the thread of a stream; there is none under Connect."""
    context = getattr(session, "_sc", None)
    if context is None:
        return None
    found = context.getLocalProperty(QUERY_ID_PROPERTY)
    return found if isinstance(found, str) else None

"""Lines of the log: words for people, or JSON for machines, with the caller and the stream.

What is known of the call is taken where the line is written, in its task. Secrets are not in it.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from barrage.server.identity.current_call import current_call
from barrage.server.operations.log_levels import ALL_PARTS, set_levels

if TYPE_CHECKING:
    from typing import TextIO

_WORDS = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, part, message; user, proof, stream, tables and action
    where it is written in a call; error and traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "part": record.name.removeprefix("barrage."),
            "message": record.getMessage(),
            "thread": record.threadName,
        }
        call = current_call()
        if call is not None:
            told |= {
                "user": call.caller.name,
                "proof": call.caller.proof.value,
                "stream": call.stream_id,
                "tables": call.tables,
                "action": call.action,
            }
        if record.exc_info is not None and record.exc_info[0] is not None:
            told["error"] = record.exc_info[0].__name__
            told["traceback"] = self.formatException(record.exc_info)
        kept = {name: value for name, value in told.items() if value not in (None, "", [])}
        return msgspec.json.encode(kept, enc_hook=str).decode()


class WordsFormatter(logging.Formatter):
    """The same for people: user and stream stand behind the message."""

    def __init__(self) -> None:
        super().__init__(_WORDS)

    def format(self, record: logging.LogRecord) -> str:
        line, call = super().format(record), current_call()
        if call is None:
            return line
        stream = "" if call.stream_id is None else f", stream {call.stream_id}"
        return f"{line} ({call.caller.name}{stream})"


def log_to(stream: TextIO | None = None, *, is_json: bool, levels: str) -> logging.Handler:
    """Write what the program logs to a stream, stderr by default. ConfigError for levels that are
    none. Returns what :func:`log_no_more` takes."""
    set_levels(levels)
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if is_json else WordsFormatter())
    logger = logging.getLogger(ALL_PARTS)
    logger.addHandler(handler)
    return handler


def log_no_more(handler: logging.Handler) -> None:
    """Write no more to it."""
    logging.getLogger(ALL_PARTS).removeHandler(handler)

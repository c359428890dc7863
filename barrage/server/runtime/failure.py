"""Failures nobody expected: details go to the log, an id goes to the caller."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, TypeVar

from barrage.errors import EngineError

if TYPE_CHECKING:
    import logging

Failure = TypeVar("Failure", bound=BaseException)


def unexpected_failure(logger: logging.Logger, what: str) -> EngineError:
    """Log the exception being handled under a fresh id; the error to send names the id and nothing
    else."""
    failure_id = uuid.uuid4().hex[:12]
    logger.exception("%s (id %s)", what, failure_id)
    return EngineError(f"internal error, details are logged with id {failure_id}")


def without_frames(error: Failure) -> Failure:
    """The error without the tracebacks of it and of what led to it: their frames would keep alive
    whatever they refer to, such as tables."""
    linked: BaseException | None = error
    while linked is not None:
        linked.__traceback__ = None
        linked = linked.__cause__ or linked.__context__
    return error

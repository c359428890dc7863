"""What ``with`` does for everything that is to be closed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self


class ClosedByWith(ABC):
    """A context manager that gives itself and calls :meth:`close`, whatever happened."""

    @abstractmethod
    def close(self) -> None:
        """Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

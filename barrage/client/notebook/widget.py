"""The widget: a model of Jupyter's whose views are grids, and whose messages are those of pages.

Needs the extra ``notebook``; who may be without it does not import this.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from barrage.client.notebook.first_rows import FirstRows

_MODULE = Path(__file__).parents[2] / "web" / "static" / "notebook.js"


class LiveTable(anywidget.AnyWidget):
    """A table in the output of a cell, live. What is saved with the notebook are its first rows."""

    _esm = _MODULE
    shown = traitlets.Dict().tag(sync=True)
    """The table's name and the operators upon it."""
    height = traitlets.Int().tag(sync=True)
    """In pixels."""

    def __init__(self, shown: Mapping[str, Any], *, height: int, rows: FirstRows) -> None:
        super().__init__(shown=dict(shown), height=height)
        self._rows = rows
        self._leave: Callable[[], None] | None = None

    def connect(
        self, received: Callable[[object, Sequence[Any]], None], leave: Callable[[], None]
    ) -> None:
        """``received`` takes what pages send, on whatever thread; ``leave`` is called when the
        widget is closed."""
        self._leave = leave
        self.on_msg(lambda _, content, buffers: received(content, buffers))

    def send_to_page(self, content: dict[str, Any], buffers: list[bytes]) -> None:
        """Any thread; nothing once the widget is closed."""
        if self.comm is not None:
            self.send(content, buffers)

    def close(self) -> None:
        """Take it from all pages. Idempotent."""
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()
        super().close()

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        data["text/plain"] = repr(self._rows)
        data["text/html"] = self._rows._repr_html_()
        return data, metadata

    def __repr__(self) -> str:
        return f"<LiveTable {self._rows.name!r}>"

"""The first rows of a table as text and as HTML, for where nothing can be live."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS_SHOWN = 20
"""Rows that are shown, and asked for."""

COLUMNS_SHOWN = 50
TEXT_SHOWN = 200
"""Characters of a cell; the rest is an ellipsis."""

_NULL = "<i>null</i>"
_RIGHT = ' style="text-align:right"'
_BINARY = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstRows:
    """Rows as they were at one moment. Displayed by notebooks, as text elsewhere."""

    name: str
    rows: pa.Table
    """The first ones."""
    total: int | None
    """Rows of the whole table; None where nobody knows."""
    note: str = ""
    """Why it is not live."""

    def _repr_html_(self) -> str:
        head = self.rows.slice(0, ROWS_SHOWN)
        columns = list(zip(head.column_names, head.columns, strict=True))[:COLUMNS_SHOWN]
        styles = [_RIGHT if _is_number(column.type) else "" for _, column in columns]
        names = "".join(f"<th>{escape(_short(name))}</th>" for name, _ in columns)
        cells = [list(texts_of(column)) for _, column in columns]
        lines = [
            "".join(
                f"<td{style}>{_NULL if text is None else escape(_short(text))}</td>"
                for style, text in zip(styles, line, strict=True)
            )
            for line in zip(*cells, strict=True)
        ]
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        return (
            f"<div><table><caption>{escape(_short(self.name))}</caption>"
            f"<thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>"
            f"<p>{escape(self.summary)}</p></div>"
        )

    @property
    def summary(self) -> str:
        """How much of it is shown."""
        shown = min(len(self.rows), ROWS_SHOWN)
        total = "an unknown number of" if self.total is None else f"{self.total:,}"
        words = [f"{total} rows x {self.rows.num_columns} columns"]
        if self.total is None or shown < self.total:
            words.append(f"the first {shown} are shown")
        if self.rows.num_columns > COLUMNS_SHOWN:
            words.append(f"and the first {COLUMNS_SHOWN} columns")
        if self.note:
            words.append(self.note)
        return ", ".join(words)

    def __repr__(self) -> str:
        head = self.rows.slice(0, ROWS_SHOWN)
        names = [_short(name) for name in head.column_names[:COLUMNS_SHOWN]]
        columns = [
            ["null" if text is None else _short(text) for text in texts_of(column)]
            for column in head.columns[:COLUMNS_SHOWN]
        ]
        widths = [
            max([len(name), *map(len, texts)]) for name, texts in zip(names, columns, strict=True)
        ]
        lines = [names, *zip(*columns, strict=True)]
        shown = [
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        return "\n".join([self.name, *shown, self.summary])


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def _short(text: str) -> str:
    return text if len(text) <= TEXT_SHOWN else text[: TEXT_SHOWN - 1] + "…"


def texts_of(column: pa.ChunkedArray) -> Iterator[str | None]:
    """Every cell as text, exact; null is None."""
    if pa.types.is_dictionary(column.type):
        column = pa.chunked_array([chunk.dictionary_decode() for chunk in column.chunks])
    if any(fits(column.type) for fits in _BINARY):
        for scalar in column:
            yield None if scalar.as_py() is None else scalar.as_py().hex()
        return
    try:
        for scalar in column.cast(pa.string()):
            yield scalar.as_py()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        for scalar in column:
            yield str(scalar) if scalar.is_valid else None

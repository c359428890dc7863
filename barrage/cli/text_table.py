"""Tables as plain text: padded columns under their names, cut to a width."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size

from barrage.cli.cells import NULL_TEXT, column_texts, is_right_aligned, printable

if TYPE_CHECKING:
    import pyarrow as pa

CELL_WIDTH_MAX = 40
_GAP = "  "


def fit(text: str, width: int, *, is_right: bool = False) -> str:
    """``text`` in exactly ``width`` terminal cells; what does not fit ends in an ellipsis."""
    size = cell_len(text)
    if size > width:
        return set_cell_size(text, width - 1) + "…" if width > 0 else ""
    padding = " " * (width - size)
    return padding + text if is_right else text + padding


def format_rows(
    names: list[str], columns: list[list[str]], *, right: list[bool], width: int | None
) -> list[str]:
    """Header and rows as lines. ``width`` None never cuts; else columns that do not fit are left
    out.
    """
    widths = [
        min(max(map(cell_len, [name, *texts])), CELL_WIDTH_MAX)
        if width
        else max(map(cell_len, [name, *texts]))
        for name, texts in zip(names, columns, strict=True)
    ]
    shown = len(widths) if width is None else _columns_that_fit(widths, width)
    line_parts = [
        [fit(text, widths[i], is_right=right[i]) for text in [names[i], *columns[i]]]
        for i in range(shown)
    ]
    more = len(widths) - shown
    lines = [_GAP.join(parts).rstrip() for parts in zip(*line_parts, strict=True)]
    if more and lines:
        lines[0] += f"{_GAP}… {more} more"
    return lines


def _columns_that_fit(widths: list[int], width: int) -> int:
    used = 0
    for index, size in enumerate(widths):
        used += size + (len(_GAP) if index else 0)
        is_last = index + 1 == len(widths)
        if used > width - (0 if is_last else len(_GAP) + 8) and index:
            return index
    return len(widths)


def format_table(table: pa.Table, *, width: int | None) -> list[str]:
    """An Arrow table as lines of text."""
    columns = [
        [NULL_TEXT if text is None else text for text in column_texts(column)]
        for column in table.columns
    ]
    right = [is_right_aligned(field.type) for field in table.schema]
    return format_rows(
        [printable(name) for name in table.column_names], columns, right=right, width=width
    )

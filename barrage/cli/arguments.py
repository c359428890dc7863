"""Words of the command line as values: column names and row spans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.cli.command_errors import usage_error

if TYPE_CHECKING:
    import pyarrow as pa


def split_names(text: str | None) -> list[str] | None:
    """``a, b`` as a list; None means no choice, no names at all are a usage error."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise usage_error("--columns and --key want names separated by commas, such as pid,name")
    return names


def parse_rows(text: str | None) -> tuple[int, int] | None:
    """``A-B`` (both included) as half-open positions."""
    if text is None:
        return None
    first, dash, last = text.partition("-")
    numbers = (first, last if dash else first)
    if not all(number.isascii() and number.isdigit() for number in numbers):
        raise usage_error(f"--rows {text!r}: write A-B, for example 0-99")
    start, stop = int(numbers[0]), int(numbers[1]) + 1
    if start >= stop:
        raise usage_error(f"--rows {text!r}: the first row is after the last")
    return start, stop


def check_columns(names: list[str], schema: pa.Schema, *, what: str) -> None:
    """Every name is a column of the file; else a usage error that lists the columns."""
    for name in names:
        if name not in schema.names:
            known = ", ".join(schema.names)
            raise usage_error(f"{what}: the file has no column {name!r}; its columns are {known}")

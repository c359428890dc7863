"""JSON lines and CSV by Arrow's readers: one call for a whole batch of payloads.

Payloads are joined. That a joined text says what its parts do is checked before or after: parts are
closed in themselves, and there are as many rows as lines. All others are decoded alone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, json

from barrage.wire.payloads.decoded_sizes import item_width
from barrage.wire.payloads.decoding import PayloadError, PayloadSizes, one_each, row_sizes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barrage.wire.payloads.decoding import Int64Array

_NO_OBJECTS = "the payload is not JSON: every line must be one object"


def _joined(payloads: pa.BinaryArray) -> pa.Buffer:
    """All payloads with a line break after each."""
    ends = pa.repeat(b"\n", len(payloads)).cast(pa.binary())
    lines = pc.binary_join_element_wise(payloads, ends, pa.scalar(b"", pa.binary()))
    offsets = np.frombuffer(lines.buffers()[1], np.int32)[lines.offset :]
    first, last = int(offsets[0]), int(offsets[len(lines)])
    return lines.buffers()[2].slice(first, last - first)


def _without_last_break(payloads: pa.BinaryArray) -> pa.BinaryArray:
    """The same, where payloads end with a line break."""
    if not pc.any(pc.ends_with(payloads, pattern=b"\n")).as_py():
        return payloads
    return pc.replace_substring_regex(payloads.cast(pa.binary()), r"\r?\n\z", "")


def _line_counts(payloads: pa.BinaryArray) -> Int64Array:
    """How many rows there are at most."""
    found: Int64Array = pc.add(pc.count_substring(payloads, pattern=b"\n"), 1).to_numpy()
    return found


def _are_lines(payloads: pa.BinaryArray) -> bool:
    return not pc.any(pc.match_substring(payloads, pattern=b"\n")).as_py()


class JsonLines:
    """One JSON object in a payload, or several in lines. Fields a table does not have are
    ``ignored`` or an error, those a payload does not have are null."""

    turn_messages = 8192

    def __init__(self, schema: pa.Schema, *, ignores_unknown: bool = True) -> None:
        self.schema = schema
        self._read = pa.schema([(f.name, _as_read(f.type)) for f in schema])
        self._unknown = "ignore" if ignores_unknown else "error"
        self._syntax = msgspec.json.Decoder(msgspec.Raw)
        self._item_width = item_width(schema)

    def sizes(self, payloads: pa.BinaryArray) -> PayloadSizes:
        """See :class:`~barrage.wire.payloads.decoding.PayloadDecoder`."""
        found = row_sizes(self.schema, payloads, _line_counts(payloads))
        if not self._item_width:
            return found
        items = pc.add(
            pc.count_substring(payloads, pattern=b","), pc.count_substring(payloads, pattern=b"[")
        )
        more = items.to_numpy().astype(np.int64) * self._item_width
        return PayloadSizes(found.rows, found.byte_counts + more)

    def faults(self, payloads: pa.BinaryArray) -> Mapping[int, str]:
        """See :class:`~barrage.wire.payloads.decoding.PayloadDecoder`: those of the syntax."""
        found = {}
        for at, payload in enumerate(payloads.to_pylist()):
            lines = re.sub(rb"\r?\n\Z", b"", payload)
            try:
                if not (lines.startswith(b"{") and lines.endswith(b"}")):
                    raise PayloadError(_NO_OBJECTS)
                self._check(pa.py_buffer(lines + b"\n"), lines.count(b"\n") + 1)
            except PayloadError as error:
                found[at] = str(error)
        return found

    def decode(self, payloads: pa.BinaryArray) -> tuple[pa.Table, Int64Array]:
        """See :class:`~barrage.wire.payloads.decoding.PayloadDecoder`."""
        lines = _without_last_break(payloads)
        counts = pc.add(pc.count_substring(lines, pattern=b"\n"), 1).to_numpy()
        if not _are_objects(lines):
            raise PayloadError(_NO_OBJECTS)
        text = _joined(lines)
        total = int(counts.sum())
        self._check(text, total)
        rows = self._rows(text)
        if len(rows) != total:
            raise PayloadError(_NO_OBJECTS)
        return rows, np.repeat(one_each(len(lines)), counts)

    def _check(self, text: pa.Buffer, count: int) -> None:
        """Arrow's reader dies of some texts that are no JSON lines, so it is shown no such text."""
        try:
            found = len(self._syntax.decode_lines(memoryview(text)))
        except (msgspec.DecodeError, RecursionError) as error:
            raise PayloadError(f"the payload is not JSON: {error}") from None
        if found != count:
            raise PayloadError(_NO_OBJECTS)

    def _rows(self, text: pa.Buffer) -> pa.Table:
        try:
            rows = json.read_json(
                pa.BufferReader(text),
                read_options=json.ReadOptions(use_threads=False, block_size=text.size + 1),
                parse_options=json.ParseOptions(
                    explicit_schema=self._read, unexpected_field_behavior=self._unknown
                ),
            ).select(self._read.names)
            rows.validate(full=True)
            return rows.cast(self.schema)
        except (pa.ArrowException, ValueError) as error:
            raise PayloadError(f"the payload is not JSON of this table: {error}") from None


def _are_objects(lines: pa.BinaryArray) -> bool:
    """Whether every line begins and ends as an object does. A text of such lines has no object that
    goes on in the next one: after a brace that closes and is not the last, none opens."""
    if not (
        pc.all(pc.starts_with(lines, pattern=b"{")).as_py()
        and pc.all(pc.ends_with(lines, pattern=b"}")).as_py()
    ):
        return False
    if _are_lines(lines):
        return True
    return not pc.any(pc.match_substring_regex(lines, r"\n[^{]|[^}]\r?\n")).as_py()


def _as_read(data_type: pa.DataType) -> pa.DataType:
    """What the reader of JSON is asked for: dates and times of day it takes as numbers alone."""
    if pa.types.is_date(data_type) or pa.types.is_time(data_type):
        return pa.string()
    return data_type


class CsvRecords:
    """Records of CSV without a header, as RFC 4180 quotes them; an empty field without quotes is
    null. ``columns`` are those of a record, in order, all of them in the schema."""

    turn_messages = 8192

    def __init__(
        self, schema: pa.Schema, *, columns: tuple[str, ...], delimiter: str = ","
    ) -> None:
        self.schema = schema
        self._columns = list(columns)
        self._parse = csv.ParseOptions(
            delimiter=delimiter, newlines_in_values=True, ignore_empty_lines=False
        )
        self._convert = csv.ConvertOptions(
            column_types={f.name: f.type for f in schema},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )

    def sizes(self, payloads: pa.BinaryArray) -> PayloadSizes:
        """See :class:`~barrage.wire.payloads.decoding.PayloadDecoder`."""
        return row_sizes(self.schema, payloads, _line_counts(payloads))

    def faults(self, payloads: pa.BinaryArray) -> Mapping[int, str]:
        """See :class:`~barrage.wire.payloads.decoding.PayloadDecoder`."""
        return {}

    def decode(self, payloads: pa.BinaryArray) -> tuple[pa.Table, Int64Array]:
        """See :class:`~barrage.wire.payloads.decoding.PayloadDecoder`."""
        lines = _without_last_break(payloads)
        if pc.any(pc.equal(pc.binary_length(lines), 0)).as_py():
            raise PayloadError("the payload is not CSV: there is no record")
        quotes = pc.count_substring(lines, pattern=b'"')
        if pc.any(pc.equal(pc.bit_wise_and(quotes, 1), 1)).as_py():
            raise PayloadError("the payload is not CSV: a quote is not closed")
        if len(lines) == 1:
            rows = self._rows(lines[0].as_buffer())
            return rows, np.zeros(len(rows), np.int64)
        if not _are_lines(lines):
            # A break may be within quotes, and the payload with it two records or one.
            raise PayloadError("the payloads are not one record each")
        rows = self._rows(_joined(lines))
        if len(rows) != len(lines):
            raise PayloadError("the payloads are not one record each")
        return rows, one_each(len(lines))

    def _rows(self, data: pa.Buffer) -> pa.Table:
        try:
            rows = csv.read_csv(
                pa.BufferReader(data),
                read_options=csv.ReadOptions(
                    use_threads=False, column_names=self._columns, block_size=data.size + 1
                ),
                parse_options=self._parse,
                convert_options=self._convert,
            )
            rows.validate(full=True)
            missing = [f for f in self.schema if f.name not in self._columns]
            for each in missing:
                rows = rows.append_column(each, pa.nulls(len(rows), each.type))
            return rows.select(self.schema.names).cast(self.schema)
        except (pa.ArrowException, ValueError) as error:
            raise PayloadError(f"the payload is not CSV of this table: {error}") from None

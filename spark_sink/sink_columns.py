"""Columns on their way from Spark to the server.

Executors send what :func:`sent_schema` says; a table the sink makes gets :func:`table_schema`. They
differ for change feeds only, whose leading columns speak about the change and are no part of the
table.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.errors import SchemaError
from spark_sink.sink_options import CHANGE_TYPE, WriteMode

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType

FEED_COLUMNS_USED = (CHANGE_TYPE, "_commit_version", "_row_id")
"""Columns of a change feed that say what to do: which change, in which order, to which row."""

FEED_COLUMNS = (*FEED_COLUMNS_USED, "_commit_timestamp", "_row_key", "_modified_columns")
"""Every column of a change feed that is no part of the table."""


def sent_schema(schema: StructType, mode: WriteMode, *, variant_as_json: bool = False) -> pa.Schema:
    """What travels: instants in UTC, everything nullable (the server knows its own rules).
    SchemaError names a column that cannot: a variant that is not to be text, a type there is no
    Arrow type for, a name that is there twice."""
    fields = list(_arrow_schema(schema, variant_as_json))
    if mode is WriteMode.CHANGES:
        fields = [
            field
            for field in fields
            if field.name in FEED_COLUMNS_USED or field.name not in FEED_COLUMNS
        ]
    return pa.schema(fields)


def table_schema(
    schema: StructType, mode: WriteMode, *, variant_as_json: bool = False
) -> pa.Schema:
    """The columns of the table these rows are for."""
    fields = list(_arrow_schema(schema, variant_as_json))
    if mode is WriteMode.CHANGES:
        fields = [field for field in fields if field.name not in FEED_COLUMNS]
    return pa.schema(fields)


def _arrow_schema(schema: StructType, variant_as_json: bool) -> pa.Schema:
    twice = [name for name, count in Counter(schema.names).items() if count > 1]
    if twice:
        raise SchemaError(f"column {twice[0]!r} is there twice: give each column a name of its own")
    fields = []
    for field in map(_arrow_field, schema.fields):
        kind = field.type
        if is_variant(kind):
            if not variant_as_json:
                raise SchemaError(
                    f"column {field.name!r} is a variant, which tables do not have: set option "
                    "variantAsJson=true to write its JSON text, or cast it"
                )
            kind = pa.string()
        elif _has_variant(kind):
            raise SchemaError(
                f"column {field.name!r} has a variant inside: take it out, or cast it"
            )
        fields.append(pa.field(field.name, kind, nullable=True))
    return pa.schema(fields)


def _arrow_field(field: StructField) -> pa.Field:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    try:
        return to_arrow_schema(
            StructType([field]), timezone="UTC", prefers_large_types=False
        ).field(0)
    except PySparkException as error:
        raise SchemaError(
            f"column {field.name!r} is {field.dataType.simpleString()}, which tables do not have: "
            "cast it, or leave it out"
        ) from error


def is_variant(kind: pa.DataType) -> bool:
    """Whether this is the form in which Spark sends a variant."""
    if not pa.types.is_struct(kind) or kind.get_field_index("metadata") < 0:
        return False
    return b"variant" in (kind.field("metadata").metadata or {})


def _has_variant(kind: pa.DataType) -> bool:
    children = [kind.field(index).type for index in range(kind.num_fields)]
    return any(is_variant(child) or _has_variant(child) for child in children)


def json_of(variants: pa.Array) -> pa.Array:
    """The JSON text of each variant."""
    from pyspark.sql.variant_utils import VariantUtils

    pairs = zip(
        variants.field("value").to_pylist(),
        variants.field("metadata").to_pylist(),
        variants.is_valid().to_pylist(),
        strict=True,
    )
    texts = [VariantUtils.to_json(value, told) if valid else None for value, told, valid in pairs]
    return pa.array(texts, pa.string())

"""Columns chosen, renamed and computed. Rows and keys are the parent's.

Computed cells are not stored: they are evaluated when read. Each cycle evaluates them once for the
rows that changed, so that a value that cannot be computed fails the table in that cycle and never a
later read. Cells of long formulas are kept from that evaluation on, so that a read of many rows is
never much more work than reading the parent's.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.engine.expressions.expression import BoundExpression, bind
from barrage.engine.expressions.expression_text import Column
from barrage.engine.planning.operator_plan import derived, prepared
from barrage.engine.tables import work
from barrage.engine.tables.cells import EVALUATED_ROWS, single_chunks
from barrage.engine.tables.moved_rows import union_of
from barrage.engine.tables.row_memory import RowMemory
from barrage.engine.tables.table import DerivedTable
from barrage.errors import SchemaError, near_miss
from barrage.model.update import TableUpdate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from barrage.engine.expressions.expression import Expression
    from barrage.engine.tables.cells import Cells
    from barrage.engine.tables.table import Table, TableTraits
    from barrage.rowset import RowSet
    from barrage.rowset.arrays import Int64Array


KEPT_OPERATIONS = 32
"""Formulas of so many row operations are evaluated once per change and kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Output:
    """One result column: a parent column when ``computed`` is None."""

    field: pa.Field
    parents: tuple[int, ...]
    computed: BoundExpression | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The result columns; ``identity`` is equal for equal selections."""

    outputs: tuple[_Output, ...]
    identity: tuple[tuple[str, str, str], ...]

    @property
    def row_operations(self) -> int:
        """Of all computed columns, per row; others are not read when they are made."""
        computed = [output.computed for output in self.outputs if output.computed is not None]
        return sum(bound.row_operations for bound in computed)


def parse_selection(
    schema: pa.Schema, columns: Sequence[str], computed: Mapping[str, str | Expression]
) -> Selection:
    """Check names and expressions; SchemaError or ExpressionError says what does not fit."""
    outputs = [_pass_through(schema, name, name) for name in columns]
    for name, text in computed.items():
        bound = bind(text, schema)
        if isinstance(bound.root, Column):
            outputs.append(_pass_through(schema, bound.root.name, name))
        else:
            field = pa.field(name, bound.type)
            outputs.append(_Output(field=field, parents=bound.columns, computed=bound))
    names = Counter(output.field.name for output in outputs)
    for name, count in names.items():
        if count > 1:
            raise SchemaError(f"column {name!r} is selected twice")
    identity = tuple(_identity(output) for output in outputs)
    return Selection(outputs=tuple(outputs), identity=identity)


def _identity(output: _Output) -> tuple[str, str, str]:
    if output.computed is None:
        return (output.field.name, "", str(output.parents[0]))
    scope, text = output.computed.identity
    return (output.field.name, f"={scope}", text)


def index_of(schema: pa.Schema, name: str) -> int:
    index = int(schema.get_field_index(name))
    if index < 0:
        raise SchemaError(f"unknown column {name!r}{near_miss(name, schema.names)}")
    return index


def _pass_through(schema: pa.Schema, source: str, name: str) -> _Output:
    index = index_of(schema, source)
    field = schema.field(index).with_name(name)
    return _Output(field=field, parents=(index,), computed=None)


class SelectTable(DerivedTable):
    """A projection of the parent."""

    def __init__(self, parent: Table, selection: Selection) -> None:
        schema = pa.schema(
            [output.field for output in selection.outputs], metadata=parent.schema.metadata
        )
        super().__init__(parent, schema, _selected_traits(parent, selection))
        self._selection = selection
        self._outputs = selection.outputs
        costs = [
            0 if output.computed is None else output.computed.row_operations
            for output in self._outputs
        ]
        self._kept = {
            index: RowMemory([self._outputs[index].field.type])
            for index, cost in enumerate(costs)
            if cost >= KEPT_OPERATIONS
        }
        # Other computed cells are evaluated again by every read.
        self.reading += sum(cost for cost in costs if cost < KEPT_OPERATIONS)
        self._row_keys = parent.row_keys
        for index in range(len(self._outputs)):
            self._take_in(parent.row_keys, index)

    def _like_this(self, parents: tuple[Table, ...]) -> DerivedTable:
        return SelectTable(parents[0], self._selection)

    def _pin(self, known: dict[int, Table]) -> None:
        super()._pin(known)
        self._kept = {index: memory.pinned() for index, memory in self._kept.items()}

    def _take_in(self, added: RowSet, index: int, modified: RowSet | None = None) -> None:
        """Evaluate a computed column for rows that are new or changed; keep the cells or drop them.
        Raises what a later read would."""
        if self._outputs[index].computed is None:
            return
        memory = self._kept.get(index)
        if memory is None:
            changed = added if modified is None else added | modified
            for part in _parts(changed):
                self._evaluated(part, index)
            return
        for part in _parts(added):
            memory.add(part.to_numpy(), [self._evaluated(part, index)])
        for part in () if modified is None else _parts(modified):
            memory.write(part.to_numpy(), [self._evaluated(part, index)])

    def _evaluated(self, keys: RowSet, index: int) -> pa.Array:
        output = self._outputs[index]
        assert output.computed is not None
        cells = single_chunks(self.parent.read_cells(keys, output.parents))
        return output.computed.evaluate(cells, len(keys))

    def advance(self, update: TableUpdate) -> TableUpdate:
        self._row_keys = self.parent.row_keys
        for memory in self._kept.values():
            memory.remove(update.removed_keys_pre.to_numpy())
            memory.shift(update.shifts)
        modified = []
        for index, output in enumerate(self._outputs):
            keys = union_of(update.modified_keys_post[column] for column in output.parents)
            modified.append(keys)
            self._take_in(update.added_keys_post, index, keys)
        return TableUpdate(
            first_step=update.first_step,
            last_step=update.last_step,
            removed_keys_pre=update.removed_keys_pre,
            shifts=update.shifts,
            added_keys_post=update.added_keys_post,
            modified_keys_post=tuple(modified),
        )

    def read_cells(self, keys: RowSet, columns: Sequence[int]) -> tuple[Cells, ...]:
        return self._compute(
            columns,
            len(keys),
            keys.to_numpy,
            fetch=lambda wanted: self.parent.read_cells(keys, wanted),
        )

    def take_cells(self, keys: Int64Array, columns: Sequence[int]) -> tuple[pa.Array, ...]:
        return self._compute(
            columns,
            len(keys),
            lambda: keys,
            fetch=lambda wanted: self.parent.take_cells(keys, wanted),
        )

    def _compute(
        self,
        columns: Sequence[int],
        row_count: int,
        rows: Callable[[], Int64Array],
        *,
        fetch: Callable[[Sequence[int]], tuple[Cells, ...]],
    ) -> tuple[Cells, ...]:
        read = [self._outputs[index] for index in columns if index not in self._kept]
        wanted = sorted({parent for output in read for parent in output.parents})
        cells = dict(zip(wanted, fetch(wanted), strict=True))
        return tuple(
            self._kept[index].take(rows())[0]
            if index in self._kept
            else _computed(self._outputs[index], cells, row_count)
            for index in columns
        )


def _computed(output: _Output, cells: Mapping[int, Cells], row_count: int) -> Cells:
    if output.computed is None:
        return cells[output.parents[0]]
    parents = single_chunks(cells[parent] for parent in output.parents)
    return output.computed.evaluate(parents, row_count)


def _parts(keys: RowSet) -> Iterator[RowSet]:
    for start in range(0, len(keys), EVALUATED_ROWS):
        yield keys.slice(start, start + EVALUATED_ROWS)


def _selected_traits(parent: Table, selection: Selection) -> TableTraits:
    """Key columns stay key columns, under their new names, if all of them are selected."""
    names = parent.schema.names
    new_names = {
        names[output.parents[0]]: output.field.name
        for output in selection.outputs
        if output.computed is None
    }
    keys = tuple(new_names.get(name, "") for name in parent.key_columns)
    return parent.traits.changed(key_columns=keys if all(keys) else ())


def select(table: Table, /, *columns: str, **computed: str | Expression) -> Table:
    """The named columns, then ``new_name="expression"`` ones; a bare name renames or copies."""
    schema = table.schema
    selection = prepared(
        table,
        *("select", columns, tuple(computed.items())),
        prepare=lambda: parse_selection(schema, columns, computed),
    )
    return derived(
        (table,),
        ("select", selection.identity),
        lambda parent: SelectTable(parent, selection),
        price=work.of_terms(selection.row_operations),
    )

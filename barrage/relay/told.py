"""From what a subscription tells to what a relayed table takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.engine.resume.relayed import RelayedForm, ToldUpdate
from barrage.engine.tables.table import TableTraits
from barrage.errors import RemoteProtocolError
from barrage.model.replica import FullReplica
from barrage.model.update import TableUpdate

if TYPE_CHECKING:
    import pyarrow as pa

    from barrage.engine.resume.relayed import RelayedTable
    from barrage.model.update import FullUpdate
    from barrage.relay.listing import TableTold
    from barrage.rowset import RowSet


def form_of(told: TableTold, schema: pa.Schema) -> RelayedForm:
    """What the relayed table is; RemoteProtocolError when its key is none of its columns."""
    for name in told.key:
        if name not in schema.names:
            raise RemoteProtocolError(f"key column {name!r} is not in the schema")
    traits = TableTraits(
        is_static="static" in told.attributes,
        is_append_only="append_only" in told.attributes,
        is_blink="blink" in told.attributes,
        is_flat="flat" in told.attributes,
        key_columns=told.key,
    )
    return RelayedForm(schema=schema, traits=traits, kind=told.kind.replace("_", "-"))


def form_served(table: RelayedTable) -> RelayedForm:
    """What a relayed table was made as."""
    return RelayedForm(schema=table.schema, traits=table.traits, kind=table.kind)


def told_update(message: FullUpdate, *, step: int, is_by_position: bool) -> ToldUpdate:
    """An update that is no snapshot. ``step`` is that of the state before it; a message no step
    stands for (rows of a blink table that are over) gets the next one, in which it happened or
    before which nothing else did. RemoteProtocolError when it is no whole update."""
    added, data = message.added_keys_post, message.data_keys_post
    is_whole = message.removed_keys_pre is not None and message.modified_keys_post is not None
    if message.is_snapshot or not is_whole or data != added:
        raise RemoteProtocolError("a whole update was expected after the first state")
    assert message.removed_keys_pre is not None
    assert message.modified_keys_post is not None
    first, last = message.first_step, message.last_step
    if last < 0:
        first = last = step + 1
    if first > last or last < step:
        raise RemoteProtocolError(f"steps {first} to {last} were told after {step}")
    update = TableUpdate(
        first_step=first,
        last_step=last,
        removed_keys_pre=message.removed_keys_pre,
        shifts=message.shifts,
        added_keys_post=added,
        modified_keys_post=message.modified_keys_post,
    )
    return ToldUpdate(
        update=update,
        added=message.added_columns,
        modified=message.modified_columns,
        is_by_position=is_by_position,
    )


class FirstState:
    """Gathers the first state of a subscription, which may come in parts."""

    def __init__(self, schema: pa.Schema) -> None:
        self._replica = FullReplica(schema)
        self.step = -1

    def take(self, message: FullUpdate) -> None:
        """RemoteProtocolError when it does not fit what came before."""
        self._replica.apply(message)
        self.step = max(self.step, message.last_step)

    @property
    def keys(self) -> RowSet:
        """Row keys; RemoteProtocolError when cells of some are missing."""
        if self._replica.has_window:
            raise RemoteProtocolError("cells of the first state are missing")
        return self._replica.row_keys

    def rows(self) -> pa.Table:
        """The rows in key order."""
        return self._replica.to_arrow()

"""Who is subscribed to one table: each subscriber's request, state and place, as columns of
numbers.

Not here: options that only matter to the encoder. They travel as one opaque hashable ``encoding``;
two subscribers with equal encodings share the encoded bytes of every message they both get.

The table keeps one slot per subscription in a few integer arrays, so that the producer selects and
groups thousands of subscribers with a handful of numpy calls instead of touching each of them
(performance: one array cell per change of state, no Python per subscriber and cycle).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from typing import TYPE_CHECKING, Generic, TypeVar, cast

import numpy as np

from barrage.errors import LocalProtocolError
from barrage.model.viewport import ColumnSet, Viewport, effective_columns

if TYPE_CHECKING:
    from collections.abc import Hashable

    from barrage.rowset import RowSet
    from barrage.rowset.arrays import Int64Array

POSITION_STOP_MAX = 2**62
"""No table has this many rows; open-ended viewports are cut here so that position arithmetic cannot
overflow."""

NOWHERE = -1
"""Point of a subscription that has got nothing yet, or that will be resynchronised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionSpec:
    """One subscription: what to send (columns, viewport), how often, in which space and for which
    encoding."""

    columns: ColumnSet | None
    """Columns as requested, echoed unclamped; None means all."""
    viewport: Viewport | None
    """None for a full subscription."""
    interval_ns: int
    """Shortest time between two updates; 0 or less means the server's default."""
    is_key_space: bool
    """True for full subscriptions and for the 2020 draft's viewports; False for view positions
    (1.0.0)."""
    encoding: Hashable
    """Equal encodings get equal bytes."""
    is_reverse_echo: bool = False
    """Direction to echo when there is no viewport: such a request may name one, it has no other
    effect (barrage-wire.md section 7.1)."""
    is_last_column_covering: bool = False
    """For full subscriptions: send the last column for every modified row, whichever column was
    modified. The C++ core unites the columns' row sets wrongly unless the last one is the union
    (docs/compatibility.md)."""


class ShapeKind(IntEnum):
    """How a subscription is computed."""

    FULL = 0
    """The whole table, in row keys."""
    SPAN = 1
    """One contiguous run of positions, in view positions: all of them are computed together."""
    SCATTERED = 2
    """Any other set of positions, in view positions."""
    KEYED_VIEW = 3
    """A viewport in row keys (2020 draft)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What is sent, whoever asked for it: subscriptions of equal shape share every message.

    ``column_indices`` are the existing columns among ``columns``; ``start`` and ``stop``
    (half-open) are the positions of a SPAN and 0 otherwise.
    """

    kind: ShapeKind
    columns: ColumnSet | None
    column_indices: ColumnSet
    viewport: Viewport | None
    is_reverse: bool
    start: int = 0
    stop: int = 0
    is_last_column_covering: bool = False

    @classmethod
    def of(
        cls,
        columns: ColumnSet | None,
        viewport: Viewport | None,
        *,
        column_count: int,
        is_key_space: bool,
        is_reverse_echo: bool = False,
        is_last_column_covering: bool = False,
    ) -> Shape:
        """The shape a request asks for, on a table of ``column_count`` columns."""
        kind, start, stop = ShapeKind.FULL, 0, 0
        is_reverse = is_reverse_echo
        if viewport is not None:
            is_reverse = viewport.is_reverse
            positions = viewport.positions
            if is_key_space:
                kind = ShapeKind.KEYED_VIEW
            elif positions.is_empty:
                kind = ShapeKind.SPAN
            elif positions.is_contiguous:
                kind, start = ShapeKind.SPAN, min(positions.first, POSITION_STOP_MAX)
                stop = min(positions.last, POSITION_STOP_MAX - 1) + 1
            else:
                kind = ShapeKind.SCATTERED
        return cls(
            kind=kind,
            columns=columns,
            column_indices=effective_columns(columns, column_count),
            viewport=viewport,
            is_reverse=is_reverse,
            start=start,
            stop=max(start, stop),
            is_last_column_covering=is_last_column_covering and viewport is None,
        )

    @classmethod
    def of_spec(cls, spec: SubscriptionSpec, *, column_count: int) -> Shape:
        """The shape of a subscription."""
        return cls.of(
            spec.columns,
            spec.viewport,
            column_count=column_count,
            is_key_space=spec.is_key_space,
            is_reverse_echo=spec.is_reverse_echo,
            is_last_column_covering=spec.is_last_column_covering,
        )

    def window(self, table_size: int) -> RowSet:
        """Forward positions of the rows shown in a table of ``table_size`` rows. Not for FULL."""
        if self.viewport is None:
            raise ValueError("a full subscription has no window")
        return self.viewport.resolve(table_size)


class SlotState(IntEnum):
    """Where one subscription stands. ``IntEnum`` because it lives in an integer array."""

    FREE = 0
    FLOWING = 1
    """Gets its interval's propagations."""
    HELD = 2
    """Gets nothing; its changes coalesce."""
    CATCHING_UP = 3
    """Was released after missing a propagation: gets the next one, whatever the interval."""
    AWAITING = 4
    """Waits for a message that is made beside, and gets nothing else until it is there."""
    AWAITING_HELD = 5
    """The same, and is held besides: gets that message and then nothing."""


class SlotInput(Enum):
    """What moves a subscription from state to state."""

    ADD = auto()
    RESUME = auto()
    """Added with the rows of an older version."""
    HOLD = auto()
    RELEASE = auto()
    """Released without having missed anything."""
    RELEASE_BEHIND = auto()
    """Released after a propagation of its interval passed it by."""
    SEND = auto()
    DEFER = auto()
    """Due, but left for the next propagation, which follows at once."""
    AWAIT = auto()
    """Its next message is made beside."""
    ARRIVE = auto()
    """That message is there."""
    REMOVE = auto()


_S = SlotState
_I = SlotInput

SLOT_TRANSITIONS: dict[tuple[SlotState, SlotInput], SlotState] = {
    (_S.FREE, _I.ADD): _S.FLOWING,
    (_S.FREE, _I.RESUME): _S.CATCHING_UP,
    (_S.FLOWING, _I.HOLD): _S.HELD,
    (_S.FLOWING, _I.RELEASE): _S.FLOWING,
    (_S.FLOWING, _I.RELEASE_BEHIND): _S.FLOWING,
    (_S.FLOWING, _I.SEND): _S.FLOWING,
    (_S.FLOWING, _I.DEFER): _S.CATCHING_UP,
    (_S.FLOWING, _I.REMOVE): _S.FREE,
    (_S.HELD, _I.HOLD): _S.HELD,
    (_S.HELD, _I.RELEASE): _S.FLOWING,
    (_S.HELD, _I.RELEASE_BEHIND): _S.CATCHING_UP,
    (_S.HELD, _I.REMOVE): _S.FREE,
    (_S.CATCHING_UP, _I.HOLD): _S.HELD,
    (_S.CATCHING_UP, _I.RELEASE): _S.CATCHING_UP,
    (_S.CATCHING_UP, _I.RELEASE_BEHIND): _S.CATCHING_UP,
    (_S.CATCHING_UP, _I.SEND): _S.FLOWING,
    (_S.CATCHING_UP, _I.DEFER): _S.CATCHING_UP,
    (_S.CATCHING_UP, _I.REMOVE): _S.FREE,
    (_S.FLOWING, _I.AWAIT): _S.AWAITING,
    (_S.CATCHING_UP, _I.AWAIT): _S.AWAITING,
    (_S.AWAITING, _I.ARRIVE): _S.CATCHING_UP,
    (_S.AWAITING, _I.HOLD): _S.AWAITING_HELD,
    (_S.AWAITING, _I.RELEASE): _S.AWAITING,
    (_S.AWAITING, _I.RELEASE_BEHIND): _S.AWAITING,
    (_S.AWAITING, _I.REMOVE): _S.FREE,
    (_S.AWAITING_HELD, _I.ARRIVE): _S.HELD,
    (_S.AWAITING_HELD, _I.HOLD): _S.AWAITING_HELD,
    (_S.AWAITING_HELD, _I.RELEASE): _S.AWAITING,
    (_S.AWAITING_HELD, _I.RELEASE_BEHIND): _S.AWAITING,
    (_S.AWAITING_HELD, _I.REMOVE): _S.FREE,
}
"""Every legal move. Holding twice and releasing what flows are harmless; a driver may do either."""

FREE, FLOWING, HELD, CATCHING_UP, AWAITING, AWAITING_HELD = map(int, SlotState)
"""The states as they stand in :attr:`SubscriberTable.state`: plain numbers, because looking up and
comparing members of an enum took a quarter of a propagation to one subscriber."""

IS_SILENT = np.isin(np.arange(len(SlotState)), (HELD, AWAITING, AWAITING_HELD))
"""By state: whether a subscription is there and is told nothing."""

_AFTER_CATCHING_UP = int(SLOT_TRANSITIONS[_S.CATCHING_UP, _I.SEND])

ItemT = TypeVar("ItemT")


class Interned(Generic[ItemT]):
    """Equal values under one small number, as long as somebody uses it."""

    def __init__(self) -> None:
        self._numbers: dict[ItemT, int] = {}
        self._items: list[ItemT | None] = []
        self._uses: list[int] = []
        self._free: list[int] = []

    def take(self, item: ItemT) -> int:
        """The number of ``item``, with one more use."""
        number = self._numbers.get(item)
        if number is None:
            if self._free:
                number = self._free.pop()
                self._items[number] = item
                self._uses[number] = 0
            else:
                number = len(self._items)
                self._items.append(item)
                self._uses.append(0)
            self._numbers[item] = number
        self._uses[number] += 1
        return number

    def drop(self, number: int) -> None:
        """One use less; the last one frees the number."""
        item = self[number]
        self._uses[number] -= 1
        if self._uses[number] == 0:
            del self._numbers[item]
            self._items[number] = None
            self._free.append(number)

    def __getitem__(self, number: int) -> ItemT:
        if not self._uses[number]:
            raise KeyError(number)
        return cast("ItemT", self._items[number])

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def use_count(self) -> int:
        """Uses of all items together."""
        return sum(self._uses)


class ShapeBook:
    """All shapes in use, and what can be computed for many of them at once as arrays by shape
    number."""

    def __init__(self) -> None:
        self._shapes: Interned[Shape] = Interned()
        self._column_sets: Interned[ColumnSet] = Interned()
        self.kind: Int64Array = np.empty(0, dtype=np.int64)
        self.start: Int64Array = np.empty(0, dtype=np.int64)
        self.stop: Int64Array = np.empty(0, dtype=np.int64)
        self.is_reverse: Int64Array = np.empty(0, dtype=np.int64)
        self.column_set: Int64Array = np.empty(0, dtype=np.int64)

    def __getitem__(self, number: int) -> Shape:
        return self._shapes[number]

    def __len__(self) -> int:
        return len(self._shapes)

    @property
    def use_count(self) -> int:
        """Uses of all shapes together."""
        return self._shapes.use_count

    def columns(self, column_set: int) -> ColumnSet:
        """The column indices behind a number in :attr:`column_set`."""
        return self._column_sets[column_set]

    def take(self, shape: Shape) -> int:
        """The number of ``shape``, with one more use."""
        number = self._shapes.take(shape)
        if number >= len(self.kind):
            _grow_columns(self, ("kind", "start", "stop", "is_reverse", "column_set"), number + 1)
        self.kind[number] = shape.kind.value
        self.start[number] = shape.start
        self.stop[number] = shape.stop
        self.is_reverse[number] = shape.is_reverse
        self.column_set[number] = self._column_sets.take(shape.column_indices)
        return number

    def drop(self, number: int) -> None:
        """One use less."""
        self._column_sets.drop(int(self.column_set[number]))
        self._shapes.drop(number)


def _grow_columns(owner: object, names: tuple[str, ...], length: int) -> int:
    """Make the int64 arrays ``names`` of ``owner`` at least ``length`` long, at least doubling; the
    new length."""
    for name in names:
        old = getattr(owner, name)
        length = max(16, length, len(old) * 2)
        column = np.zeros(length, dtype=np.int64)
        column[: len(old)] = old
        setattr(owner, name, column)
    return length


_COLUMN_NAMES = ("ids", "state", "group", "point", "shape", "encoding")


class SubscriberTable:
    """Slots of all subscriptions of one table. Array columns are indexed by slot and may be read by
    anybody; they are written by the methods here only, except ``point`` (see :meth:`place`).
    """

    def __init__(self) -> None:
        self.ids: Int64Array = np.empty(0, dtype=np.int64)
        self.state: Int64Array = np.empty(0, dtype=np.int64)
        self.group: Int64Array = np.empty(0, dtype=np.int64)
        self.point: Int64Array = np.empty(0, dtype=np.int64)
        self.shape: Int64Array = np.empty(0, dtype=np.int64)
        self.encoding: Int64Array = np.empty(0, dtype=np.int64)
        self.shapes = ShapeBook()
        self.encodings: Interned[Hashable] = Interned()
        self.catching_up_count = 0
        """Slots in that state."""
        self._slots: dict[int, int] = {}
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, subscription_id: int) -> bool:
        return subscription_id in self._slots

    def slot_of(self, subscription_id: int) -> int:
        """The slot of a subscription; LocalProtocolError if there is none."""
        slot = self._slots.get(subscription_id)
        if slot is None:
            raise LocalProtocolError(f"no subscription {subscription_id}")
        return slot

    def subscription_ids(self) -> list[int]:
        """All subscriptions, in the order they were added."""
        return list(self._slots)

    def add(
        self,
        subscription_id: int,
        *,
        shape: Shape,
        group: int,
        encoding: Hashable,
        is_resumed: bool = False,
    ) -> int:
        """A slot for a new subscription, NOWHERE yet; one that is resumed is to catch up."""
        if subscription_id in self._slots:
            raise LocalProtocolError(f"subscription {subscription_id} exists already")
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self._slots[subscription_id] = slot
        self.ids[slot] = subscription_id
        self.group[slot] = group
        self.point[slot] = NOWHERE
        self.shape[slot] = self.shapes.take(shape)
        self.encoding[slot] = self.encodings.take(encoding)
        self.move(slot, SlotInput.RESUME if is_resumed else SlotInput.ADD)
        return slot

    def _grow(self) -> None:
        old = len(self.ids)
        new = _grow_columns(self, _COLUMN_NAMES, old + 1)
        self._free.extend(range(new - 1, old - 1, -1))

    def remove(self, slot: int) -> None:
        """Free a slot."""
        self.move(slot, SlotInput.REMOVE)
        self.shapes.drop(int(self.shape[slot]))
        self.encodings.drop(int(self.encoding[slot]))
        del self._slots[int(self.ids[slot])]
        self._free.append(slot)

    def move(self, slot: int, stimulus: SlotInput) -> None:
        """Make a declared move; LocalProtocolError if there is none."""
        state = SlotState(int(self.state[slot]))
        following = SLOT_TRANSITIONS.get((state, stimulus))
        if following is None:
            raise LocalProtocolError(f"{stimulus.name} is not allowed in state {state.name}")
        self.state[slot] = following
        self.catching_up_count += (following == CATCHING_UP) - (state == CATCHING_UP)

    def sent(self, slots: Int64Array) -> None:
        """All of ``slots`` got a message: those that were catching up flow again."""
        if self.catching_up_count:
            caught_up = slots[self.state[slots] == CATCHING_UP]
            self.state[caught_up] = _AFTER_CATCHING_UP
            self.catching_up_count -= len(caught_up)

    def reshape(self, slot: int, shape_number: int) -> None:
        """Give ``slot`` another shape, whose use it takes over from the caller."""
        self.shapes.drop(int(self.shape[slot]))
        self.shape[slot] = shape_number

    def shape_of(self, slot: int) -> Shape:
        return self.shapes[int(self.shape[slot])]

    def place(self, slots: Int64Array, point: int) -> None:
        """Let ``slots`` stand at ``point``; the counts of the log are the caller's business."""
        self.point[slots] = point

    def validate(self) -> None:
        """Check the invariants; for tests and simulation."""
        used = sorted(self._slots.values())
        assert used == np.flatnonzero(self.state != FREE).tolist()
        assert self.catching_up_count == int((self.state == CATCHING_UP).sum())
        assert len(used) + len(self._free) == len(self.ids)
        for subscription_id, slot in self._slots.items():
            assert self.ids[slot] == subscription_id
            self.shape_of(slot)

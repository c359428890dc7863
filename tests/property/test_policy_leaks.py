"""Nobody is ever sent a cell or a name that the rules hide, whatever the rules, the tables, what
happens to them, and the door: everything that leaves a server is read byte by byte."""

from __future__ import annotations

import pytest

from barrage import Operation, RowSet
from barrage.engine.operators import restrict
from barrage.engine.operators.where import WhereTable
from barrage.errors import BarrageError
from barrage.server.policy.access_gate import AccessGate
from barrage.server.policy.catalog_view import CatalogView
from barrage.server.policy.policy_watch import PolicyWatch
from barrage.server.runtime.catalog import Catalog
from tests.helpers.policy_world import PolicyWorld
from tests.helpers.wiretap import HANG_S

ACTIONS_MAX = 40


def lived(seed: int, *, patience_s: float = HANG_S) -> PolicyWorld:
    """A world that has acted, with nothing wrong."""
    with PolicyWorld(seed) as world:
        world.patience_s = patience_s
        for _ in range(ACTIONS_MAX):
            world.act()
        return world


def test_nobody_is_sent_what_the_rules_hide() -> None:
    worlds = [lived(seed) for seed in range(6)]
    assert sum(world.compared for world in worlds) > 30
    assert sum(world.marks_sent for world in worlds) > 200


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 206))
def test_nobody_is_sent_what_the_rules_hide_for_long(seed: int) -> None:
    lived(seed)


# --- faults that must be found ---

FAULTS: dict[str, tuple[object, str, object]] = {
    "dictionaries keep entries of other rows": (restrict, "of_used_entries", lambda cells: cells),
    "what is open goes on under the rules of before": (
        PolicyWatch,
        "_put",
        lambda watch, policy: watch.gate.replace(policy),
    ),
    "names nearby are told": (Catalog, "suggests_names", property(lambda _: True, lambda *_: None)),
    "history is for whoever may read": (
        AccessGate,
        "check_whole",
        lambda gate, table: gate.check(table, Operation.READ),
    ),
    "lists have the columns there are": (
        CatalogView,
        "schema_of",
        lambda _, publication: publication.table.schema,
    ),
    "rows that match no more stay": (
        WhereTable,
        "choose",
        lambda table, update, survivors: (
            RowSet.empty(),
            table._passing(update.added_keys_post) - survivors,
        ),
    ),
    "masks are for whole reads": (
        restrict.RestrictTable,
        "take_cells",
        lambda table, keys, columns: table.parent.take_cells(
            table._rows.row_keys.select_many(keys) if table._rows is not None else keys,
            [table._shown.columns[column] for column in columns],
        ),
    ),
}
QUICK = ("dictionaries keep entries of other rows", "names nearby are told")
SEEDS_MAX = 60


def find(fault: str) -> None:
    place, name, broken = FAULTS[fault]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, name, broken, raising=False)
        for seed in range(SEEDS_MAX):
            try:
                lived(seed, patience_s=5)
            except (AssertionError, BarrageError):
                return
    pytest.fail(f"nobody has noticed that {fault}")


@pytest.mark.parametrize("fault", QUICK)
def test_a_fault_is_found(fault: str) -> None:
    find(fault)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [each for each in FAULTS if each not in QUICK])
def test_a_fault_is_found_in_time(fault: str) -> None:
    find(fault)

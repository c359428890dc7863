"""Cases of ``pydeephaven_operations.py``: columns, rows, joins, aggregations, changing tables."""

from __future__ import annotations

import time

from deephaven_core.proto import table_pb2 as messages
from pydeephaven import SortDirection, agg
from pydeephaven._table_ops import NaturalJoinType

from tests.interop.operation_bench import CASES, case, shown
from tests.interop.operation_tables import MORE, SECTORS, TRADES

SETTLING_SECONDS = 0.5

# --- columns ---


@case
def as_uploaded(b):
    return b.trades


@case
def drop_columns(b):
    return b.trades.drop_columns(["Price", "Flag"])


@case
def drop_all_columns(b):
    return b.sectors.drop_columns(SECTORS.column_names)


@case
def drop_unknown_column(b):
    return b.trades.drop_columns(["Nope"])


@case
def view(b):
    return b.trades.view(["Twice = Size * 2", "Sym", "More = Twice + 1", "Copy = Price"])


@case
def view_of_all(b):
    return b.trades.view([])


@case
def view_unknown_column(b):
    return b.trades.view(["Nope"])


@case
def view_of_malformed_text(b):
    return b.trades.view(["A = (Size"])


@case
def update(b):
    return b.trades.update(["Size = Size + 1", "Double = Size * 2", "Last = Double + 1"])


@case
def update_view(b):
    return b.trades.update_view(["Price = Size", "Text = Sym + `!`"])


@case
def lazy_update(b):
    return b.trades.lazy_update(["Half = Price / 2"])


@case
def select(b):
    return b.trades.select(["Sym", "Value = Price * Size"])


@case
def row_variables(b):
    return b.trades.where("Size > 1").update(["Place = i", "Long = ii * 10"])


@case
def row_variables_in_filter(b):
    return b.trades.where("i % 2 == 1")


@case
def select_distinct(b):
    return b.trades.select_distinct(["Sym"])


@case
def select_distinct_two(b):
    return b.twice.select_distinct(["Sym", "Rank"])


# --- rows ---


@case
def where(b):
    return b.trades.where(["Size > 1", "Sym = `a`"])


@case
def where_malformed(b):
    return b.trades.where(["Size >"])


@case
def where_in(b):
    return b.trades.where_in(b.sectors, ["Sym"])


@case
def where_not_in(b):
    return b.trades.where_not_in(b.sectors, ["Sym"])


@case
def where_in_with_null(b):
    nulls = b.trades.view(["Sym"]).tail(3)
    return b.trades.where_in(nulls, "Sym"), nulls


@case
def where_in_renamed(b):
    renamed = b.sectors.view(["Name = Sym"])
    return b.trades.where_in(renamed, ["Sym = Name"]), renamed


@case
def where_in_two_columns(b):
    some = b.trades.head(3)
    return b.trades.where_in(some, ["Sym", "Size"]), some


@case
def where_in_other_types(b):
    return b.trades.where_in(b.sectors, ["Size = Sym"])


@case
def sort_ascending(b):
    return b.trades.sort(["Price"])


@case
def sort_descending(b):
    return b.trades.sort(["Price"], [SortDirection.DESCENDING])


@case
def sort_by_two(b):
    return b.trades.sort(["Sym", "Size"], [SortDirection.DESCENDING, SortDirection.ASCENDING])


@case
def sort_absolute(b):
    sorts = [messages.SortDescriptor(column_name="Price", is_absolute=True, direction=-1)]
    return b.one("Sort", messages.SortTableRequest, b.trades, sorts=sorts)


@case
def sort_reverse(b):
    sorts = [messages.SortDescriptor(column_name="Price", direction=2)]
    return b.one("Sort", messages.SortTableRequest, b.trades, sorts=sorts)


@case
def sort_without_direction(b):
    sorts = [messages.SortDescriptor(column_name="Price")]
    return b.one("Sort", messages.SortTableRequest, b.trades, sorts=sorts)


@case
def sort_by_nothing(b):
    return b.one("Sort", messages.SortTableRequest, b.trades)


@case
def head(b):
    return b.trades.head(2)


@case
def head_of_nothing(b):
    return b.trades.head(0)


@case
def head_of_less_than_nothing(b):
    return b.trades.head(-1)


@case
def tail(b):
    return b.trades.tail(3)


def _slice(start, stop):
    CASES[f"slice_{start}_{stop}"] = lambda b: b.trades.slice(start, stop)


for _start, _stop in [(0, 2), (1, -1), (-2, 0), (-3, -1), (2, 1), (-1, -2), (2, 99), (50, 60)]:
    _slice(_start, _stop)


@case
def flatten(b):
    return b.one("Flatten", messages.FlattenRequest, b.trades.where("Size > 2"))


@case
def snapshot(b):
    return b.trades.snapshot()


@case
def merge(b):
    return b.session.merge_tables([b.sectors, b.twice, b.sectors])


@case
def merge_in_other_order(b):
    turned = b.twice.view(["Rank", "Sym", "Sector"])
    return b.session.merge_tables([b.sectors, turned]), turned


@case
def merge_of_others(b):
    return b.session.merge_tables([b.sectors, b.trades])


@case
def merge_of_nothing(b):
    return b.call("MergeTables", messages.MergeTablesRequest(result_id=b.ticket()))


# --- joins ---


@case
def natural_join(b):
    return b.trades.natural_join(b.sectors, ["Sym"])


@case
def natural_join_some(b):
    return b.trades.natural_join(b.sectors, ["Sym"], ["Branch = Sector"])


@case
def natural_join_renamed(b):
    left = b.trades.view(["Name = Sym", "Size"])
    return left.natural_join(b.sectors, ["Name = Sym"]), left


@case
def natural_join_adding_key(b):
    return b.trades.natural_join(b.sectors, ["Sym"], ["Other = Sym", "Rank"])


@case
def natural_join_with_two(b):
    return b.trades.natural_join(b.twice, ["Sym"])


@case
def natural_join_with_first(b):
    return b.trades.natural_join(b.twice, ["Sym"], type=NaturalJoinType.FIRST_MATCH)


@case
def natural_join_with_last(b):
    return b.trades.natural_join(b.twice, ["Sym"], ["Rank"], type=NaturalJoinType.LAST_MATCH)


@case
def natural_join_names_twice(b):
    left = b.trades.view(["Sym", "Rank = Size"])
    return left.natural_join(b.sectors, ["Sym"]), left


@case
def natural_join_other_types(b):
    return b.trades.natural_join(b.sectors, ["Size = Sym"])


@case
def natural_join_unknown(b):
    return b.trades.natural_join(b.sectors, ["Nope"])


# --- aggregations ---


def _by(name):
    def all_columns(b):
        return getattr(b.trades.view(["Sym", "Size", "Count", "Price", "Small"]), name)(["Sym"])

    CASES[name] = all_columns
    CASES[f"{name}_none"] = lambda b: getattr(b.trades.view(["Size", "Price"]), name)()
    CASES[f"{name}_text"] = lambda b: getattr(b.trades.view(["Size", "Sym"]), name)(["Size"])
    CASES[f"{name}_flags"] = lambda b: getattr(b.trades.view(["Sym", "Flag"]), name)(["Sym"])
    CASES[f"{name}_times"] = lambda b: getattr(b.trades.view(["Sym", "Time"]), name)(["Sym"])
    CASES[f"{name}_characters"] = lambda b: getattr(b.trades.view(["Sym", "Letter"]), name)(["Sym"])


for _name in ("sum_by", "avg_by", "std_by", "var_by", "min_by", "max_by", "first_by", "last_by"):
    _by(_name)


@case
def count_by(b):
    return b.trades.count_by("n", ["Sym"])


@case
def count_by_nothing(b):
    return b.trades.count_by("n")


@case
def agg_by(b):
    return b.trades.agg_by(
        [
            agg.sum_(["Total = Size", "Value = Price"]),
            agg.avg("Mean = Size"),
            agg.count_("n"),
            agg.min_("Least = Price"),
            agg.max_("Most = Price"),
            agg.first("First = Sym"),
            agg.last("Last = Size"),
            agg.std("Deviation = Size"),
            agg.var("Variance = Size"),
            agg.abs_sum("Magnitude = Size"),
            agg.weighted_avg("Count", ["Weighted = Price"]),
            agg.weighted_sum("Price", ["Turnover = Count"]),
        ],
        ["Sym"],
    )


@case
def agg_by_two(b):
    return b.twice.agg_by([agg.count_("n")], ["Sym", "Rank"])


@case
def agg_by_nothing(b):
    return b.trades.agg_by([agg.sum_(["Total = Size"]), agg.count_("n")], [])


@case
def agg_of_no_rows(b):
    empty = b.trades.where("Size > 100")
    return empty.agg_by([agg.sum_(["Total = Size"]), agg.count_("n")], []), empty


@case
def agg_of_no_rows_by(b):
    empty = b.trades.where("Size > 100")
    return empty.agg_by([agg.sum_(["Total = Size"]), agg.count_("n")], ["Sym"]), empty


@case
def agg_with_nan(b):
    return b.numbers.agg_by([agg.min_("Low = X"), agg.max_("High = X"), agg.sum_("S = X")], ["K"])


@case
def agg_grouped_by_nan(b):
    return b.numbers.agg_by([agg.count_("n")], ["X"])


@case
def agg_without_aggregations(b):
    return b.trades.agg_by([], ["Sym"])


@case
def agg_unknown_column(b):
    return b.trades.agg_by([agg.sum_("Nope")], ["Sym"])


@case
def agg_unknown_key(b):
    return b.trades.agg_by([agg.sum_("Size")], ["Nope"])


@case
def agg_one_name_twice(b):
    return b.trades.agg_by([agg.sum_("Size"), agg.avg("Size")], ["Sym"])


@case
def agg_all_by(b):
    return b.trades.view(["Sym", "Size", "Price"]).agg_all_by(agg.abs_sum(), ["Sym"])


@case
def agg_all_by_without_columns(b):
    return b.trades.view(["Sym"]).sum_by(["Sym"])


# --- operations on tables that change ---

STACKS = {
    "where": lambda b, t: t.where("Size > 2"),
    "view": lambda b, t: t.view(["Sym", "Double = Size * 2"]),
    "sort": lambda b, t: t.sort(["Price", "Size"]),
    "head": lambda b, t: t.sort(["Size", "Price"]).head(4),
    "tail": lambda b, t: t.sort(["Size", "Price"]).tail(4),
    "slice": lambda b, t: t.sort(["Size", "Price"]).slice(1, -1),
    "sum_by": lambda b, t: t.view(["Sym", "Size"]).sum_by(["Sym"]).sort(["Sym"]),
    "agg_by": lambda b, t: t.agg_by(
        [agg.min_("Low = Price"), agg.max_("High = Price"), agg.avg("Mean = Size")], ["Sym"]
    ).sort(["Sym"]),
    "select_distinct": lambda b, t: t.select_distinct(["Sym"]).sort(["Sym"]),
    "natural_join": lambda b, t: t.natural_join(b.sectors, ["Sym"]).sort(["Size", "Price"]),
    "where_in": lambda b, t: t.where_in(b.sectors, ["Sym"]).sort(["Size", "Price"]),
    "where_not_in": lambda b, t: t.where_not_in(b.sectors, ["Sym"]).sort(["Size", "Price"]),
    "merge": lambda b, t: b.session.merge_tables([t, t]).sort(["Size", "Price"]),
    "meta_table": lambda b, t: t.meta_table,
}


def _ticking(name, **options):
    def ticking(b):
        """The rows of every stack before, after rows came, and after some were removed or came
        once more."""
        table = b.session.input_table(schema=TRADES.schema, **options)
        made = {stack: make(b, table) for stack, make in STACKS.items()}
        found = {stack: [shown(each)] for stack, each in made.items()}
        changes = [("add", TRADES), ("add", MORE)]
        if options:
            changes.append(("delete", MORE.select(options["key_cols"]).slice(0, 2)))
        else:
            changes.append(("add", TRADES.slice(0, 2)))
        kept = []
        for what, rows in changes:
            kept.append(b.session.import_table(rows))
            getattr(table, what)(kept[-1])
            # A real server answers before the tables made from this one have followed.
            time.sleep(SETTLING_SECONDS)
            for stack, each in made.items():
                found[stack].append(shown(each))
        return found

    CASES[name] = ticking


_ticking("growing")
_ticking("keyed", key_cols=["Id"])

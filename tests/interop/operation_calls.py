"""Cases of ``pydeephaven_operations.py``: tables from nothing, questions about tables, batches, and
what results and sources may be."""

from __future__ import annotations

import itertools
import time

import grpc
import pyarrow as pa
from deephaven_core.proto import table_pb2 as messages
from deephaven_core.proto import ticket_pb2

from tests.interop.operation_bench import CASES, case, reference, until

# --- sources and descriptions ---


@case
def empty_table(b):
    return b.session.empty_table(3).update(["X = 1", "Y = i"])


@case
def empty_table_without_columns(b):
    return b.session.empty_table(4)


@case
def empty_table_of_less_than_nothing(b):
    return b.session.empty_table(-1)


@case
def meta_table(b):
    return b.trades.meta_table


@case
def open_unknown_table(b):
    return b.session.open_table("nobody_has_this")


@case
def time_table_from_the_past(b):
    start_ns = time.time_ns() - 5_500_000_000
    table = b.session.time_table(1_000_000_000, start_time=start_ns)
    until(lambda: len(table.to_arrow()) >= 6)
    times = table.to_arrow().column("Timestamp").cast(pa.int64()).to_pylist()
    return {"names": table.schema.names, "times": [each - start_ns for each in times[:6]]}


@case
def time_table_from_now(b):
    table = b.session.time_table("PT0.2S")
    until(lambda: len(table.to_arrow()) >= 3)
    times = table.to_arrow().column("Timestamp").cast(pa.int64()).to_pylist()
    return {
        "is_static": table.is_static,
        "steps": [after - before for before, after in itertools.pairwise(times[:3])],
        "on_the_beat": all(each % 200_000_000 == 0 for each in times),
    }


@case
def time_table_without_period(b):
    return b.session.time_table(0)


@case
def time_table_of_malformed_period(b):
    return b.session.time_table("often")


def _statistics(column):
    def statistics(b):
        return b.one(
            "ComputeColumnStatistics",
            messages.ColumnStatisticsRequest,
            b.trades,
            column_name=column,
        )

    CASES[f"statistics_{column}"] = statistics


for _column in ("Sym", "Size", "Count", "Price", "Small", "Flag", "Time", "Nope"):
    _statistics(_column)


def _seek(name, column, start=0, back=False, insensitive=False, contains=False, **value):
    def seek(b):
        request = messages.SeekRowRequest(
            source_id=b.trades.pb_ticket,
            starting_row=start,
            column_name=column,
            seek_value=messages.Literal(**value),
            insensitive=insensitive,
            contains=contains,
            is_backward=back,
        )
        return {"row": b.session.wrap_rpc(b.stub.SeekRow, request).result_row}

    CASES[f"seek_{name}"] = seek


for _row in (-1, 0, 1, 3, 4, 5, 99):
    _seek(f"from_{_row}", "Sym", _row, string_value="b")
    _seek(f"back_from_{_row}", "Sym", _row, back=True, string_value="b")
_seek("case", "Sym", string_value="B")
_seek("any_case", "Sym", insensitive=True, string_value="B")
_seek("part", "Sym", contains=True, string_value="b")
_seek("long", "Size", long_value=5)
_seek("double", "Price", double_value=2.5)
_seek("double_in_ints", "Size", double_value=3)
_seek("fraction_in_ints", "Size", double_value=3.5)
_seek("time", "Time", nano_time_value=5)
_seek("flag", "Flag", bool_value=False)
_seek("character", "Letter", string_value="C")
_seek("absent", "Size", long_value=77)
_seek("text_in_ints", "Size", string_value="3")
_seek("nothing", "Size")
_seek("unknown_column", "Nope", long_value=1)


@case
def preview_of_nothing(b):
    return b.one("ApplyPreviewColumns", messages.ApplyPreviewColumnsRequest, b.trades)


@case
def preview(b):
    return b.one(
        "ApplyPreviewColumns",
        messages.ApplyPreviewColumnsRequest,
        b.trades.view(["Sym", "Size", "Flag"]),
        unpreviewed_types=["java.lang.String", "int"],
    )


@case
def preview_converting_without_types(b):
    return b.one(
        "ApplyPreviewColumns",
        messages.ApplyPreviewColumnsRequest,
        b.trades,
        convert_arrays=True,
    )


# --- batches and references ---


@case
def query(b):
    made = b.session.query(b.trades).where(["Size > 0"]).sort(["Price"]).view(["Sym", "Price"])
    return made.head(3).exec()


@case
def query_with_error(b):
    return b.session.query(b.trades).where(["Size > 0"]).sort(["Nope"]).head(3).exec()


def operation(name, **fields):
    return messages.BatchTableRequest.Operation(**{name: _REQUESTS[name](**fields)})


_REQUESTS = {
    "view": messages.SelectOrUpdateRequest,
    "head": messages.HeadOrTailRequest,
    "tail": messages.HeadOrTailRequest,
    "drop_columns": messages.DropColumnsRequest,
    "fetch_table": messages.FetchTableRequest,
}


def step(number):
    return messages.TableReference(batch_offset=number)


@case
def batch(b):
    return b.batch(
        operation("view", source_id=reference(b.trades), column_specs=["Size"]),
        operation("head", source_id=step(0), num_rows=3),
        operation("tail", source_id=step(1), num_rows=1, result_id=b.ticket()),
    )


@case
def batch_with_failure(b):
    return b.batch(
        operation("view", source_id=reference(b.trades), column_specs=["Size"]),
        operation("drop_columns", source_id=step(0), column_names=["Nope"]),
        operation("tail", source_id=step(1), num_rows=1, result_id=b.ticket()),
        operation("tail", source_id=step(0), num_rows=1, result_id=b.ticket()),
    )


@case
def batch_looking_ahead(b):
    return b.batch(
        operation("head", source_id=step(1), num_rows=3),
        operation("tail", source_id=reference(b.trades), num_rows=1, result_id=b.ticket()),
    )


@case
def batch_with_result_as_source(b):
    result = b.ticket()
    source = messages.TableReference(ticket=result)
    return b.batch(
        operation("head", source_id=source, num_rows=3, result_id=b.ticket()),
        operation("tail", source_id=reference(b.trades), num_rows=1, result_id=result),
    )


@case
def batch_with_one_fetch(b):
    return b.batch(operation("fetch_table", source_id=reference(b.trades), result_id=b.ticket()))


@case
def batch_fetching_nothing(b):
    unknown = messages.TableReference(ticket=ticket_pb2.Ticket(ticket=b"s/nobody_has_this"))
    return b.batch(operation("fetch_table", source_id=unknown, result_id=b.ticket()))


@case
def batch_of_nothing(b):
    return b.batch()


@case
def batch_of_unset_operation(b):
    return b.batch(messages.BatchTableRequest.Operation())


@case
def batch_without_source(b):
    return b.batch(operation("head", num_rows=1))


@case
def batch_past_its_end(b):
    return b.batch(operation("head", source_id=step(7), num_rows=3))


@case
def result_without_ticket(b):
    request = messages.HeadOrTailRequest(source_id=reference(b.trades), num_rows=1)
    return b.call("Head", request)


@case
def result_in_the_scope(b):
    request = messages.HeadOrTailRequest(
        source_id=reference(b.trades), num_rows=1, result_id=ticket_pb2.Ticket(ticket=b"s/new")
    )
    return b.call("Head", request)


@case
def result_in_use(b):
    request = messages.HeadOrTailRequest(
        source_id=reference(b.trades), num_rows=1, result_id=b.sectors.pb_ticket
    )
    return b.call("Head", request)


@case
def source_without_ticket(b):
    return b.call("Head", messages.HeadOrTailRequest(result_id=b.ticket(), num_rows=1))


@case
def source_by_offset(b):
    request = messages.HeadOrTailRequest(result_id=b.ticket(), num_rows=1, source_id=step(0))
    return b.call("Head", request)


@case
def source_still_to_come(b):
    """The result of a call that comes later."""
    promised = b.ticket()
    request = messages.HeadOrTailRequest(
        result_id=b.ticket(), num_rows=2, source_id=messages.TableReference(ticket=promised)
    )
    waiting = b.stub.Head.future(request, metadata=b.session.grpc_metadata)
    time.sleep(0.2)
    b.call(
        "Tail",
        messages.HeadOrTailRequest(result_id=promised, num_rows=3, source_id=reference(b.trades)),
    )
    return {"size": waiting.result(timeout=10).size}


@case
def source_that_fails(b):
    """Who waits for a result that cannot be made fails with it."""
    promised = b.ticket()
    request = messages.HeadOrTailRequest(
        result_id=b.ticket(), num_rows=2, source_id=messages.TableReference(ticket=promised)
    )
    waiting = b.stub.Head.future(request, metadata=b.session.grpc_metadata)
    time.sleep(0.2)
    try:
        b.call(
            "Tail",
            messages.HeadOrTailRequest(
                result_id=promised, num_rows=-3, source_id=reference(b.trades)
            ),
        )
    except grpc.RpcError:
        return {"status": waiting.exception(timeout=10).code().name}
    return None


@case
def creation_response_of_an_export(b):
    found = b.session.table_service.fetch_etcr(b.trades.pb_ticket)
    b.kept.append(found)  # It would release the export when it dies.
    return found

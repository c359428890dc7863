"""An unmodified pyarrow Flight client as the peer: catalog, DoGet, DoPut, DoExchange, actions."""

from __future__ import annotations

import base64
import json

import pyarrow as pa
import pyarrow.flight as flight
import pytest

import barrage
from barrage import wire
from tests.helpers.server_process import REVISION

TRADES = pa.table({"sym": ["A", "B", None], "price": [1.5, 2.5, 3.5]})


def put(client: flight.FlightClient, descriptor: flight.FlightDescriptor, rows: pa.Table) -> list:
    """Upload everything; the answers."""
    writer, reader = client.do_put(descriptor, rows.schema)
    answers = [json.loads(reader.read().to_pybytes())]
    for batch in rows.to_batches():
        writer.write_batch(batch)
        answers.append(json.loads(reader.read().to_pybytes()))
    writer.done_writing()
    assert reader.read() is None
    writer.close()
    return answers


def command(**fields: object) -> flight.FlightDescriptor:
    return flight.FlightDescriptor.for_command(json.dumps(fields).encode())


def test_list_flights_tells_every_table(server, flight_client):
    server.create_table("trades", data=TRADES)
    server.create_table("quotes", {"sym": "string", "bid": "float64"}, key="sym")
    infos = {info.descriptor.path[0]: info for info in flight_client.list_flights()}
    assert sorted(infos) == [b"quotes", b"trades"]
    assert infos[b"trades"].total_records == 3
    assert infos[b"trades"].schema == TRADES.schema
    facts = json.loads(infos[b"quotes"].app_metadata)
    assert facts == {"kind": "keyed", "key": ["sym"], "is_ticking": True, "step": facts["step"]}


def test_list_flights_filters_by_prefix(server, flight_client):
    for name in ("us.a", "us.b", "eu.a"):
        server.create_table(name, {"x": "int64"})
    found = [info.descriptor.path for info in flight_client.list_flights(b"us.")]
    assert found == [[b"us.a"], [b"us.b"]]


@pytest.mark.parametrize(
    "descriptor",
    [
        flight.FlightDescriptor.for_path("trades"),
        flight.FlightDescriptor.for_path("scope", "trades"),
        flight.FlightDescriptor.for_command(b"s/trades"),
    ],
)
def test_descriptors_that_name_a_table(server, flight_client, descriptor):
    server.create_table("trades", data=TRADES, kind="static")
    info = flight_client.get_flight_info(descriptor)
    assert info.descriptor == descriptor
    assert info.endpoints[0].ticket.ticket == b"s/trades"
    assert json.loads(info.app_metadata)["is_ticking"] is False
    assert flight_client.get_schema(descriptor).schema == TRADES.schema


def test_do_get_reads_the_whole_table(server, flight_client):
    rows = pa.table({"x": range(200_000), "s": [f"row {i}" for i in range(200_000)]})
    server.create_table("big", data=rows)
    assert flight_client.do_get(flight.Ticket(b"s/big")).read_all().equals(rows)


def test_do_get_of_an_empty_static_table_is_its_schema(server, flight_client):
    server.create_table("none", {"x": "int64"}, kind="static")
    reader = flight_client.do_get(flight.Ticket(b"s/none"))
    assert reader.schema == pa.schema({"x": pa.int64()})
    assert reader.read_all().num_rows == 0


def test_the_list_has_the_beginning_of_descriptions(server, flight_client):
    for name, length in (("fits", 500), ("longer", 501), ("plain", 0)):
        metadata = {"description": "é" * length} if length else None
        server.create_table(name, pa.schema([("x", "int64")], metadata=metadata), key="x")
    told = json.loads(next(iter(flight_client.do_action("barrage.tables"))).body.to_pybytes())
    assert {each["name"]: each["description"] for each in told} == {
        "fits": "é" * 500,
        "longer": "é" * 500,
        "plain": "",
    }


def test_put_to_a_path_creates_then_appends(server, flight_client):
    descriptor = flight.FlightDescriptor.for_path("trades")
    answers = put(flight_client, descriptor, TRADES)
    assert answers[0] == {"rows": 0}
    assert answers[1]["rows"] == 3
    put(flight_client, descriptor, TRADES)
    assert server.table("trades").to_arrow().num_rows == 6
    [facts] = json.loads(next(iter(flight_client.do_action("barrage.tables"))).body.to_pybytes())
    assert facts["kind"] == "append_only"


def test_put_upsert_changes_rows_by_key(server, flight_client):
    first = pa.table({"sym": ["A", "B"], "price": [1.0, 2.0]})
    put(flight_client, command(table="q", mode="upsert", key=["sym"]), first)
    put(
        flight_client,
        flight.FlightDescriptor.for_path("q"),
        first.slice(1)
        .append_column("price", pa.array([9.0]))
        .select([0, 2])
        .rename_columns(["sym", "price"]),
    )
    assert server.table("q").to_arrow().to_pylist() == [
        {"sym": "A", "price": 1.0},
        {"sym": "B", "price": 9.0},
    ]


def test_put_delete_removes_keys_and_ignores_other_columns(server, flight_client):
    server.create_table("q", key="sym", data={"sym": ["A", "B"], "price": [1.0, 2.0]})
    put(flight_client, command(table="q", mode="delete"), pa.table({"sym": ["A"], "note": ["-"]}))
    assert server.table("q").to_arrow()["sym"].to_pylist() == ["B"]


def test_put_replace_takes_all_batches_as_the_new_content(server, flight_client):
    server.create_table("q", key="sym", data={"sym": ["A", "B"], "price": [1.0, 2.0]})
    parts = [pa.record_batch({"sym": [s], "price": [5.0]}) for s in ("C", "D")]
    put(flight_client, command(table="q", mode="replace"), pa.Table.from_batches(parts))
    assert server.table("q").to_arrow()["sym"].to_pylist() == ["C", "D"]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"kind": "blink"}, "blink"),
        ({"kind": "ring", "capacity": 2}, "ring"),
        ({"kind": "list"}, "list"),
        ({"kind": "static"}, "static"),
        ({"key": "sym"}, "keyed"),
    ],
)
def test_put_create_makes_every_kind(server, flight_client, fields, kind):
    rows = TRADES.slice(0, 2)
    answers = put_all(flight_client, command(table="t", mode="create", **fields), rows)
    assert answers[-1]["rows"] == 2
    info = flight_client.get_flight_info(flight.FlightDescriptor.for_path("t"))
    assert json.loads(info.app_metadata)["kind"] == kind


def put_all(client: flight.FlightClient, descriptor: flight.FlightDescriptor, rows) -> list:
    """Upload without reading answers in between, as a pipelining client does."""
    writer, reader = client.do_put(descriptor, rows.schema)
    for batch in rows.to_batches():
        writer.write_batch(batch)
    writer.done_writing()
    answers = []
    while (answer := reader.read()) is not None:
        answers.append(json.loads(answer.to_pybytes()))
    writer.close()
    return answers


def test_put_pipelines_many_batches(server, flight_client):
    batches = [pa.record_batch({"x": [i] * 100}) for i in range(500)]
    rows = pa.Table.from_batches(batches)
    answers = put_all(flight_client, flight.FlightDescriptor.for_path("x"), rows)
    assert [answer["rows"] for answer in answers] == [100 * i for i in range(501)]
    steps = [answer["step"] for answer in answers[1:]]
    assert steps == sorted(steps)
    assert server.table("x").to_arrow().equals(rows)


def test_put_reads_dictionaries_and_compression(server, flight_client):
    words = pa.array(["a", "b", "a", None]).dictionary_encode()
    server.create_table("w", {"w": "string"})
    options = flight.FlightCallOptions(
        write_options=pa.ipc.IpcWriteOptions(compression="zstd", emit_dictionary_deltas=True)
    )
    schema = pa.schema({"w": words.type})
    writer, _ = flight_client.do_put(flight.FlightDescriptor.for_path("w"), schema, options)
    for _ in range(2):
        writer.write_batch(pa.record_batch([words], schema=schema))
    writer.close()
    assert server.table("w").to_arrow()["w"].to_pylist() == ["a", "b", "a", None] * 2


def test_exchange_delivers_snapshot_and_updates(server, flight_client):
    table = server.create_table("q", key="sym", data={"sym": ["A"], "price": [1.0]})
    writer, reader = flight_client.do_exchange(flight.FlightDescriptor.for_command(b"dphn"))
    request = wire.SubscriptionRequest(
        ticket=b"s/q", options=wire.SubscriptionOptions(min_update_interval_ms=10)
    )
    writer.write_metadata(wire.encode_wrapper(request, REVISION))
    snapshot = reader.read_chunk()
    assert snapshot.data.to_pylist() == [{"sym": "A", "price": 1.0}]
    assert wire.decode_wrapper(snapshot.app_metadata.to_pybytes(), REVISION).is_snapshot
    table.upsert({"sym": "B", "price": 2.0})
    assert reader.read_chunk().data.to_pylist() == [{"sym": "B", "price": 2.0}]
    writer.done_writing()
    with pytest.raises(StopIteration):
        reader.read_chunk()


def test_actions_create_and_drop(server, flight_client):
    kinds = [action.type for action in flight_client.list_actions()]
    assert len(kinds) == len(set(kinds))
    assert set(kinds) == {
        *(f"barrage.{name}" for name in ("tables", "drop_table", "create_table", "relay")),
        *(f"barrage.{name}" for name in ("set_log_level", "trace")),
        *(
            f"barrage.{name}"
            for name in ("describe", "boards", "board", "save_board", "drop_board")
        ),
        *(f"barrage.{name}" for name in ("versions", "set_cells", "add_row", "remove_row")),
        *(f"journal.{name}" for name in ("info", "bound", "version", "cursor", "release")),
        *(f"stage.{name}" for name in ("commit", "abort")),
        *(
            f"barrage.{name}"
            for name in ("describe", "boards", "board", "save_board", "drop_board")
        ),
        *("CancelFlightInfo", "RenewFlightEndpoint"),
        *("SetSessionOptions", "GetSessionOptions", "CloseSession"),
    }
    schema = base64.b64encode(TRADES.schema.serialize().to_pybytes()).decode()
    body = json.dumps({"table": "t", "schema": schema, "key": ["sym"]}).encode()
    list(flight_client.do_action(("barrage.create_table", body)))
    assert server.table("t").key_columns == ("sym",)
    list(flight_client.do_action(("barrage.drop_table", b'{"table": "t"}')))
    assert server.table_names() == []


def test_tables_are_visible_to_the_python_client(server):
    server.create_table("q", key="sym", data={"sym": ["A"], "price": [1.0]})
    with barrage.connect(server.uri) as session:
        assert [info.name for info in session.tables()] == ["q"]
        assert session.table("q").snapshot().to_pylist() == [{"sym": "A", "price": 1.0}]

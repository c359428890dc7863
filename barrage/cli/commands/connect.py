"""``barrage connect``: the connectors that ship."""

from pathlib import Path
from typing import Annotated

import typer

from barrage.cli.command_errors import OneLineGroup
from barrage.cli.connect.destination_options import (
    Destination,
    FromServerOption,
    OnceOption,
    mapping_of,
    run_connector,
    run_follower,
    with_destination,
)
from barrage.cli.target import JsonOption, TokenOption, UserOption, credentials
from barrage.connector import SinkFollower, StateFile

connect = typer.Typer(
    name="connect",
    cls=OneLineGroup,
    rich_markup_mode=None,
    help="Bring messages of other systems into tables, and tables into other systems. Each goes on "
    "where it stopped.",
    no_args_is_help=True,
    epilog="`barrage connect KIND --help` has examples; docs/connectors.md the guarantees.",
)

DsnOption = Annotated[
    str, typer.Option("--dsn", metavar="DSN", help="As libpq has it: host=... dbname=... user=...")
]
RedisOption = Annotated[str, typer.Option("--url", metavar="URL", help="redis://HOST:PORT/DB")]
FollowedOption = Annotated[
    str, typer.Option("--table", metavar="NAME", help="Table of the server that is followed.")
]
PayloadFieldOption = Annotated[
    str | None,
    typer.Option(
        "--field",
        metavar="FIELD",
        help="The field that is the payload; all of them as JSON when nothing is said.",
        show_default=False,
    ),
]


@connect.command()
@with_destination
def files(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A file that grows, or a folder of files.")
    ],
    *,
    destination: Destination,
) -> None:
    """Lines of a file as it grows, across rotation; or the files of a folder, each once.

    A folder has Parquet, CSV, JSON lines and Arrow files; its payloads are Arrow.

    \b
    Examples:
      barrage connect files a.csv --to grpc://host:10000 --table a --format csv --columns n=int64
      barrage connect files orders.jsonl --to 127.0.0.1:10020 --program orders
      barrage connect files incoming/ --to grpc://localhost:10000 --table days --columns day=date32
    """
    from barrage.connector.shipped.file_folder import FileFolder
    from barrage.connector.shipped.file_tail import FileTail

    is_folder = path.is_dir()
    stream = destination.name or f"{'folder' if is_folder else 'file'}:{path.absolute()}"
    # What is remembered is not to change by looking.
    state = StateFile(f"{stream}-dry" if destination.dry_run else stream, destination.state)
    made = FileFolder if is_folder else FileTail
    source = made(path, state=state, name=stream, follows=not destination.once)
    mapping = mapping_of(destination, **({"format": "arrow"} if is_folder else {}))
    try:
        run_connector(source, destination, mapping)
    finally:
        if destination.dry_run:
            state.path.unlink(missing_ok=True)


@connect.command()
@with_destination
def http(
    *,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where requests are taken.")
    ] = "127.0.0.1:8080",
    path: Annotated[
        str, typer.Option("--path", metavar="PATH", help="Of the requests that are taken.")
    ] = "/",
    bearer: Annotated[
        str | None,
        typer.Option(
            "--bearer",
            metavar="TOKEN",
            envvar="BARRAGE_WEBHOOK_TOKEN",
            help="What requests must show as Authorization: Bearer.",
            show_default=False,
        ),
    ] = None,
    destination: Destination,
) -> None:
    """The body of each POST is a message; it is answered when the message is safe.

    \b
    Examples:
      barrage connect http --to grpc://localhost:10000 --table hooks --columns id=string
    """
    from barrage.connector.shipped.webhook import Webhook
    from barrage.connector.worker_delivery import parse_worker

    host, port = parse_worker(listen)
    source = Webhook(host, port, path=path, token=bearer, name=destination.name or "webhook")
    if destination.dry_run:
        typer.echo(f"would listen on http://{listen}{path}")
        return
    run_connector(source, destination, mapping_of(destination))


@connect.command()
@with_destination
def postgres(
    source_table: Annotated[
        str, typer.Argument(metavar="[SCHEMA.]TABLE", help="The table in PostgreSQL.")
    ],
    *,
    dsn: DsnOption,
    slot: Annotated[
        str, typer.Option("--slot", metavar="NAME", help="Replication slot and publication.")
    ] = "barrage",
    destination: Destination,
) -> None:
    """Rows of a PostgreSQL table and their changes, by logical replication.

    \b
    Examples:
      barrage connect postgres orders --dsn 'dbname=shop' --to grpc://localhost:10000 --table orders
    """
    from barrage.connector.shipped.postgres_source import (
        DELETED,
        PostgresChanges,
        describe_table,
    )

    found = describe_table(dsn, source_table)
    if destination.dry_run:
        for field in found.columns:
            typer.echo(f"{field.name}: {field.type}{' (key)' if field.name in found.key else ''}")
        return
    mapping = mapping_of(
        destination,
        format="json",
        columns=found.columns,
        key=found.key,
        delete_column=DELETED,
    )
    source = PostgresChanges(dsn, found, slot=slot, name=destination.name)
    run_connector(source, destination, mapping)


@connect.command()
@with_destination
def redis(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream in Redis.")],
    *,
    url: RedisOption = "redis://127.0.0.1:6379",
    field: PayloadFieldOption = None,
    destination: Destination,
) -> None:
    """Entries of a Redis stream.

    \b
    Examples:
      barrage connect redis orders --to grpc://localhost:10000 --table orders --columns id=string
    """
    from barrage.connector.shipped.redis_streams import RedisStream

    source = RedisStream(
        url, stream, field=field, name=destination.name, follows=not destination.once
    )
    run_connector(source, destination, mapping_of(destination))


@connect.command()
@with_destination
def mqtt(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="As sensors/#.")],
    *,
    broker: Annotated[str, typer.Option("--broker", metavar="HOST:PORT")] = "127.0.0.1:1883",
    client: Annotated[
        str,
        typer.Option("--client", metavar="NAME", help="Under which the broker keeps the session."),
    ] = "barrage",
    destination: Destination,
) -> None:
    """Messages of MQTT topics; the key of each is its topic.

    \b
    Examples:
      barrage connect mqtt 'sensors/#' --to grpc://localhost:10000 --table t --columns t=double
    """
    from barrage.connector.shipped.mqtt import MqttTopics
    from barrage.connector.worker_delivery import parse_worker

    host, port = parse_worker(broker)
    stream = destination.name or f"mqtt:{topic}"
    state = StateFile(f"{stream}-dry" if destination.dry_run else stream, destination.state)
    # A session of its own, so that looking confirms nothing.
    client = f"{client}-dry" if destination.dry_run else client
    source = MqttTopics(host, topic, port=port, client=client, state=state, name=stream)
    run_connector(source, destination, mapping_of(destination))


@connect.command()
@with_destination
def kafka(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    *,
    servers: Annotated[
        str, typer.Option("--servers", metavar="HOST:PORT,...", help="To begin with.")
    ] = "127.0.0.1:9092",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Of the library.", show_default=False),
    ] = None,
    destination: Destination,
) -> None:
    """Records of a Kafka topic, each partition a stream.

    \b
    Examples:
      barrage connect kafka orders --to grpc://localhost:10000 --table orders --columns id=string
    """
    from barrage.connector.shipped.kafka import KafkaPartition, partitions_of

    chosen = dict(each.split("=", 1) for each in settings or [] if "=" in each)
    sources = [
        KafkaPartition(
            servers,
            topic,
            number,
            settings=chosen,
            name=f"{destination.name or f'kafka:{topic}'}/{number}",
            follows=not destination.once,
        )
        for number in partitions_of(servers, topic, chosen)
    ]
    run_connector(sources, destination, mapping_of(destination))


@connect.command()
def to_postgres(
    target: Annotated[
        str, typer.Argument(metavar="[SCHEMA.]TABLE", help="The table in PostgreSQL.")
    ],
    *,
    dsn: DsnOption,
    server: FromServerOption,
    table: FollowedOption,
    once: OnceOption = False,
    token: TokenOption = None,
    user: UserOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep a PostgreSQL table equal to a table with a key; each change exactly once.

    \b
    Examples:
      barrage connect to-postgres orders --dsn dbname=shop --from grpc://localhost:10000 --table o
    """
    from barrage.connector.shipped.postgres_sink import PostgresUpserts

    sink = PostgresUpserts(dsn, target)
    follower = SinkFollower(sink, server, table, auth=credentials(token))
    run_follower(follower, once=once, is_json=as_json)


@connect.command()
def to_redis(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream in Redis.")],
    *,
    server: FromServerOption,
    table: FollowedOption,
    url: RedisOption = "redis://127.0.0.1:6379",
    once: OnceOption = False,
    token: TokenOption = None,
    user: UserOption = None,
    as_json: JsonOption = False,
) -> None:
    """Every changed row of a table becomes an entry of a Redis stream, exactly once.

    \b
    Examples:
      barrage connect to-redis orders --from grpc://localhost:10000 --table orders
    """
    from barrage.connector.shipped.redis_streams import RedisSink

    sink = RedisSink(url, stream)
    follower = SinkFollower(sink, server, table, auth=credentials(token))
    run_follower(follower, once=once, is_json=as_json)

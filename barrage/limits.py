"""Every limit of the system in one place: name, unit, default; those of connectors are in the file
beside it. Units and bounds stand last in the names.

A limit is enforced where the data enters and tested at the limit and one past it. A server or
client carries one immutable :class:`Limits`; the core never reads configuration itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from barrage.connector_limits import ConnectorLimits

ROW_KEY_MAX = 2**63 - 1
"""Largest row key; keys are non-negative signed 64-bit numbers (Wire Guide, Row Set Wire
Format)."""

NANOS_PER_MS = 1_000_000

JSON_DEPTH_MAX = 256
"""Deepest nesting of brackets in JSON of a peer; a query of queries takes three for each of its
``expression_depth_max``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(ConnectorLimits):
    """All limits with their defaults. Every field is a whole number in the unit its name ends
    with."""

    message_bytes_max: int = 100 * 1024 * 1024
    """Largest FlightData accepted or produced; what stock clients accept (barrage-wire.md sections
    3.1 and 7.1)."""

    message_bytes_target: int = 1024 * 1024
    """Size aimed at when an update is split; 1-4 MiB is where gRPC moves most bytes per second."""

    row_set_bytes_max: int = 64 * 1024 * 1024
    """Longest encoded row set believed from a peer."""

    row_set_ranges_max: int = 64 * 1024 * 1024
    """Most ranges a decoded row set may have: each costs 16 bytes."""

    columns_max: int = 10_000
    """Most columns of one table."""

    column_bit_set_bytes_max: int = 64 * 1024
    """Longest column bit set; bits past the last column are legal and echoed."""

    nesting_depth_max: int = 16
    """Deepest nesting of list types in a schema."""

    ticket_bytes_max: int = 4096
    """Longest ticket or path element."""

    viewport_rows_max: int = 16 * 1024 * 1024
    """Most rows delivered to one viewport subscription; a larger viewport is refused."""

    viewport_ranges_max: int = 64 * 1024
    """Most ranges of rows one viewport is made of."""

    subscriptions_max: int = 100_000
    """Most subscriptions on one server."""

    exchange_outbox_bytes_max: int = 4 * 1024 * 1024
    """Encoded bytes queued for one stream before its subscription is held."""

    exchange_outbox_updates_max: int = 2
    """Updates in flight to one stream before its subscription is held and coalesces."""

    each_step_outbox_bytes_max: int = 64 * 1024 * 1024
    """The same bytes for a stream that is told every step by itself, as relays are."""

    each_step_outbox_updates_max: int = 4096
    """The same updates for such a stream."""

    inproc_window_bytes: int = 1024 * 1024
    """Bytes one direction of a call within this process (``inproc://``) holds before its writer
    waits; a larger message has it alone."""

    http2_connections_max: int = 10_000
    """Connections to one HTTP/2 listener at a time; past it new ones are closed as they come."""

    http2_streams_max: int = 10_000
    """Calls on one HTTP/2 connection at a time. Clients that know keep further calls waiting."""

    relayed_writes_max: int = 1000
    """Uploads that a relay passes on at a time; they share one connection to the server that owns
    the tables."""

    http2_header_bytes_max: int = 64 * 1024
    """Headers of one HTTP/2 request, packed or unpacked."""

    http2_stream_window_bytes: int = 4 * 1024 * 1024
    """Bytes one HTTP/2 call may have sent that nobody has read yet."""

    http2_connection_window_bytes: int = 16 * 1024 * 1024
    """Bytes of all calls of one HTTP/2 connection that may be under way."""

    http2_requests_bytes_max: int = 64 * 1024 * 1024
    """Whole messages on one HTTP/2 connection that nobody has read yet, past which it takes no
    more."""

    http2_partial_bytes_max: int = 512 * 1024 * 1024
    """Messages of one HTTP/2 connection of which part has come and part has not; past it a call to
    which more of one comes is refused."""

    http2_replies_bytes_max: int = 4 * 1024 * 1024
    """Bytes of all but messages that wait for a peer that does not read; past it its connection
    ends."""

    http2_resets_per_s_max: int = 1_000
    """Calls in one second on one HTTP/2 connection that end before they are answered, by their
    client or by its offence."""

    http2_pings_per_s_max: int = 10_000
    """PINGs in one second on one HTTP/2 connection. Clients measure the way with them."""

    http2_settings_per_s_max: int = 50
    """SETTINGS in one second on one HTTP/2 connection: each may change the window of every
    call."""

    http2_idle_frames_per_s_max: int = 1_000
    """Frames in one second on one HTTP/2 connection that do nothing: empty DATA, PRIORITY, unknown
    types."""

    http2_preface_ns_max: int = 10 * 1_000_000_000
    """How long a connection may be silent before it says that it speaks HTTP/2, and how long a TLS
    handshake may take, waiting for its turn included."""

    tls_handshakes_max: int = 256
    """TLS handshakes of one listener at a time, about 0.3 MB each; further connections wait their
    turn."""

    tls_file_bytes_max: int = 1024 * 1024
    """A file with certificates or with a key."""

    web_connections_max: int = 10_000
    """Connections of browsers at a time, WebSockets or not; past it new ones are closed as they
    come."""

    web_streams_max: int = 512
    """Streams of one WebSocket at a time, and requests on one HTTP/2 connection of a page that are
    not answered yet, calls left aside."""

    web_calls_max: int = 32
    """Actions on one WebSocket that have not been answered yet."""

    web_message_bytes_max: int = 1024 * 1024
    """Longest message of a page."""

    web_upload_bytes_max: int = 16 * 1024 * 1024
    """Longest message of a gRPC call of a page, and bytes of all those on one connection of which
    part has not come."""

    web_window_bytes: int = 4 * 1024 * 1024
    """Bytes of one stream that a page has been sent and has not acknowledged."""

    web_requests_bytes_max: int = 4 * 1024 * 1024
    """Bytes of messages on one connection of a page that nobody has read yet, past which nothing
    more is read from it."""

    web_replies_bytes_max: int = 16 * 1024 * 1024
    """Bytes that one WebSocket has not taken; what can wait, waits long before. Past it the
    connection ends."""

    web_head_bytes_max: int = 32 * 1024
    """Line and headers of one HTTP/1.1 request, and those of a call on a WebSocket."""

    browser_streams_max: int = 512
    """Streams of one session whose messages come by calls of their own, as browsers send them,
    those included that nobody has opened yet."""

    browser_stream_messages_max: int = 1_000
    """Messages of one of them that nobody has read: those that have overtaken one before them
    included."""

    browser_session_bytes_max: int = 64 * 1024 * 1024
    """Bytes of messages of all of them of one session that nobody has read."""

    browser_stream_wait_ns_max: int = 10 * 1_000_000_000
    """How long messages wait for the call that opens their stream, or for one before them."""

    web_idle_ns_max: int = 60 * 1_000_000_000
    """How long an HTTP/1.1 connection may be silent between two requests, or in the body of one."""

    notebook_pages_max: int = 16
    """Places in which one table of a notebook is shown at a time, in all browsers together."""

    notebook_bytes_per_s: int = 500_000
    """What a kernel sends to its pages in a second. Jupyter's server leaves messages out past
    1,000,000 (``iopub_data_rate_limit``)."""

    notebook_burst_bytes: int = 256 * 1024
    """What it may send at once after a silence."""

    notebook_silence_ns_max: int = 300 * 1_000_000_000
    """How long a page of a notebook may say nothing before it counts as gone; it speaks each
    minute."""

    board_bytes_max: int = 64 * 1024
    """Longest content of a saved board."""

    boards_max: int = 1_000
    """Boards a server keeps."""

    boards_per_caller_max: int = 100
    """Those of one caller."""

    past_tables_max: int = 8
    """Versions of tables that are made anew from journals at the same time, for who looks back."""

    past_table_bytes_max: int = 512 * 1024 * 1024
    """Bytes of one of them."""

    past_bytes_max: int = 2 * 1024 * 1024 * 1024
    """Bytes of all of them that are kept or shown; each counts once, whoever looks at it."""

    past_bytes_per_caller_max: int = 1024 * 1024 * 1024
    """Those of them that one caller has asked for."""

    edit_bytes_max: int = 256 * 1024
    """Longest request of a page that changes one row."""

    stall_ns_max: int = 120 * 1_000_000_000
    """How long a subscriber may take nothing before it is disconnected with SlowConsumerError."""

    delta_segments_max: int = 64
    """Distinct points in time at which held subscribers of one table may wait before the oldest
    are resynchronised."""

    held_table_bytes_max: int = 64 * 1024 * 1024
    """Bytes of row sets one table may keep for subscribers that lag behind; past it the oldest are
    resynchronised, then disconnected."""

    held_server_bytes_max: int = 512 * 1024 * 1024
    """The same for all tables together; the one that keeps most gives way first."""

    propagation_bytes_max: int = 4 * 1024 * 1024
    """Bytes of row sets worked on in one propagation. What is left waits for the next one, which
    follows at once: commands, cycles and other tables come in between. Readers that stand far apart
    are brought to the present one after the other, those nearest to it first."""

    blink_rows_max: int = 4 * 1024 * 1024
    """Rows of a blink table kept for a held subscriber; past it the oldest cycles are dropped, as
    blink rows are defined to live for one cycle only."""

    interval_ns_min: int = 10 * NANOS_PER_MS
    """Shortest update interval a subscriber may ask for."""

    interval_ns_default: int = 1000 * NANOS_PER_MS
    """Interval used when a subscriber asks for 0 (the reference server's default)."""

    command_queue_max: int = 100_000
    """Commands waiting for the engine thread."""

    ingest_batch_rows_max: int = 16 * 1024 * 1024
    """Most rows of one batch in DoPut."""

    whole_batch_rows_max: int = 256 * 1024
    """Most rows of one batch that is one step because its producer numbers it, or because it
    replaces the rows there; others are applied in portions. So are staged batches of more rows in
    tables with a key. There a row counts once for each four columns that it has, or some of
    four."""

    ingest_rows_pending_max: int = 128 * 1024
    """Rows of batches and input tables that wait to be committed, of all callers together, before
    the next ones are handed to the engine; counted as for ``whole_batch_rows_max``."""

    ingest_bytes_pending_max: int = 256 * 1024 * 1024
    """Bytes of ingested batches waiting for the engine before DoPut stops reading; also the most
    that one batch of an upload or a transform may have, unpacked and as its table holds it."""

    upload_bytes_max: int = 1024 * 1024 * 1024
    """Bytes that all uploads of whole tables under way may have gathered."""

    client_addresses_max: int = 64
    """Servers one session may be told of; more than that belong behind a load balancer."""

    client_updates_pending_max: int = 64
    """Updates waiting for a slow iterator in the client before they are merged into one."""

    spare_memory_bytes_max: int = 64 * 1024 * 1024
    """Memory that a server which has grown may keep free in the allocator before it gives it back
    to the system."""

    client_update_bytes_pending_max: int = 64 * 1024 * 1024
    """Bytes of a merged update waiting for a slow iterator in the client before the whole state
    takes its place."""

    sessions_max: int = 10_000
    """Most open sessions of Deephaven clients."""

    session_exports_max: int = 100_000
    """Most exports one session may hold."""

    shared_tickets_max: int = 10_000
    """Most tables published under shared tickets."""

    export_wait_ns_max: int = 10 * 1_000_000_000
    """How long a call waits for an export that nobody has defined yet."""

    operations_max: int = 1_000
    """Most operations in one batch or query."""

    expression_bytes_max: int = 64 * 1024
    """Longest text of a filter or formula from a peer."""

    expression_depth_max: int = 64
    """Deepest nesting of a structured condition or of a query's tables."""

    merged_tables_max: int = 1_000
    """Most tables of one merge, merges of merges counted by what they are made of."""

    merged_rows_max: int = 256 * 1024 * 1024
    """Most rows of a merge when it is made; it may grow past that."""

    ungrouped_rows_max: int = 256 * 1024 * 1024
    """Most rows of a table whose lists are ungrouped, at any time: each column of lists that is
    ungrouped by itself multiplies them."""

    operators_depth_max: int = 150
    """Most operators that may be applied one upon another: a read goes through all of them, and
    Python bounds how deep calls may nest."""

    operators_ways_max: int = 10_000
    """Most ways from sources to a table: one joined with itself again and again has twice as many
    each time, and reads go all of them."""

    turn_work_max: int = 4_000_000
    """Row operations (about 10 ns each) that one turn of the engine thread does for requests; more
    is done beside it. What is left of a resumed subscription may be four times as many; more is a
    snapshot."""

    makings_max: int = 2
    """Large messages to subscribers that are made beside the engine thread at a time, for all
    tables; each keeps a pinned state of its table alive. Who wants another one waits."""

    query_work_max: int = 20_000_000_000
    """Row operations of one request, those of all its operators together."""

    cycle_work_max: int = 10_000_000
    """Row operations in a cycle of all operators that clients keep; once it is reached no more are
    made. Rough, and for the case that all of their tables
    change, but few rows. Who waits for a cycle may have to wait for the one before as well: 0.2 s
    for both."""

    cycle_work_per_client_max: int = 5_000_000
    """The same for what one session has made."""

    cycle_work_once_max: int = 25_000_000
    """The same of a cycle in which many rows change. An operator that would pass it is ended
    instead, and made again when it is asked for; one that alone passes it in any cycle is not
    made."""

    queries_beside_max: int = 64
    """Operators that may be under way beside the engine thread or wait for it, for all clients."""

    queries_beside_per_client_max: int = 16
    """The same for one client; clients take turns."""

    query_copied_bytes_max: int = 256 * 1024 * 1024
    """Bytes of cells in place that are copied for an operator that is made beside the engine
    thread: those of small columns, and of columns that are pinned in many states already."""

    query_rounds_max: int = 16
    """How often an operator, or the plan of a resumed subscription, made beside the engine thread
    goes through what has changed meanwhile before it is given up: its tables change faster than it
    can follow."""

    time_tables_max: int = 500
    """Most tables of timestamps the clients of one server may have at a time."""

    endpoint_rows: int = 1024 * 1024
    """Rows of one endpoint of a flight, unless a session says otherwise; a smaller table has one
    endpoint."""

    endpoints_max: int = 256
    """Most endpoints of one flight: a larger table has more rows in each."""

    results_max: int = 10_000
    """Results of queries that are kept for their readers, and queries under way, at a time."""

    results_per_caller_max: int = 1_000
    """The same for one caller."""

    result_bytes_max: int = 4 * 1024 * 1024 * 1024
    """Bytes of all results that are kept, those included that have run out and are still read. What
    a result has in common with its table counts as well."""

    result_bytes_per_caller_max: int = 2 * 1024 * 1024 * 1024
    """The same for one caller."""

    result_lifetime_ns: int = 60 * 1_000_000_000
    """How long a result is kept, unless a session says otherwise; renewing it begins anew."""

    result_lifetime_ns_max: int = 3600 * 1_000_000_000
    """Longest time that a session may say."""

    result_age_ns_max: int = 24 * 3600 * 1_000_000_000
    """Longest time a result is kept, however often it is renewed."""

    result_jobs_max: int = 1_000
    """Queries under way whose results are to be kept."""

    result_jobs_per_caller_max: int = 100
    """The same for one caller."""

    poll_wait_ns: int = 10 * 1_000_000_000
    """How long PollFlightInfo waits for something new before it tells what there is."""

    flight_sessions_max: int = 10_000
    """Sessions of Flight clients that have set options."""

    flight_session_ns: int = 3600 * 1_000_000_000
    """How long such a session is kept after its last call."""

    session_options_max: int = 64
    """Options in one request."""

    transforms_max: int = 64
    """Exchanges that transform rows, at a time."""

    transform_bytes_max: int = 256 * 1024 * 1024
    """Bytes of rows that one of them may gather, as a table holds them: an operator that looks at
    all rows needs all of them."""

    resume_rows_max: int = 50_000_000
    """Rows of an older version that are derived anew to resume a subscription; also the most rows
    told step by step. Past it a snapshot is cheaper."""

    producers_max: int = 10_000
    """Producers of one table whose last sequence number is remembered; past it the one that has
    been silent longest is forgotten."""

    journal_request_bytes_max: int = 256 * 1024
    """Longest journal ticket, plan or action body: it may carry a filter and a list of columns."""

    journal_splits_max: int = 4096
    """Most endpoints one plan may be cut into."""

    journal_reads_max: int = 256
    """Fetches of journals under way at a time; each holds a few messages and one record."""

    journal_threads_max: int = 4
    """Threads that read journals and encode what is read."""

    journal_consumers_max: int = 10_000
    """Consumers with a lease, and read groups, at a time."""

    journal_lease_ns_max: int = 24 * 3600 * 1_000_000_000
    """Longest lease of a consumer."""

    staging_bytes_max: int = 1024 * 1024 * 1024
    """Bytes of all rows that are staged and not committed yet; while a batch is committed, as many
    as it has in the types of its table."""

    staging_parts_max: int = 100_000
    """Most staged parts at a time."""

    staging_ttl_ns: int = 15 * 60 * 1_000_000_000
    """How long staged rows wait for their commit."""

    resume_steps_max: int = 100_000
    """Most steps replayed for one resumed subscription; more are a snapshot."""

    resume_bytes_max: int = 256 * 1024 * 1024
    """Most bytes of recorded changes read for one resumed subscription, and most that may come
    while it is made: of rows where every step is told, else of row sets. More are a snapshot."""

    statistics_subscriptions_max: int = 1000
    """Rows of the table ``_subscriptions``; the readers that are slow and those who are sent most
    come first."""

    statistics_tables_max: int = 100
    """Tables by whose names subscriptions are counted; the others are counted together."""

    metrics_connections_max: int = 32
    """Connections to the listener of metrics at a time; past it one is told to come again."""

    metrics_request_bytes_max: int = 8 * 1024
    """Request line and headers of a request for metrics."""

    metrics_request_ns_max: int = 10 * 1_000_000_000
    """How long a request for metrics may take, from its connection to its last byte."""

    traced_events_max: int = 50_000
    """Cycles, propagations and updates remembered while updates are traced, of all tables; the
    oldest are forgotten. About 10 MB."""

    resume_rows_pending_max: int = 20_000_000
    """Rows that may wait to be read and derived for all resumed subscriptions together; who comes
    then gets a snapshot, unless it is alone."""

    resume_rows_free: int = 10_000
    """Up to this many recorded rows are replayed even when the table has fewer rows."""

    created_rows_max: int = 16 * 1024 * 1024
    """Most rows of a table a peer may ask for without sending any."""

    body_inline_bytes_max: int = 32 * 1024
    """Bodies of record batches up to this size stay in their message, whatever the way of larger
    ones."""

    body_window_bytes: int = 64 * 1024 * 1024
    """Bytes of bodies outside their messages that one stream may have out and not given back."""

    body_window_count: int = 256
    """Bodies outside their messages that one stream may have out and not given back."""

    body_wait_ns_max: int = 100 * NANOS_PER_MS
    """How long a stream whose window is full waits for bodies to be given back before it goes on
    inline."""

    body_deadline_ns: int = 5 * 1_000_000_000
    """How long a client waits for the body of a message that has come."""

    body_lease_ns_max: int = 300 * 1_000_000_000
    """How long a client may keep a body in the server's memory before its stream goes on inline."""

    body_channels_max: int = 1000
    """Body channels, open or offered, at a time."""

    body_ticket_ns: int = 10 * 1_000_000_000
    """How long an offered body channel waits to be claimed."""

    body_arena_bytes: int = 512 * 1024 * 1024
    """Shared memory for bodies, in all; past it bodies stay inline."""

    body_segment_bytes: int = 16 * 1024 * 1024
    """Size of one piece of the shared memory; pieces are made when they are needed."""

    body_ranges_max: int = 65_536
    """Most address ranges one body may be made of."""

    ucx_unauthenticated_ns: int = 2 * 1_000_000_000
    """How long a UCX connection may live without a valid ticket."""

    ucx_ticket_bytes_max: int = 1024
    """Longest ticket of a UCX connection."""

    ucx_connections_max: int = 256
    """Most UCX connections at a time."""

    password_checks_waiting_max: int = 64
    """Logins that wait for their password to be checked, beside those that are at it; one takes
    tens of milliseconds."""

    hook_calls_waiting_max: int = 64
    """Logins that wait for a program's function to be called, beside those it is called for."""

    verified_credentials_max: int = 10_000
    """Credentials known to be right without being checked again."""

    verified_credentials_ns: int = 60 * 1_000_000_000
    """How long they are known to be."""

    login_failures_max: int = 20
    """Failed logins of one peer before it has to wait."""

    login_failure_ns: int = 1_000_000_000
    """Time after which one failed login is forgotten."""

    login_failure_peers_max: int = 4096
    """Peers of which failed logins are remembered; those that failed last."""

    issued_tokens_max: int = 100_000
    """Bearer tokens given out and not run out; past it the oldest is forgotten."""

    issued_tokens_per_caller_max: int = 10_000
    """Of them, those of one caller."""

    token_age_ns_max: int = 24 * 3600 * 1_000_000_000
    """Time since credentials were shown for which a token may be renewed without them."""

    audit_records_max: int = 10_000
    """Records that wait to be written to the audit log; what comes then is counted and dropped."""

    key_set_bytes_max: int = 1024 * 1024
    """Longest set of keys for JWTs."""

    key_set_keys_max: int = 100
    """Most keys in it."""

    key_set_pause_ns: int = 10 * 1_000_000_000
    """Shortest time between two readings of a set of keys."""

    alerts_max: int = 1_000
    """Alerts of one server."""

    alert_keys_max: int = 10_000
    """Keys of one alert that are told apart; of further ones only the number is told."""

    alert_events_max: int = 10_000
    """Events of one alert that wait for its receiver; past it the oldest is dropped."""

    alert_bytes_max: int = 16 * 1024 * 1024
    """Bytes of these, and as many of the cells of its keys that are to be told of later."""


DEFAULT_LIMITS = Limits()

"""The settings of a server, with their defaults. Importing this module reads no file and no environment variable."""

import msgspec

from callsheet.core.policy.engine_limits import Limits


class BlobSettings(msgspec.Struct, frozen=True, kw_only=True):
    """File storage. S3 credentials are not settings: they come from the environment."""

    url: str = ""
    """Where files are stored: `file:///folder` or `s3://bucket/prefix`. The default is the folder `files` next to the
    database."""
    endpoint: str = ""
    """The URL of an S3-compatible service, such as `https://s3.example:9000`. Empty means Amazon S3."""
    public_endpoint: str = ""
    """The URL at which workers and browsers reach the same service, if it differs from `endpoint`."""
    region: str = "us-east-1"
    """The S3 region."""
    path_style: bool = True
    """With `endpoint`: whether the bucket is in the path of a URL (`https://host/bucket/key`) or in its host name."""
    orphan_scan: bool = True
    """Whether the server deletes orphaned objects: objects in the storage that belong to no file."""
    orphan_scan_seconds: float = 3_600.0
    """How often the server looks for orphaned objects."""
    orphan_grace_seconds: int = 86_400
    """The minimum age of an orphaned object before it is deleted. 0 means any age."""


class PluginSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Python objects that extend a server, each written as `module:name`."""

    gates: tuple[str, ...] = ()
    """Gates: functions that can refuse a job before it is accepted."""
    sinks: tuple[str, ...] = ()
    """Event sinks: functions that receive every event at least once, in order."""
    apis: tuple[str, ...] = ()
    """Further HTTP APIs to mount."""
    providers: dict[str, str] = {}
    """Providers, by the name that stages use as `provider`: `fal = "my_package.fal:provider"`."""
    entry_points: bool = True
    """Whether to load plugins of installed packages too, from the entry points `callsheet.gates`, `callsheet.sinks`,
    `callsheet.apis` and `callsheet.providers`."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The engine: database connections, retries, logs."""

    limits: Limits = Limits()
    blobs: BlobSettings = BlobSettings()
    plugins: PluginSettings = PluginSettings()
    lanes: int = 1
    """The number of lanes: threads that write to PostgreSQL, each with its own connection. SQLite always has one. More
    lanes make smaller batches: add servers first, and lanes only if the latency to the database is high."""
    database_retry_seconds: float = 30.0
    """How long a command is retried while the database does not answer. 0 means no retry."""
    database_start_seconds: float = 60.0
    """How long a server that starts waits for PostgreSQL to answer. 0 means that it does not wait."""
    write_check_seconds: float = 10.0
    """How often an idle server checks that its database accepts writes. A write that takes longer than this makes
    `/readyz` return 503."""
    poll_seconds: float = 2.0
    """The fallback polling interval, in case a notification about new work or events is lost."""
    record_blocked: bool = False
    """Whether a request that a gate blocks is stored as a job with the status `blocked`."""
    transaction_pooling: bool = False
    """Whether PostgreSQL is behind a connection pooler in transaction mode, such as PgBouncer. The server then uses
    neither prepared statements nor LISTEN."""
    statement_timeout_seconds: float = 60.0
    """The timeout of a statement on PostgreSQL, and of an idle transaction."""
    read_timeout_seconds: float = 10.0
    """The timeout of a read by key on PostgreSQL. After it, the database counts as unavailable."""
    readers: int = 4
    """The number of database connections for reads, per process."""
    writes_waiting_max: int = 8_192
    """The maximum number of clients' commands that wait for a lane. Further ones get a 503 `overloaded`."""
    claims_waiting_max: int = 8_192
    """The maximum number of workers' claims that wait for a lane. Further ones get a 503 `overloaded`."""
    reads_waiting_max: int = 8_192
    """The maximum number of clients' reads that wait for the database. Further ones get a 503 `overloaded`."""
    queue_wait_seconds_max: float = 0.25
    """How long commands or reads may wait for their turn before the server refuses new ones with a 503 `overloaded`.
    The server refuses none while all that wait fit into the next batch."""
    queue_timeout_seconds: float = 10.0
    """How long an accepted command of a client may wait for its turn. After it, the server does not execute the
    command, and returns a 503 `overloaded`."""
    log_bytes_max: int = 16 * 1024 * 1024
    """The maximum size of the log file in the data folder. A larger one is rotated to `callsheet.log.1`."""
    log_files_max: int = 4
    """The number of log files to keep, including the current one."""


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The HTTP server."""

    body_bytes_max: int = 1024 * 1024
    """The maximum size of a request body."""
    bulk_body_bytes_max: int = 16 * 1024 * 1024
    """The maximum size of the body of a bulk request."""
    body_timeout_seconds: float = 15.0
    """The time a client has to send a request body."""
    header_bytes_max: int = 32 * 1024
    """The maximum size of the request line and the headers of a request."""
    headers_max: int = 100
    """The maximum number of headers of a request."""
    url_bytes_max: int = 8 * 1024
    """The maximum length of a URL, with its query."""
    header_timeout_seconds: float = 10.0
    """The time a client has to send the request line and the headers."""
    writes_in_progress_max: int = 256
    """The maximum number of submits and other changes of clients that a server handles at the same time. Further ones
    get a 503 `overloaded`. A higher limit makes requests wait longer under overload, and raises the throughput only if
    the latency to the database is high."""
    claims_in_progress_max: int = 256
    """The maximum number of registrations and claims of workers that a server handles at the same time. Further ones
    get a 503 `overloaded`. A claim that waits for a task does not count."""
    reads_in_progress_max: int = 1_024
    """The maximum number of reads of clients that a server handles at the same time, and of requests for events.
    Further ones get a 503 `overloaded`. Open streams, and requests that wait for an event, do not count."""
    idle_timeout_seconds: int = 75
    """How long a connection may stay idle between two requests."""
    connections_per_address_max: int = 1_000
    """The maximum number of connections from one IPv4 address or IPv6 /64 network, at most half of all connections.
    Further ones get a 429."""
    proxy_addresses: tuple[str, ...] = ("127.0.0.0/8", "::1")
    """IP addresses and networks to which `connections_per_address_max` does not apply, because many clients share them:
    those of your proxies."""
    allowed_hosts: tuple[str, ...] = ()
    """The host names to which the server answers, without port, such as `callsheet.example`. `localhost` and addresses
    of the server are always allowed; `*` allows all. Empty means any host, but on a loopback address none."""
    send_timeout_seconds: float = 30.0
    """How long a client may read none of a response before the server closes the connection."""
    shutdown_timeout_seconds: int = 5
    """How long running requests may take to finish during a shutdown. 0 means that they are aborted. Streams end
    immediately."""
    cors_origins: tuple[str, ...] = ()
    """The origins that may call the API from a browser, such as `https://app.example`. Empty means none."""
    wait_seconds_max: float = 60.0
    """The longest `wait_seconds` of a long poll. For a job, a longer wait is shortened; for a claim, it is refused."""
    page_size_max: int = 200
    """The highest `limit` of a list. A higher one is refused."""
    scan_rows_max: int = 10_000
    """The maximum number of rows that a count, or a page of a filtered list, reads. A count stops there, and a field
    that ends in `_is_capped` says that there are more. A page ends there, with a cursor for the rest of the list."""
    streams_max: int = 5_000
    """The maximum number of open event streams and long polls of a server. Claims of workers do not count. 0 means
    none."""
    streams_per_key_max: int = 2_500
    """The maximum number of open event streams and long polls of an API key. 0 means none."""
    streams_per_user_max: int = 20
    """The maximum number of open event streams and long polls of a user, over all tokens of the user. 0 means none."""
    stream_buffer_events_max: int = 2_048
    """The number of events of a job or tenant to keep in memory while one of its streams has not sent them. All streams
    of the job or tenant share them. A stream that is further behind reads events from the database."""
    stream_buffer_bytes_max: int = 4 * 1024 * 1024
    """The approximate size of the events of a job or tenant to keep in memory for its streams."""
    heartbeat_seconds: float = 15.0
    """How often an idle event stream sends a keep-alive comment."""
    estimate_cache_seconds: float = 30.0
    """How long a duration estimate is cached. 0 means not at all."""
    heartbeats_per_second_max: float = 20.0
    """The maximum number of heartbeats per second of a worker, for each task that it may run at the same time. A worker
    that sends more gets a 429 with `Retry-After`. Every heartbeat of a request counts."""
    log_bytes_per_second_max: int = 256 * 1024
    """The maximum size of the log lines that a worker may send per second. Further lines are dropped, and the log says
    so."""
    failed_auth_max: int = 20
    """The number of requests with an invalid key per minute from one IP address, on all routes together, after which
    further ones get a 429 with `Retry-After`. A valid key is always accepted."""
    require_worker_approval: bool = False
    """Whether an operator must approve a new worker before it may claim tasks."""
    worker_verify_url: str = ""
    """The URL of a service that decides whether a worker may register. The server sends a POST with `worker`, `labels`,
    `capabilities` and `address` as JSON, and expects `{"allowed": true}` or `{"allowed": false}`. Empty means that
    every worker with the fleet secret may."""
    worker_verify_fail_open: bool = False
    """Whether a worker may register if `worker_verify_url` does not answer."""
    worker_verify_timeout_seconds: float = 5.0
    """The timeout of a request to `worker_verify_url`."""
    worker_heartbeat_seconds: float = 10.0
    """How often workers should send heartbeats."""
    worker_last_seen_interval_seconds: float = 30.0
    """How often the server writes the `last_seen_at` of its workers to the database."""
    signed_url_expires_in_seconds: int = 900
    """How long a signed upload or download URL is valid."""
    scale_window_seconds: int = 600
    """The period that durations, rates and errors in the autoscaling signals cover."""
    scale_target_wait_seconds: float = 60.0
    """How long a task may wait before it starts: the target of the recommended number of workers."""
    token_expires_in_seconds_max: int = 3_600
    """The longest lifetime of a user token."""
    quote_expires_in_seconds: int = 900
    """How long a quote is valid."""
    form_fields_max: int = 100
    """The maximum number of fields and files in a form."""
    form_field_bytes_max: int = 64 * 1024
    """The maximum size of a text field of a form."""
    form_file_bytes_max: int = 32 * 1024 * 1024
    """The maximum size of a file in a multipart form."""
    form_part_header_bytes_max: int = 4 * 1024
    """The maximum size of the headers of one part of a multipart form."""
    multipart_body_bytes_max: int = 64 * 1024 * 1024
    """The maximum size of a multipart body."""
    multipart_memory_bytes_max: int = 256 * 1024
    """The size above which a file of a multipart form is kept in a temporary file on disk, not in memory."""
    multipart_bodies_max: int = 16
    """The maximum number of multipart bodies that a server receives at the same time. Further requests get a 503."""
    multipart_timeout_seconds: float = 300.0
    """The time a client has to send a multipart body."""

"""The settings of the house, in one place; nothing is read at import."""

import msgspec

from callsheet.core.policy.limits import Limits


class BlobSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where files lie. Keys of S3 are never among the settings: they come from the environment."""

    url: str = ""
    """`file:///folder`, or `s3://bucket/prefix`; without it the folder `files` beside the database."""
    endpoint: str = ""
    """The address of an S3 that is not Amazon's, as https://s3.example:9000."""
    public_endpoint: str = ""
    """The same S3 as workers and browsers reach it, if that is another address."""
    region: str = "us-east-1"
    path_style: bool = True
    """With an endpoint of your own: the bucket is in the path, not in the host."""
    orphan_scan_seconds: float = 3_600.0
    """How often objects that no row needs are looked for, and removed; 0 is never."""
    orphan_grace_seconds: int = 86_400
    """How old such an object must be; 0 is any age."""


class PluginSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Python objects that extend a server, each written as `module:name`."""

    gates: tuple[str, ...] = ()
    """Gates: callables that may refuse a job before it is accepted."""
    sinks: tuple[str, ...] = ()
    """Event sinks: callables that get every event at least once, in order."""
    apis: tuple[str, ...] = ()
    """Further HTTP APIs to mount."""
    providers: dict[str, str] = {}
    """Providers by the name that workflows use, as `fal = "my_package.fal:provider"`."""
    entry_points: bool = True
    """Also load plugins of installed packages (entry points `callsheet.gates`, `callsheet.sinks`, `callsheet.apis`,
    `callsheet.providers`)."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine behaves."""

    limits: Limits = Limits()
    blobs: BlobSettings = BlobSettings()
    plugins: PluginSettings = PluginSettings()
    lanes: int = 1
    """Writing connections per process on PostgreSQL; SQLite always has one. More lanes split the batches: add servers
    first, lanes where the way to the database is long."""
    database_retry_seconds: float = 30.0
    """How long a command is tried again while the database is away; 0 is not at all."""
    poll_seconds: float = 2.0
    """How often whoever waits for a hint looks all the same."""
    record_blocked: bool = False
    """Keep a job row for a request that a gate blocked."""
    transaction_pooling: bool = False
    """PostgreSQL is behind a pooler in transaction mode: keep no prepared statements, listen to no hints."""
    statement_timeout_seconds: float = 60.0
    """A PostgreSQL statement that takes longer is given up, by the server too; so is a transaction that rests."""
    read_timeout_seconds: float = 10.0
    """A read of single rows that takes longer is given up: PostgreSQL is away, and whoever asks is told soon."""
    readers: int = 4
    """Reading connections per process."""
    log_bytes_max: int = 16 * 1024 * 1024
    """A log file of the data folder that would grow larger is set aside as `callsheet.log.1`, and a new one begun."""
    log_files_max: int = 4
    """So many log files are kept, with the one that is written."""


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the HTTP edge behaves."""

    body_bytes_max: int = 1024 * 1024
    bulk_body_bytes_max: int = 16 * 1024 * 1024
    body_timeout_seconds: float = 15.0
    """A body that takes longer to arrive is refused."""
    header_bytes_max: int = 32 * 1024
    url_bytes_max: int = 8 * 1024
    """The longest address with its query."""
    header_timeout_seconds: float = 10.0
    """Request lines and headers that take longer to arrive close the connection."""
    idle_timeout_seconds: int = 75
    """A connection between two requests is closed after so long."""
    send_timeout_seconds: float = 30.0
    """A reader that takes nothing off us for so long is dropped."""
    shutdown_timeout_seconds: int = 5
    """How long a server that is told to stop lets requests finish; 0 is not at all. Streams end at once."""
    cors_origins: tuple[str, ...] = ()
    """Web pages that may call from a browser, as `https://app.example`; without any, none may."""
    wait_seconds_max: float = 60.0
    """The longest a long poll may wait."""
    page_size_max: int = 200
    streams_max: int = 5_000
    """Streams that one server has open; 0 is none."""
    streams_per_key_max: int = 2_500
    """Streams that one key may have open; 0 is none."""
    streams_per_user_max: int = 20
    """Streams that all tokens of one user may have open together; 0 is none."""
    stream_buffer_events_max: int = 256
    """Events that wait for a slow reader; with more it is read from the database again."""
    heartbeat_seconds: float = 15.0
    """How often a silent stream says that it is alive."""
    estimate_cache_seconds: float = 30.0
    """How long an estimate of what a job should take is kept before past jobs are looked at again; 0 is not at all."""
    heartbeats_per_second_max: float = 20.0
    """Heartbeats a second of one worker, for each task that it may have in hand at once; one that sends more is told
    when to come back. A call counts as the heartbeats in it."""
    failed_auth_max: int = 20
    """Wrong fleet secrets a minute from one address, before it is told to come back later."""
    require_worker_approval: bool = False
    """New workers wait until an operator has approved them."""
    worker_verify_url: str = ""
    """Asked, if set, whether a worker that registers is a machine of ours: POST {"worker", "labels", "capabilities",
    "address"}, answered {"allowed": true} or {"allowed": false}."""
    worker_verify_fail_open: bool = False
    """Let a worker in when that address does not answer."""
    worker_verify_timeout_seconds: float = 5.0
    worker_heartbeat_seconds: float = 10.0
    """How often workers are asked to be heard of."""
    worker_last_seen_interval_seconds: float = 30.0
    """How often the last contact of workers is written down, all of them at once."""
    signed_url_expires_in_seconds: int = 900
    """For how long a signed address of a file, to put it or to get it, may be used."""
    scale_window_seconds: int = 600
    """How far back scale signals look at durations, rates and errors."""
    scale_target_wait_seconds: float = 60.0
    """The wait that the recommended number of workers aims at."""
    token_expires_in_seconds_max: int = 3_600
    quote_expires_in_seconds: int = 900
    form_fields_max: int = 100
    """Fields and files in one form."""
    form_field_bytes_max: int = 64 * 1024
    """Size of one text field of a form."""
    form_file_bytes_max: int = 32 * 1024 * 1024
    """Size of one file in a multipart form."""
    form_part_header_bytes_max: int = 4 * 1024
    """Size of the headers of one part of a multipart form."""
    multipart_body_bytes_max: int = 64 * 1024 * 1024
    """Size of a multipart body."""
    multipart_memory_bytes_max: int = 256 * 1024
    """A larger file of a multipart form is written to a temporary file on disk."""
    multipart_bodies_max: int = 16
    """Multipart bodies that one server receives at once. Further requests get 503."""
    multipart_timeout_seconds: float = 300.0
    """A multipart body that takes longer to arrive is refused."""

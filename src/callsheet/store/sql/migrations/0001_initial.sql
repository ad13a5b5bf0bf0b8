-- The initial schema: tenants, workflows, wallets, jobs and their parts, events, provider calls, files, workers, keys.
-- Times are microseconds since 1970 in UTC. JSON columns are text.

CREATE TABLE tenant (
    id text NOT NULL PRIMARY KEY,
    weight {int} NOT NULL CHECK (weight > 0),
    status text NOT NULL,
    active_jobs_max {int},
    created_at {int} NOT NULL,
    updated_at {int} NOT NULL,
    storage_bytes_max {int}
) {small_table};

CREATE TABLE workflow (
    name text NOT NULL,
    version {int} NOT NULL,
    current {int} NOT NULL,
    running_max {int},
    rate_max text,
    spec text NOT NULL,
    created_at {int} NOT NULL,
    PRIMARY KEY (name, version)
) {small_table};
CREATE UNIQUE INDEX workflow_current ON workflow (name) WHERE current = 1;

CREATE TABLE queue (
    id text NOT NULL PRIMARY KEY,
    kind text NOT NULL,
    workflow text NOT NULL,
    provider text NOT NULL
) {small_table};
CREATE INDEX queue_kind ON queue (kind);
CREATE INDEX queue_workflow ON queue (workflow);
CREATE INDEX queue_provider ON queue (provider);

CREATE TABLE wallet (
    id text NOT NULL PRIMARY KEY,
    tenant text NOT NULL,
    user_id text NOT NULL,
    balance {int} NOT NULL CHECK (balance >= 0),
    reserved {int} NOT NULL CHECK (reserved >= 0),
    entries {int} NOT NULL,
    created_at {int} NOT NULL,
    updated_at {int} NOT NULL,
    topped_up {int} NOT NULL,
    consumed {int} NOT NULL
) {updated_table};

CREATE TABLE entry (
    wallet_id text NOT NULL,
    seq {int} NOT NULL,
    tenant text NOT NULL,
    kind text NOT NULL CHECK (kind IN ('topup', 'adjust', 'reserve', 'consume', 'refund')),
    amount {int} NOT NULL,
    consumed {int} NOT NULL,
    balance {int} NOT NULL CHECK (balance >= 0),
    job_id text,
    run {int},
    dedup_key text,
    reason text,
    actor text NOT NULL,
    at {int} NOT NULL,
    PRIMARY KEY (wallet_id, seq)
) {growing_table};
CREATE UNIQUE INDEX entry_dedup_key ON entry (dedup_key) WHERE dedup_key IS NOT NULL;
CREATE UNIQUE INDEX entry_reserve ON entry (job_id, run) WHERE kind = 'reserve';
CREATE UNIQUE INDEX entry_settled ON entry (job_id, run) WHERE kind IN ('consume', 'refund');
CREATE INDEX entry_refund ON entry (job_id, run) WHERE kind = 'adjust' AND job_id IS NOT NULL;

CREATE TABLE job (
    id text NOT NULL PRIMARY KEY,
    tenant text NOT NULL,
    user_id text NOT NULL,
    wallet_id text NOT NULL,
    workflow text NOT NULL,
    workflow_version {int} NOT NULL,
    dedup_key text,
    fingerprint text NOT NULL,
    retry_of text,
    created_at {int} NOT NULL,
    status text NOT NULL,
    run {int} NOT NULL,
    priority {int} NOT NULL,
    price {int} NOT NULL CHECK (price >= 0),
    stages_total {int} NOT NULL,
    stages_completed {int} NOT NULL,
    progress {int} NOT NULL CHECK (progress BETWEEN 0 AND 100),
    seq {int} NOT NULL,
    updated_at {int} NOT NULL,
    start_at {int},
    deadline_at {int},
    cancel_due_at {int},
    due_at {int},
    cancel_requested_at {int},
    cancel_reason text,
    waiting_at {int},
    started_at {int},
    finished_at {int},
    deleted_at {int},
    error_code text,
    error_message text,
    labels text,
    metadata text,
    trace text,
    output_bytes {int} NOT NULL CHECK (output_bytes >= 0),
    log_bytes {int} NOT NULL,
    progress_events {int} NOT NULL,
    CHECK ((status IN ('completed', 'failed', 'canceled', 'expired', 'blocked')) = (finished_at IS NOT NULL))
) {updated_table};
CREATE UNIQUE INDEX job_dedup_key ON job (dedup_key) WHERE dedup_key IS NOT NULL;
CREATE INDEX job_active ON job (wallet_id) WHERE finished_at IS NULL;
CREATE INDEX job_due ON job (due_at, id) WHERE due_at IS NOT NULL;
CREATE INDEX job_newest ON job (tenant, created_at, id);
CREATE INDEX job_status ON job (status, tenant, created_at, id) WHERE status <> 'completed';
CREATE INDEX job_waiting ON job (tenant, created_at, id) WHERE waiting_at IS NOT NULL;
CREATE INDEX job_user ON job (wallet_id, created_at, id);
CREATE INDEX job_version ON job (workflow, workflow_version) WHERE finished_at IS NULL;

CREATE TABLE run (
    job_id text NOT NULL,
    no {int} NOT NULL,
    tenant text NOT NULL,
    command_id text NOT NULL,
    price {int} NOT NULL,
    opened_at {int} NOT NULL,
    status text NOT NULL,
    consumed {int} NOT NULL,
    refunded {int} NOT NULL,
    started_at {int},
    finished_at {int},
    error_code text,
    error_message text,
    PRIMARY KEY (job_id, no)
) {updated_table};

CREATE TABLE stage (
    id text NOT NULL PRIMARY KEY,
    job_id text NOT NULL,
    tenant text NOT NULL,
    no {int} NOT NULL,
    name text NOT NULL,
    kind text NOT NULL,
    provider text NOT NULL,
    approval {int} NOT NULL,
    created_at {int} NOT NULL,
    status text NOT NULL,
    tasks_total {int} NOT NULL,
    tasks_running {int} NOT NULL CHECK (tasks_running >= 0),
    tasks_completed {int} NOT NULL,
    tasks_failed {int} NOT NULL,
    tasks_canceled {int} NOT NULL,
    delivered {int} NOT NULL,
    approved_by text,
    approved_at {int},
    started_at {int},
    finished_at {int},
    labels text,
    metadata text,
    trace text,
    UNIQUE (job_id, no)
) {updated_table};

CREATE TABLE task (
    id text NOT NULL PRIMARY KEY,
    job_id text NOT NULL,
    stage_id text NOT NULL,
    tenant text NOT NULL,
    user_id text NOT NULL,
    no {int} NOT NULL,
    queue text NOT NULL,
    kind text NOT NULL,
    attempts_max {int} NOT NULL,
    requeues_max {int} NOT NULL,
    lease_seconds {int} NOT NULL,
    created_at {int} NOT NULL,
    status text NOT NULL,
    priority {int} NOT NULL,
    ready {int} NOT NULL,
    rank {int} NOT NULL,
    user_rank {int} NOT NULL,
    attempts {int} NOT NULL,
    attempts_counted {int} NOT NULL,
    requeues {int} NOT NULL,
    has_call {int} NOT NULL,
    progress {int} NOT NULL CHECK (progress BETWEEN 0 AND 100),
    due_at {int},
    ready_at {int},
    token_hash text,
    lease_expires_at {int},
    worker_id text,
    message text,
    error_code text,
    error_message text,
    started_at {int},
    finished_at {int},
    labels text,
    metadata text,
    trace text,
    UNIQUE (stage_id, no)
) {updated_table};
CREATE INDEX task_ready ON task (queue, priority DESC, rank, id) WHERE ready = 1;
CREATE INDEX task_tail ON task (queue, priority, tenant, rank, id) WHERE ready = 1;
CREATE INDEX task_user_order ON task (queue, priority, tenant, user_rank, id) WHERE ready = 1;
CREATE INDEX task_user_tail ON task (queue, priority, tenant, user_id, user_rank) WHERE ready = 1;
CREATE INDEX task_due ON task (due_at, id) WHERE due_at IS NOT NULL;
CREATE INDEX task_running ON task (queue) WHERE status = 'running';
CREATE INDEX task_held ON task (worker_id, kind) WHERE status = 'running' AND token_hash IS NOT NULL;
CREATE INDEX task_backoff ON task (queue) WHERE status = 'retried' AND due_at IS NOT NULL;
CREATE INDEX task_done ON task (queue, finished_at) WHERE status = 'completed';

CREATE TABLE attempt (
    task_id text NOT NULL,
    no {int} NOT NULL,
    job_id text NOT NULL,
    run {int} NOT NULL,
    tenant text NOT NULL,
    worker_id text NOT NULL,
    token_hash text NOT NULL,
    leased_at {int} NOT NULL,
    rate_queue text,
    ended_at {int},
    outcome text,
    uncounted {int} NOT NULL,
    digest text,
    error_code text,
    error_message text,
    provider text,
    ref text,
    resumable {int} NOT NULL,
    announced text,
    PRIMARY KEY (task_id, no),
    CHECK ((ended_at IS NULL) = (outcome IS NULL))
) {updated_table};
CREATE UNIQUE INDEX attempt_live ON attempt (task_id) WHERE ended_at IS NULL;
CREATE INDEX attempt_rate_queue ON attempt (rate_queue, leased_at) WHERE rate_queue IS NOT NULL;
CREATE INDEX attempt_unsuccessful ON attempt (ended_at) WHERE outcome IN ('failed', 'lost', 'requeued');

CREATE TABLE event (
    id {serial},
    tx {int} NOT NULL {transaction_default},
    subject text NOT NULL,
    seq {int} NOT NULL,
    tenant text NOT NULL,
    run {int} NOT NULL,
    at {int} NOT NULL,
    type text NOT NULL,
    entity_id text,
    source text,
    target text,
    actor text NOT NULL,
    data text
) {log_table};
CREATE UNIQUE INDEX event_subject ON event (subject, seq);
{only_postgresql} CREATE UNIQUE INDEX event_feed ON event (tx, id);
CREATE INDEX event_tenant ON event ({tenant_feed_columns});

CREATE TABLE document (
    owner_id text NOT NULL,
    name text NOT NULL,
    job_id text NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (owner_id, name)
) {growing_table};
CREATE INDEX document_job ON document (job_id);

CREATE TABLE call (
    id text NOT NULL PRIMARY KEY,
    task_id text NOT NULL,
    attempt {int} NOT NULL,
    job_id text NOT NULL,
    tenant text NOT NULL,
    provider text NOT NULL,
    intended_at {int} NOT NULL,
    deadline_at {int} NOT NULL,
    status text NOT NULL,
    ref text,
    submitted_at {int},
    collect_at {int},
    ended_at {int},
    outcome text,
    UNIQUE (task_id, attempt)
) {updated_table};
CREATE UNIQUE INDEX call_ref ON call (provider, ref) WHERE ref IS NOT NULL;
CREATE INDEX call_due ON call (collect_at, id) WHERE collect_at IS NOT NULL;

CREATE TABLE inbox (
    id text NOT NULL PRIMARY KEY,
    provider text NOT NULL,
    ref text,
    call_id text,
    status text NOT NULL,
    received_at {int} NOT NULL,
    body text
) {updated_table};
CREATE INDEX inbox_waiting ON inbox (ref) WHERE status = 'waiting';

CREATE TABLE cursor (
    id text NOT NULL PRIMARY KEY,
    tx {int} NOT NULL,
    position {int} NOT NULL,
    holder text,
    locked_until {int} NOT NULL
) {small_table};

CREATE TABLE file (
    id text NOT NULL PRIMARY KEY,
    tenant text NOT NULL,
    user_id text NOT NULL,
    job_id text,
    task_id text,
    attempt {int} NOT NULL,
    no {int} NOT NULL,
    name text NOT NULL,
    media_type text NOT NULL,
    bytes {int} NOT NULL CHECK (bytes >= 0),
    sha256 text NOT NULL,
    created_at {int} NOT NULL,
    status text NOT NULL CHECK (status IN ('uploading', 'ready', 'deleted')),
    expires_at {int},
    CHECK ((job_id IS NULL) = (task_id IS NULL)),
    UNIQUE (task_id, attempt, no)
) {growing_table};
CREATE INDEX file_job ON file (job_id) WHERE job_id IS NOT NULL;
CREATE INDEX file_uploaded ON file (tenant, user_id, id) WHERE job_id IS NULL AND status <> 'deleted';
CREATE INDEX file_uploading ON file (tenant, user_id) WHERE job_id IS NULL AND status = 'uploading';
CREATE INDEX file_expires ON file (expires_at, id) WHERE expires_at IS NOT NULL;

CREATE TABLE storage_usage (
    tenant text NOT NULL PRIMARY KEY,
    stored_bytes {int} NOT NULL CHECK (stored_bytes >= 0),
    pending_bytes {int} NOT NULL CHECK (pending_bytes >= 0)
) {updated_table};

CREATE TABLE job_file (
    job_id text NOT NULL,
    file_id text NOT NULL,
    PRIMARY KEY (job_id, file_id)
) {growing_table};
CREATE INDEX job_file_file ON job_file (file_id);

CREATE TABLE workflow_file (
    workflow text NOT NULL,
    version {int} NOT NULL,
    file_id text NOT NULL,
    PRIMARY KEY (workflow, version, file_id)
) {small_table};
CREATE INDEX workflow_file_file ON workflow_file (file_id);

CREATE TABLE worker (
    id text NOT NULL PRIMARY KEY,
    created_at {int} NOT NULL,
    status text NOT NULL CHECK (status IN ('pending', 'approved', 'revoked', 'offline')),
    token_hash text UNIQUE,
    offered text NOT NULL,
    assigned text,
    concurrency {int} NOT NULL CHECK (concurrency > 0),
    starts {int} NOT NULL,
    started_at {int} NOT NULL,
    last_seen_at {int} NOT NULL,
    approved_at {int},
    draining_at {int},
    ended_at {int},
    capabilities text,
    labels text
) {small_table};
CREATE INDEX worker_seen ON worker (last_seen_at, id) WHERE status IN ('pending', 'approved');
CREATE INDEX worker_listed ON worker (id) WHERE status <> 'offline';

CREATE TABLE api_key (
    id text NOT NULL PRIMARY KEY,
    tenant text NOT NULL,
    role text NOT NULL CHECK (role IN ('admin', 'client', 'viewer', 'worker')),
    name text NOT NULL,
    secret_hash text NOT NULL UNIQUE,
    created_at {int} NOT NULL,
    expires_at {int},
    revoked_at {int}
) {small_table};
CREATE INDEX api_key_tenant ON api_key (tenant, id);

CREATE TABLE audit (
    id text NOT NULL PRIMARY KEY,
    tenant text NOT NULL,
    at {int} NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    subject text NOT NULL,
    data text,
    seq {int} NOT NULL CHECK (seq > 0),
    digest text NOT NULL
) {growing_table};
CREATE UNIQUE INDEX audit_chain ON audit (tenant, seq);
CREATE INDEX audit_tenant ON audit (tenant, id);
CREATE INDEX audit_subject ON audit (subject, id);
CREATE INDEX audit_tenant_subject ON audit (tenant, subject, id);

CREATE TABLE audit_head (
    tenant text NOT NULL PRIMARY KEY,
    seq {int} NOT NULL,
    digest text NOT NULL
) {small_table};

CREATE TABLE installation (
    name text NOT NULL PRIMARY KEY,
    value text NOT NULL,
    created_at {int} NOT NULL,
    updated_at {int} NOT NULL
) {small_table};

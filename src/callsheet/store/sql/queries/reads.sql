-- Rows that the API returns.
-- {job j}: all columns of a job. IN :x[]: a list parameter. :x[a text, b bigint]: a table made from a list of rows.
-- {lock} is a row lock on PostgreSQL and empty on SQLite, which has one writer.
-- A list compares and orders all columns of its index. No other index has this order, so PostgreSQL reads this one,
-- whatever its statistics say about the tenant.

-- name: recorded_values
SELECT i.name, i.value, i.updated_at FROM installation i WHERE i.name IN :ids[] ORDER BY i.name

-- name: workers_after
SELECT {worker w} FROM worker w WHERE w.id > :after AND w.status <> 'offline' ORDER BY w.id LIMIT :count

-- name: all_workers_after
SELECT {worker w} FROM worker w WHERE w.id > :after ORDER BY w.id LIMIT :count

-- name: worker_ids
SELECT w.id FROM worker w WHERE w.id IN :ids[]

-- name: worker_of
SELECT {worker w} FROM worker w WHERE w.id = :id

-- name: leases_of_workers
-- The first leases of each worker, and the number of all its leases.
SELECT {task t}, t.leases_total FROM (
    SELECT t.*, row_number() OVER (PARTITION BY t.worker_id ORDER BY t.started_at, t.id) AS lease_no,
        count(*) OVER (PARTITION BY t.worker_id) AS leases_total
    FROM task t WHERE t.status = 'running' AND t.worker_id IN :ids[] AND t.token_hash IS NOT NULL
) AS t WHERE t.lease_no <= :most ORDER BY t.worker_id, t.lease_no

-- name: files_uploaded
SELECT {file f} FROM (
    SELECT f.* FROM file f WHERE (f.tenant, f.user_id, f.id) < (:tenant, :user, :before) AND f.tenant >= :tenant
        AND f.job_id IS NULL AND f.status <> 'deleted'
    ORDER BY f.tenant DESC, f.user_id DESC, f.id DESC LIMIT :count
) AS f WHERE f.tenant = :tenant AND f.user_id = :user ORDER BY f.tenant DESC, f.user_id DESC, f.id DESC

-- name: worker_by_token
SELECT {worker w} FROM worker w WHERE w.token_hash = :key

-- name: events_of
SELECT id, tx, {event e} FROM event e WHERE e.subject = :subject AND e.seq > :after ORDER BY e.seq LIMIT :count

-- name: events_of_tenant
SELECT id, tx, {event e} FROM {events_of_tenant_after}

-- name: job_of_tenant
SELECT {job j} FROM job j WHERE j.id = :id AND j.tenant = :tenant AND j.deleted_at IS NULL

-- name: runs_of
SELECT {run r} FROM run r WHERE r.job_id = :id ORDER BY r.no DESC LIMIT :most

-- name: stages_of
SELECT {stage s} FROM stage s WHERE s.job_id = :id ORDER BY s.no

-- name: tasks_of_job
SELECT {task t} FROM stage s JOIN task t ON t.stage_id = s.id WHERE s.job_id = :id ORDER BY s.no, t.no

-- name: tasks_after
-- Tasks of a job after a position, each with the number of its stage.
SELECT s.no, {task t} FROM stage s JOIN task t ON t.stage_id = s.id
WHERE s.job_id = :id AND (s.no > :stage_no OR (s.no = :stage_no AND t.no > :task_no)) ORDER BY s.no, t.no LIMIT :count

-- name: attempts_of
SELECT {attempt a} FROM attempt a WHERE a.task_id = :id ORDER BY a.no DESC LIMIT :most

-- name: documents_of
SELECT {document d} FROM document d WHERE d.job_id = :id ORDER BY d.owner_id, d.name

-- name: tasks_completed
-- Completed tasks of a job after a position and before a stage, with the size of the output of their last attempt.
SELECT s.name, s.no, t.no, t.id, t.attempts, coalesce(octet_length(d.body), 0)
FROM stage s JOIN task t ON t.stage_id = s.id
LEFT JOIN document d ON d.owner_id = t.id AND d.name = 'output:' || t.attempts
WHERE s.job_id = :id AND s.no < :below AND t.status = 'completed'
    AND (s.no > :stage_no OR (s.no = :stage_no AND t.no > :task_no))
ORDER BY s.no, t.no LIMIT :count

-- name: outputs_by_key
SELECT d.owner_id, d.body FROM :keys[task_id text, name text] k CROSS JOIN document d
WHERE d.owner_id = k.task_id AND d.name = k.name

-- name: files_of_attempts
SELECT {file f} FROM :keys[task_id text, no bigint] k CROSS JOIN file f
WHERE f.task_id = k.task_id AND f.attempt = k.no ORDER BY f.task_id, f.no

-- name: wallet_of
SELECT {wallet w} FROM wallet w WHERE w.id = :id

-- name: ledger_after
SELECT {entry e} FROM entry e WHERE e.wallet_id = :id AND e.seq > :after ORDER BY e.seq LIMIT :count

-- name: api_key_by_hash
SELECT {now}, t.status, {api_key k} FROM api_key k LEFT JOIN tenant t ON t.id = k.tenant WHERE k.secret_hash = :key

-- name: api_key_by_id
SELECT {now}, t.status, {api_key k} FROM api_key k LEFT JOIN tenant t ON t.id = k.tenant WHERE k.id = :key

-- name: any_active_api_key
SELECT k.id FROM api_key k WHERE k.revoked_at IS NULL LIMIT 1

-- name: api_keys_after
SELECT {api_key k} FROM api_key k WHERE k.id > :after ORDER BY k.id LIMIT :count

-- name: api_keys_of_tenant
SELECT {api_key k} FROM api_key k WHERE (k.tenant, k.id) > (:tenant, :after) AND k.tenant <= :tenant
ORDER BY k.tenant, k.id LIMIT :count

-- name: audit_before
SELECT {audit a} FROM audit a WHERE a.id < :before ORDER BY a.id DESC LIMIT :count

-- name: audit_of_tenant
SELECT {audit a} FROM audit a WHERE (a.tenant, a.id) < (:tenant, :before) AND a.tenant >= :tenant
ORDER BY a.tenant DESC, a.id DESC LIMIT :count

-- name: audit_of_subject
SELECT {audit a} FROM audit a WHERE (a.subject, a.id) < (:subject, :before) AND a.subject >= :subject
ORDER BY a.subject DESC, a.id DESC LIMIT :count

-- name: audit_of_tenant_and_subject
SELECT {audit a} FROM (
    SELECT a.* FROM audit a WHERE (a.tenant, a.subject, a.id) < (:tenant, :subject, :before) AND a.tenant >= :tenant
    ORDER BY a.tenant DESC, a.subject DESC, a.id DESC LIMIT :count
) AS a WHERE a.tenant = :tenant AND a.subject = :subject ORDER BY a.tenant DESC, a.subject DESC, a.id DESC

-- name: audit_chain_after
-- Lines of the audit log in the order of their chains, each with the head of its chain.
SELECT {audit a}, h.seq, h.digest FROM audit a LEFT JOIN audit_head h ON h.tenant = a.tenant
WHERE (a.tenant, a.seq, a.id) > (:tenant, :seq, :id) ORDER BY a.tenant, a.seq, a.id LIMIT :count

-- name: tenants_after
SELECT {tenant t} FROM tenant t WHERE t.id > :after ORDER BY t.id LIMIT :count

-- name: usage_of_tenant
SELECT {storage_usage u} FROM storage_usage u WHERE u.tenant = :id

-- name: current_workflows_after
SELECT {workflow w} FROM workflow w WHERE w.current = 1 AND w.name > :after ORDER BY w.name LIMIT :count

-- Each list of jobs scans a bounded number of rows in the order of its index, and filters them. The scan can end before
-- the page is full: the next page starts at its last row, which the query with the suffix `_scan_end` returns.

-- name: jobs_of_tenant
SELECT {job j} FROM (
    SELECT j.* FROM job j
    WHERE (j.tenant, j.created_at, j.id) < (:tenant, :before_at, :before)
        AND j.tenant >= :tenant
    ORDER BY j.tenant DESC, j.created_at DESC, j.id DESC LIMIT :scanned
) AS j WHERE j.tenant = :tenant AND {job_filters}
ORDER BY j.tenant DESC, j.created_at DESC, j.id DESC LIMIT :count

-- name: jobs_of_tenant_scan_end
SELECT j.created_at, j.id FROM (
    SELECT j.tenant, j.created_at, j.id FROM job j
    WHERE (j.tenant, j.created_at, j.id) < (:tenant, :before_at, :before)
        AND j.tenant >= :tenant
    ORDER BY j.tenant DESC, j.created_at DESC, j.id DESC LIMIT 1 OFFSET :scanned - 1
) AS j WHERE j.tenant = :tenant

-- name: jobs_in_status
SELECT {job j} FROM (
    SELECT j.* FROM job j
    WHERE (j.status, j.tenant, j.created_at, j.id) < (:of_status, :tenant, :before_at, :before)
        AND j.status >= :of_status AND j.status <> 'completed'
    ORDER BY j.status DESC, j.tenant DESC, j.created_at DESC, j.id DESC LIMIT :scanned
) AS j WHERE j.status = :of_status AND j.tenant = :tenant AND {job_filters}
ORDER BY j.status DESC, j.tenant DESC, j.created_at DESC, j.id DESC LIMIT :count

-- name: jobs_in_status_scan_end
SELECT j.created_at, j.id FROM (
    SELECT j.status, j.tenant, j.created_at, j.id FROM job j
    WHERE (j.status, j.tenant, j.created_at, j.id) < (:of_status, :tenant, :before_at, :before)
        AND j.status >= :of_status AND j.status <> 'completed'
    ORDER BY j.status DESC, j.tenant DESC, j.created_at DESC, j.id DESC LIMIT 1 OFFSET :scanned - 1
) AS j WHERE j.status = :of_status AND j.tenant = :tenant

-- name: jobs_waiting
SELECT {job j} FROM (
    SELECT j.* FROM job j
    WHERE (j.tenant, j.created_at, j.id) < (:tenant, :before_at, :before)
        AND j.tenant >= :tenant AND j.waiting_at IS NOT NULL
    ORDER BY j.tenant DESC, j.created_at DESC, j.id DESC LIMIT :scanned
) AS j WHERE j.tenant = :tenant AND {job_filters}
ORDER BY j.tenant DESC, j.created_at DESC, j.id DESC LIMIT :count

-- name: jobs_waiting_scan_end
SELECT j.created_at, j.id FROM (
    SELECT j.tenant, j.created_at, j.id FROM job j
    WHERE (j.tenant, j.created_at, j.id) < (:tenant, :before_at, :before)
        AND j.tenant >= :tenant AND j.waiting_at IS NOT NULL
    ORDER BY j.tenant DESC, j.created_at DESC, j.id DESC LIMIT 1 OFFSET :scanned - 1
) AS j WHERE j.tenant = :tenant

-- name: jobs_of_wallet
SELECT {job j} FROM (
    SELECT j.* FROM job j
    WHERE (j.wallet_id, j.created_at, j.id) < (:wallet, :before_at, :before)
        AND j.wallet_id >= :wallet
    ORDER BY j.wallet_id DESC, j.created_at DESC, j.id DESC LIMIT :scanned
) AS j WHERE j.wallet_id = :wallet AND {job_filters}
ORDER BY j.wallet_id DESC, j.created_at DESC, j.id DESC LIMIT :count

-- name: jobs_of_wallet_scan_end
SELECT j.created_at, j.id FROM (
    SELECT j.wallet_id, j.created_at, j.id FROM job j
    WHERE (j.wallet_id, j.created_at, j.id) < (:wallet, :before_at, :before)
        AND j.wallet_id >= :wallet
    ORDER BY j.wallet_id DESC, j.created_at DESC, j.id DESC LIMIT 1 OFFSET :scanned - 1
) AS j WHERE j.wallet_id = :wallet

-- name: files_of
SELECT {file f} FROM file f WHERE f.job_id = :id ORDER BY f.created_at, f.task_id, f.no

-- name: file_of_tenant
SELECT {file f} FROM file f WHERE f.id = :id AND f.tenant = :tenant

-- name: task_of_job
SELECT {task t} FROM task t WHERE t.id = :id AND t.job_id = :job

-- name: ledger_before
SELECT {entry e} FROM entry e WHERE e.wallet_id = :id AND e.seq < :before ORDER BY e.seq DESC LIMIT :count

-- name: count_tasks_ahead
-- A task uses the turn of its tenant at its place among the tenant's tasks. Ahead are all tasks with earlier turns.
WITH turn(rank, id) AS (
    SELECT t.rank, t.id FROM task t
    WHERE t.queue = :queue AND t.priority = :priority AND t.tenant = :tenant AND t.ready = 1
    ORDER BY t.rank, t.id LIMIT 1 OFFSET (SELECT count(*) FROM (
        SELECT 1 FROM task u WHERE u.queue = :queue AND u.priority = :priority AND u.tenant = :tenant AND u.ready = 1
            AND (u.user_rank, u.id) < (:user_rank, :id) LIMIT :most) AS before_in_tenant)
)
SELECT (SELECT count(*) FROM (
        SELECT 1 FROM task t WHERE t.queue = :queue AND t.ready = 1 AND t.priority > :priority LIMIT :most) AS urgent)
    + (SELECT count(*) FROM (
        SELECT 1 FROM task t WHERE t.queue = :queue AND t.ready = 1 AND t.priority = :priority
            AND (t.rank, t.id) < ((SELECT rank FROM turn), (SELECT id FROM turn)) LIMIT :most) AS before)

-- Rows that the API returns.
-- {job j}: all columns of a job. IN :x[]: a list parameter. :x[a text, b bigint]: a table made from a list of rows.
-- {lock} is a row lock on PostgreSQL and empty on SQLite, which has one writer.

-- name: recorded_values
SELECT i.name, i.value, i.updated_at FROM installation i WHERE i.name IN :ids[] ORDER BY i.name

-- name: workers_after
SELECT {worker w} FROM worker w WHERE w.id > :after AND (w.status <> 'offline' OR :include_offline = 1)
ORDER BY w.id LIMIT :count

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
SELECT {file f} FROM file f WHERE f.tenant = :tenant AND f.user_id = :user AND f.job_id IS NULL
    AND f.status <> 'deleted' AND f.id < :before
ORDER BY f.id DESC LIMIT :count

-- name: worker_by_token
SELECT {worker w} FROM worker w WHERE w.token_hash = :key

-- name: events_of
SELECT id, tx, {event e} FROM event e WHERE e.subject = :subject AND e.seq > :after ORDER BY e.seq LIMIT :count

-- name: events_of_tenant
SELECT id, tx, {event e} FROM event e WHERE e.tenant = :tenant AND {after_position} ORDER BY {feed_order} LIMIT :count

-- name: job_of_tenant
SELECT {job j} FROM job j WHERE j.id = :id AND j.tenant = :tenant AND j.deleted_at IS NULL

-- name: runs_of
SELECT {run r} FROM run r WHERE r.job_id = :id ORDER BY r.no

-- name: stages_of
SELECT {stage s} FROM stage s WHERE s.job_id = :id ORDER BY s.no

-- name: tasks_of_job
SELECT {task t} FROM stage s JOIN task t ON t.stage_id = s.id WHERE s.job_id = :id ORDER BY s.no, t.no

-- name: tasks_after
-- Tasks of a job after a position, each with the number of its stage.
SELECT s.no, {task t} FROM stage s JOIN task t ON t.stage_id = s.id
WHERE s.job_id = :id AND (s.no > :stage_no OR (s.no = :stage_no AND t.no > :task_no)) ORDER BY s.no, t.no LIMIT :count

-- name: attempts_of
SELECT {attempt a} FROM attempt a WHERE a.task_id = :id ORDER BY a.no

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
SELECT {api_key k} FROM api_key k WHERE (k.tenant = :tenant OR :all = 1) AND k.id > :after ORDER BY k.id LIMIT :count

-- name: audit_of
SELECT {audit a} FROM audit a WHERE (a.tenant = :tenant OR :all = 1) AND a.id < :before ORDER BY a.id DESC LIMIT :count

-- name: audit_of_subject
SELECT {audit a} FROM audit a
WHERE a.subject = :subject AND (a.tenant = :tenant OR :all = 1) AND a.id < :before ORDER BY a.id DESC LIMIT :count

-- name: tenants_after
SELECT {tenant t} FROM tenant t WHERE t.id > :after ORDER BY t.id LIMIT :count

-- name: usage_of_tenant
SELECT {storage_usage u} FROM storage_usage u WHERE u.tenant = :id

-- name: current_workflows_after
SELECT {workflow w} FROM workflow w WHERE w.current = 1 AND w.name > :after ORDER BY w.name LIMIT :count

-- name: jobs_of_tenant
SELECT {job j} FROM job j WHERE j.tenant = :tenant AND j.deleted_at IS NULL AND j.id < :before {job_filters}

-- name: jobs_open
SELECT {job j} FROM job j WHERE j.tenant = :tenant AND j.deleted_at IS NULL AND j.finished_at IS NULL AND j.id < :before {job_filters}

-- name: jobs_failed
SELECT {job j} FROM job j WHERE j.tenant = :tenant AND j.deleted_at IS NULL AND j.error_code IS NOT NULL AND j.id < :before {job_filters}

-- name: jobs_waiting
SELECT {job j} FROM job j WHERE j.tenant = :tenant AND j.deleted_at IS NULL AND j.waiting_at IS NOT NULL AND j.id < :before {job_filters}

-- name: jobs_of_wallet
SELECT {job j} FROM job j WHERE j.wallet_id = :wallet AND j.deleted_at IS NULL AND j.id < :before {job_filters}

-- name: files_of
SELECT {file f} FROM file f WHERE f.job_id = :id ORDER BY f.created_at, f.task_id, f.no

-- name: file_of_tenant
SELECT {file f} FROM file f WHERE f.id = :id AND f.tenant = :tenant

-- name: task_of_job
SELECT {task t} FROM task t WHERE t.id = :id AND t.job_id = :job

-- name: ledger_before
SELECT {entry e} FROM entry e WHERE e.wallet_id = :id AND e.seq < :before ORDER BY e.seq DESC LIMIT :count

-- name: count_tasks_ahead
SELECT count(*) FROM (
    SELECT 1 FROM task t WHERE t.queue = :queue AND t.ready = 1
        AND (t.priority > :priority OR (t.priority = :priority AND (t.rank, t.id) < (:rank, :id))) LIMIT :most
) AS before

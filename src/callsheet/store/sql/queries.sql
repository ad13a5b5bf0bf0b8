-- What the engine reads. {job j} stands for all columns of a job; IN :x[] takes a list;
-- :x[a text, b bigint] is a table made from a list of rows. Locks are words that SQLite does without.

-- name: jobs
SELECT {job j} FROM job j WHERE j.id IN :ids[] ORDER BY j.id {lock}

-- name: jobs_unlocked
SELECT {job j} FROM job j WHERE j.id IN :ids[]

-- name: jobs_by_dedup_key
SELECT {job j} FROM job j WHERE j.dedup_key IN :ids[]

-- name: wallets
SELECT {wallet w} FROM wallet w WHERE w.id IN :ids[] ORDER BY w.id {lock}

-- name: active
SELECT wallet_id, count(*) FROM job WHERE wallet_id IN :ids[] AND finished_at IS NULL GROUP BY wallet_id

-- name: tenants
SELECT {tenant t} FROM tenant t WHERE t.id IN :ids[]

-- name: tenants_for_update
SELECT {tenant t} FROM tenant t WHERE t.id IN :ids[] ORDER BY t.id {lock}

-- name: current_workflows
SELECT {workflow w} FROM workflow w WHERE w.name IN :ids[] AND w.current = 1

-- name: workflows
SELECT {workflow w} FROM :keys[name text, version bigint] k CROSS JOIN workflow w
WHERE w.name = k.name AND w.version = k.version

-- name: queues
SELECT {queue q} FROM queue q WHERE q.id IN :ids[]

-- name: queues_with_limits
-- Queues, with what their workflows say now of limits.
SELECT {queue q}, coalesce(w.running_max, 0), coalesce(w.rate_max, '')
FROM queue q LEFT JOIN workflow w ON w.name = q.workflow AND w.current = 1 WHERE q.id IN :ids[]

-- name: heads
SELECT {queue q}, coalesce(w.running_max, 0), coalesce(w.rate_max, ''),
    (SELECT t.priority FROM task t WHERE t.queue = q.id AND t.ready = 1 ORDER BY t.priority DESC LIMIT 1)
FROM queue q LEFT JOIN workflow w ON w.name = q.workflow AND w.current = 1 WHERE q.kind IN :ids[]

-- name: lock_queues
SELECT q.id FROM queue q WHERE q.id IN :ids[] ORDER BY q.id {lock}

-- name: queues_sharing
SELECT {queue q} FROM queue q WHERE q.kind IN :kinds[] OR q.workflow IN :workflows[] OR q.provider IN :providers[]

-- name: count_running
SELECT count(*), NULL FROM (SELECT 1 FROM task t WHERE t.queue IN :ids[] AND t.status = 'running' LIMIT :most) AS taken

-- name: count_recent_starts
SELECT count(*), min(started.leased_at) FROM (
    SELECT a.leased_at FROM attempt a WHERE a.rate_queue IN :ids[] AND a.leased_at > :since
    ORDER BY a.leased_at DESC LIMIT :most
) AS started

-- name: candidates
SELECT t.id, t.job_id, t.priority FROM task t JOIN job j ON j.id = t.job_id
WHERE t.queue = :queue AND t.ready = 1
ORDER BY t.priority DESC, t.rank, t.id LIMIT :count {lock_jobs}

-- name: queue_tails
SELECT k.queue, k.priority, k.tenant,
    (SELECT t.rank FROM task t WHERE t.queue = k.queue AND t.priority = k.priority AND t.ready = 1
     ORDER BY t.rank LIMIT 1),
    (SELECT t.rank FROM task t WHERE t.queue = k.queue AND t.priority = k.priority AND t.tenant = k.tenant
     AND t.ready = 1 ORDER BY t.rank DESC LIMIT 1)
FROM :keys[queue text, priority bigint, tenant text] k

-- name: tasks
SELECT {task t} FROM task t WHERE t.id IN :ids[]

-- name: open_tasks
SELECT {task t} FROM task t WHERE t.stage_id IN :ids[] AND t.finished_at IS NULL ORDER BY t.stage_id, t.no

-- name: tasks_of_stages
SELECT {task t} FROM task t WHERE t.stage_id IN :ids[] ORDER BY t.stage_id, t.no

-- name: jobs_of_workers
SELECT t.job_id FROM task t WHERE t.status = 'running' AND t.worker_id IN :ids[]

-- name: tasks_of_workers
-- In order: when one of them is given back too often, that decides what becomes of the others of its job.
SELECT {task t} FROM task t WHERE t.status = 'running' AND t.worker_id IN :ids[] ORDER BY t.id

-- name: holds
SELECT t.worker_id, t.id FROM task t WHERE t.status = 'running' AND t.worker_id IN :ids[] AND t.token_hash IS NOT NULL

-- name: workers
SELECT {worker w} FROM worker w WHERE w.id IN :ids[] ORDER BY w.id {lock}

-- name: fleet
SELECT count(*) FROM worker w WHERE w.status IN ('pending', 'approved')

-- name: files
SELECT {file f} FROM file f WHERE f.id IN :ids[] ORDER BY f.id {lock}

-- name: uses
SELECT {job_file u} FROM :keys[job_id text, file_id text] k CROSS JOIN job_file u WHERE u.job_id = k.job_id AND u.file_id = k.file_id

-- name: file_uses_of_jobs
SELECT {job_file u} FROM job_file u WHERE u.job_id IN :ids[] ORDER BY u.job_id, u.file_id

-- name: files_of_jobs
SELECT {file f} FROM file f WHERE f.job_id IN :ids[] ORDER BY f.id {lock}

-- name: needed_by_others
-- Files that others need, and the workflow that does, if it is one.
SELECT DISTINCT f.id, NULL FROM file f JOIN job_file u ON u.file_id = f.id JOIN job j ON j.id = u.job_id
WHERE f.id IN :ids[] AND j.id <> f.job_id AND j.finished_at IS NULL
UNION ALL SELECT n.file_id, n.workflow FROM workflow_file n
JOIN workflow w ON w.name = n.workflow AND w.version = n.version
WHERE n.file_id IN :ids[] AND (w.current = 1 OR (n.workflow, n.version) IN (
    SELECT j.workflow, j.workflow_version FROM job j WHERE j.finished_at IS NULL))

-- name: uploading
SELECT k.tenant, k.user_id, (SELECT count(*) FROM file f
    WHERE f.tenant = k.tenant AND f.user_id = k.user_id AND f.job_id IS NULL AND f.status = 'uploading')
FROM :keys[tenant text, user_id text] k

-- name: needed
-- Files that somebody needs, and the workflow that does, if it is one.
SELECT f.id, NULL FROM file f WHERE f.id IN :ids[] AND (
    EXISTS (SELECT 1 FROM job j WHERE j.id = f.job_id AND j.finished_at IS NULL)
    OR EXISTS (SELECT 1 FROM job_file u JOIN job j ON j.id = u.job_id WHERE u.file_id = f.id AND j.finished_at IS NULL))
UNION ALL SELECT n.file_id, n.workflow FROM workflow_file n
JOIN workflow w ON w.name = n.workflow AND w.version = n.version
WHERE n.file_id IN :ids[] AND (w.current = 1 OR (n.workflow, n.version) IN (
    SELECT j.workflow, j.workflow_version FROM job j WHERE j.finished_at IS NULL))

-- name: stages
SELECT {stage s} FROM stage s WHERE s.job_id IN :ids[] ORDER BY s.job_id, s.no

-- name: stages_by_id
SELECT {stage s} FROM stage s WHERE s.id IN :ids[]

-- name: runs
SELECT {run r} FROM :keys[job_id text, no bigint] k CROSS JOIN run r WHERE r.job_id = k.job_id AND r.no = k.no

-- name: runs_by_command
SELECT r.job_id, r.command_id FROM :keys[job_id text, command_id text] k CROSS JOIN run r
WHERE r.job_id = k.job_id AND r.command_id = k.command_id

-- name: attempts
SELECT {attempt a} FROM :keys[task_id text, no bigint] k CROSS JOIN attempt a WHERE a.task_id = k.task_id AND a.no = k.no

-- name: documents
SELECT {document d} FROM document d WHERE d.owner_id IN :ids[] AND d.name = 'input'

-- name: entries_by_dedup_key
SELECT dedup_key, amount FROM entry WHERE dedup_key IN :ids[]

-- name: calls
SELECT {call c} FROM call c WHERE c.id IN :ids[]

-- name: lock_refs
SELECT {lock_ref} FROM :keys[ref text] k

-- name: calls_by_ref
SELECT {call c} FROM :keys[provider text, ref text] k CROSS JOIN call c WHERE c.provider = k.provider AND c.ref = k.ref

-- name: inbox
SELECT {inbox i} FROM inbox i WHERE i.id IN :ids[]

-- name: held_callbacks
SELECT {inbox i} FROM inbox i WHERE i.ref IN :ids[] AND i.status = 'held' ORDER BY i.received_at, i.id

-- name: cursors
SELECT {cursor c} FROM cursor c WHERE c.id IN :ids[] ORDER BY c.id {lock}

-- name: purge_documents
DELETE FROM document WHERE job_id IN :ids[]

-- name: purge_files
DELETE FROM file WHERE job_id IN :ids[]

-- name: purge_job_files
DELETE FROM job_file WHERE job_id IN :ids[]

-- name: api_keys
SELECT {api_key k} FROM api_key k WHERE k.id IN :ids[] ORDER BY k.id {lock}

-- name: api_keys_by_hash
SELECT {api_key k} FROM api_key k WHERE k.secret_hash IN :ids[] ORDER BY k.id {lock}

-- name: audits
SELECT {audit a} FROM audit a WHERE a.id IN :ids[]

-- name: silent_workers
SELECT w.last_seen_at, w.id FROM worker w
WHERE w.status IN ('pending', 'approved') AND w.last_seen_at <= :now AND (w.last_seen_at, w.id) > (:after_at, :after_id)
ORDER BY w.last_seen_at, w.id LIMIT :count

-- name: due_files
SELECT f.expires_at, f.id FROM file f
WHERE f.expires_at <= :now AND (f.expires_at, f.id) > (:after_at, :after_id)
ORDER BY f.expires_at, f.id LIMIT :count

-- name: workers_after
SELECT {worker w} FROM worker w WHERE w.id > :after AND (w.status <> 'gone' OR :gone = 1) ORDER BY w.id LIMIT :count

-- name: worker_ids
SELECT w.id FROM worker w WHERE w.id IN :ids[]

-- name: worker_of
SELECT {worker w} FROM worker w WHERE w.id = :id

-- name: leases_of_workers
-- The first leases of each worker, and how many it has.
SELECT {task t}, t.held FROM (
    SELECT t.*, row_number() OVER (PARTITION BY t.worker_id ORDER BY t.started_at, t.id) AS place,
        count(*) OVER (PARTITION BY t.worker_id) AS held
    FROM task t WHERE t.status = 'running' AND t.worker_id IN :ids[] AND t.token_hash IS NOT NULL
) AS t WHERE t.place <= :most ORDER BY t.worker_id, t.place

-- name: files_by_id
SELECT {file f} FROM file f WHERE f.id IN :ids[]

-- name: files_uploaded
SELECT {file f} FROM file f WHERE f.tenant = :tenant AND f.user_id = :user AND f.job_id IS NULL
    AND f.status <> 'deleted' AND f.id < :before
ORDER BY f.id DESC LIMIT :count

-- name: files_ready
SELECT {file f} FROM file f WHERE f.status = 'ready' AND f.id < :before ORDER BY f.id DESC LIMIT :count

-- name: attempts_and_files
SELECT a.task_id, a.no, a.tenant, a.job_id, a.ended_at, f.no, f.status
FROM :keys[task_id text, no bigint] k CROSS JOIN attempt a
LEFT JOIN file f ON f.task_id = a.task_id AND f.attempt = a.no
WHERE a.task_id = k.task_id AND a.no = k.no

-- name: database_created_at
SELECT min(t.created_at) FROM tenant t

-- name: worker_by_token
SELECT {worker w} FROM worker w WHERE w.token_hash = :key

-- name: due_jobs
SELECT j.due_at, j.id FROM job j WHERE j.due_at <= :now AND (j.due_at, j.id) > (:after_at, :after_id)
ORDER BY j.due_at, j.id LIMIT :count

-- name: due_tasks
SELECT t.due_at, t.id, t.job_id FROM task t WHERE t.due_at <= :now AND (t.due_at, t.id) > (:after_at, :after_id)
ORDER BY t.due_at, t.id LIMIT :count

-- name: due_calls
SELECT c.collect_at, c.id, c.job_id FROM call c WHERE c.collect_at <= :now AND (c.collect_at, c.id) > (:after_at, :after_id)
ORDER BY c.collect_at, c.id LIMIT :count

-- name: events_of
SELECT id, tx, {event e} FROM event e WHERE e.subject = :subject AND e.seq > :after ORDER BY e.seq LIMIT :count

-- name: events_after
SELECT id, tx, {event e} FROM event e WHERE {after_place} ORDER BY {place} LIMIT :count

-- name: events_of_tenant
SELECT id, tx, {event e} FROM event e WHERE e.tenant = :tenant AND {after_place} ORDER BY {place} LIMIT :count

-- name: feed_end
SELECT tx, id FROM event e WHERE {after_place} ORDER BY {place_back} LIMIT 1

-- name: subjects_not_yet_visible
-- Whose newest events are committed, and not in the global order yet: a transaction elsewhere is older and goes on.
SELECT DISTINCT subject FROM (SELECT e.subject FROM event e WHERE {hidden} ORDER BY {place_back} LIMIT :count) s

-- name: job_of_tenant
SELECT {job j} FROM job j WHERE j.id = :id AND j.tenant = :tenant AND j.deleted_at IS NULL

-- name: runs_of
SELECT {run r} FROM run r WHERE r.job_id = :id ORDER BY r.no

-- name: stages_of
SELECT {stage s} FROM stage s WHERE s.job_id = :id ORDER BY s.no

-- name: tasks_of_job
SELECT {task t} FROM stage s JOIN task t ON t.stage_id = s.id WHERE s.job_id = :id ORDER BY s.no, t.no

-- name: tasks_after
-- Tasks of a job behind a place in it, each with the number of its stage.
SELECT s.no, {task t} FROM stage s JOIN task t ON t.stage_id = s.id
WHERE s.job_id = :id AND (s.no > :stage_no OR (s.no = :stage_no AND t.no > :task_no)) ORDER BY s.no, t.no LIMIT :count

-- name: attempts_of
SELECT {attempt a} FROM attempt a WHERE a.task_id = :id ORDER BY a.no

-- name: documents_of
SELECT {document d} FROM document d WHERE d.job_id = :id ORDER BY d.owner_id, d.name

-- name: tasks_completed
-- Completed tasks of a job behind a place in it and before a stage, and how large what their last try handed in is.
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
SELECT t.status, {api_key k} FROM api_key k LEFT JOIN tenant t ON t.id = k.tenant WHERE k.secret_hash = :key

-- name: api_key_by_id
SELECT t.status, {api_key k} FROM api_key k LEFT JOIN tenant t ON t.id = k.tenant WHERE k.id = :key

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

-- name: current_workflows_after
SELECT {workflow w} FROM workflow w WHERE w.current = 1 AND w.name > :after ORDER BY w.name LIMIT :count

-- name: jobs_of_tenant
SELECT {job j} FROM job j WHERE j.tenant = :tenant AND j.deleted_at IS NULL AND j.id < :before {wanted}

-- name: jobs_open
SELECT {job j} FROM job j WHERE j.tenant = :tenant AND j.deleted_at IS NULL AND j.finished_at IS NULL AND j.id < :before {wanted}

-- name: jobs_failed
SELECT {job j} FROM job j WHERE j.tenant = :tenant AND j.deleted_at IS NULL AND j.error_code IS NOT NULL AND j.id < :before {wanted}

-- name: jobs_waiting
SELECT {job j} FROM job j WHERE j.tenant = :tenant AND j.deleted_at IS NULL AND j.waiting_at IS NOT NULL AND j.id < :before {wanted}

-- name: jobs_of_wallet
SELECT {job j} FROM job j WHERE j.wallet_id = :wallet AND j.deleted_at IS NULL AND j.id < :before {wanted}

-- name: files_of
SELECT {file f} FROM file f WHERE f.job_id = :id ORDER BY f.created_at, f.task_id, f.no

-- name: file_of_tenant
SELECT {file f} FROM file f WHERE f.id = :id AND f.tenant = :tenant

-- name: task_of_job
SELECT {task t} FROM task t WHERE t.id = :id AND t.job_id = :job

-- name: ledger_before
SELECT {entry e} FROM entry e WHERE e.wallet_id = :id AND e.seq < :before ORDER BY e.seq DESC LIMIT :count

-- name: ahead
SELECT count(*) FROM (
    SELECT 1 FROM task t WHERE t.queue = :queue AND t.ready = 1
        AND (t.priority > :priority OR (t.priority = :priority AND (t.rank, t.id) < (:rank, :id))) LIMIT :most
) AS before

-- name: clock
SELECT {now}

-- name: live_leases_of_kind
SELECT count(*) FROM (
    SELECT 1 FROM task t WHERE t.queue IN (SELECT q.id FROM queue q WHERE q.kind = :kind) AND t.status = 'running'
        AND t.lease_expires_at > {now} LIMIT :most
) AS live

-- name: last_completed_of_kind
SELECT max(at) FROM (
    SELECT (SELECT t.finished_at FROM task t WHERE t.queue = q.id AND t.status = 'completed'
        ORDER BY t.finished_at DESC LIMIT 1) AS at
    FROM queue q WHERE q.kind = :kind
) AS ends

-- name: durations
SELECT a.ended_at - a.leased_at FROM (
    SELECT t.id, t.attempts FROM task t WHERE t.queue = :queue AND t.status = 'completed'
    ORDER BY t.finished_at DESC LIMIT :count
) AS d JOIN attempt a ON a.task_id = d.id AND a.no = d.attempts

-- name: job_durations
-- The newest jobs of which a queue has done tasks, found among so many of its newest tasks.
SELECT j.id, j.finished_at - j.started_at FROM (
    SELECT job_id, max(finished_at) AS at FROM (
        SELECT t.job_id, t.finished_at FROM task t WHERE t.queue = :queue AND t.status = 'completed'
        ORDER BY t.finished_at DESC LIMIT :tasks
    ) AS n GROUP BY job_id
) AS d JOIN job j ON j.id = d.job_id WHERE j.status = 'completed' AND j.started_at IS NOT NULL
ORDER BY d.at DESC LIMIT :count

-- name: leases_by_worker
SELECT t.worker_id, t.kind, count(*), min(t.lease_expires_at) FROM task t
WHERE t.queue IN (SELECT q.id FROM queue q) AND t.status = 'running' GROUP BY t.worker_id, t.kind ORDER BY t.worker_id, t.kind

-- name: depths
SELECT q.kind, q.workflow,
    (SELECT count(*) FROM task t WHERE t.queue = q.id AND t.ready = 1),
    (SELECT count(*) FROM task t WHERE t.queue = q.id AND t.status = 'running')
FROM queue q ORDER BY q.kind, q.workflow

-- name: open_calls
-- What lies at providers, and how much of it should have been asked about a minute ago: nobody collects it.
SELECT count(*), count(CASE WHEN c.collect_at < {now} - 60000000 THEN 1 END) FROM call c WHERE c.collect_at IS NOT NULL

-- name: active_jobs
SELECT j.status, count(*) FROM job j WHERE j.finished_at IS NULL GROUP BY j.status ORDER BY j.status

-- name: scale_queues
-- What a fleet is scaled by, from here on: every read is bounded, and goes by an index.
SELECT {queue q}, coalesce(w.running_max, 0), coalesce(w.rate_max, ''),
    (SELECT count(*) FROM (SELECT 1 FROM task t WHERE t.queue = q.id AND t.ready = 1 LIMIT :most) AS waiting),
    (SELECT count(*) FROM (SELECT 1 FROM task t WHERE t.queue = q.id AND t.status = 'running' LIMIT :most) AS taken),
    (SELECT count(*) FROM (SELECT 1 FROM task t WHERE t.queue = q.id AND t.status = 'completed'
        AND t.finished_at > :since ORDER BY t.finished_at DESC LIMIT :counted) AS done),
    (SELECT min(done.finished_at) FROM (SELECT t.finished_at FROM task t WHERE t.queue = q.id AND t.status = 'completed'
        AND t.finished_at > :since ORDER BY t.finished_at DESC LIMIT :counted) AS done)
FROM queue q LEFT JOIN workflow w ON w.name = q.workflow AND w.current = 1

-- name: scale_backoffs
SELECT due.queue, count(*) FROM (
    SELECT t.queue, t.status FROM task t WHERE t.due_at > 0 ORDER BY t.due_at LIMIT :most
) AS due WHERE due.status = 'retried' GROUP BY due.queue

-- name: scale_heads
WITH RECURSIVE level(queue, priority) AS (
    SELECT q.id, (SELECT min(t.priority) FROM task t WHERE t.queue = q.id AND t.ready = 1) FROM queue q
    UNION ALL
    SELECT l.queue, (SELECT min(t.priority) FROM task t WHERE t.queue = l.queue AND t.ready = 1 AND t.priority > l.priority)
    FROM level l WHERE l.priority IS NOT NULL
), line(queue, priority, tenant) AS (
    SELECT l.queue, l.priority,
        (SELECT min(t.tenant) FROM task t WHERE t.queue = l.queue AND t.ready = 1 AND t.priority = l.priority)
    FROM level l WHERE l.priority IS NOT NULL
    UNION ALL
    SELECT n.queue, n.priority, (SELECT min(t.tenant) FROM task t
        WHERE t.queue = n.queue AND t.ready = 1 AND t.priority = n.priority AND t.tenant > n.tenant)
    FROM line n WHERE n.tenant IS NOT NULL
)
SELECT (SELECT t.id FROM task t WHERE t.queue = n.queue AND t.ready = 1 AND t.priority = n.priority
    AND t.tenant = n.tenant ORDER BY t.rank LIMIT 1)
FROM line n WHERE n.tenant IS NOT NULL LIMIT :most

-- name: scale_waits
SELECT t.kind, t.created_at, t.ready_at, j.start_at, r.opened_at, s.approved_at,
    (SELECT p.finished_at FROM stage p WHERE p.job_id = t.job_id AND p.no = s.no - 1),
    (SELECT a.ended_at FROM attempt a WHERE a.task_id = t.id AND a.no = t.attempts)
FROM task t JOIN stage s ON s.id = t.stage_id JOIN job j ON j.id = t.job_id
    JOIN run r ON r.job_id = j.id AND r.no = j.run WHERE t.id IN :ids[]

-- name: scale_leases
SELECT t.worker_id, t.kind, count(*), min(a.leased_at) FROM task t JOIN attempt a ON a.task_id = t.id AND a.ended_at IS NULL
WHERE t.queue IN (SELECT q.id FROM queue q) AND t.status = 'running' AND t.token_hash IS NOT NULL
GROUP BY t.worker_id, t.kind

-- name: scale_fleet
SELECT w.id, w.created_at, w.status, NULL, w.offered, w.assigned, w.concurrency, w.starts, w.started_at, w.last_seen_at,
    w.approved_at, w.draining_at
FROM worker w WHERE w.status IN ('pending', 'approved')

-- name: scale_arrivals
SELECT new.kind, count(*), min(new.created_at) FROM (
    SELECT t.kind, t.created_at FROM task t WHERE t.id >= :floor ORDER BY t.id DESC LIMIT :most
) AS new WHERE new.created_at > :since GROUP BY new.kind

-- name: scale_failures
SELECT t.kind, ill.outcome, ill.spot, count(*) FROM (
    SELECT a.task_id, a.outcome, CASE WHEN a.error_code = 'spot' THEN 1 ELSE 0 END AS spot FROM attempt a
    WHERE a.outcome IN ('failed', 'lost', 'requeued') AND a.ended_at > :since ORDER BY a.ended_at DESC LIMIT :most
) AS ill JOIN task t ON t.id = ill.task_id GROUP BY t.kind, ill.outcome, ill.spot

-- name: scale_attempts
SELECT a.ended_at, a.ended_at - a.leased_at FROM (
    SELECT t.id, t.attempts FROM task t WHERE t.queue = :queue AND t.status = 'completed'
    ORDER BY t.finished_at DESC LIMIT :count
) AS d JOIN attempt a ON a.task_id = d.id AND a.no = d.attempts

-- Rows that a batch of commands loads before it decides. Rows that decisions may change are locked, in one order.
-- {job j}: all columns of a job. IN :x[]: a list parameter. :x[a text, b bigint]: a table made from a list of rows.
-- {lock} is a row lock on PostgreSQL and empty on SQLite, which has one writer.

-- name: jobs
SELECT {job j} FROM job j WHERE j.id IN :ids[] ORDER BY j.id {lock}

-- name: jobs_unlocked
SELECT {job j} FROM job j WHERE j.id IN :ids[]

-- name: jobs_by_dedup_key
SELECT {job j} FROM job j WHERE j.dedup_key IN :ids[]

-- name: wallets
SELECT {wallet w} FROM wallet w WHERE w.id IN :ids[] ORDER BY w.id {lock}

-- name: storage_usage
SELECT {storage_usage u} FROM storage_usage u WHERE u.tenant IN :ids[] ORDER BY u.tenant {lock}

-- name: active_job_counts
SELECT k.wallet_id, (SELECT count(*) FROM (
    SELECT 1 FROM job j WHERE j.wallet_id = k.wallet_id AND j.finished_at IS NULL LIMIT :most
) AS active) FROM :keys[wallet_id text] k

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
-- Queues, with the current limits of their workflows.
SELECT {queue q}, w.running_max, w.rate_max
FROM queue q LEFT JOIN workflow w ON w.name = q.workflow AND w.current = 1 WHERE q.id IN :ids[]

-- name: heads
SELECT {queue q}, w.running_max, w.rate_max,
    (SELECT t.priority FROM task t WHERE t.queue = q.id AND t.ready = 1 ORDER BY t.priority DESC LIMIT 1)
FROM queue q LEFT JOIN workflow w ON w.name = q.workflow AND w.current = 1 WHERE q.kind IN :ids[]

-- name: queues_sharing
SELECT {queue q} FROM queue q WHERE q.kind IN :kinds[] OR q.workflow IN :workflows[] OR q.provider IN :providers[]

-- name: count_running
SELECT count(*), NULL FROM (SELECT 1 FROM task t WHERE t.queue IN :ids[] AND t.status = 'running' LIMIT :most) AS running

-- name: running_by_queue
SELECT q.id, NULL, (SELECT count(*) FROM (
    SELECT 1 FROM task t WHERE t.queue = q.id AND t.status = 'running' LIMIT :most) AS running), NULL
FROM queue q WHERE q.id IN :ids[]

-- name: starts_by_queue
SELECT k.queue, k.since, (SELECT count(*) FROM (
        SELECT 1 FROM attempt a WHERE a.rate_queue = k.queue AND a.leased_at > k.since LIMIT :most) AS started),
    (SELECT a.leased_at FROM attempt a WHERE a.rate_queue = k.queue AND a.leased_at > k.since
     ORDER BY a.leased_at LIMIT 1)
FROM :keys[queue text, since bigint] k

-- name: first_turns
-- The tasks with the first turns of a queue. They say how many of the next starts each tenant gets.
SELECT t.id, t.priority, t.tenant FROM task t JOIN job j ON j.id = t.job_id
WHERE t.queue = :queue AND t.ready = 1
ORDER BY t.priority DESC, t.rank, t.id LIMIT :count {lock_jobs}

-- name: candidates
-- The tasks of a tenant that start next.
SELECT t.id, t.job_id FROM task t JOIN job j ON j.id = t.job_id
WHERE t.queue = :queue AND t.priority = :priority AND t.tenant = :tenant AND t.ready = 1
ORDER BY t.user_rank, t.id LIMIT :count {lock_jobs}

-- name: last_turns
SELECT t.id FROM task t JOIN job j ON j.id = t.job_id
WHERE t.queue = :queue AND t.priority = :priority AND t.tenant = :tenant AND t.ready = 1
ORDER BY t.rank DESC LIMIT :count {lock_jobs}

-- name: queue_tails
SELECT k.queue, k.priority, k.tenant,
    (SELECT t.rank FROM task t WHERE t.queue = k.queue AND t.priority = k.priority AND t.ready = 1
     ORDER BY t.rank LIMIT 1),
    (SELECT t.rank FROM task t WHERE t.queue = k.queue AND t.priority = k.priority AND t.tenant = k.tenant
     AND t.ready = 1 ORDER BY t.rank DESC LIMIT 1)
FROM :keys[queue text, priority bigint, tenant text] k

-- name: user_tails
SELECT k.queue, k.priority, k.tenant, k.user_id,
    (SELECT t.user_rank FROM task t WHERE t.queue = k.queue AND t.priority = k.priority AND t.tenant = k.tenant
     AND t.ready = 1 ORDER BY t.user_rank LIMIT 1),
    (SELECT t.user_rank FROM task t WHERE t.queue = k.queue AND t.priority = k.priority AND t.tenant = k.tenant
     AND t.user_id = k.user_id AND t.ready = 1 ORDER BY t.user_rank DESC LIMIT 1)
FROM :keys[queue text, priority bigint, tenant text, user_id text] k

-- name: tasks
SELECT {task t} FROM task t WHERE t.id IN :ids[]

-- name: open_tasks
SELECT {task t} FROM task t WHERE t.stage_id IN :ids[] AND t.finished_at IS NULL ORDER BY t.stage_id, t.no

-- name: tasks_of_stages
SELECT {task t} FROM task t WHERE t.stage_id IN :ids[] ORDER BY t.stage_id, t.no

-- name: jobs_of_workers
SELECT t.job_id FROM task t WHERE t.status = 'running' AND t.worker_id IN :ids[] AND t.token_hash IS NOT NULL

-- name: tasks_of_workers
-- In a fixed order: if one task reaches its limit of requeues, its job fails, and that ends the other tasks of the job.
SELECT {task t} FROM task t WHERE t.status = 'running' AND t.worker_id IN :ids[] AND t.token_hash IS NOT NULL ORDER BY t.id

-- name: leased_task_ids
SELECT t.worker_id, t.id FROM task t WHERE t.status = 'running' AND t.worker_id IN :ids[] AND t.token_hash IS NOT NULL

-- name: workers
SELECT {worker w} FROM worker w WHERE w.id IN :ids[] ORDER BY w.id {lock}

-- name: worker_count
SELECT count(*) FROM worker w WHERE w.status IN ('pending', 'approved')

-- name: files
SELECT {file f} FROM file f WHERE f.id IN :ids[] ORDER BY f.id {lock}

-- name: job_files
SELECT {job_file u} FROM :keys[job_id text, file_id text] k CROSS JOIN job_file u WHERE u.job_id = k.job_id AND u.file_id = k.file_id

-- name: job_files_of_jobs
SELECT {job_file u} FROM job_file u WHERE u.job_id IN :ids[] ORDER BY u.job_id, u.file_id

-- name: files_of_jobs
SELECT {file f} FROM file f WHERE f.job_id IN :ids[] ORDER BY f.id {lock}

-- name: files_needed_by_others
-- Files that another open job than their own, or a workflow, needs; with the name of the workflow. Not EXISTS:
-- PostgreSQL would build a table of all open jobs to look them up.
SELECT f.id, NULL FROM file f WHERE f.id IN :ids[] AND (SELECT 1 FROM job_file u JOIN job j ON j.id = u.job_id
    WHERE u.file_id = f.id AND j.id <> f.job_id AND j.finished_at IS NULL LIMIT 1) = 1
UNION ALL SELECT n.file_id, n.workflow FROM workflow_file n
JOIN workflow w ON w.name = n.workflow AND w.version = n.version
WHERE n.file_id IN :ids[] AND (w.current = 1 OR n.version = (SELECT j.workflow_version FROM job j
    WHERE j.workflow = n.workflow AND j.workflow_version >= n.version AND j.finished_at IS NULL
    ORDER BY j.workflow_version LIMIT 1))

-- name: pending_upload_counts
SELECT k.tenant, k.user_id, (SELECT count(*) FROM (
    SELECT 1 FROM file f WHERE f.tenant = k.tenant AND f.user_id = k.user_id AND f.job_id IS NULL
        AND f.status = 'uploading' LIMIT :most
) AS uploading) FROM :keys[tenant text, user_id text] k

-- name: files_needed
-- Files that an open job or a workflow needs; with the name of the workflow.
SELECT f.id, NULL FROM file f WHERE f.id IN :ids[] AND (
    (SELECT 1 FROM job j WHERE j.id = f.job_id AND j.finished_at IS NULL) = 1 OR (SELECT 1 FROM job_file u
        JOIN job j ON j.id = u.job_id WHERE u.file_id = f.id AND j.finished_at IS NULL LIMIT 1) = 1)
UNION ALL SELECT n.file_id, n.workflow FROM workflow_file n
JOIN workflow w ON w.name = n.workflow AND w.version = n.version
WHERE n.file_id IN :ids[] AND (w.current = 1 OR n.version = (SELECT j.workflow_version FROM job j
    WHERE j.workflow = n.workflow AND j.workflow_version >= n.version AND j.finished_at IS NULL
    ORDER BY j.workflow_version LIMIT 1))

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

-- name: try_lock_refs
SELECT k.ref FROM :keys[ref text] k WHERE {try_lock_ref}

-- name: calls_by_ref
SELECT {call c} FROM :keys[provider text, ref text] k CROSS JOIN call c WHERE c.provider = k.provider AND c.ref = k.ref

-- name: inbox
SELECT {inbox i} FROM inbox i WHERE i.id IN :ids[]

-- name: waiting_callbacks
SELECT {inbox i} FROM inbox i WHERE i.ref IN :ids[] AND i.status = 'waiting' ORDER BY i.received_at, i.id

-- name: cursors
SELECT {cursor c} FROM cursor c WHERE c.id IN :ids[] ORDER BY c.id {lock}

-- name: installation_values
SELECT {installation i} FROM installation i WHERE i.name IN :ids[] ORDER BY i.name {lock}

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

-- name: audit_heads
SELECT {audit_head h} FROM audit_head h WHERE h.tenant IN :ids[] ORDER BY h.tenant {lock}

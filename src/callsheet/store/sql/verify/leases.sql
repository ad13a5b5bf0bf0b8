-- Rules of leases, attempts and workers.
-- The format is described in store/verify/rule_files.py.

-- name: L1
-- A task has at most one live lease.
-- columns: task, live
-- slices: attempt.task_id
SELECT task_id, count(*) FROM attempt WHERE {slice task_id} AND ended_at IS NULL GROUP BY task_id HAVING count(*) > 1

-- name: L2
-- A task runs exactly while it has a live attempt: the newest, of the job's run, with the same token and worker.
-- columns: task, status, attempts, live_attempt
-- slices: task.id
SELECT t.id, t.status, t.attempts, a.no
FROM task t JOIN job j ON j.id = t.job_id LEFT JOIN attempt a ON a.task_id = t.id AND a.ended_at IS NULL
WHERE {slice t.id} AND ((t.status = 'running') <> (a.no IS NOT NULL) OR a.no <> t.attempts OR a.run <> j.run
OR (a.no IS NOT NULL AND (a.worker_id IS DISTINCT FROM t.worker_id OR a.token_hash <> t.token_hash)))

-- name: L3
-- A task's leases are numbered from 1 without a gap.
-- columns: task, attempts, counted, first, last
-- slices: task.id
SELECT t.id, t.attempts, count(a.no), min(a.no), max(a.no) FROM task t LEFT JOIN attempt a ON a.task_id = t.id
WHERE {slice t.id} GROUP BY t.id, t.attempts
HAVING count(a.no) <> t.attempts OR max(a.no) <> count(a.no) OR min(a.no) <> 1

-- name: L4
-- The leases of a task do not overlap, and a later lease never belongs to an earlier run.
-- columns: task, attempt, leased_at, ended_at, next_leased_at
-- slices: attempt.task_id
SELECT a.task_id, a.no, a.leased_at, a.ended_at, b.leased_at
FROM attempt a LEFT JOIN attempt b ON b.task_id = a.task_id AND b.no = a.no + 1
WHERE {slice a.task_id} AND (a.ended_at < a.leased_at OR b.leased_at < a.ended_at OR b.run < a.run
OR (b.no IS NOT NULL AND a.ended_at IS NULL))

-- name: L5
-- Exactly one result of a completed task was accepted, from its newest lease; no other task has one.
-- columns: task, status, attempts, accepted, accepted_attempt
-- slices: task.id
SELECT t.id, t.status, t.attempts, count(a.no), max(a.no)
FROM task t LEFT JOIN attempt a ON a.task_id = t.id AND a.outcome = 'completed'
WHERE {slice t.id} GROUP BY t.id, t.status, t.attempts
HAVING count(a.no) <> CASE WHEN t.status = 'completed' THEN 1 ELSE 0 END OR max(a.no) <> t.attempts

-- name: L6
-- An ended worker has no lease, and a draining worker has received no lease since it started draining.
-- columns: task, worker, status, leased_at, draining_at
-- slices: task.id
SELECT t.id, w.id, w.status, a.leased_at, w.draining_at FROM task t JOIN worker w ON w.id = t.worker_id
JOIN attempt a ON a.task_id = t.id AND a.no = t.attempts
WHERE {slice t.id} AND t.token_hash IS NOT NULL AND (w.status IN ('revoked', 'offline') OR a.leased_at > w.draining_at)

-- name: L7
-- A task waits in the queue of its own kind and workflow.
-- columns: task, queue, kind, workflow
-- slices: task.id
SELECT t.id, t.queue, t.kind, j.workflow
FROM task t JOIN job j ON j.id = t.job_id JOIN stage s ON s.id = t.stage_id LEFT JOIN queue q ON q.id = t.queue
WHERE {slice t.id} AND (t.kind <> s.kind OR q.kind IS DISTINCT FROM t.kind OR q.workflow IS DISTINCT FROM j.workflow
OR q.provider IS DISTINCT FROM s.provider
OR t.queue <> t.kind || '/' || j.workflow || CASE s.provider WHEN '' THEN '' ELSE '/' || s.provider END)

-- name: L8
-- No worker has more leases than its concurrency.
-- columns: worker, concurrency, leases
-- slices: worker.id
SELECT w.id, w.concurrency, count(*) FROM worker w JOIN task t ON t.worker_id = w.id AND t.status = 'running'
WHERE {slice w.id} AND t.token_hash IS NOT NULL GROUP BY w.id, w.concurrency HAVING count(*) > w.concurrency

-- name: L9
-- No task is leased while its job is paused, scheduled, ended or being canceled.
-- columns: job, event, task, job_status
-- slices: event.subject
SELECT e.subject, e.seq, e.entity_id, p.target FROM (
    SELECT subject, seq, run, entity_id, type,
        max(CASE WHEN target IS NOT NULL AND type LIKE 'job.%' THEN seq END)
            OVER (PARTITION BY subject ORDER BY seq) AS moved,
        max(CASE WHEN type = 'job.cancel_requested' THEN run END)
            OVER (PARTITION BY subject ORDER BY seq) AS canceled_run
    FROM event WHERE {slice subject}
    AND (type = 'task.leased' OR type = 'job.cancel_requested' OR (target IS NOT NULL AND type LIKE 'job.%'))
) e LEFT JOIN event p ON p.subject = e.subject AND p.seq = e.moved
WHERE e.type = 'task.leased' AND (coalesce(p.target, '') NOT IN ('queued', 'running') OR e.canceled_run = e.run)

-- name: L10
-- No two leases have the same token.
-- columns: first_task, last_task, leases
-- slices: none
SELECT min(task_id), max(task_id), count(*) FROM attempt GROUP BY token_hash HAVING count(*) > 1

-- name: L11
-- Time-dependent: expired leases and elapsed backoffs have been processed.
-- columns: task, status, due_at, lease_expires_at
-- slices: task.id
SELECT id, status, due_at, lease_expires_at FROM task
WHERE {slice id} AND (due_at < :before OR lease_expires_at < :before)

-- name: L12
-- A failed attempt is not followed by another before its backoff has elapsed.
-- columns: task, attempt, ended_at, wait_seconds, next_leased_at
-- slices: event.subject
SELECT a.task_id, a.no, a.ended_at, CAST(e.data AS {json}) ->> 'wait_seconds', b.leased_at
FROM event e
JOIN attempt a ON a.task_id = e.entity_id AND a.no = CAST(CAST(e.data AS {json}) ->> 'attempt' AS {int})
JOIN attempt b ON b.task_id = a.task_id AND b.no = a.no + 1 AND b.run = a.run
WHERE {slice e.subject} AND e.type = 'task.retried'
AND b.leased_at < a.ended_at + CAST(CAST(CAST(e.data AS {json}) ->> 'wait_seconds' AS {real}) * 1000000 AS {int}) - 1

-- name: L13
-- A task is claimable only while it is pending and its job and stage allow claims.
-- columns: task, status, stage_status, job_status
-- slices: task.id
SELECT t.id, t.status, s.status, j.status
FROM task t JOIN stage s ON s.id = t.stage_id JOIN job j ON j.id = t.job_id
WHERE {slice t.id} AND t.ready <> 0
AND (t.ready <> 1 OR t.status NOT IN ('pending', 'retried') OR j.cancel_requested_at IS NOT NULL
    OR j.status NOT IN ('queued', 'running') OR s.status NOT IN ('pending', 'running'))

-- name: L14
-- A pending task whose job and stage allow claims is claimable, or has a time at which it will be.
-- columns: task, status, stage_status, job_status
-- slices: task.id
SELECT t.id, t.status, s.status, j.status
FROM task t JOIN stage s ON s.id = t.stage_id JOIN job j ON j.id = t.job_id
WHERE {slice t.id} AND t.ready = 0 AND t.due_at IS NULL AND t.status IN ('created', 'pending', 'retried')
AND j.cancel_requested_at IS NULL AND j.status IN ('queued', 'running') AND s.status IN ('pending', 'running')

-- name: L15
-- A leased task is due when its lease expires, a submitted one never, one in backoff when the backoff elapses.
-- columns: task, status, due_at, lease_expires_at, ready_at
-- slices: task.id
SELECT t.id, t.status, t.due_at, t.lease_expires_at, t.ready_at FROM task t
LEFT JOIN call c ON c.task_id = t.id AND c.attempt = t.attempts AND c.status IN ('submitted', 'unknown')
WHERE {slice t.id} AND ((t.token_hash IS NULL) <> (t.lease_expires_at IS NULL)
OR CASE WHEN t.status <> 'running' THEN t.token_hash IS NOT NULL
        OR (t.due_at IS NOT NULL AND (t.ready <> 0 OR t.due_at IS DISTINCT FROM t.ready_at OR t.status <> 'retried'))
    WHEN t.token_hash IS NOT NULL THEN t.due_at IS DISTINCT FROM t.lease_expires_at
    ELSE t.due_at IS NOT NULL OR c.id IS NULL END)

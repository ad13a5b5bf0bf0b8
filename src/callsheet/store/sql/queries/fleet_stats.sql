-- Statistics of queues, waits and workers, for estimates and autoscaling. Other tables are read by scalar subqueries:
-- PostgreSQL does not know a LIMIT when it plans, and would join all rows of the other table.
-- {job j}: all columns of a job. IN :x[]: a list parameter. :x[a text, b bigint]: a table made from a list of rows.
-- {lock} is a row lock on PostgreSQL and empty on SQLite, which has one writer.

-- name: clock
SELECT {now}

-- name: live_leases_of_kind
SELECT count(*) FROM (
    SELECT t.lease_expires_at FROM task t
    WHERE t.queue IN (SELECT q.id FROM queue q WHERE q.kind = :kind) AND t.status = 'running' LIMIT :most
) AS leases WHERE leases.lease_expires_at > :now

-- name: last_completed_of_kind
SELECT max(at) FROM (
    SELECT (SELECT t.finished_at FROM task t WHERE t.queue = q.id AND t.status = 'completed'
        ORDER BY t.finished_at DESC LIMIT 1) AS at
    FROM queue q WHERE q.kind = :kind
) AS ends

-- name: durations
SELECT past.duration FROM (
    SELECT (SELECT a.ended_at - a.leased_at FROM attempt a WHERE a.task_id = t.id AND a.no = t.attempts) AS duration
    FROM task t WHERE t.queue = :queue AND t.status = 'completed' ORDER BY t.finished_at DESC LIMIT :count
) AS past WHERE past.duration IS NOT NULL

-- name: job_durations
-- Durations of the newest completed jobs of a queue, found by its newest completed tasks.
SELECT past.job_id, past.duration FROM (
    SELECT d.job_id, d.at, (SELECT j.finished_at - j.started_at FROM job j
        WHERE j.id = d.job_id AND j.status = 'completed') AS duration
    FROM (
        SELECT job_id, max(finished_at) AS at FROM (
            SELECT t.job_id, t.finished_at FROM task t WHERE t.queue = :queue AND t.status = 'completed'
            ORDER BY t.finished_at DESC LIMIT :tasks
        ) AS n GROUP BY job_id
    ) AS d
) AS past WHERE past.duration IS NOT NULL ORDER BY past.at DESC LIMIT :count

-- name: leasing_workers
-- Workers with a lease, and the kinds of their leases. Reads one entry of the index for each pair.
WITH RECURSIVE leasing(worker_id) AS (
    SELECT min(t.worker_id) FROM task t WHERE t.status = 'running' AND t.token_hash IS NOT NULL
    UNION ALL
    SELECT (SELECT min(t.worker_id) FROM task t
        WHERE t.status = 'running' AND t.token_hash IS NOT NULL AND t.worker_id > l.worker_id)
    FROM leasing l WHERE l.worker_id IS NOT NULL
), pair(worker_id, kind) AS (
    SELECT l.worker_id, (SELECT min(t.kind) FROM task t
        WHERE t.status = 'running' AND t.token_hash IS NOT NULL AND t.worker_id = l.worker_id)
    FROM (SELECT l.worker_id FROM leasing l WHERE l.worker_id IS NOT NULL LIMIT :most) AS l
    UNION ALL
    SELECT p.worker_id, (SELECT min(t.kind) FROM task t
        WHERE t.status = 'running' AND t.token_hash IS NOT NULL AND t.worker_id = p.worker_id AND t.kind > p.kind)
    FROM pair p WHERE p.kind IS NOT NULL
)
SELECT p.worker_id, p.kind FROM pair p WHERE p.kind IS NOT NULL LIMIT :most

-- name: live_worker_ids
SELECT w.id FROM worker w WHERE w.status IN ('pending', 'approved') AND w.last_seen_at >= :seen_since

-- name: depths
SELECT q.kind, q.workflow,
    (SELECT count(*) FROM (SELECT 1 FROM task t WHERE t.queue = q.id AND t.ready = 1 LIMIT :most) AS waiting),
    (SELECT count(*) FROM (SELECT 1 FROM task t WHERE t.queue = q.id AND t.status = 'running' LIMIT :most) AS running)
FROM queue q ORDER BY q.kind, q.workflow

-- name: open_calls
-- Open provider calls, and how many of them should have been polled before a time.
SELECT (SELECT count(*) FROM (SELECT 1 FROM call c WHERE c.collect_at IS NOT NULL LIMIT :most) AS open_calls),
    (SELECT count(*) FROM (SELECT 1 FROM call c WHERE c.collect_at < :due_before LIMIT :most) AS overdue)

-- name: jobs_by_status
SELECT s.status, (SELECT count(*) FROM (
    SELECT 1 FROM job j WHERE j.status >= s.status AND j.status <= s.status AND j.status <> 'completed'
    ORDER BY j.status LIMIT :most
) AS counted) FROM :statuses[status text] s

-- name: scale_queues
-- This and the other scale_ queries are the input of autoscaling. Each reads a bounded number of rows, by an index.
SELECT {queue q}, w.running_max, w.rate_max,
    (SELECT count(*) FROM (SELECT 1 FROM task t WHERE t.queue = q.id AND t.ready = 1 LIMIT :most) AS waiting),
    (SELECT count(*) FROM (SELECT 1 FROM task t WHERE t.queue = q.id AND t.status = 'retried'
        AND t.due_at IS NOT NULL LIMIT :most) AS backoff),
    (SELECT count(*) FROM (SELECT 1 FROM task t WHERE t.queue = q.id AND t.status = 'running' LIMIT :most) AS running),
    (SELECT count(*) FROM (SELECT 1 FROM task t WHERE t.queue = q.id AND t.status = 'completed'
        AND t.finished_at > :since ORDER BY t.finished_at DESC LIMIT :counted) AS done),
    (SELECT min(done.finished_at) FROM (SELECT t.finished_at FROM task t WHERE t.queue = q.id AND t.status = 'completed'
        AND t.finished_at > :since ORDER BY t.finished_at DESC LIMIT :counted) AS done)
FROM queue q LEFT JOIN workflow w ON w.name = q.workflow AND w.current = 1

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
    AND t.tenant = n.tenant ORDER BY t.user_rank, t.id LIMIT 1)
FROM line n WHERE n.tenant IS NOT NULL LIMIT :most

-- name: scale_waits
SELECT t.kind, t.created_at, t.ready_at, j.start_at, r.opened_at, s.approved_at,
    (SELECT p.finished_at FROM stage p WHERE p.job_id = t.job_id AND p.no = s.no - 1),
    (SELECT a.ended_at FROM attempt a WHERE a.task_id = t.id AND a.no = t.attempts)
FROM task t JOIN stage s ON s.id = t.stage_id JOIN job j ON j.id = t.job_id
    JOIN run r ON r.job_id = j.id AND r.no = j.run WHERE t.id IN :ids[]

-- name: scale_leases
SELECT l.worker_id, l.kind, count(*), min(l.leased_at) FROM (
    SELECT t.worker_id, t.kind, (SELECT a.leased_at FROM attempt a WHERE a.task_id = t.id AND a.ended_at IS NULL) AS leased_at
    FROM task t WHERE t.status = 'running' AND t.token_hash IS NOT NULL ORDER BY t.worker_id, t.kind LIMIT :most
) AS l GROUP BY l.worker_id, l.kind

-- name: scale_fleet
SELECT w.id, w.created_at, w.status, NULL, w.offered, w.assigned, w.concurrency, w.starts, w.started_at, w.last_seen_at,
    w.approved_at, w.draining_at
FROM worker w WHERE w.status IN ('pending', 'approved')

-- name: scale_arrivals
SELECT new.kind, count(*), min(new.created_at) FROM (
    SELECT t.kind, t.created_at FROM task t WHERE t.id >= :floor ORDER BY t.id DESC LIMIT :most
) AS new WHERE new.created_at > :since GROUP BY new.kind

-- name: scale_failures
SELECT ended.kind, ended.outcome, ended.spot, count(*) FROM (
    SELECT (SELECT t.kind FROM task t WHERE t.id = a.task_id) AS kind, a.outcome,
        CASE WHEN a.error_code = 'spot' THEN 1 ELSE 0 END AS spot
    FROM attempt a WHERE a.outcome IN ('failed', 'lost', 'requeued') AND a.ended_at > :since
    ORDER BY a.ended_at DESC LIMIT :most
) AS ended GROUP BY ended.kind, ended.outcome, ended.spot

-- name: scale_attempts
SELECT past.finished_at, past.duration FROM (
    SELECT t.finished_at,
        (SELECT a.ended_at - a.leased_at FROM attempt a WHERE a.task_id = t.id AND a.no = t.attempts) AS duration
    FROM task t WHERE t.queue = :queue AND t.status = 'completed' ORDER BY t.finished_at DESC LIMIT :count
) AS past WHERE past.duration IS NOT NULL

-- Statistics of queues, waits and workers, for estimates and autoscaling.
-- {job j}: all columns of a job. IN :x[]: a list parameter. :x[a text, b bigint]: a table made from a list of rows.
-- {lock} is a row lock on PostgreSQL and empty on SQLite, which has one writer.

-- name: clock
SELECT {now}

-- name: live_leases_of_kind
SELECT count(*) FROM (
    SELECT 1 FROM task t WHERE t.queue IN (SELECT q.id FROM queue q WHERE q.kind = :kind) AND t.status = 'running'
        AND t.lease_expires_at > :now LIMIT :most
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
-- Durations of the newest completed jobs of a queue, found by its newest completed tasks.
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

-- name: live_worker_ids
SELECT w.id FROM worker w WHERE w.status IN ('pending', 'approved') AND w.last_seen_at >= :seen_since

-- name: depths
SELECT q.kind, q.workflow,
    (SELECT count(*) FROM task t WHERE t.queue = q.id AND t.ready = 1),
    (SELECT count(*) FROM task t WHERE t.queue = q.id AND t.status = 'running')
FROM queue q ORDER BY q.kind, q.workflow

-- name: open_calls
-- Open provider calls, and how many of them should have been polled before a time.
SELECT count(*), count(CASE WHEN c.collect_at < :due_before THEN 1 END) FROM call c WHERE c.collect_at IS NOT NULL

-- name: active_jobs
SELECT j.status, count(*) FROM job j WHERE j.finished_at IS NULL GROUP BY j.status ORDER BY j.status

-- name: scale_queues
-- This and the other scale_ queries are the input of autoscaling. Each reads a bounded number of rows, by an index.
SELECT {queue q}, w.running_max, w.rate_max,
    (SELECT count(*) FROM (SELECT 1 FROM task t WHERE t.queue = q.id AND t.ready = 1 LIMIT :most) AS waiting),
    (SELECT count(*) FROM (SELECT 1 FROM task t WHERE t.queue = q.id AND t.status = 'running' LIMIT :most) AS running),
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
SELECT t.kind, ended.outcome, ended.spot, count(*) FROM (
    SELECT a.task_id, a.outcome, CASE WHEN a.error_code = 'spot' THEN 1 ELSE 0 END AS spot FROM attempt a
    WHERE a.outcome IN ('failed', 'lost', 'requeued') AND a.ended_at > :since ORDER BY a.ended_at DESC LIMIT :most
) AS ended JOIN task t ON t.id = ended.task_id GROUP BY t.kind, ended.outcome, ended.spot

-- name: scale_attempts
SELECT a.ended_at, a.ended_at - a.leased_at FROM (
    SELECT t.id, t.attempts FROM task t WHERE t.queue = :queue AND t.status = 'completed'
    ORDER BY t.finished_at DESC LIMIT :count
) AS d JOIN attempt a ON a.task_id = d.id AND a.no = d.attempts

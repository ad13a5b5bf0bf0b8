-- Rows that the background loops read: due rows, files to check, and the event feed.
-- {job j}: all columns of a job. IN :x[]: a list parameter. :x[a text, b bigint]: a table made from a list of rows.
-- {lock} is a row lock on PostgreSQL and empty on SQLite, which has one writer.

-- name: silent_workers
SELECT w.last_seen_at, w.id FROM worker w
WHERE w.status IN ('pending', 'approved') AND w.last_seen_at <= :now AND (w.last_seen_at, w.id) > (:after_at, :after_id)
ORDER BY w.last_seen_at, w.id LIMIT :count

-- name: due_files
SELECT f.expires_at, f.id FROM file f
WHERE f.expires_at <= :now AND (f.expires_at, f.id) > (:after_at, :after_id)
ORDER BY f.expires_at, f.id LIMIT :count

-- name: files_by_id
SELECT {file f} FROM file f WHERE f.id IN :ids[]

-- name: files_before
SELECT {file f} FROM file f WHERE f.id < :before ORDER BY f.id DESC LIMIT :count

-- name: attempts_and_files
SELECT a.task_id, a.no, a.tenant, a.job_id, a.ended_at, f.no, f.status
FROM :keys[task_id text, no bigint] k CROSS JOIN attempt a
LEFT JOIN file f ON f.task_id = a.task_id AND f.attempt = a.no
WHERE a.task_id = k.task_id AND a.no = k.no

-- name: database_created_at
SELECT min(t.created_at) FROM tenant t

-- name: newest_time
-- Every activity stores its time: in an event, as a contact of a worker, or in the audit log.
SELECT max(at) FROM (
    SELECT (SELECT e.at FROM event e ORDER BY {feed_order_desc} LIMIT 1) AS at
    UNION ALL SELECT max(w.last_seen_at) FROM worker w WHERE w.status IN ('pending', 'approved')
    UNION ALL SELECT (SELECT a.at FROM audit a ORDER BY a.id DESC LIMIT 1)
) AS newest

-- name: due_jobs
SELECT j.due_at, j.id FROM job j WHERE j.due_at <= :now AND (j.due_at, j.id) > (:after_at, :after_id)
ORDER BY j.due_at, j.id LIMIT :count

-- name: due_tasks
SELECT t.due_at, t.id, t.job_id FROM task t WHERE t.due_at <= :now AND (t.due_at, t.id) > (:after_at, :after_id)
ORDER BY t.due_at, t.id LIMIT :count

-- name: due_calls
SELECT c.collect_at, c.id, c.job_id FROM call c WHERE c.collect_at <= :now AND (c.collect_at, c.id) > (:after_at, :after_id)
ORDER BY c.collect_at, c.id LIMIT :count

-- name: events_after
SELECT id, tx, {event e} FROM event e WHERE {after_position} ORDER BY {feed_order} LIMIT :count

-- name: feed_end
SELECT tx, id FROM event e WHERE {after_position} ORDER BY {feed_order_desc} LIMIT 1

-- name: event_transactions
-- The highest transaction of an event or a cursor, and one that no transaction of this database has reached yet.
SELECT max(tx), {next_transaction} FROM (
    SELECT (SELECT e.tx FROM event e ORDER BY {feed_order_desc} LIMIT 1) AS tx UNION ALL SELECT max(c.tx) FROM cursor c
) AS stored

-- name: subjects_not_yet_visible
-- Jobs with committed events that are not in the feed yet, because an older transaction is still open.
SELECT DISTINCT subject FROM (SELECT e.subject FROM event e WHERE {not_yet_visible} ORDER BY {feed_order_desc} LIMIT :count) s

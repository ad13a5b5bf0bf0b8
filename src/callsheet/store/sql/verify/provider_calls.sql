-- Rules of provider calls.
-- The format is described in store/verify/rule_files.py.

-- name: P1
-- An attempt has at most one provider call.
-- columns: task, attempt, calls
-- slices: call.task_id
SELECT task_id, attempt, count(*) FROM call WHERE {slice task_id} GROUP BY task_id, attempt HAVING count(*) > 1

-- name: P2
-- A call is recorded before it is submitted and ends after it: its intent event precedes its submission event.
-- columns: task, attempt, intended_at, submitted_at
-- slices: call.id
SELECT c.task_id, c.attempt, c.intended_at, c.submitted_at FROM call c
WHERE {slice c.id} AND (c.submitted_at < c.intended_at OR c.ended_at < coalesce(c.submitted_at, c.intended_at))
-- slices: call.id
SELECT c.task_id, c.attempt, c.intended_at, c.submitted_at FROM call c WHERE {slice c.id} AND NOT EXISTS (
    SELECT 1 FROM event e WHERE e.subject = c.job_id AND e.entity_id = c.task_id AND e.type = 'task.intended'
    AND CAST(CAST(e.data AS {json}) ->> 'attempt' AS {int}) = c.attempt
    AND NOT EXISTS (
        SELECT 1 FROM event s WHERE s.subject = e.subject AND s.seq < e.seq AND s.entity_id = c.task_id
        AND s.type = 'task.submitted' AND CAST(CAST(s.data AS {json}) ->> 'attempt' AS {int}) = c.attempt))

-- name: P3
-- A provider's reference belongs to one task.
-- columns: provider, first_task, last_task, calls
-- slices: call.id
SELECT c.provider, o.task_id, c.task_id, 2 FROM call c JOIN call o ON o.provider = c.provider AND o.ref = c.ref
WHERE {slice c.id} AND c.ref IS NOT NULL AND o.id < c.id

-- name: P4
-- A callback is stored once per provider and applied at most once. It has a body only while it waits.
-- columns: callback, status, times
-- slices: inbox.id
SELECT id, min(status), count(*) FROM inbox WHERE {slice id} GROUP BY id HAVING count(*) > 1
-- slices: inbox.id
SELECT id, status, 1 FROM inbox
WHERE {slice id} AND (substr(id, 1, length(provider) + 1) <> provider || '/' OR (status = 'waiting') <> (body IS NOT NULL)
OR status NOT IN ('waiting', 'applied', 'skipped'))

-- name: P5
-- A callback that was applied or skipped names a known call.
-- columns: callback, status
-- slices: inbox.id
SELECT i.id, i.status FROM inbox i LEFT JOIN call c ON c.id = i.call_id AND c.provider = i.provider
LEFT JOIN call r ON r.provider = i.provider AND r.ref = i.ref
WHERE {slice i.id} AND i.status <> 'waiting' AND c.id IS NULL AND r.id IS NULL

-- name: P6
-- A submitted call has a reference, and every call that has not ended has a time at which it is polled.
-- columns: call, status, submitted_at, collect_at, ended_at
-- slices: call.id
SELECT id, status, submitted_at, collect_at, ended_at FROM call
WHERE {slice id} AND ((status = 'ended') <> (ended_at IS NOT NULL) OR (ended_at IS NULL) <> (outcome IS NULL)
OR (ref IS NULL) <> (submitted_at IS NULL)
OR CASE status WHEN 'intended' THEN ref IS NOT NULL WHEN 'submitted' THEN ref IS NULL OR collect_at IS NULL
    WHEN 'unknown' THEN ref IS NOT NULL OR collect_at IS NULL ELSE status <> 'ended' OR collect_at IS NOT NULL END)

-- name: P7
-- A call is open exactly as long as its attempt, unless it ended first.
-- columns: call, task, attempt, status
-- slices: call.id
SELECT c.id, c.task_id, c.attempt, c.status
FROM call c LEFT JOIN attempt a ON a.task_id = c.task_id AND a.no = c.attempt
WHERE {slice c.id} AND (a.no IS NULL OR (c.ended_at IS NULL AND a.ended_at IS NOT NULL))

-- name: P8
-- A callback waits only while its reference is unknown.
-- columns: callback, call
-- slices: inbox.id
SELECT i.id, c.id FROM inbox i JOIN call c ON c.provider = i.provider AND c.ref = i.ref
WHERE {slice i.id} AND i.status NOT IN ('applied', 'skipped')
-- slices: inbox.id
SELECT i.id, c.id FROM inbox i JOIN call c ON c.id = i.call_id AND c.provider = i.provider
WHERE {slice i.id} AND i.status NOT IN ('applied', 'skipped') AND c.ref IS DISTINCT FROM i.ref

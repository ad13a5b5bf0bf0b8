-- Rules of provider calls.
-- Each block finds the rows that break one rule; on a consistent database no block finds a row.
-- Its first comment is the rule, its second names the columns: ids and numbers, never a secret.
-- {job_ended}, {stage_ended} and {task_ended} are terminal statuses, {moves} the legal moves. {before} is the time
-- before which everything that was due must have been processed.

-- name: P1
-- An attempt has at most one provider call.
-- columns: task, attempt, calls
SELECT task_id, attempt, count(*) FROM call GROUP BY task_id, attempt HAVING count(*) > 1

-- name: P2
-- A call is recorded before it is submitted and ends after it: its intent event precedes its submission event.
-- columns: task, attempt, intended_at, submitted_at
SELECT c.task_id, c.attempt, c.intended_at, c.submitted_at FROM call c
WHERE c.submitted_at < c.intended_at OR c.ended_at < coalesce(c.submitted_at, c.intended_at) OR NOT EXISTS (
    SELECT 1 FROM event e WHERE e.subject = c.job_id AND e.entity_id = c.task_id AND e.type = 'task.intended'
    AND CAST(CAST(e.data AS {json}) ->> 'attempt' AS {int}) = c.attempt
    AND NOT EXISTS (
        SELECT 1 FROM event s WHERE s.subject = c.job_id AND s.entity_id = c.task_id AND s.type = 'task.submitted'
        AND CAST(CAST(s.data AS {json}) ->> 'attempt' AS {int}) = c.attempt AND s.seq < e.seq))

-- name: P3
-- A provider's reference belongs to one task.
-- columns: provider, first_task, last_task, calls
SELECT provider, min(task_id), max(task_id), count(*) FROM call
WHERE ref IS NOT NULL GROUP BY provider, ref HAVING count(*) > 1

-- name: P4
-- A callback is stored once per provider and applied at most once. It has a body only while it waits.
-- columns: callback, status, times
SELECT id, min(status), count(*) FROM inbox GROUP BY id HAVING count(*) > 1
UNION ALL SELECT id, status, 1 FROM inbox
WHERE substr(id, 1, length(provider) + 1) <> provider || '/' OR (status = 'waiting') <> (body IS NOT NULL)
OR status NOT IN ('waiting', 'applied', 'skipped')

-- name: P5
-- A callback that was applied or skipped names a known call.
-- columns: callback, status
SELECT i.id, i.status FROM inbox i WHERE i.status <> 'waiting'
AND NOT EXISTS (SELECT 1 FROM call c WHERE c.id = i.call_id AND c.provider = i.provider)
AND NOT EXISTS (SELECT 1 FROM call c WHERE c.provider = i.provider AND c.ref = i.ref)

-- name: P6
-- A submitted call has a reference, and every call that has not ended has a time at which it is polled.
-- columns: call, status, submitted_at, collect_at, ended_at
SELECT id, status, submitted_at, collect_at, ended_at FROM call
WHERE (status = 'ended') <> (ended_at IS NOT NULL) OR (ended_at IS NULL) <> (outcome IS NULL)
OR (ref IS NULL) <> (submitted_at IS NULL)
OR CASE status WHEN 'intended' THEN ref IS NOT NULL WHEN 'submitted' THEN ref IS NULL OR collect_at IS NULL
    WHEN 'unknown' THEN ref IS NOT NULL OR collect_at IS NULL ELSE status <> 'ended' OR collect_at IS NOT NULL END

-- name: P7
-- A call is open exactly as long as its attempt, unless it ended first.
-- columns: call, task, attempt, status
SELECT c.id, c.task_id, c.attempt, c.status
FROM call c LEFT JOIN attempt a ON a.task_id = c.task_id AND a.no = c.attempt
WHERE a.no IS NULL OR (c.ended_at IS NULL AND a.ended_at IS NOT NULL)

-- name: P8
-- A callback waits only while its reference is unknown.
-- columns: callback, call
SELECT i.id, c.id FROM inbox i JOIN call c ON c.provider = i.provider AND (c.ref = i.ref OR c.id = i.call_id)
WHERE i.status = 'waiting'

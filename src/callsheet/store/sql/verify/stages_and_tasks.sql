-- Rules of stages, tasks and their order.
-- Each block finds the rows that break one rule; on a consistent database no block finds a row.
-- Its first comment is the rule, its second names the columns: ids and numbers, never a secret.
-- {job_ended}, {stage_ended} and {task_ended} are terminal statuses, {moves} the legal moves. {before} is the time
-- before which everything that was due must have been processed.

-- name: G1
-- No stage and no task starts before all earlier stages are completed.
-- columns: job, stage, stage_no, open_stage_no
SELECT s.job_id, s.id, s.no, p.no FROM stage s JOIN stage p ON p.job_id = s.job_id AND p.no < s.no
WHERE p.status <> 'completed' AND (s.status NOT IN ('created', 'canceled') OR EXISTS (
    SELECT 1 FROM task t WHERE t.stage_id = s.id AND (t.attempts > 0 OR t.status NOT IN ('created', 'canceled'))))

-- name: G2
-- A stage is completed exactly when it has tasks and all of them are completed, unless it waits for approval.
-- columns: stage, status, tasks, completed
SELECT s.id, s.status, coalesce(t.counted, 0), coalesce(t.done, 0) FROM stage s LEFT JOIN (
    SELECT stage_id, count(*) AS counted, sum(CASE WHEN status = 'completed' THEN 1 ELSE 0 END) AS done
    FROM task GROUP BY stage_id
) t ON t.stage_id = s.id
WHERE CASE s.status WHEN 'completed' THEN t.counted IS NULL OR t.done < t.counted
    WHEN 'pending' THEN t.done = t.counted WHEN 'running' THEN t.done = t.counted ELSE 1 = 0 END

-- name: G3
-- A job is completed exactly when it has stages and all of them are completed.
-- columns: job, status, stages, completed
SELECT j.id, j.status, count(s.id), count(CASE WHEN s.status = 'completed' THEN 1 END)
FROM job j LEFT JOIN stage s ON s.job_id = j.id GROUP BY j.id, j.status
HAVING (j.status = 'completed') <> (count(s.id) > 0 AND count(s.id) = count(CASE WHEN s.status = 'completed' THEN 1 END))

-- name: G4
-- A task without attempts left has failed, and so have its stage and job. Without a failed task, no stage or job fails.
-- columns: job, stage, task, task_status, stage_status, job_status
SELECT j.id, s.id, t.id, t.status, s.status, j.status
FROM task t JOIN stage s ON s.id = t.stage_id JOIN job j ON j.id = t.job_id
WHERE (t.status = 'failed' AND (s.status <> 'failed' OR j.status <> 'failed'))
OR (t.status = 'retried' AND (t.attempts_counted >= t.attempts_max OR t.requeues > t.requeues_max))
UNION ALL SELECT s.job_id, s.id, NULL, NULL, s.status, NULL FROM stage s
WHERE s.status = 'failed' AND NOT EXISTS (SELECT 1 FROM task t WHERE t.stage_id = s.id AND t.status = 'failed')
UNION ALL SELECT j.id, NULL, NULL, NULL, NULL, j.status FROM job j
WHERE j.status = 'failed' AND NOT EXISTS (SELECT 1 FROM stage s WHERE s.job_id = j.id AND s.status = 'failed')

-- name: G5
-- An ended job or stage has no open stage, task, lease or call.
-- columns: job, what, id
SELECT j.id, 'stage', s.id FROM stage s JOIN job j ON j.id = s.job_id
WHERE j.finished_at IS NOT NULL AND s.status NOT IN {stage_ended}
UNION ALL SELECT t.job_id, 'task', t.id FROM task t JOIN stage s ON s.id = t.stage_id
WHERE s.status IN {stage_ended} AND t.status NOT IN {task_ended}
UNION ALL SELECT a.job_id, 'attempt', a.task_id FROM attempt a JOIN job j ON j.id = a.job_id
WHERE a.ended_at IS NULL AND j.finished_at IS NOT NULL
UNION ALL SELECT c.job_id, 'call', c.id FROM call c JOIN job j ON j.id = c.job_id
WHERE c.ended_at IS NULL AND j.finished_at IS NOT NULL

-- name: G6
-- A stage that needs approval runs only with the name of its approver; a waiting one has no approver.
-- columns: stage, status, approved_at
SELECT id, status, approved_at FROM stage
WHERE (approval = 1 AND status IN ('pending', 'running', 'completed') AND coalesce(approved_by, '') = '')
OR (status = 'waiting' AND approved_at IS NOT NULL) OR (approved_by IS NULL) <> (approved_at IS NULL)

-- name: G11
-- A job has waiting_at exactly while one of its stages waits for approval.
-- columns: job, waiting_at
SELECT j.id, j.waiting_at FROM job j
WHERE (j.waiting_at IS NOT NULL) <> EXISTS (SELECT 1 FROM stage s WHERE s.job_id = j.id AND s.status = 'waiting')
OR j.waiting_at < j.created_at

-- name: G7
-- Attempts and requeues stay within their limits; the requeue that exceeds the limit ends the task.
-- columns: task, status, attempts_counted, attempts_max, requeues, requeues_max
SELECT id, status, attempts_counted, attempts_max, requeues, requeues_max FROM task
WHERE attempts_counted < 0 OR attempts_counted > attempts_max
OR requeues < 0 OR requeues > requeues_max + CASE WHEN status IN ('failed', 'canceled') THEN 1 ELSE 0 END

-- name: G8
-- Attempts and requeues add up to the leases of the task's run.
-- columns: task, attempts_counted, requeues, leases
SELECT t.id, t.attempts_counted, t.requeues, count(a.no) FROM task t JOIN job j ON j.id = t.job_id
LEFT JOIN attempt a ON a.task_id = t.id AND a.run = CASE WHEN t.status = 'completed'
    THEN (SELECT l.run FROM attempt l WHERE l.task_id = t.id AND l.no = t.attempts) ELSE j.run END
GROUP BY t.id, t.attempts_counted, t.requeues HAVING count(a.no) <> t.attempts_counted + t.requeues

-- name: G9
-- Every row has its parent row, with the same job, tenant and user.
-- columns: what, id
SELECT 'wallet', w.id FROM wallet w WHERE w.id <> w.tenant || '/' || w.user_id
UNION ALL SELECT 'job', j.id FROM job j LEFT JOIN wallet w ON w.id = j.wallet_id LEFT JOIN tenant n ON n.id = j.tenant
WHERE n.id IS NULL OR w.tenant IS DISTINCT FROM j.tenant OR w.user_id IS DISTINCT FROM j.user_id
UNION ALL SELECT 'run', r.job_id FROM run r LEFT JOIN job j ON j.id = r.job_id WHERE j.tenant IS DISTINCT FROM r.tenant
UNION ALL SELECT 'stage', s.id FROM stage s LEFT JOIN job j ON j.id = s.job_id WHERE j.tenant IS DISTINCT FROM s.tenant
UNION ALL SELECT 'task', t.id FROM task t LEFT JOIN stage s ON s.id = t.stage_id
WHERE s.tenant IS DISTINCT FROM t.tenant OR s.job_id IS DISTINCT FROM t.job_id
UNION ALL SELECT 'task', t.id FROM task t JOIN job j ON j.id = t.job_id WHERE t.user_id <> j.user_id
UNION ALL SELECT 'attempt', a.task_id FROM attempt a LEFT JOIN task t ON t.id = a.task_id
WHERE t.tenant IS DISTINCT FROM a.tenant OR t.job_id IS DISTINCT FROM a.job_id
UNION ALL SELECT 'call', c.id FROM call c LEFT JOIN task t ON t.id = c.task_id
WHERE t.tenant IS DISTINCT FROM c.tenant OR t.job_id IS DISTINCT FROM c.job_id
UNION ALL SELECT 'document', d.owner_id FROM document d LEFT JOIN job j ON j.id = d.job_id WHERE j.id IS NULL
UNION ALL SELECT 'event', e.subject FROM event e LEFT JOIN job j ON j.id = e.subject
WHERE j.tenant IS DISTINCT FROM e.tenant AND (e.type LIKE 'job.%' OR e.type LIKE 'stage.%' OR e.type LIKE 'task.%')

-- name: G10
-- A stage's counts match its tasks, and a job's counts match its stages.
-- columns: what, id, total, counted, completed, counted_completed
SELECT 'stage', s.id, s.tasks_total, coalesce(t.counted, 0), s.tasks_completed, coalesce(t.done, 0)
FROM stage s LEFT JOIN (
    SELECT stage_id, count(*) AS counted, count(CASE WHEN status = 'running' THEN 1 END) AS active,
        count(CASE WHEN status = 'completed' THEN 1 END) AS done, count(CASE WHEN status = 'failed' THEN 1 END) AS failed,
        count(CASE WHEN status = 'canceled' THEN 1 END) AS canceled
    FROM task GROUP BY stage_id
) t ON t.stage_id = s.id
WHERE s.tasks_total <> coalesce(t.counted, 0) OR s.tasks_running <> coalesce(t.active, 0)
OR s.tasks_completed <> coalesce(t.done, 0) OR s.tasks_failed <> coalesce(t.failed, 0)
OR s.tasks_canceled <> coalesce(t.canceled, 0)
UNION ALL SELECT 'job', j.id, j.stages_total, coalesce(s.counted, 0), j.stages_completed, coalesce(s.done, 0)
FROM job j LEFT JOIN (
    SELECT job_id, count(*) AS counted, count(CASE WHEN status = 'completed' THEN 1 END) AS done
    FROM stage GROUP BY job_id
) s ON s.job_id = j.id
WHERE j.stages_total <> coalesce(s.counted, 0) OR j.stages_completed <> coalesce(s.done, 0)

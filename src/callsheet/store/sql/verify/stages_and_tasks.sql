-- Rules of stages, tasks and their order.
-- The format is described in store/verify/rule_files.py.

-- name: G1
-- No stage and no task starts before all earlier stages are completed.
-- columns: job, stage, stage_no, open_stage_no
-- slices: stage.job_id
SELECT s.job_id, s.id, s.no, p.no FROM stage s JOIN stage p ON p.job_id = s.job_id AND p.no < s.no
WHERE {slice s.job_id} AND p.status <> 'completed' AND s.status NOT IN ('created', 'canceled')
-- slices: stage.job_id
SELECT s.job_id, s.id, s.no, p.no FROM stage s JOIN stage p ON p.job_id = s.job_id AND p.no < s.no
WHERE {slice s.job_id} AND p.status <> 'completed' AND EXISTS (
    SELECT 1 FROM task t WHERE t.stage_id = s.id AND (t.attempts > 0 OR t.status NOT IN ('created', 'canceled')))

-- name: G2
-- A stage is completed exactly when it has tasks and all of them are completed, unless it waits for approval.
-- columns: stage, status, tasks, completed
-- slices: stage.id
SELECT s.id, s.status, count(t.id), count(CASE WHEN t.status = 'completed' THEN 1 END)
FROM stage s LEFT JOIN task t ON t.stage_id = s.id WHERE {slice s.id} GROUP BY s.id, s.status
HAVING CASE WHEN s.status = 'completed'
        THEN count(t.id) = 0 OR count(CASE WHEN t.status = 'completed' THEN 1 END) < count(t.id)
    WHEN s.status IN ('pending', 'running')
        THEN count(t.id) > 0 AND count(CASE WHEN t.status = 'completed' THEN 1 END) = count(t.id)
    ELSE 1 = 0 END

-- name: G3
-- A job is completed exactly when it has stages and all of them are completed.
-- columns: job, status, stages, completed
-- slices: job.id
SELECT j.id, j.status, count(s.id), count(CASE WHEN s.status = 'completed' THEN 1 END)
FROM job j LEFT JOIN stage s ON s.job_id = j.id WHERE {slice j.id} GROUP BY j.id, j.status
HAVING (j.status = 'completed') <> (count(s.id) > 0 AND count(s.id) = count(CASE WHEN s.status = 'completed' THEN 1 END))

-- name: G4
-- A task without attempts left has failed, and so have its stage and job. Without a failed task, no stage or job fails.
-- columns: job, stage, task, task_status, stage_status, job_status
-- slices: task.id
SELECT j.id, s.id, t.id, t.status, s.status, j.status
FROM task t JOIN stage s ON s.id = t.stage_id JOIN job j ON j.id = t.job_id
WHERE {slice t.id} AND ((t.status = 'failed' AND (s.status <> 'failed' OR j.status <> 'failed'))
OR (t.status = 'retried' AND (t.attempts_counted >= t.attempts_max OR t.requeues > t.requeues_max)))
-- slices: stage.id
SELECT s.job_id, s.id, NULL, NULL, s.status, NULL FROM stage s WHERE {slice s.id} AND s.status = 'failed'
AND NOT EXISTS (SELECT 1 FROM task t WHERE t.stage_id = s.id AND t.status = 'failed')
-- slices: job.id
SELECT j.id, NULL, NULL, NULL, NULL, j.status FROM job j WHERE {slice j.id} AND j.status = 'failed'
AND NOT EXISTS (SELECT 1 FROM stage s WHERE s.job_id = j.id AND s.status = 'failed')

-- name: G5
-- An ended job or stage has no open stage, task, lease or call.
-- columns: job, what, id
-- slices: stage.id
SELECT j.id, 'stage', s.id FROM stage s JOIN job j ON j.id = s.job_id
WHERE {slice s.id} AND j.finished_at IS NOT NULL AND s.status NOT IN {stage_ended}
-- slices: task.id
SELECT t.job_id, 'task', t.id FROM task t JOIN stage s ON s.id = t.stage_id
WHERE {slice t.id} AND s.status IN {stage_ended} AND t.status NOT IN {task_ended}
-- slices: attempt.task_id
SELECT a.job_id, 'attempt', a.task_id FROM attempt a JOIN job j ON j.id = a.job_id
WHERE {slice a.task_id} AND a.ended_at IS NULL AND j.finished_at IS NOT NULL
-- slices: call.id
SELECT c.job_id, 'call', c.id FROM call c JOIN job j ON j.id = c.job_id
WHERE {slice c.id} AND c.ended_at IS NULL AND j.finished_at IS NOT NULL

-- name: G6
-- A stage that needs approval runs only with the name of its approver; a waiting one has no approver.
-- columns: stage, status, approved_at
-- slices: stage.id
SELECT id, status, approved_at FROM stage
WHERE {slice id} AND ((approval = 1 AND status IN ('pending', 'running', 'completed') AND coalesce(approved_by, '') = '')
OR (status = 'waiting' AND approved_at IS NOT NULL) OR (approved_by IS NULL) <> (approved_at IS NULL))

-- name: G11
-- A job has waiting_at exactly while one of its stages waits for approval.
-- columns: job, waiting_at
-- slices: job.id
SELECT j.id, j.waiting_at FROM job j LEFT JOIN stage s ON s.job_id = j.id AND s.status = 'waiting'
WHERE {slice j.id} GROUP BY j.id, j.waiting_at, j.created_at
HAVING (j.waiting_at IS NOT NULL) <> (count(s.id) > 0) OR j.waiting_at < j.created_at

-- name: G7
-- Attempts and requeues stay within their limits; the requeue that exceeds the limit ends the task.
-- columns: task, status, attempts_counted, attempts_max, requeues, requeues_max
-- slices: task.id
SELECT id, status, attempts_counted, attempts_max, requeues, requeues_max FROM task
WHERE {slice id} AND (attempts_counted < 0 OR attempts_counted > attempts_max
OR requeues < 0 OR requeues > requeues_max + CASE WHEN status IN ('failed', 'canceled') THEN 1 ELSE 0 END)

-- name: G8
-- Attempts and requeues add up to the leases of the task's run.
-- columns: task, attempts_counted, requeues, leases
-- slices: task.id
SELECT t.id, t.attempts_counted, t.requeues, count(a.no) FROM task t JOIN job j ON j.id = t.job_id
LEFT JOIN attempt l ON l.task_id = t.id AND l.no = t.attempts
LEFT JOIN attempt a ON a.task_id = t.id AND a.run = CASE WHEN t.status = 'completed' THEN l.run ELSE j.run END
WHERE {slice t.id}
GROUP BY t.id, t.attempts_counted, t.requeues HAVING count(a.no) <> t.attempts_counted + t.requeues

-- name: G9
-- Every row has its parent row, with the same job, tenant and user.
-- columns: what, id
-- slices: wallet.id
SELECT 'wallet', w.id FROM wallet w WHERE {slice w.id} AND w.id <> w.tenant || '/' || w.user_id
-- slices: job.id
SELECT 'job', j.id FROM job j LEFT JOIN wallet w ON w.id = j.wallet_id LEFT JOIN tenant n ON n.id = j.tenant
WHERE {slice j.id}
AND (n.id IS NULL OR w.tenant IS DISTINCT FROM j.tenant OR w.user_id IS DISTINCT FROM j.user_id)
-- slices: run.job_id
SELECT 'run', r.job_id FROM run r LEFT JOIN job j ON j.id = r.job_id
WHERE {slice r.job_id} AND j.tenant IS DISTINCT FROM r.tenant
-- slices: stage.id
SELECT 'stage', s.id FROM stage s LEFT JOIN job j ON j.id = s.job_id
WHERE {slice s.id} AND j.tenant IS DISTINCT FROM s.tenant
-- slices: task.id
SELECT 'task', t.id FROM task t LEFT JOIN stage s ON s.id = t.stage_id
WHERE {slice t.id} AND (s.tenant IS DISTINCT FROM t.tenant OR s.job_id IS DISTINCT FROM t.job_id)
-- slices: task.id
SELECT 'task', t.id FROM task t JOIN job j ON j.id = t.job_id WHERE {slice t.id} AND t.user_id <> j.user_id
-- slices: attempt.task_id
SELECT 'attempt', a.task_id FROM attempt a LEFT JOIN task t ON t.id = a.task_id
WHERE {slice a.task_id} AND (t.tenant IS DISTINCT FROM a.tenant OR t.job_id IS DISTINCT FROM a.job_id)
-- slices: call.id
SELECT 'call', c.id FROM call c LEFT JOIN task t ON t.id = c.task_id
WHERE {slice c.id} AND (t.tenant IS DISTINCT FROM c.tenant OR t.job_id IS DISTINCT FROM c.job_id)
-- slices: document.owner_id
SELECT 'document', d.owner_id FROM document d LEFT JOIN job j ON j.id = d.job_id
WHERE {slice d.owner_id} AND j.id IS NULL
-- slices: event.subject
SELECT 'event', e.subject FROM (
    SELECT subject, tenant FROM event
    WHERE {slice subject} AND (type LIKE 'job.%' OR type LIKE 'stage.%' OR type LIKE 'task.%') GROUP BY subject, tenant
) e LEFT JOIN job j ON j.id = e.subject WHERE j.tenant IS DISTINCT FROM e.tenant

-- name: G10
-- A stage's counts match its tasks, and a job's counts match its stages.
-- columns: what, id, total, counted, completed, counted_completed
-- slices: stage.id
SELECT 'stage', s.id, s.tasks_total, count(t.id), s.tasks_completed, count(CASE WHEN t.status = 'completed' THEN 1 END)
FROM stage s LEFT JOIN task t ON t.stage_id = s.id WHERE {slice s.id}
GROUP BY s.id, s.tasks_total, s.tasks_running, s.tasks_completed, s.tasks_failed, s.tasks_canceled
HAVING s.tasks_total <> count(t.id) OR s.tasks_running <> count(CASE WHEN t.status = 'running' THEN 1 END)
OR s.tasks_completed <> count(CASE WHEN t.status = 'completed' THEN 1 END)
OR s.tasks_failed <> count(CASE WHEN t.status = 'failed' THEN 1 END)
OR s.tasks_canceled <> count(CASE WHEN t.status = 'canceled' THEN 1 END)
-- slices: job.id
SELECT 'job', j.id, j.stages_total, count(s.id), j.stages_completed, count(CASE WHEN s.status = 'completed' THEN 1 END)
FROM job j LEFT JOIN stage s ON s.job_id = j.id WHERE {slice j.id}
GROUP BY j.id, j.stages_total, j.stages_completed
HAVING j.stages_total <> count(s.id) OR j.stages_completed <> count(CASE WHEN s.status = 'completed' THEN 1 END)

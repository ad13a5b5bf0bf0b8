-- Rules of submissions, jobs and runs.
-- The format is described in store/verify/rule_files.py.

-- name: S1
-- A user has one job per idempotency key, and a key belongs to its user, or to the job that is retried.
-- columns: first_job, last_job, jobs
-- slices: job.id
SELECT o.id, j.id, 2 FROM job j JOIN job o ON o.dedup_key = j.dedup_key
WHERE {slice j.id} AND j.dedup_key IS NOT NULL AND o.id < j.id
-- slices: job.id
SELECT id, id, 1 FROM (
    SELECT id, dedup_key, CASE WHEN retry_of IS NULL THEN tenant || '/' || length(user_id) || '/' || user_id || '/'
        ELSE 'retry/' || retry_of || '/' END AS own
    FROM job WHERE {slice id} AND dedup_key IS NOT NULL
) j WHERE substr(dedup_key, 1, length(own)) <> own

-- name: S2
-- One idempotency key belongs to one request body.
-- columns: first_job, last_job, requests
-- slices: job.id
SELECT o.id, j.id, 2 FROM job j JOIN job o ON o.dedup_key = j.dedup_key
WHERE {slice j.id} AND j.dedup_key IS NOT NULL AND o.id < j.id AND o.fingerprint <> j.fingerprint

-- name: S3
-- A user has no more active jobs than the tenant's limit when the last of them was created.
-- columns: wallet, active, active_jobs_max
-- slices: wallet.id
SELECT j.wallet_id, count(*), t.active_jobs_max FROM wallet w JOIN job j ON j.wallet_id = w.id
JOIN tenant t ON t.id = j.tenant JOIN run r ON r.job_id = j.id AND r.no = j.run
WHERE {slice w.id} AND j.finished_at IS NULL AND t.active_jobs_max IS NOT NULL
GROUP BY j.wallet_id, t.active_jobs_max, t.updated_at
HAVING count(*) > t.active_jobs_max AND max(r.opened_at) > t.updated_at

-- name: S5
-- A retry as a new job refers to a failed or expired job of the same user.
-- columns: job, retry_of
-- slices: job.id
SELECT j.id, j.retry_of FROM job j LEFT JOIN job o ON o.id = j.retry_of
WHERE {slice j.id} AND j.retry_of IS NOT NULL AND o.wallet_id IS DISTINCT FROM j.wallet_id
-- slices: job.id
SELECT j.id, j.retry_of FROM job j WHERE {slice j.id} AND j.retry_of IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM run r WHERE r.job_id = j.retry_of AND r.status IN ('failed', 'expired')
    AND r.finished_at <= j.created_at)

-- name: J1
-- Every transition is a legal move of its state machine for its actor.
-- columns: job, event, type, source, target, actor
-- slices: event.subject
SELECT e.subject, e.seq, e.type, e.source, e.target, e.actor FROM event e
WHERE {slice e.subject} AND e.target IS NOT NULL
AND (e.type, coalesce(e.source, 'new'), e.target, coalesce(e.actor, '')) NOT IN (VALUES {moves})

-- name: J2
-- A job's transitions form one chain: each begins where the one before it ended.
-- columns: job, event, source, before
-- slices: event.subject
SELECT subject, seq, source, before FROM (
    SELECT subject, seq, source, lag(target) OVER (PARTITION BY subject ORDER BY seq) AS before
    FROM event WHERE {slice subject} AND target IS NOT NULL AND type LIKE 'job.%'
) e WHERE source IS DISTINCT FROM before

-- name: J3
-- A job's events are numbered from 1 without a gap, and the job stores the last number.
-- columns: job, seq, events, first, last
-- slices: job.id
SELECT j.id, j.seq, count(e.seq), min(e.seq), max(e.seq) FROM job j LEFT JOIN event e ON e.subject = j.id
WHERE {slice j.id} GROUP BY j.id, j.seq
HAVING count(e.seq) <> j.seq OR count(e.seq) = 0 OR max(e.seq) <> j.seq OR min(e.seq) <> 1

-- name: J4
-- A job's events never go back in time.
-- columns: job, event, at, before
-- slices: event.subject
SELECT subject, seq, at, before FROM (
    SELECT subject, seq, at, lag(at) OVER (PARTITION BY subject ORDER BY seq) AS before FROM event WHERE {slice subject}
) e WHERE at < before

-- name: J5
-- A job is in the status and the run of its last transition.
-- columns: job, status, run, last_target, last_run
-- slices: job.id
SELECT id, status, run, last_target, last_run FROM (
    SELECT j.id, j.status, j.run, e.target AS last_target, e.run AS last_run,
        row_number() OVER (PARTITION BY j.id ORDER BY e.seq DESC) AS newest
    FROM job j LEFT JOIN event e ON e.subject = j.id AND e.target IS NOT NULL AND e.type LIKE 'job.%'
    WHERE {slice j.id}
) e WHERE newest = 1 AND (last_target IS DISTINCT FROM status OR last_run IS DISTINCT FROM run)

-- name: J6
-- A job leaves a terminal status only with a new run, and only then does its run number change.
-- columns: job, event, source, run, run_before
-- slices: event.subject
SELECT subject, seq, source, run, before FROM (
    SELECT subject, seq, source, run, lag(run) OVER (PARTITION BY subject ORDER BY seq) AS before
    FROM event WHERE {slice subject} AND target IS NOT NULL AND type LIKE 'job.%'
) e WHERE run <> CASE WHEN source IN {job_ended} THEN before + 1 ELSE before END

-- name: J7
-- A terminal row has an end time, others have none, created <= started <= finished, and a job is older than its runs and stages.
-- columns: what, id, status, created_at, started_at, finished_at
-- slices: job.id
SELECT 'job', id, status, created_at, started_at, finished_at FROM job
WHERE {slice id} AND ((status IN {job_ended}) <> (finished_at IS NOT NULL) OR started_at < created_at
OR finished_at < coalesce(started_at, created_at))
-- slices: run.job_id
SELECT 'run', r.job_id, r.status, coalesce(r.opened_at, j.created_at), r.started_at, r.finished_at
FROM run r LEFT JOIN job j ON j.id = r.job_id
WHERE {slice r.job_id} AND ((r.status <> 'open') <> (r.finished_at IS NOT NULL) OR r.started_at < r.opened_at
OR r.finished_at < coalesce(r.started_at, r.opened_at) OR r.opened_at < j.created_at)
-- slices: stage.id
SELECT 'stage', s.id, s.status, s.created_at, s.started_at, s.finished_at
FROM stage s LEFT JOIN job j ON j.id = s.job_id
WHERE {slice s.id} AND ((s.status IN {stage_ended}) <> (s.finished_at IS NOT NULL) OR s.started_at < s.created_at
OR s.finished_at < coalesce(s.started_at, s.created_at) OR s.created_at < j.created_at)
-- slices: task.id
SELECT 'task', id, status, created_at, started_at, finished_at FROM task
WHERE {slice id} AND ((status IN {task_ended}) <> (finished_at IS NOT NULL) OR started_at < created_at
OR finished_at < coalesce(started_at, created_at))

-- name: J8
-- A row that ended without completing has an error code; others have none.
-- columns: what, job, run, status, error_code
-- slices: job.id
SELECT 'job', id, run, status, error_code FROM job
WHERE {slice id} AND (error_code IS NULL) = (status IN {job_ended} AND status <> 'completed')
-- slices: run.job_id
SELECT 'run', job_id, no, status, error_code FROM run
WHERE {slice job_id} AND (error_code IS NULL) = (status NOT IN ('open', 'completed'))

-- name: J9
-- An ended run matches its terminal event, and an ended job matches its last run.
-- columns: what, job, run, status, expected
-- slices: event.subject
SELECT 'run', r.job_id, r.no, r.status, e.target FROM event e JOIN run r ON r.job_id = e.subject AND r.no = e.run
WHERE {slice e.subject} AND e.target IN {job_ended} AND e.type LIKE 'job.%' AND (e.target <> r.status OR e.at <> r.finished_at
OR CAST(CAST(e.data AS {json}) ->> 'price' AS {int}) IS DISTINCT FROM r.price
OR CAST(CAST(e.data AS {json}) ->> 'consumed' AS {int}) IS DISTINCT FROM r.consumed
OR CAST(CAST(e.data AS {json}) ->> 'refunded' AS {int}) IS DISTINCT FROM r.refunded
OR CAST(e.data AS {json}) ->> 'code' IS DISTINCT FROM r.error_code)
-- slices: job.id
SELECT 'job', j.id, r.no, j.status, r.status FROM job j JOIN run r ON r.job_id = j.id
WHERE {slice j.id} AND CASE WHEN r.no < j.run THEN r.status = 'open'
    ELSE r.status <> CASE WHEN j.finished_at IS NULL THEN 'open' ELSE j.status END
    OR r.finished_at IS DISTINCT FROM j.finished_at OR r.error_code IS DISTINCT FROM j.error_code
    OR (j.finished_at IS NOT NULL AND r.started_at IS DISTINCT FROM j.started_at) END

-- name: J10
-- A job's runs are numbered from 1 without a gap up to the job's own; a blocked job has none.
-- columns: job, run, runs, first, last
-- slices: job.id
SELECT j.id, j.run, count(r.no), min(r.no), max(r.no) FROM job j LEFT JOIN run r ON r.job_id = j.id
WHERE {slice j.id} GROUP BY j.id, j.run, j.status
HAVING count(r.no) <> j.run OR max(r.no) <> count(r.no) OR min(r.no) <> 1 OR (j.run = 0) <> (j.status = 'blocked')

-- name: J11
-- A canceled job has a cancel request.
-- columns: job, run
-- slices: job.id
SELECT id, run FROM job WHERE {slice id} AND status = 'canceled' AND cancel_requested_at IS NULL

-- name: J12
-- After the terminal event of a run no task and no stage of it moves or reports progress.
-- columns: job, run, terminal_event, event, type
-- slices: event.subject
SELECT e.subject, e.run, t.seq, e.seq, e.type FROM event t JOIN event e ON e.subject = t.subject AND e.seq > t.seq
WHERE {slice t.subject} AND t.target IN {job_ended} AND t.type LIKE 'job.%' AND e.run = t.run
AND (e.type LIKE 'task.%' OR e.type LIKE 'stage.%')

-- name: J13
-- Time-dependent: a job past its deadline, its grace period or its scheduled time has been processed.
-- columns: job, status, due_at, deadline_at
-- slices: job.id
SELECT id, status, due_at, deadline_at FROM job
WHERE {slice id} AND CASE WHEN finished_at IS NULL THEN due_at < :before OR deadline_at < :before END

-- name: J14
-- A job is due at the earliest of its deadline, grace period and scheduled time; an ended job is never due.
-- columns: job, status, due_at, moment
-- slices: job.id
SELECT id, status, due_at, moment FROM (
    SELECT id, status, due_at, CASE WHEN finished_at IS NULL THEN (SELECT min(at) FROM (
        SELECT CASE WHEN j.status = 'pending' THEN j.start_at END AS at
        UNION ALL SELECT j.deadline_at UNION ALL SELECT j.cancel_due_at) AS moments) END AS moment
    FROM job j WHERE {slice j.id}
) e WHERE due_at IS DISTINCT FROM moment

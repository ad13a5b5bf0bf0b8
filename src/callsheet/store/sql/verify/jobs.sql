-- Rules of submissions, jobs and runs.
-- Each block finds the rows that break one rule; on a consistent database no block finds a row.
-- Its first comment is the rule, its second names the columns: ids and numbers, never a secret.
-- {job_ended}, {stage_ended} and {task_ended} are terminal statuses, {moves} the legal moves. {before} is the time
-- before which everything that was due must have been processed.

-- name: S1
-- A user has one job per idempotency key, and a key belongs to its user, or to the job that is retried.
-- columns: first_job, last_job, jobs
SELECT min(id), max(id), count(*) FROM job WHERE dedup_key IS NOT NULL GROUP BY dedup_key HAVING count(*) > 1
UNION ALL SELECT id, id, 1 FROM (
    SELECT id, dedup_key, CASE WHEN retry_of IS NULL THEN tenant || '/' || length(user_id) || '/' || user_id || '/'
        ELSE 'retry/' || retry_of || '/' END AS own
    FROM job WHERE dedup_key IS NOT NULL
) j WHERE substr(dedup_key, 1, length(own)) <> own

-- name: S2
-- One idempotency key belongs to one request body.
-- columns: first_job, last_job, requests
SELECT min(id), max(id), count(DISTINCT fingerprint) FROM job
WHERE dedup_key IS NOT NULL GROUP BY dedup_key HAVING count(DISTINCT fingerprint) > 1

-- name: S3
-- A user has no more active jobs than the tenant's limit when the last of them was created.
-- columns: wallet, active, active_jobs_max
SELECT j.wallet_id, count(*), t.active_jobs_max
FROM job j JOIN tenant t ON t.id = j.tenant JOIN run r ON r.job_id = j.id AND r.no = j.run
WHERE j.finished_at IS NULL AND t.active_jobs_max IS NOT NULL
GROUP BY j.wallet_id, t.active_jobs_max, t.updated_at
HAVING count(*) > t.active_jobs_max AND max(r.opened_at) > t.updated_at

-- name: S5
-- A retry as a new job refers to a failed or expired job of the same user.
-- columns: job, retry_of
SELECT j.id, j.retry_of FROM job j LEFT JOIN job o ON o.id = j.retry_of
WHERE j.retry_of IS NOT NULL AND (o.wallet_id IS DISTINCT FROM j.wallet_id OR NOT EXISTS (
    SELECT 1 FROM run r WHERE r.job_id = j.retry_of AND r.status IN ('failed', 'expired')
    AND r.finished_at <= j.created_at))

-- name: J1
-- Every transition is a legal move of its state machine for its actor.
-- columns: job, event, type, source, target, actor
SELECT e.subject, e.seq, e.type, e.source, e.target, e.actor FROM event e
WHERE e.target IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM (VALUES {moves}) AS m
    WHERE m.column1 = e.type AND m.column2 = coalesce(e.source, 'new') AND m.column3 = e.target
    AND m.column4 = e.actor)

-- name: J2
-- A job's transitions form one chain: each begins where the one before it ended.
-- columns: job, event, source, before
SELECT subject, seq, source, before FROM (
    SELECT subject, seq, source, lag(target) OVER (PARTITION BY subject ORDER BY seq) AS before
    FROM event WHERE target IS NOT NULL AND type LIKE 'job.%'
) e WHERE source IS DISTINCT FROM before

-- name: J3
-- A job's events are numbered from 1 without a gap, and the job stores the last number.
-- columns: job, seq, events, first, last
SELECT j.id, j.seq, coalesce(e.counted, 0), e.lowest, e.highest FROM job j LEFT JOIN (
    SELECT subject, count(*) AS counted, min(seq) AS lowest, max(seq) AS highest FROM event GROUP BY subject
) e ON e.subject = j.id
WHERE e.counted IS DISTINCT FROM j.seq OR e.highest <> j.seq OR e.lowest <> 1

-- name: J4
-- A job's events never go back in time.
-- columns: job, event, at, before
SELECT subject, seq, at, before FROM (
    SELECT subject, seq, at, lag(at) OVER (PARTITION BY subject ORDER BY seq) AS before FROM event
) e WHERE at < before

-- name: J5
-- A job is in the status and the run of its last transition.
-- columns: job, status, run, last_target, last_run
SELECT j.id, j.status, j.run, e.target, e.run FROM job j LEFT JOIN (
    SELECT subject, target, run, row_number() OVER (PARTITION BY subject ORDER BY seq DESC) AS newest
    FROM event WHERE target IS NOT NULL AND type LIKE 'job.%'
) e ON e.subject = j.id AND e.newest = 1
WHERE e.target IS DISTINCT FROM j.status OR e.run IS DISTINCT FROM j.run

-- name: J6
-- A job leaves a terminal status only with a new run, and only then does its run number change.
-- columns: job, event, source, run, run_before
SELECT subject, seq, source, run, before FROM (
    SELECT subject, seq, source, run, lag(run) OVER (PARTITION BY subject ORDER BY seq) AS before
    FROM event WHERE target IS NOT NULL AND type LIKE 'job.%'
) e WHERE run <> CASE WHEN source IN {job_ended} THEN before + 1 ELSE before END

-- name: J7
-- A terminal row has an end time, others have none, created <= started <= finished, and a job is older than its runs and stages.
-- columns: what, id, status, created_at, started_at, finished_at
SELECT what, id, status, created_at, started_at, finished_at FROM (
    SELECT 'job' AS what, id, status, status IN {job_ended} AS ended, created_at, started_at, finished_at FROM job
    UNION ALL SELECT 'run', job_id, status, status <> 'open', opened_at, started_at, finished_at FROM run
    UNION ALL SELECT 'stage', id, status, status IN {stage_ended}, created_at, started_at, finished_at FROM stage
    UNION ALL SELECT 'task', id, status, status IN {task_ended}, created_at, started_at, finished_at FROM task
) e WHERE ended <> (finished_at IS NOT NULL) OR started_at < created_at OR finished_at < coalesce(started_at, created_at)
UNION ALL SELECT 'run', r.job_id, r.status, r.opened_at, j.created_at, NULL FROM run r JOIN job j ON j.id = r.job_id
WHERE r.opened_at < j.created_at
UNION ALL SELECT 'stage', s.id, s.status, s.created_at, j.created_at, NULL FROM stage s JOIN job j ON j.id = s.job_id
WHERE s.created_at < j.created_at

-- name: J8
-- A row that ended without completing has an error code; others have none.
-- columns: what, job, run, status, error_code
SELECT 'job', id, run, status, error_code FROM job
WHERE (error_code IS NULL) = (status IN {job_ended} AND status <> 'completed')
UNION ALL SELECT 'run', job_id, no, status, error_code FROM run
WHERE (error_code IS NULL) = (status NOT IN ('open', 'completed'))

-- name: J9
-- An ended run matches its terminal event, and an ended job matches its last run.
-- columns: what, job, run, status, expected
SELECT 'run', r.job_id, r.no, r.status, e.target
FROM run r JOIN event e ON e.subject = r.job_id AND e.run = r.no AND e.target IN {job_ended} AND e.type LIKE 'job.%'
WHERE e.target <> r.status OR e.at <> r.finished_at
OR CAST(CAST(e.data AS {json}) ->> 'price' AS {int}) IS DISTINCT FROM r.price
OR CAST(CAST(e.data AS {json}) ->> 'consumed' AS {int}) IS DISTINCT FROM r.consumed
OR CAST(CAST(e.data AS {json}) ->> 'refunded' AS {int}) IS DISTINCT FROM r.refunded
OR CAST(e.data AS {json}) ->> 'code' IS DISTINCT FROM r.error_code
UNION ALL SELECT 'job', j.id, r.no, j.status, r.status FROM job j JOIN run r ON r.job_id = j.id
WHERE CASE WHEN r.no < j.run THEN r.status = 'open'
    ELSE r.status <> CASE WHEN j.finished_at IS NULL THEN 'open' ELSE j.status END
    OR r.finished_at IS DISTINCT FROM j.finished_at OR r.error_code IS DISTINCT FROM j.error_code
    OR (j.finished_at IS NOT NULL AND r.started_at IS DISTINCT FROM j.started_at) END

-- name: J10
-- A job's runs are numbered from 1 without a gap up to the job's own; a blocked job has none.
-- columns: job, run, runs, first, last
SELECT j.id, j.run, coalesce(r.counted, 0), r.lowest, r.highest FROM job j LEFT JOIN (
    SELECT job_id, count(*) AS counted, min(no) AS lowest, max(no) AS highest FROM run GROUP BY job_id
) r ON r.job_id = j.id
WHERE coalesce(r.counted, 0) <> j.run OR r.highest <> r.counted OR r.lowest <> 1
OR (j.run = 0) <> (j.status = 'blocked')

-- name: J11
-- A canceled job has a cancel request.
-- columns: job, run
SELECT id, run FROM job WHERE status = 'canceled' AND cancel_requested_at IS NULL

-- name: J12
-- After the terminal event of a run no task and no stage of it moves or reports progress.
-- columns: job, run, terminal_event, event, type
SELECT e.subject, e.run, t.seq, e.seq, e.type FROM event t JOIN event e ON e.subject = t.subject AND e.run = t.run
WHERE t.target IN {job_ended} AND t.type LIKE 'job.%' AND e.seq > t.seq
AND (e.type LIKE 'task.%' OR e.type LIKE 'stage.%')

-- name: J13
-- Time-dependent: a job past its deadline, its grace period or its scheduled time has been processed.
-- columns: job, status, due_at, deadline_at
SELECT id, status, due_at, deadline_at FROM job
WHERE finished_at IS NULL AND (due_at < {before} OR deadline_at < {before})

-- name: J14
-- A job is due at the earliest of its deadline, grace period and scheduled time; an ended job is never due.
-- columns: job, status, due_at, moment
SELECT id, status, due_at, moment FROM (
    SELECT id, status, due_at, CASE WHEN finished_at IS NULL THEN (SELECT min(at) FROM (
        SELECT CASE WHEN j.status = 'pending' THEN j.start_at END AS at
        UNION ALL SELECT j.deadline_at UNION ALL SELECT j.cancel_due_at) AS moments) END AS moment
    FROM job j
) e WHERE due_at IS DISTINCT FROM moment

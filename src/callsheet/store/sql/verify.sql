-- What must always be true. Each block looks for what breaks one rule; on a sound database no block finds a row.
-- A block's first comment is its rule in words, its second names what it shows: ids and numbers, never a secret.
-- {job_ended}, {stage_ended}, {task_ended} are the machines' terminal statuses, {moves} their tables of moves;
-- {before} is the moment before which everything that was due must have been looked at.

-- name: M1
-- A wallet's balance, and what ever came and went, are the sums of its entries.
-- shows: wallet, balance, entries_sum, entries, entries_counted
SELECT w.id, w.balance, coalesce(e.total, 0), w.entries, coalesce(e.counted, 0)
FROM wallet w LEFT JOIN (
    SELECT wallet_id, CAST(sum(amount) AS {int}) AS total, count(*) AS counted, sum(consumed) AS consumed,
        sum(CASE WHEN kind = 'topup' THEN amount ELSE 0 END) AS topped_up
    FROM entry GROUP BY wallet_id
) e ON e.wallet_id = w.id
WHERE w.balance <> coalesce(e.total, 0) OR w.entries <> coalesce(e.counted, 0)
OR w.topped_up <> coalesce(e.topped_up, 0) OR w.consumed <> coalesce(e.consumed, 0)

-- name: M2
-- Nothing ever goes below zero.
-- shows: wallet, entry, balance, reserved
SELECT id, 0, balance, reserved FROM wallet WHERE balance < 0 OR reserved < 0
UNION ALL SELECT wallet_id, seq, balance, 0 FROM entry WHERE balance < 0

-- name: M3
-- What a wallet holds is the sum of its open reservations.
-- shows: wallet, reserved, open_reservations
SELECT w.id, w.reserved, coalesce(o.total, 0) FROM wallet w LEFT JOIN (
    SELECT r.wallet_id, CAST(-sum(r.amount) AS {int}) AS total FROM entry r
    WHERE r.kind = 'reserve' AND NOT EXISTS (
        SELECT 1 FROM entry s WHERE s.job_id = r.job_id AND s.run = r.run AND s.kind IN ('consume', 'refund'))
    GROUP BY r.wallet_id
) o ON o.wallet_id = w.id
WHERE w.reserved <> coalesce(o.total, 0)

-- name: M4
-- A run reserves at most once.
-- shows: job, run, reserves
SELECT job_id, run, count(*) FROM entry WHERE kind = 'reserve' GROUP BY job_id, run HAVING count(*) > 1

-- name: M5
-- A run is settled at most once, by consume or by refund.
-- shows: job, run, settlements
SELECT job_id, run, count(*) FROM entry WHERE kind IN ('consume', 'refund') GROUP BY job_id, run HAVING count(*) > 1

-- name: M6
-- A settlement comes after its run's reservation, in the same wallet.
-- shows: wallet, entry, job, run
SELECT s.wallet_id, s.seq, s.job_id, s.run FROM entry s
WHERE s.kind IN ('consume', 'refund') AND NOT EXISTS (
    SELECT 1 FROM entry r WHERE r.kind = 'reserve' AND r.job_id = s.job_id AND r.run = s.run
    AND r.wallet_id = s.wallet_id AND r.seq < s.seq)

-- name: M7
-- What was reserved is what was refunded plus what was consumed.
-- shows: job, run, reserved, refunded, consumed
SELECT r.job_id, r.run, -r.amount, s.amount, s.consumed
FROM entry r JOIN entry s ON s.job_id = r.job_id AND s.run = r.run AND s.kind IN ('consume', 'refund')
WHERE r.kind = 'reserve' AND -r.amount <> s.amount + s.consumed

-- name: M8
-- A priced run that has ended is settled.
-- shows: job, run, price
SELECT r.job_id, r.no, r.price FROM run r
WHERE r.status <> 'open' AND r.price > 0 AND NOT EXISTS (
    SELECT 1 FROM entry s WHERE s.job_id = r.job_id AND s.run = r.no AND s.kind IN ('consume', 'refund'))

-- name: M9
-- A run that completed, or kept something, is consumed; every other one is refunded; run and ledger say the same.
-- shows: job, run, status, entry_kind, price, run_consumed, run_returned, entry_consumed, entry_returned
SELECT r.job_id, r.no, r.status, s.kind, r.price, r.consumed, r.refunded, s.consumed, s.amount
FROM run r JOIN entry s ON s.job_id = r.job_id AND s.run = r.no AND s.kind IN ('consume', 'refund')
WHERE r.status <> 'open' AND (
    s.kind <> CASE WHEN r.status = 'completed' OR r.consumed > 0 THEN 'consume' ELSE 'refund' END
    OR s.consumed <> r.consumed OR s.amount <> r.refunded OR r.consumed + r.refunded <> r.price)

-- name: M10
-- An open run is not settled.
-- shows: job, run, consumed, refunded
SELECT r.job_id, r.no, r.consumed, r.refunded FROM run r
WHERE r.status = 'open' AND (r.consumed <> 0 OR r.refunded <> 0 OR EXISTS (
    SELECT 1 FROM entry s WHERE s.job_id = r.job_id AND s.run = r.no AND s.kind IN ('consume', 'refund')))

-- name: M11
-- The running balance recomputes from the first entry on, and entries are numbered without a gap.
-- shows: wallet, entry, balance, recomputed, place
SELECT wallet_id, seq, balance, recomputed, place FROM (
    SELECT wallet_id, seq, balance,
        CAST(sum(amount) OVER (PARTITION BY wallet_id ORDER BY seq) AS {int}) AS recomputed,
        row_number() OVER (PARTITION BY wallet_id ORDER BY seq) AS place
    FROM entry
) e WHERE balance <> recomputed OR seq <> place

-- name: M12
-- An entry, its wallet and its job are of one tenant, and the job pays from that wallet.
-- shows: wallet, entry, job
SELECT e.wallet_id, e.seq, e.job_id
FROM entry e LEFT JOIN wallet w ON w.id = e.wallet_id LEFT JOIN job j ON j.id = e.job_id
WHERE w.tenant IS DISTINCT FROM e.tenant
OR (e.job_id IS NOT NULL AND (j.tenant IS DISTINCT FROM e.tenant OR j.wallet_id IS DISTINCT FROM e.wallet_id))

-- name: M13
-- A blocked job moved no money and opened no run.
-- shows: job, run, price
SELECT j.id, j.run, j.price FROM job j
WHERE j.status = 'blocked' AND (j.run <> 0 OR j.price <> 0
    OR EXISTS (SELECT 1 FROM run r WHERE r.job_id = j.id) OR EXISTS (SELECT 1 FROM entry e WHERE e.job_id = j.id))

-- name: M14
-- Each kind of entry has its sign; top-ups are no job's, adjustments a run's if they give back what it consumed, the others are.
-- shows: wallet, entry, kind, amount, consumed, job, run
SELECT wallet_id, seq, kind, amount, consumed, job_id, run FROM entry
WHERE CASE kind
    WHEN 'topup' THEN amount <= 0 OR consumed <> 0
    WHEN 'adjust' THEN amount = 0 OR consumed <> CASE WHEN job_id IS NULL THEN 0 ELSE -amount END
    WHEN 'reserve' THEN amount >= 0 OR consumed <> 0
    WHEN 'consume' THEN amount < 0 OR consumed <= 0
    ELSE kind <> 'refund' OR amount <= 0 OR consumed <> 0 END
OR (kind <> 'adjust' AND (kind = 'topup') <> (job_id IS NULL)) OR (job_id IS NULL) <> (run IS NULL)

-- name: M15
-- A run reserved exactly its price, and every reservation is a run's.
-- shows: job, run, price, reserved
SELECT r.job_id, r.no, r.price, coalesce(-e.amount, 0)
FROM run r LEFT JOIN entry e ON e.job_id = r.job_id AND e.run = r.no AND e.kind = 'reserve'
WHERE coalesce(-e.amount, 0) <> r.price
UNION ALL SELECT e.job_id, e.run, 0, -e.amount FROM entry e
WHERE e.kind = 'reserve' AND NOT EXISTS (SELECT 1 FROM run r WHERE r.job_id = e.job_id AND r.no = e.run)

-- name: M16
-- What a run has consumed is given back by hand once at most, all of it, and after the run has ended.
-- shows: job, run, refunded, consumed
SELECT e.job_id, e.run, e.total, r.consumed FROM (
    SELECT job_id, run, CAST(sum(amount) AS {int}) AS total, min(at) AS at FROM entry
    WHERE kind = 'adjust' AND job_id IS NOT NULL GROUP BY job_id, run
) e LEFT JOIN run r ON r.job_id = e.job_id AND r.no = e.run
WHERE r.status IS NULL OR r.status = 'open' OR e.total <> r.consumed OR e.at < r.finished_at

-- name: S1
-- A tenant's user has one job per idempotency key, and a key is its user's own, or of the job that is tried again.
-- shows: first_job, last_job, jobs
SELECT min(id), max(id), count(*) FROM job WHERE dedup_key IS NOT NULL GROUP BY dedup_key HAVING count(*) > 1
UNION ALL SELECT id, id, 1 FROM (
    SELECT id, dedup_key, CASE WHEN retry_of IS NULL THEN tenant || '/' || length(user_id) || '/' || user_id || '/'
        ELSE 'retry/' || retry_of || '/' END AS own
    FROM job WHERE dedup_key IS NOT NULL
) j WHERE substr(dedup_key, 1, length(own)) <> own

-- name: S2
-- One idempotency key stands for one request.
-- shows: first_job, last_job, requests
SELECT min(id), max(id), count(DISTINCT fingerprint) FROM job
WHERE dedup_key IS NOT NULL GROUP BY dedup_key HAVING count(DISTINCT fingerprint) > 1

-- name: S3
-- A user has no more active jobs than the tenant allowed when the last of them began.
-- shows: wallet, active, active_jobs_max
SELECT j.wallet_id, count(*), t.active_jobs_max
FROM job j JOIN tenant t ON t.id = j.tenant JOIN run r ON r.job_id = j.id AND r.no = j.run
WHERE j.finished_at IS NULL AND t.active_jobs_max > 0
GROUP BY j.wallet_id, t.active_jobs_max, t.updated_at
HAVING count(*) > t.active_jobs_max AND max(r.opened_at) > t.updated_at

-- name: S5
-- A retry made as a new job points to a job of the same user that had failed or expired by then.
-- shows: job, retry_of
SELECT j.id, j.retry_of FROM job j LEFT JOIN job o ON o.id = j.retry_of
WHERE j.retry_of IS NOT NULL AND (o.wallet_id IS DISTINCT FROM j.wallet_id OR NOT EXISTS (
    SELECT 1 FROM run r WHERE r.job_id = j.retry_of AND r.status IN ('failed', 'expired')
    AND r.finished_at <= j.created_at))

-- name: J1
-- Every transition is a move that the machines allow to its actor.
-- shows: job, event, type, source, target, actor
SELECT e.subject, e.seq, e.type, e.source, e.target, e.actor FROM event e
WHERE e.target IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM (VALUES {moves}) AS m
    WHERE m.column1 = e.type AND m.column2 = coalesce(e.source, 'new') AND m.column3 = e.target
    AND m.column4 = e.actor)

-- name: J2
-- A job's transitions form one chain: each begins where the one before it ended.
-- shows: job, event, source, before
SELECT subject, seq, source, before FROM (
    SELECT subject, seq, source, lag(target) OVER (PARTITION BY subject ORDER BY seq) AS before
    FROM event WHERE target IS NOT NULL AND type LIKE 'job.%'
) e WHERE source IS DISTINCT FROM before

-- name: J3
-- A job's events are numbered from 1 without a gap, and the job knows the last number.
-- shows: job, seq, events, first, last
SELECT j.id, j.seq, coalesce(e.counted, 0), e.lowest, e.highest FROM job j LEFT JOIN (
    SELECT subject, count(*) AS counted, min(seq) AS lowest, max(seq) AS highest FROM event GROUP BY subject
) e ON e.subject = j.id
WHERE e.counted IS DISTINCT FROM j.seq OR e.highest <> j.seq OR e.lowest <> 1

-- name: J4
-- A job's events never go back in time.
-- shows: job, event, at, before
SELECT subject, seq, at, before FROM (
    SELECT subject, seq, at, lag(at) OVER (PARTITION BY subject ORDER BY seq) AS before FROM event
) e WHERE at < before

-- name: J5
-- A job is in the status and the run of its last transition.
-- shows: job, status, run, last_target, last_run
SELECT j.id, j.status, j.run, e.target, e.run FROM job j LEFT JOIN (
    SELECT subject, target, run, row_number() OVER (PARTITION BY subject ORDER BY seq DESC) AS back
    FROM event WHERE target IS NOT NULL AND type LIKE 'job.%'
) e ON e.subject = j.id AND e.back = 1
WHERE e.target IS DISTINCT FROM j.status OR e.run IS DISTINCT FROM j.run

-- name: J6
-- Nothing leaves a terminal status within a run: leaving it opens the next run, and nothing else does.
-- shows: job, event, source, run, run_before
SELECT subject, seq, source, run, before FROM (
    SELECT subject, seq, source, run, lag(run) OVER (PARTITION BY subject ORDER BY seq) AS before
    FROM event WHERE target IS NOT NULL AND type LIKE 'job.%'
) e WHERE run <> CASE WHEN source IN {job_ended} THEN before + 1 ELSE before END

-- name: J7
-- What is terminal has its end, what is not has none, and created <= started <= finished.
-- shows: what, id, status, created_at, started_at, finished_at
SELECT what, id, status, created_at, started_at, finished_at FROM (
    SELECT 'job' AS what, id, status, status IN {job_ended} AS ended, created_at, started_at, finished_at FROM job
    UNION ALL SELECT 'run', job_id, status, status <> 'open', opened_at, started_at, finished_at FROM run
    UNION ALL SELECT 'stage', id, status, status IN {stage_ended}, created_at, started_at, finished_at FROM stage
    UNION ALL SELECT 'task', id, status, status IN {task_ended}, created_at, started_at, finished_at FROM task
) e WHERE ended <> (finished_at IS NOT NULL) OR started_at < created_at OR finished_at < coalesce(started_at, created_at)

-- name: J8
-- What ended without completing has an error code; what completed, or has not ended, has none.
-- shows: what, job, run, status, error_code
SELECT 'job', id, run, status, error_code FROM job
WHERE (error_code IS NULL) = (status IN {job_ended} AND status <> 'completed')
UNION ALL SELECT 'run', job_id, no, status, error_code FROM run
WHERE (error_code IS NULL) = (status NOT IN ('open', 'completed'))

-- name: J9
-- An ended run's record is what its terminal event said, and an ended job's what its last run says.
-- shows: what, job, run, status, said
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
-- shows: job, run, runs, first, last
SELECT j.id, j.run, coalesce(r.counted, 0), r.lowest, r.highest FROM job j LEFT JOIN (
    SELECT job_id, count(*) AS counted, min(no) AS lowest, max(no) AS highest FROM run GROUP BY job_id
) r ON r.job_id = j.id
WHERE coalesce(r.counted, 0) <> j.run OR r.highest <> r.counted OR r.lowest <> 1
OR (j.run = 0) <> (j.status = 'blocked')

-- name: J11
-- A canceled job was asked to stop.
-- shows: job, run
SELECT id, run FROM job WHERE status = 'canceled' AND cancel_requested_at IS NULL

-- name: J12
-- After the terminal event of a run no task and no stage of it moves or reports progress.
-- shows: job, run, terminal_event, event, type
SELECT e.subject, e.run, t.seq, e.seq, e.type FROM event t JOIN event e ON e.subject = t.subject AND e.run = t.run
WHERE t.target IN {job_ended} AND t.type LIKE 'job.%' AND e.seq > t.seq
AND (e.type LIKE 'task.%' OR e.type LIKE 'stage.%')

-- name: J13
-- Timely: a job past its deadline, the end of its grace or its hour has been looked at.
-- shows: job, status, due_at, deadline_at
SELECT id, status, due_at, deadline_at FROM job
WHERE finished_at IS NULL AND (due_at < {before} OR deadline_at < {before})

-- name: J14
-- A job is due at the first of its moments that lie ahead; one that has ended never.
-- shows: job, status, due_at, moment
SELECT id, status, due_at, moment FROM (
    SELECT id, status, due_at, CASE WHEN finished_at IS NULL THEN (SELECT min(at) FROM (
        SELECT CASE WHEN j.status = 'pending' THEN j.start_at END AS at
        UNION ALL SELECT j.deadline_at UNION ALL SELECT j.cancel_due_at) AS moments) END AS moment
    FROM job j
) e WHERE due_at IS DISTINCT FROM moment

-- name: G1
-- No stage and no task begins before all stages before it are completed.
-- shows: job, stage, stage_no, open_stage_no
SELECT s.job_id, s.id, s.no, p.no FROM stage s JOIN stage p ON p.job_id = s.job_id AND p.no < s.no
WHERE p.status <> 'completed' AND (s.status NOT IN ('created', 'canceled') OR EXISTS (
    SELECT 1 FROM task t WHERE t.stage_id = s.id AND (t.attempts > 0 OR t.status NOT IN ('created', 'canceled'))))

-- name: G2
-- A stage is completed exactly when it has tasks and all of them are; only one that waits for approval may lag.
-- shows: stage, status, tasks, completed
SELECT s.id, s.status, coalesce(t.counted, 0), coalesce(t.done, 0) FROM stage s LEFT JOIN (
    SELECT stage_id, count(*) AS counted, sum(CASE WHEN status = 'completed' THEN 1 ELSE 0 END) AS done
    FROM task GROUP BY stage_id
) t ON t.stage_id = s.id
WHERE CASE s.status WHEN 'completed' THEN t.counted IS NULL OR t.done < t.counted
    WHEN 'pending' THEN t.done = t.counted WHEN 'running' THEN t.done = t.counted ELSE 1 = 0 END

-- name: G3
-- A job is completed exactly when it has stages and all of them are.
-- shows: job, status, stages, completed
SELECT j.id, j.status, count(s.id), count(CASE WHEN s.status = 'completed' THEN 1 END)
FROM job j LEFT JOIN stage s ON s.job_id = j.id GROUP BY j.id, j.status
HAVING (j.status = 'completed') <> (count(s.id) > 0 AND count(s.id) = count(CASE WHEN s.status = 'completed' THEN 1 END))

-- name: G4
-- A task without a try left has failed, and with it its stage and its job; no stage fails without one.
-- shows: job, stage, task, task_status, stage_status, job_status
SELECT j.id, s.id, t.id, t.status, s.status, j.status
FROM task t JOIN stage s ON s.id = t.stage_id JOIN job j ON j.id = t.job_id
WHERE (t.status = 'failed' AND (s.status <> 'failed' OR j.status <> 'failed'))
OR (t.status = 'retried' AND (t.attempts_counted >= t.attempts_max OR t.requeues > t.requeues_max))
UNION ALL SELECT s.job_id, s.id, NULL, NULL, s.status, NULL FROM stage s
WHERE s.status = 'failed' AND NOT EXISTS (SELECT 1 FROM task t WHERE t.stage_id = s.id AND t.status = 'failed')
UNION ALL SELECT j.id, NULL, NULL, NULL, NULL, j.status FROM job j
WHERE j.status = 'failed' AND NOT EXISTS (SELECT 1 FROM stage s WHERE s.job_id = j.id AND s.status = 'failed')

-- name: G5
-- Below a job or a stage that has ended nothing lives: no stage, no task, no lease, no call.
-- shows: job, what, id
SELECT j.id, 'stage', s.id FROM stage s JOIN job j ON j.id = s.job_id
WHERE j.finished_at IS NOT NULL AND s.status NOT IN {stage_ended}
UNION ALL SELECT t.job_id, 'task', t.id FROM task t JOIN stage s ON s.id = t.stage_id
WHERE s.status IN {stage_ended} AND t.status NOT IN {task_ended}
UNION ALL SELECT a.job_id, 'attempt', a.task_id FROM attempt a JOIN job j ON j.id = a.job_id
WHERE a.ended_at IS NULL AND j.finished_at IS NOT NULL
UNION ALL SELECT c.job_id, 'call', c.id FROM call c JOIN job j ON j.id = c.job_id
WHERE c.ended_at IS NULL AND j.finished_at IS NOT NULL

-- name: G6
-- A gated stage goes on only in the name of somebody; one that waits has nobody's approval.
-- shows: stage, status, approved_at
SELECT id, status, approved_at FROM stage
WHERE (approval = 1 AND status IN ('pending', 'running', 'completed') AND coalesce(approved_by, '') = '')
OR (status = 'waiting' AND approved_at IS NOT NULL) OR (approved_by IS NULL) <> (approved_at IS NULL)

-- name: G11
-- A job says since when it waits for approval, exactly while one of its stages does.
-- shows: job, waiting_at
SELECT j.id, j.waiting_at FROM job j
WHERE (j.waiting_at IS NOT NULL) <> EXISTS (SELECT 1 FROM stage s WHERE s.job_id = j.id AND s.status = 'waiting')
OR j.waiting_at < j.created_at

-- name: G7
-- Tries and requeues stay within their limits; the requeue that is one too many ends the task.
-- shows: task, status, attempts_counted, attempts_max, requeues, requeues_max
SELECT id, status, attempts_counted, attempts_max, requeues, requeues_max FROM task
WHERE attempts_counted < 0 OR attempts_counted > attempts_max
OR requeues < 0 OR requeues > requeues_max + CASE WHEN status IN ('failed', 'canceled') THEN 1 ELSE 0 END

-- name: G8
-- Tries and requeues add up to the leases of the task's run.
-- shows: task, attempts_counted, requeues, leases
SELECT t.id, t.attempts_counted, t.requeues, count(a.no) FROM task t JOIN job j ON j.id = t.job_id
LEFT JOIN attempt a ON a.task_id = t.id AND a.run = CASE WHEN t.status = 'completed'
    THEN (SELECT l.run FROM attempt l WHERE l.task_id = t.id AND l.no = t.attempts) ELSE j.run END
GROUP BY t.id, t.attempts_counted, t.requeues HAVING count(a.no) <> t.attempts_counted + t.requeues

-- name: G9
-- Every row has its parent, and is of the same job and tenant.
-- shows: what, id
SELECT 'wallet', w.id FROM wallet w WHERE w.id <> w.tenant || '/' || w.user_id
UNION ALL SELECT 'job', j.id FROM job j LEFT JOIN wallet w ON w.id = j.wallet_id LEFT JOIN tenant n ON n.id = j.tenant
WHERE n.id IS NULL OR w.tenant IS DISTINCT FROM j.tenant OR w.user_id IS DISTINCT FROM j.user_id
UNION ALL SELECT 'run', r.job_id FROM run r LEFT JOIN job j ON j.id = r.job_id WHERE j.tenant IS DISTINCT FROM r.tenant
UNION ALL SELECT 'stage', s.id FROM stage s LEFT JOIN job j ON j.id = s.job_id WHERE j.tenant IS DISTINCT FROM s.tenant
UNION ALL SELECT 'task', t.id FROM task t LEFT JOIN stage s ON s.id = t.stage_id
WHERE s.tenant IS DISTINCT FROM t.tenant OR s.job_id IS DISTINCT FROM t.job_id
UNION ALL SELECT 'attempt', a.task_id FROM attempt a LEFT JOIN task t ON t.id = a.task_id
WHERE t.tenant IS DISTINCT FROM a.tenant OR t.job_id IS DISTINCT FROM a.job_id
UNION ALL SELECT 'call', c.id FROM call c LEFT JOIN task t ON t.id = c.task_id
WHERE t.tenant IS DISTINCT FROM c.tenant OR t.job_id IS DISTINCT FROM c.job_id
UNION ALL SELECT 'document', d.owner_id FROM document d LEFT JOIN job j ON j.id = d.job_id WHERE j.id IS NULL
UNION ALL SELECT 'event', e.subject FROM event e LEFT JOIN job j ON j.id = e.subject
WHERE j.tenant IS DISTINCT FROM e.tenant AND (e.type LIKE 'job.%' OR e.type LIKE 'stage.%' OR e.type LIKE 'task.%')

-- name: G10
-- A stage's counts are those of its tasks, a job's those of its stages.
-- shows: what, id, total, counted, completed, counted_completed
SELECT 'stage', s.id, s.tasks_total, coalesce(t.counted, 0), s.tasks_completed, coalesce(t.done, 0)
FROM stage s LEFT JOIN (
    SELECT stage_id, count(*) AS counted, count(CASE WHEN status = 'running' THEN 1 END) AS active,
        count(CASE WHEN status = 'completed' THEN 1 END) AS done, count(CASE WHEN status = 'failed' THEN 1 END) AS lost,
        count(CASE WHEN status = 'canceled' THEN 1 END) AS deleted
    FROM task GROUP BY stage_id
) t ON t.stage_id = s.id
WHERE s.tasks_total <> coalesce(t.counted, 0) OR s.tasks_running <> coalesce(t.active, 0)
OR s.tasks_completed <> coalesce(t.done, 0) OR s.tasks_failed <> coalesce(t.lost, 0)
OR s.tasks_canceled <> coalesce(t.deleted, 0)
UNION ALL SELECT 'job', j.id, j.stages_total, coalesce(s.counted, 0), j.stages_completed, coalesce(s.done, 0)
FROM job j LEFT JOIN (
    SELECT job_id, count(*) AS counted, count(CASE WHEN status = 'completed' THEN 1 END) AS done
    FROM stage GROUP BY job_id
) s ON s.job_id = j.id
WHERE j.stages_total <> coalesce(s.counted, 0) OR j.stages_completed <> coalesce(s.done, 0)

-- name: L1
-- A task has at most one live lease.
-- shows: task, live
SELECT task_id, count(*) FROM attempt WHERE ended_at IS NULL GROUP BY task_id HAVING count(*) > 1

-- name: L2
-- A task runs exactly while it has a live attempt: the newest, of the job's run, with the same token and worker.
-- shows: task, status, attempts, live_attempt
SELECT t.id, t.status, t.attempts, a.no
FROM task t JOIN job j ON j.id = t.job_id LEFT JOIN attempt a ON a.task_id = t.id AND a.ended_at IS NULL
WHERE (t.status = 'running') <> (a.no IS NOT NULL) OR a.no <> t.attempts OR a.run <> j.run
OR (a.no IS NOT NULL AND (a.worker_id IS DISTINCT FROM t.worker_id OR a.token_hash <> t.token_hash))

-- name: L3
-- A task's leases are numbered from 1 without a gap: the epoch only ever grows.
-- shows: task, attempts, counted, first, last
SELECT t.id, t.attempts, coalesce(a.counted, 0), a.lowest, a.highest FROM task t LEFT JOIN (
    SELECT task_id, count(*) AS counted, min(no) AS lowest, max(no) AS highest FROM attempt GROUP BY task_id
) a ON a.task_id = t.id
WHERE coalesce(a.counted, 0) <> t.attempts OR a.highest <> a.counted OR a.lowest <> 1

-- name: L4
-- The leases of a task do not overlap, and a later one is never of an earlier run.
-- shows: task, attempt, leased_at, ended_at, next_leased_at
SELECT a.task_id, a.no, a.leased_at, a.ended_at, b.leased_at
FROM attempt a LEFT JOIN attempt b ON b.task_id = a.task_id AND b.no = a.no + 1
WHERE a.ended_at < a.leased_at OR b.leased_at < a.ended_at OR b.run < a.run
OR (b.no IS NOT NULL AND a.ended_at IS NULL)

-- name: L5
-- Exactly one result of a completed task was accepted, from its newest lease; no other task has one.
-- shows: task, status, attempts, accepted, accepted_attempt
SELECT t.id, t.status, t.attempts, count(a.no), max(a.no)
FROM task t LEFT JOIN attempt a ON a.task_id = t.id AND a.outcome = 'completed'
GROUP BY t.id, t.status, t.attempts
HAVING count(a.no) <> CASE WHEN t.status = 'completed' THEN 1 ELSE 0 END OR max(a.no) <> t.attempts

-- name: L6
-- A worker that is out holds nothing, and one that is draining was given nothing since.
-- shows: task, worker, status, leased_at, draining_at
SELECT t.id, w.id, w.status, a.leased_at, w.draining_at FROM task t JOIN worker w ON w.id = t.worker_id
JOIN attempt a ON a.task_id = t.id AND a.no = t.attempts
WHERE t.token_hash IS NOT NULL AND (w.status IN ('revoked', 'gone') OR a.leased_at > w.draining_at)

-- name: L7
-- A task waits in the queue of its own kind and workflow.
-- shows: task, queue, kind, workflow
SELECT t.id, t.queue, t.kind, j.workflow
FROM task t JOIN job j ON j.id = t.job_id JOIN stage s ON s.id = t.stage_id LEFT JOIN queue q ON q.id = t.queue
WHERE t.kind <> s.kind OR q.kind IS DISTINCT FROM t.kind OR q.workflow IS DISTINCT FROM j.workflow
OR q.provider IS DISTINCT FROM s.provider
OR t.queue <> t.kind || '/' || j.workflow || CASE s.provider WHEN '' THEN '' ELSE '/' || s.provider END

-- name: L8
-- No worker holds more than it said it can do at once.
-- shows: worker, concurrency, leases
SELECT w.id, w.concurrency, count(*) FROM worker w JOIN task t ON t.worker_id = w.id
WHERE t.token_hash IS NOT NULL GROUP BY w.id, w.concurrency HAVING count(*) > w.concurrency

-- name: L9
-- No task is leased while its job is paused, waits for its hour, has ended or is being canceled.
-- shows: job, event, task, job_status
SELECT e.subject, e.seq, e.entity_id, p.target FROM (
    SELECT subject, seq, entity_id, type,
        max(CASE WHEN target IS NOT NULL AND type LIKE 'job.%' THEN seq END)
            OVER (PARTITION BY subject ORDER BY seq) AS moved,
        max(CASE WHEN type = 'job.cancel_requested' THEN seq END)
            OVER (PARTITION BY subject, run ORDER BY seq) AS asked
    FROM event
) e LEFT JOIN event p ON p.subject = e.subject AND p.seq = e.moved
WHERE e.type = 'task.leased' AND (coalesce(p.target, '') NOT IN ('queued', 'running') OR e.asked IS NOT NULL)

-- name: L10
-- No two leases have the same token.
-- shows: first_task, last_task, leases
SELECT min(task_id), max(task_id), count(*) FROM attempt GROUP BY token_hash HAVING count(*) > 1

-- name: L11
-- Timely: a lease that ran out has been taken back, a wait that is over has ended.
-- shows: task, status, due_at, lease_expires_at
SELECT id, status, due_at, lease_expires_at FROM task WHERE due_at < {before} OR lease_expires_at < {before}

-- name: L12
-- A failed try is not followed by another one before its wait is over.
-- shows: task, attempt, ended_at, wait_seconds, next_leased_at
SELECT a.task_id, a.no, a.ended_at, CAST(e.data AS {json}) ->> 'wait_seconds', b.leased_at
FROM event e
JOIN attempt a ON a.task_id = e.entity_id AND a.no = CAST(CAST(e.data AS {json}) ->> 'attempt' AS {int})
JOIN attempt b ON b.task_id = a.task_id AND b.no = a.no + 1 AND b.run = a.run
WHERE e.type = 'task.retried'
AND b.leased_at < a.ended_at + CAST(CAST(CAST(e.data AS {json}) ->> 'wait_seconds' AS {real}) * 1000000 AS {int}) - 1

-- name: L13
-- A task is claimable only while it waits under a job and a stage that hand out work.
-- shows: task, status, stage_status, job_status
SELECT t.id, t.status, s.status, j.status
FROM task t JOIN stage s ON s.id = t.stage_id JOIN job j ON j.id = t.job_id
WHERE t.ready <> 0 AND (t.ready <> 1 OR t.status NOT IN ('pending', 'retried') OR j.cancel_requested_at IS NOT NULL
    OR j.status NOT IN ('queued', 'running') OR s.status NOT IN ('pending', 'running'))

-- name: L14
-- A task that waits under a job and a stage that hand out work is claimable, or will be at its moment.
-- shows: task, status, stage_status, job_status
SELECT t.id, t.status, s.status, j.status
FROM task t JOIN stage s ON s.id = t.stage_id JOIN job j ON j.id = t.job_id
WHERE t.ready = 0 AND t.due_at IS NULL AND t.status IN ('created', 'pending', 'retried')
AND j.cancel_requested_at IS NULL AND j.status IN ('queued', 'running') AND s.status IN ('pending', 'running')

-- name: L15
-- A leased task is due when its lease ends, a handed-over one never, a waiting one when its wait is over.
-- shows: task, status, due_at, lease_expires_at, ready_at
SELECT t.id, t.status, t.due_at, t.lease_expires_at, t.ready_at FROM task t
WHERE (t.token_hash IS NULL) <> (t.lease_expires_at IS NULL)
OR CASE WHEN t.status <> 'running' THEN t.token_hash IS NOT NULL
        OR (t.due_at IS NOT NULL AND (t.ready <> 0 OR t.due_at IS DISTINCT FROM t.ready_at OR t.status <> 'retried'))
    WHEN t.token_hash IS NOT NULL THEN t.due_at IS DISTINCT FROM t.lease_expires_at
    ELSE t.due_at IS NOT NULL OR NOT EXISTS (
        SELECT 1 FROM call c WHERE c.task_id = t.id AND c.attempt = t.attempts AND c.status IN ('submitted', 'unknown'))
    END

-- name: P1
-- An attempt makes at most one call.
-- shows: task, attempt, calls
SELECT task_id, attempt, count(*) FROM call GROUP BY task_id, attempt HAVING count(*) > 1

-- name: P2
-- A call was written down before it was made: the intent is an event before the submission's.
-- shows: task, attempt, intended_at, submitted_at
SELECT c.task_id, c.attempt, c.intended_at, c.submitted_at FROM call c
WHERE c.submitted_at < c.intended_at OR NOT EXISTS (
    SELECT 1 FROM event e WHERE e.subject = c.job_id AND e.entity_id = c.task_id AND e.type = 'task.intended'
    AND CAST(CAST(e.data AS {json}) ->> 'attempt' AS {int}) = c.attempt
    AND NOT EXISTS (
        SELECT 1 FROM event s WHERE s.subject = c.job_id AND s.entity_id = c.task_id AND s.type = 'task.submitted'
        AND CAST(CAST(s.data AS {json}) ->> 'attempt' AS {int}) = c.attempt AND s.seq < e.seq))

-- name: P3
-- A provider's reference belongs to one task.
-- shows: provider, first_task, last_task, calls
SELECT provider, min(task_id), max(task_id), count(*) FROM call
WHERE ref IS NOT NULL GROUP BY provider, ref HAVING count(*) > 1

-- name: P4
-- A callback is kept once under its provider's name, and read at most once: held with its text, or done without.
-- shows: callback, status, times
SELECT id, min(status), count(*) FROM inbox GROUP BY id HAVING count(*) > 1
UNION ALL SELECT id, status, 1 FROM inbox
WHERE substr(id, 1, length(provider) + 1) <> provider || '/' OR (status = 'held') <> (body IS NOT NULL)
OR status NOT IN ('held', 'applied', 'skipped')

-- name: P5
-- A callback that was applied or skipped names a known call.
-- shows: callback, status
SELECT i.id, i.status FROM inbox i WHERE i.status <> 'held'
AND NOT EXISTS (SELECT 1 FROM call c WHERE c.id = i.call_id AND c.provider = i.provider)
AND NOT EXISTS (SELECT 1 FROM call c WHERE c.provider = i.provider AND c.ref = i.ref)

-- name: P6
-- A submitted call has its reference, an unanswered one is looked up, and only an ended one is left alone.
-- shows: call, status, submitted_at, collect_at, ended_at
SELECT id, status, submitted_at, collect_at, ended_at FROM call
WHERE (status = 'ended') <> (ended_at IS NOT NULL) OR (ended_at IS NULL) <> (outcome IS NULL)
OR (ref IS NULL) <> (submitted_at IS NULL)
OR CASE status WHEN 'intended' THEN ref IS NOT NULL WHEN 'submitted' THEN ref IS NULL OR collect_at IS NULL
    WHEN 'unknown' THEN ref IS NOT NULL OR collect_at IS NULL ELSE status <> 'ended' OR collect_at IS NOT NULL END

-- name: P7
-- A call lives exactly as long as the attempt that made it, unless it ended first.
-- shows: call, task, attempt, status
SELECT c.id, c.task_id, c.attempt, c.status
FROM call c LEFT JOIN attempt a ON a.task_id = c.task_id AND a.no = c.attempt
WHERE a.no IS NULL OR (c.ended_at IS NULL AND a.ended_at IS NOT NULL)

-- name: P8
-- A callback is held only while nobody knows its reference.
-- shows: callback, call
SELECT i.id, c.id FROM inbox i JOIN call c ON c.provider = i.provider AND (c.ref = i.ref OR c.id = i.call_id)
WHERE i.status = 'held'

-- name: O1
-- A completed task keeps the output of the attempt that was accepted, until its job is deleted.
-- shows: job, task, attempt
SELECT a.job_id, a.task_id, a.no FROM attempt a JOIN job j ON j.id = a.job_id
WHERE a.outcome = 'completed' AND j.deleted_at IS NULL AND NOT EXISTS (
    SELECT 1 FROM document d WHERE d.owner_id = a.task_id AND d.name = 'output:' || a.no)

-- name: O2
-- A file is written down with a name, a type, a size and the digest of its bytes.
-- shows: file, task, bytes, digest_chars
SELECT id, task_id, bytes, length(sha256) FROM file
WHERE bytes < 0 OR name = '' OR media_type NOT LIKE '%_/_%' OR length(sha256) <> 64
OR ltrim(sha256, '0123456789abcdef') <> ''

-- name: O3
-- The files of an attempt have numbers of their own from 1 on, and each file has an id of its own.
-- shows: task, attempt, files, first, last
SELECT task_id, attempt, count(*), min(no), max(no) FROM file WHERE task_id IS NOT NULL GROUP BY task_id, attempt
HAVING min(no) < 1 OR count(DISTINCT no) <> count(*)
UNION ALL SELECT min(task_id), 0, count(*), 0, 0 FROM file GROUP BY id HAVING count(*) > 1

-- name: O4
-- A file is of the accepted attempt of its own task, job and tenant.
-- shows: file, job, task, attempt
SELECT f.id, f.job_id, f.task_id, f.attempt FROM file f LEFT JOIN task t ON t.id = f.task_id
LEFT JOIN attempt a ON a.task_id = f.task_id AND a.no = f.attempt
LEFT JOIN job j ON j.id = f.job_id
WHERE f.job_id IS NOT NULL AND (coalesce(a.outcome, '') <> 'completed' OR f.attempt IS DISTINCT FROM t.attempts
OR f.job_id IS DISTINCT FROM t.job_id OR f.tenant IS DISTINCT FROM t.tenant OR f.user_id IS DISTINCT FROM j.user_id
OR f.created_at IS DISTINCT FROM t.finished_at OR f.status = 'uploading')

-- name: O5
-- A deleted job has ended, and its texts are gone.
-- shows: job, status, deleted_at
SELECT j.id, j.status, j.deleted_at FROM job j WHERE j.deleted_at IS NOT NULL AND (j.finished_at IS NULL
    OR j.labels IS NOT NULL OR j.metadata IS NOT NULL OR j.trace IS NOT NULL
    OR EXISTS (SELECT 1 FROM document d WHERE d.job_id = j.id)
    OR EXISTS (SELECT 1 FROM file f WHERE f.job_id = j.id))

-- name: O6
-- A file that somebody brought is of no task; its bytes are uploading for a while, and what was deleted waits for nothing.
-- shows: file, status, task, attempt, expires_at
SELECT id, status, task_id, attempt, expires_at FROM file
WHERE status NOT IN ('uploading', 'ready', 'deleted') OR (job_id IS NULL) <> (task_id IS NULL)
OR (job_id IS NULL AND (attempt <> 0 OR no <> 0)) OR (status = 'uploading' AND expires_at IS NULL)
OR (status = 'deleted' AND expires_at IS NOT NULL)

-- name: O7
-- A job uses files of its own tenant and user, and an open one has them all.
-- shows: job, file, status
SELECT u.job_id, u.file_id, f.status FROM job_file u LEFT JOIN job j ON j.id = u.job_id LEFT JOIN file f ON f.id = u.file_id
WHERE j.id IS NULL OR f.tenant <> j.tenant OR f.user_id <> j.user_id OR f.status = 'uploading'
OR (j.finished_at IS NULL AND coalesce(f.status, 'deleted') = 'deleted')

-- name: O9
-- A file that a current workflow names is there.
-- shows: workflow, version, file, status
SELECT n.workflow, n.version, n.file_id, f.status FROM workflow_file n
LEFT JOIN workflow w ON w.name = n.workflow AND w.version = n.version LEFT JOIN file f ON f.id = n.file_id
WHERE w.name IS NULL OR (w.current = 1 AND coalesce(f.status, 'deleted') <> 'ready')

-- name: X1
-- An ended run has exactly one terminal event, an open one none; a blocked job has one.
-- shows: job, run, status, terminal_events
SELECT r.job_id, r.no, r.status, count(e.seq) FROM (
    SELECT job_id, no, status FROM run UNION ALL SELECT id, 0, status FROM job WHERE status = 'blocked'
) r LEFT JOIN event e ON e.subject = r.job_id AND e.run = r.no AND e.target IN {job_ended} AND e.type LIKE 'job.%'
GROUP BY r.job_id, r.no, r.status HAVING count(e.seq) <> CASE WHEN r.status = 'open' THEN 0 ELSE 1 END

-- name: X2
-- No event is of a run that was never opened.
-- shows: job, run, event, type
SELECT e.subject, e.run, e.seq, e.type FROM event e LEFT JOIN job j ON j.id = e.subject
WHERE (e.type LIKE 'job.%' OR e.type LIKE 'stage.%' OR e.type LIKE 'task.%')
AND NOT EXISTS (SELECT 1 FROM run r WHERE r.job_id = e.subject AND r.no = e.run)
AND (e.run <> 0 OR coalesce(j.status, '') <> 'blocked')

-- name: A1
-- Of a token only its hash is kept: 64 hexadecimal digits.
-- shows: what, task, chars
SELECT what, id, length(kept) FROM (
    SELECT 'attempt' AS what, task_id AS id, token_hash AS kept FROM attempt
    UNION ALL SELECT 'task', id, token_hash FROM task WHERE token_hash IS NOT NULL
    UNION ALL SELECT 'worker', id, token_hash FROM worker WHERE token_hash IS NOT NULL
) e WHERE length(kept) <> 64 OR ltrim(kept, '0123456789abcdef') <> ''

-- name: A2
-- A worker has a token exactly while it is let in, a moment of its end when it is not, and one of its approval.
-- shows: worker, status, ended_at
SELECT id, status, ended_at FROM worker
WHERE (status IN ('pending', 'approved')) <> (token_hash IS NOT NULL)
OR (status IN ('pending', 'approved')) <> (ended_at IS NULL)
OR (status <> 'gone' AND (status = 'approved') <> (approved_at IS NOT NULL))
OR started_at < created_at OR last_seen_at < started_at OR starts < 1 OR concurrency < 1

-- name: A4
-- Every key, every start of a worker and every movement of credits by hand has its line in the audit log.
-- shows: what, name, there, lines
SELECT what, name, CAST(sum(there) AS {int}), CAST(sum(lines) AS {int}) FROM (
    SELECT 'created' AS what, id AS name, 1 AS there, 0 AS lines FROM api_key
    UNION ALL SELECT 'revoked', id, 1, 0 FROM api_key WHERE revoked_at IS NOT NULL
    UNION ALL SELECT CASE WHEN job_id IS NULL THEN kind ELSE 'refund' END, tenant, 1, 0 FROM entry
    WHERE kind IN ('topup', 'adjust')
    UNION ALL SELECT 'refund', tenant, 0, 1 FROM audit WHERE action = 'job.refund'
    UNION ALL SELECT 'started', id, starts, 0 FROM worker
    UNION ALL SELECT 'started', subject, 0, 1 FROM audit WHERE action = 'worker.register'
    UNION ALL SELECT 'created', subject, 0, 1 FROM audit WHERE action = 'key.create'
    UNION ALL SELECT 'revoked', subject, 0, 1 FROM audit WHERE action = 'key.revoke'
    UNION ALL SELECT substr(action, 8), tenant, 0, 1 FROM audit WHERE action IN ('wallet.topup', 'wallet.adjust')
) e GROUP BY what, name HAVING sum(there) <> sum(lines)

-- name: A5
-- A key is a tenant's that exists, or an operator's or the fleet's; it ends after it began, and only the hash of its secret is kept.
-- shows: key, role, created_at, expires_at, revoked_at
SELECT k.id, k.role, k.created_at, k.expires_at, k.revoked_at FROM api_key k
WHERE k.role NOT IN ('admin', 'client', 'viewer', 'worker')
OR CASE WHEN k.tenant = '' THEN k.role NOT IN ('admin', 'worker')
    ELSE k.role = 'worker' OR NOT EXISTS (SELECT 1 FROM tenant t WHERE t.id = k.tenant) END
OR k.expires_at <= k.created_at OR k.revoked_at < k.created_at
OR length(k.secret_hash) <> 64 OR ltrim(k.secret_hash, '0123456789abcdef') <> ''

-- name: A6
-- An audit line says who did what to what, and when; a key's line is about a key that exists.
-- shows: line, at, action
SELECT a.id, a.at, a.action FROM audit a
WHERE a.actor IS NULL OR a.action NOT LIKE '%_._%' OR coalesce(a.subject, '') = '' OR a.at <= 0
OR (a.action LIKE 'key.%' AND NOT EXISTS (SELECT 1 FROM api_key k WHERE k.id = a.subject))

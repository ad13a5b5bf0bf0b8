-- Rules of events, API keys and the audit log.
-- Each block finds the rows that break one rule; on a consistent database no block finds a row.
-- Its first comment is the rule, its second names the columns: ids and numbers, never a secret.
-- {job_ended}, {stage_ended} and {task_ended} are terminal statuses, {moves} the legal moves. {before} is the time
-- before which everything that was due must have been processed.

-- name: X1
-- An ended run has exactly one terminal event, an open run none; a blocked job has one.
-- columns: job, run, status, terminal_events
SELECT r.job_id, r.no, r.status, count(e.seq) FROM (
    SELECT job_id, no, status FROM run UNION ALL SELECT id, 0, status FROM job WHERE status = 'blocked'
) r LEFT JOIN event e ON e.subject = r.job_id AND e.run = r.no AND e.target IN {job_ended} AND e.type LIKE 'job.%'
GROUP BY r.job_id, r.no, r.status HAVING count(e.seq) <> CASE WHEN r.status = 'open' THEN 0 ELSE 1 END

-- name: X2
-- Every event belongs to an existing run.
-- columns: job, run, event, type
SELECT e.subject, e.run, e.seq, e.type FROM event e LEFT JOIN job j ON j.id = e.subject
WHERE (e.type LIKE 'job.%' OR e.type LIKE 'stage.%' OR e.type LIKE 'task.%')
AND NOT EXISTS (SELECT 1 FROM run r WHERE r.job_id = e.subject AND r.no = e.run)
AND (e.run <> 0 OR coalesce(j.status, '') <> 'blocked')

-- name: X5
-- No event and no cursor is ahead of the transactions of the database: start a server, or run `callsheet migrate`, after a restore.
-- columns: what, id, transaction
SELECT what, id, tx FROM (
    SELECT 'event' AS what, CAST(id AS text) AS id, tx FROM event UNION ALL SELECT 'cursor', id, tx FROM cursor
) p WHERE tx >= {next_transaction}

-- name: A1
-- Tokens are stored as a hash of 64 hexadecimal digits.
-- columns: what, id, chars
SELECT what, id, length(hash) FROM (
    SELECT 'attempt' AS what, task_id AS id, token_hash AS hash FROM attempt
    UNION ALL SELECT 'task', id, token_hash FROM task WHERE token_hash IS NOT NULL
    UNION ALL SELECT 'worker', id, token_hash FROM worker WHERE token_hash IS NOT NULL
) e WHERE length(hash) <> 64 OR ltrim(hash, '0123456789abcdef') <> ''

-- name: A2
-- An active worker has a token, an ended worker has an end time, and an approved worker has an approval time.
-- columns: worker, status, ended_at
SELECT id, status, ended_at FROM worker
WHERE (status IN ('pending', 'approved')) <> (token_hash IS NOT NULL)
OR (status IN ('pending', 'approved')) <> (ended_at IS NULL)
OR (status <> 'offline' AND (status = 'approved') <> (approved_at IS NOT NULL))
OR started_at < created_at OR last_seen_at < started_at OR ended_at < last_seen_at OR approved_at < created_at
OR draining_at < started_at OR starts < 1 OR concurrency < 1

-- name: A4
-- Every API key, every start of a worker and every manual credit change has an audit entry.
-- columns: what, name, rows, audit_entries
SELECT what, name, CAST(sum(rows_found) AS {int}), CAST(sum(audit_entries) AS {int}) FROM (
    SELECT 'created' AS what, id AS name, 1 AS rows_found, 0 AS audit_entries FROM api_key
    UNION ALL SELECT 'revoked', id, 1, 0 FROM api_key WHERE revoked_at IS NOT NULL
    UNION ALL SELECT CASE WHEN job_id IS NULL THEN kind ELSE 'refund' END, tenant, 1, 0 FROM entry
    WHERE kind IN ('topup', 'adjust')
    UNION ALL SELECT 'refund', tenant, 0, 1 FROM audit WHERE action = 'job.refund'
    UNION ALL SELECT 'started', id, starts, 0 FROM worker
    UNION ALL SELECT 'started', subject, 0, 1 FROM audit WHERE action = 'worker.register'
    UNION ALL SELECT 'created', subject, 0, 1 FROM audit WHERE action = 'key.create'
    UNION ALL SELECT 'revoked', subject, 0, 1 FROM audit WHERE action = 'key.revoke'
    UNION ALL SELECT substr(action, 8), tenant, 0, 1 FROM audit WHERE action IN ('wallet.topup', 'wallet.adjust')
) e GROUP BY what, name HAVING sum(rows_found) <> sum(audit_entries)

-- name: A5
-- An API key belongs to an existing tenant, an operator or the fleet; it expires after its creation, and only the hash of its secret is stored.
-- columns: key, role, created_at, expires_at, revoked_at
SELECT k.id, k.role, k.created_at, k.expires_at, k.revoked_at FROM api_key k
WHERE k.role NOT IN ('admin', 'client', 'viewer', 'worker')
OR CASE WHEN k.tenant = '' THEN k.role NOT IN ('admin', 'worker')
    ELSE k.role = 'worker' OR NOT EXISTS (SELECT 1 FROM tenant t WHERE t.id = k.tenant) END
OR k.expires_at <= k.created_at OR k.revoked_at < k.created_at
OR length(k.secret_hash) <> 64 OR ltrim(k.secret_hash, '0123456789abcdef') <> ''

-- name: A6
-- An audit entry has an actor, an action, a subject and a time; an entry about a key refers to an existing key.
-- columns: entry, at, action
SELECT a.id, a.at, a.action FROM audit a
WHERE a.actor IS NULL OR a.action NOT LIKE '%_._%' OR coalesce(a.subject, '') = '' OR a.at <= 0
OR (a.action LIKE 'key.%' AND NOT EXISTS (SELECT 1 FROM api_key k WHERE k.id = a.subject))

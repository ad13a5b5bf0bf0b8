-- Rules of events, API keys and the audit log.
-- The format is described in store/verify/rule_files.py.

-- name: X1
-- An ended run has exactly one terminal event, an open run none; a blocked job has one.
-- columns: job, run, status, terminal_events
-- slices: run.job_id
SELECT r.job_id, r.no, r.status, count(e.seq) FROM run r
LEFT JOIN event e ON e.subject = r.job_id AND e.run = r.no AND e.target IN {job_ended} AND e.type LIKE 'job.%'
WHERE {slice r.job_id}
GROUP BY r.job_id, r.no, r.status HAVING count(e.seq) <> CASE WHEN r.status = 'open' THEN 0 ELSE 1 END
-- slices: job.id
SELECT j.id, 0, j.status, count(e.seq) FROM job j
LEFT JOIN event e ON e.subject = j.id AND e.run = 0 AND e.target IN {job_ended} AND e.type LIKE 'job.%'
WHERE {slice j.id} AND j.status = 'blocked' GROUP BY j.id, j.status HAVING count(e.seq) <> 1

-- name: X2
-- Every event belongs to an existing run.
-- columns: job, run, event, type
-- slices: event.subject
SELECT e.subject, e.run, e.first_seq, e.first_type FROM (
    SELECT subject, run, min(seq) AS first_seq, min(type) AS first_type FROM event
    WHERE {slice subject} AND (type LIKE 'job.%' OR type LIKE 'stage.%' OR type LIKE 'task.%') GROUP BY subject, run
) e LEFT JOIN job j ON j.id = e.subject LEFT JOIN run r ON r.job_id = e.subject AND r.no = e.run
WHERE r.no IS NULL AND (e.run <> 0 OR coalesce(j.status, '') <> 'blocked')

-- name: X5
-- No event and no cursor is ahead of the transactions of the database: start a server, or run `callsheet migrate`, after a restore.
-- columns: what, id, transaction
-- slices: event.subject
SELECT 'event', CAST(id AS text), tx FROM event WHERE {slice subject} AND tx >= {next_transaction}
-- slices: cursor.id
SELECT 'cursor', id, tx FROM cursor WHERE {slice id} AND tx >= {next_transaction}

-- name: A1
-- Tokens are stored as a hash of 64 hexadecimal digits.
-- columns: what, id, chars
-- slices: attempt.task_id
SELECT 'attempt', task_id, length(token_hash) FROM attempt
WHERE {slice task_id} AND (length(token_hash) <> 64 OR ltrim(token_hash, '0123456789abcdef') <> '')
-- slices: task.id
SELECT 'task', id, length(token_hash) FROM task
WHERE {slice id} AND (length(token_hash) <> 64 OR ltrim(token_hash, '0123456789abcdef') <> '')
-- slices: worker.id
SELECT 'worker', id, length(token_hash) FROM worker
WHERE {slice id} AND (length(token_hash) <> 64 OR ltrim(token_hash, '0123456789abcdef') <> '')

-- name: A2
-- An active worker has a token, an ended worker has an end time, and an approved worker has an approval time.
-- columns: worker, status, ended_at
-- slices: worker.id
SELECT id, status, ended_at FROM worker
WHERE {slice id} AND ((status IN ('pending', 'approved')) <> (token_hash IS NOT NULL)
OR (status IN ('pending', 'approved')) <> (ended_at IS NULL)
OR (status <> 'offline' AND (status = 'approved') <> (approved_at IS NOT NULL))
OR started_at < created_at OR last_seen_at < started_at OR ended_at < last_seen_at OR approved_at < created_at
OR draining_at < started_at OR starts < 1 OR concurrency < 1)

-- name: A3
-- Every line of the audit log follows the line before it, and the last line is the one that the chain's head names.
-- columns: tenant, line, problem
-- code: audit.id
-- slices: audit_head.tenant
SELECT h.tenant, 1, 'missing' FROM audit_head h
WHERE {slice h.tenant} AND h.seq > 0 AND NOT EXISTS (SELECT 1 FROM audit a WHERE a.tenant = h.tenant)
-- slices: tenant.id
SELECT t.id, 0, 'head' FROM tenant t
WHERE {slice t.id} AND NOT EXISTS (SELECT 1 FROM audit_head h WHERE h.tenant = t.id)
AND NOT EXISTS (SELECT 1 FROM audit a WHERE a.tenant = t.id)

-- name: A4
-- Every API key, every start of a worker and every manual credit change has an audit entry.
-- columns: what, name, rows, audit_entries
-- slices: api_key.id
SELECT 'created', k.id, 1, count(a.id) FROM api_key k
LEFT JOIN audit a ON a.subject = k.id AND a.action = 'key.create'
WHERE {slice k.id} GROUP BY k.id HAVING count(a.id) <> 1
-- slices: api_key.id
SELECT 'revoked', k.id, count(k.revoked_at), count(a.id) FROM api_key k
LEFT JOIN audit a ON a.subject = k.id AND a.action = 'key.revoke'
WHERE {slice k.id} GROUP BY k.id, k.revoked_at HAVING count(a.id) <> CASE WHEN k.revoked_at IS NULL THEN 0 ELSE 1 END
-- slices: worker.id
SELECT 'started', w.id, w.starts, count(a.id) FROM worker w
LEFT JOIN audit a ON a.subject = w.id AND a.action = 'worker.register'
WHERE {slice w.id} GROUP BY w.id, w.starts HAVING count(a.id) <> w.starts
-- slices: entry.wallet_id
SELECT e.kind, e.wallet_id, e.counted, count(a.id) FROM (
    SELECT kind, wallet_id, tenant, count(*) AS counted FROM entry
    WHERE {slice wallet_id} AND kind IN ('topup', 'adjust') AND job_id IS NULL GROUP BY kind, wallet_id, tenant
) e LEFT JOIN wallet w ON w.id = e.wallet_id
LEFT JOIN audit a ON a.subject = w.user_id AND a.tenant = e.tenant AND a.action = 'wallet.' || e.kind
GROUP BY e.kind, e.wallet_id, e.counted HAVING count(a.id) <> e.counted
-- slices: entry.job_id WHERE kind = 'adjust' AND job_id IS NOT NULL
SELECT 'refund', e.job_id, e.counted, count(a.id) FROM (
    SELECT job_id, tenant, count(*) AS counted FROM entry
    WHERE {slice job_id} AND kind = 'adjust' AND job_id IS NOT NULL GROUP BY job_id, tenant
) e LEFT JOIN audit a ON a.subject = e.job_id AND a.tenant = e.tenant AND a.action = 'job.refund'
GROUP BY e.job_id, e.counted HAVING count(a.id) <> e.counted
-- slices: audit.id
SELECT a.action, a.subject, 0, 1 FROM audit a LEFT JOIN api_key k ON k.id = a.subject
LEFT JOIN worker w ON w.id = a.subject
WHERE {slice a.id} AND CASE a.action WHEN 'key.create' THEN k.id IS NULL WHEN 'key.revoke' THEN k.revoked_at IS NULL
    WHEN 'worker.register' THEN w.id IS NULL ELSE 1 = 0 END
-- slices: audit.id
SELECT a.action, a.subject, 0, 1 FROM audit a
WHERE {slice a.id} AND a.action IN ('wallet.topup', 'wallet.adjust') AND NOT EXISTS (
    SELECT 1 FROM entry e WHERE e.wallet_id = a.tenant || '/' || a.subject AND 'wallet.' || e.kind = a.action
    AND e.job_id IS NULL)
-- slices: audit.id
SELECT a.action, a.subject, 0, 1 FROM audit a
WHERE {slice a.id} AND a.action = 'job.refund' AND NOT EXISTS (
    SELECT 1 FROM entry e WHERE e.job_id = a.subject AND e.kind = 'adjust' AND e.job_id IS NOT NULL)

-- name: A5
-- An API key belongs to an existing tenant, an operator or the fleet; it expires after its creation, and only the hash of its secret is stored.
-- columns: key, role, created_at, expires_at, revoked_at
-- slices: api_key.id
SELECT k.id, k.role, k.created_at, k.expires_at, k.revoked_at FROM api_key k LEFT JOIN tenant t ON t.id = k.tenant
WHERE {slice k.id} AND (k.role NOT IN ('admin', 'client', 'viewer', 'worker')
OR CASE WHEN k.tenant = '' THEN k.role NOT IN ('admin', 'worker') ELSE k.role = 'worker' OR t.id IS NULL END
OR k.expires_at <= k.created_at OR k.revoked_at < k.created_at
OR length(k.secret_hash) <> 64 OR ltrim(k.secret_hash, '0123456789abcdef') <> '')

-- name: A6
-- An audit entry has an actor, an action, a subject and a time; an entry about a key refers to an existing key.
-- columns: entry, at, action
-- slices: audit.id
SELECT a.id, a.at, a.action FROM audit a LEFT JOIN api_key k ON k.id = a.subject
WHERE {slice a.id} AND (a.actor IS NULL OR a.action NOT LIKE '%_._%' OR coalesce(a.subject, '') = '' OR a.at <= 0
OR (a.action LIKE 'key.%' AND k.id IS NULL))

-- Rules of files.
-- The format is described in store/verify/rule_files.py.

-- name: O1
-- A completed task keeps the output of the attempt that was accepted, until its job is deleted.
-- columns: job, task, attempt
-- slices: attempt.task_id
SELECT a.job_id, a.task_id, a.no FROM attempt a JOIN job j ON j.id = a.job_id
LEFT JOIN document d ON d.owner_id = a.task_id AND d.name = 'output:' || a.no
WHERE {slice a.task_id} AND a.outcome = 'completed' AND j.deleted_at IS NULL AND d.name IS NULL

-- name: O2
-- A file has a name, a media type, a size and a digest.
-- columns: file, task, bytes, digest_chars
-- slices: file.id
SELECT id, task_id, bytes, length(sha256) FROM file
WHERE {slice id} AND (bytes < 0 OR name = '' OR media_type NOT LIKE '%_/_%' OR length(sha256) <> 64
OR ltrim(sha256, '0123456789abcdef') <> '')

-- name: O3
-- The files of an attempt have distinct numbers from 1, and every file has a distinct id.
-- columns: task, attempt, files, first, last
-- slices: file.task_id
SELECT task_id, attempt, count(*), min(no), max(no) FROM file WHERE {slice task_id} GROUP BY task_id, attempt
HAVING min(no) < 1 OR count(DISTINCT no) <> count(*)
-- slices: file.id
SELECT min(task_id), 0, count(*), 0, 0 FROM file WHERE {slice id} GROUP BY id HAVING count(*) > 1

-- name: O4
-- An output file belongs to the accepted attempt of its task, job and tenant.
-- columns: file, job, task, attempt
-- slices: file.id
SELECT f.id, f.job_id, f.task_id, f.attempt FROM file f LEFT JOIN task t ON t.id = f.task_id
LEFT JOIN attempt a ON a.task_id = f.task_id AND a.no = f.attempt
LEFT JOIN job j ON j.id = f.job_id
WHERE {slice f.id} AND f.job_id IS NOT NULL
AND (coalesce(a.outcome, '') <> 'completed' OR f.attempt IS DISTINCT FROM t.attempts
OR f.job_id IS DISTINCT FROM t.job_id OR f.tenant IS DISTINCT FROM t.tenant OR f.user_id IS DISTINCT FROM j.user_id
OR f.created_at IS DISTINCT FROM t.finished_at OR f.status = 'uploading')

-- name: O5
-- A deleted job has ended, and its documents are deleted.
-- columns: job, status, deleted_at
-- slices: job.id
SELECT j.id, j.status, j.deleted_at FROM job j
WHERE {slice j.id} AND j.deleted_at IS NOT NULL AND (j.finished_at IS NULL
OR j.labels IS NOT NULL OR j.metadata IS NOT NULL OR j.trace IS NOT NULL)
-- slices: job.id
SELECT j.id, j.status, j.deleted_at FROM job j WHERE {slice j.id} AND j.deleted_at IS NOT NULL
AND EXISTS (SELECT 1 FROM document d WHERE d.job_id = j.id)
-- slices: job.id
SELECT j.id, j.status, j.deleted_at FROM job j WHERE {slice j.id} AND j.deleted_at IS NOT NULL
AND EXISTS (SELECT 1 FROM file f WHERE f.job_id = j.id)

-- name: O6
-- An upload has no task; an open upload has an expiry, and a deleted one has none.
-- columns: file, status, task, attempt, expires_at
-- slices: file.id
SELECT id, status, task_id, attempt, expires_at FROM file
WHERE {slice id} AND (status NOT IN ('uploading', 'ready', 'deleted') OR (job_id IS NULL) <> (task_id IS NULL)
OR (job_id IS NULL AND (attempt <> 0 OR no <> 0)) OR (status = 'uploading' AND expires_at IS NULL)
OR (status = 'deleted' AND expires_at IS NOT NULL))

-- name: O7
-- A job uses files of its own tenant and user, and all files of an open job exist.
-- columns: job, file, status
-- slices: job_file.job_id
SELECT u.job_id, u.file_id, f.status FROM job_file u LEFT JOIN job j ON j.id = u.job_id LEFT JOIN file f ON f.id = u.file_id
WHERE {slice u.job_id} AND (j.id IS NULL OR f.tenant <> j.tenant OR f.user_id <> j.user_id OR f.status = 'uploading'
OR (j.finished_at IS NULL AND coalesce(f.status, 'deleted') = 'deleted'))

-- name: O9
-- A file that a current workflow refers to exists.
-- columns: workflow, version, file, status
-- slices: workflow_file.workflow
SELECT n.workflow, n.version, n.file_id, f.status FROM workflow_file n
LEFT JOIN workflow w ON w.name = n.workflow AND w.version = n.version LEFT JOIN file f ON f.id = n.file_id
WHERE {slice n.workflow} AND (w.name IS NULL OR (w.current = 1 AND coalesce(f.status, 'deleted') <> 'ready'))

-- name: O10
-- The usage of a tenant is the size of its stored files, and of its unfinished uploads and announced outputs.
-- columns: tenant, stored_bytes, pending_bytes, files_ready, files_uploading, announced
-- slices: none
SELECT t.id, u.stored_bytes, u.pending_bytes, f.ready, f.uploading, a.announced FROM tenant t
LEFT JOIN storage_usage u ON u.tenant = t.id
LEFT JOIN (
    SELECT tenant, sum(CASE WHEN status = 'ready' THEN bytes ELSE 0 END) AS ready,
        sum(CASE WHEN status = 'uploading' THEN bytes ELSE 0 END) AS uploading
    FROM file GROUP BY tenant) f ON f.tenant = t.id
LEFT JOIN (
    SELECT tenant, sum(CAST(v.value AS {int})) AS announced FROM attempt, {json_values}(CAST(announced AS {json})) v
    WHERE ended_at IS NULL AND announced IS NOT NULL GROUP BY tenant) a ON a.tenant = t.id
WHERE u.stored_bytes IS DISTINCT FROM coalesce(f.ready, 0)
OR u.pending_bytes IS DISTINCT FROM coalesce(f.uploading, 0) + coalesce(a.announced, 0)

-- name: O11
-- A job counts the size of its output files and announced outputs, the size of its log, and its progress events.
-- columns: job, output_bytes, log_bytes, progress_events
-- slices: job.id
SELECT j.id, j.output_bytes, j.log_bytes, j.progress_events FROM job j
LEFT JOIN (SELECT job_id, sum(bytes) AS bytes FROM file WHERE {slice job_id} GROUP BY job_id) f ON f.job_id = j.id
LEFT JOIN (
    SELECT s.job_id, sum(CAST(v.value AS {int})) AS bytes FROM stage s JOIN task t ON t.stage_id = s.id
    JOIN attempt a ON a.task_id = t.id CROSS JOIN {json_values}(CAST(a.announced AS {json})) v
    WHERE {slice s.job_id} AND CASE WHEN a.ended_at IS NULL THEN a.announced END IS NOT NULL GROUP BY s.job_id
) a ON a.job_id = j.id
LEFT JOIN (
    SELECT subject, sum(CASE WHEN type = 'task.logged' THEN octet_length(data) ELSE 0 END) AS log_bytes,
        sum(CASE WHEN type = 'task.progressed' THEN 1 ELSE 0 END) AS progress_events
    FROM event WHERE {slice subject} AND type IN ('task.logged', 'task.progressed') GROUP BY subject
) e ON e.subject = j.id
WHERE {slice j.id} AND (j.output_bytes <> coalesce(f.bytes, 0) + coalesce(a.bytes, 0)
OR j.log_bytes <> coalesce(e.log_bytes, 0) OR j.progress_events <> coalesce(e.progress_events, 0))

-- Rules of wallets, entries and reservations.
-- The format is described in store/verify/rule_files.py.

-- name: M1
-- A wallet's balance, its total top-ups and its total consumption are the sums of its entries.
-- columns: wallet, balance, entries_sum, entries, entries_counted
-- slices: entry.wallet_id
SELECT w.id, w.balance, e.total, w.entries, e.counted FROM (
    SELECT wallet_id, CAST(sum(amount) AS {int}) AS total, count(*) AS counted, sum(consumed) AS consumed,
        sum(CASE WHEN kind = 'topup' THEN amount ELSE 0 END) AS topped_up
    FROM entry WHERE {slice wallet_id} GROUP BY wallet_id
) e JOIN wallet w ON w.id = e.wallet_id
WHERE w.balance <> e.total OR w.entries <> e.counted OR w.topped_up <> e.topped_up OR w.consumed <> e.consumed
-- slices: wallet.id
SELECT w.id, w.balance, 0, w.entries, 0 FROM wallet w
WHERE {slice w.id} AND (w.balance <> 0 OR w.entries <> 0 OR w.topped_up <> 0 OR w.consumed <> 0)
AND NOT EXISTS (SELECT 1 FROM entry e WHERE e.wallet_id = w.id)

-- name: M2
-- No balance and no reserved amount is negative.
-- columns: wallet, entry, balance, reserved
-- slices: wallet.id
SELECT id, 0, balance, reserved FROM wallet WHERE {slice id} AND (balance < 0 OR reserved < 0)
-- slices: none
SELECT wallet_id, seq, balance, 0 FROM entry WHERE balance < 0

-- name: M3
-- A wallet's reserved amount is the sum of its open reservations.
-- columns: wallet, reserved, open_reservations
-- slices: entry.wallet_id
SELECT w.id, w.reserved, o.total FROM (
    SELECT r.wallet_id,
        CAST(-sum(CASE WHEN r.kind = 'reserve' AND s.job_id IS NULL THEN r.amount ELSE 0 END) AS {int}) AS total
    FROM entry r
    LEFT JOIN entry s ON s.job_id = r.job_id AND s.run = r.run AND s.kind IN ('consume', 'refund') AND r.kind = 'reserve'
    WHERE {slice r.wallet_id} GROUP BY r.wallet_id
) o JOIN wallet w ON w.id = o.wallet_id
WHERE w.reserved <> o.total
-- slices: wallet.id
SELECT w.id, w.reserved, 0 FROM wallet w
WHERE {slice w.id} AND w.reserved <> 0 AND NOT EXISTS (SELECT 1 FROM entry e WHERE e.wallet_id = w.id)

-- name: M4
-- A run reserves at most once.
-- columns: job, run, reserves
-- slices: entry.job_id WHERE kind = 'reserve'
SELECT job_id, run, count(*) FROM entry WHERE {slice job_id} AND kind = 'reserve' GROUP BY job_id, run HAVING count(*) > 1

-- name: M5
-- A run is settled at most once, by consume or by refund.
-- columns: job, run, settlements
-- slices: entry.job_id WHERE kind IN ('consume', 'refund')
SELECT job_id, run, count(*) FROM entry
WHERE {slice job_id} AND kind IN ('consume', 'refund') GROUP BY job_id, run HAVING count(*) > 1

-- name: M6
-- A settlement comes after its run's reservation, in the same wallet.
-- columns: wallet, entry, job, run
-- slices: entry.job_id WHERE kind IN ('consume', 'refund')
SELECT s.wallet_id, s.seq, s.job_id, s.run FROM entry s
LEFT JOIN entry r ON r.kind = 'reserve' AND r.job_id = s.job_id AND r.run = s.run
    AND r.wallet_id = s.wallet_id AND r.seq < s.seq
WHERE {slice s.job_id} AND s.kind IN ('consume', 'refund') AND r.seq IS NULL

-- name: M7
-- Refunded plus consumed credits equal the reserved credits.
-- columns: job, run, reserved, refunded, consumed
-- slices: entry.job_id WHERE kind = 'reserve'
SELECT r.job_id, r.run, -r.amount, s.amount, s.consumed
FROM entry r JOIN entry s ON s.job_id = r.job_id AND s.run = r.run AND s.kind IN ('consume', 'refund')
WHERE {slice r.job_id} AND r.kind = 'reserve' AND -r.amount <> s.amount + s.consumed

-- name: M8
-- A priced run that has ended is settled.
-- columns: job, run, price
-- slices: run.job_id
SELECT r.job_id, r.no, r.price FROM run r
LEFT JOIN entry s ON s.job_id = r.job_id AND s.run = r.no AND s.kind IN ('consume', 'refund')
WHERE {slice r.job_id} AND r.status <> 'open' AND r.price > 0 AND s.job_id IS NULL

-- name: M9
-- A run that completed, or kept partial results, is consumed; every other run is refunded; run and ledger agree.
-- columns: job, run, status, entry_kind, price, run_consumed, run_refunded, entry_consumed, entry_refunded
-- slices: run.job_id
SELECT r.job_id, r.no, r.status, s.kind, r.price, r.consumed, r.refunded, s.consumed, s.amount
FROM run r JOIN entry s ON s.job_id = r.job_id AND s.run = r.no AND s.kind IN ('consume', 'refund')
WHERE {slice r.job_id} AND r.status <> 'open' AND (
    s.kind <> CASE WHEN r.status = 'completed' OR r.consumed > 0 THEN 'consume' ELSE 'refund' END
    OR s.consumed <> r.consumed OR s.amount <> r.refunded OR r.consumed + r.refunded <> r.price)

-- name: M10
-- An open run is not settled.
-- columns: job, run, consumed, refunded
-- slices: run.job_id
SELECT r.job_id, r.no, r.consumed, r.refunded FROM run r
LEFT JOIN entry s ON s.job_id = r.job_id AND s.run = r.no AND s.kind IN ('consume', 'refund')
WHERE {slice r.job_id} AND r.status = 'open' AND (r.consumed <> 0 OR r.refunded <> 0 OR s.job_id IS NOT NULL)

-- name: M11
-- The running balance of every entry is the sum up to it, and entries are numbered without a gap and never go back in time.
-- columns: wallet, entry, balance, recomputed, expected_entry
-- slices: entry.wallet_id
SELECT wallet_id, seq, balance, recomputed, expected_seq FROM (
    SELECT wallet_id, seq, balance,
        CAST(sum(amount) OVER (PARTITION BY wallet_id ORDER BY seq) AS {int}) AS recomputed,
        row_number() OVER (PARTITION BY wallet_id ORDER BY seq) AS expected_seq,
        at, lag(at) OVER (PARTITION BY wallet_id ORDER BY seq) AS before
    FROM entry WHERE {slice wallet_id}
) e WHERE balance <> recomputed OR seq <> expected_seq OR at < before

-- name: M12
-- An entry, its wallet and its job have the same tenant, and the job pays from that wallet.
-- columns: wallet, entry, job
-- slices: entry.wallet_id
SELECT e.wallet_id, e.seq, e.job_id
FROM entry e LEFT JOIN wallet w ON w.id = e.wallet_id LEFT JOIN job j ON j.id = e.job_id
WHERE {slice e.wallet_id} AND (w.tenant IS DISTINCT FROM e.tenant
OR (e.job_id IS NOT NULL AND (j.tenant IS DISTINCT FROM e.tenant OR j.wallet_id IS DISTINCT FROM e.wallet_id)))

-- name: M13
-- A blocked job has no ledger entry and no run.
-- columns: job, run, price
-- slices: job.id
SELECT j.id, j.run, j.price FROM job j LEFT JOIN run r ON r.job_id = j.id
WHERE {slice j.id} AND j.status = 'blocked' AND (j.run <> 0 OR j.price <> 0 OR r.no IS NOT NULL)
-- slices: job.id
SELECT j.id, j.run, j.price FROM job j WHERE {slice j.id} AND j.status = 'blocked'
AND EXISTS (SELECT 1 FROM entry e WHERE e.job_id = j.id AND e.kind = 'reserve')
-- slices: job.id
SELECT j.id, j.run, j.price FROM job j WHERE {slice j.id} AND j.status = 'blocked'
AND EXISTS (SELECT 1 FROM entry e WHERE e.job_id = j.id AND e.kind IN ('consume', 'refund'))
-- slices: job.id
SELECT j.id, j.run, j.price FROM job j WHERE {slice j.id} AND j.status = 'blocked'
AND EXISTS (SELECT 1 FROM entry e WHERE e.job_id = j.id AND e.kind = 'adjust' AND e.job_id IS NOT NULL)

-- name: M14
-- Each kind of entry has its sign. Top-ups have no job; an adjustment has a run if it refunds consumed credits; other entries have a run.
-- columns: wallet, entry, kind, amount, consumed, job, run
-- slices: none
SELECT wallet_id, seq, kind, amount, consumed, job_id, run FROM entry
WHERE (CASE kind
    WHEN 'topup' THEN amount <= 0 OR consumed <> 0
    WHEN 'adjust' THEN amount = 0 OR consumed <> CASE WHEN job_id IS NULL THEN 0 ELSE -amount END
    WHEN 'reserve' THEN amount >= 0 OR consumed <> 0
    WHEN 'consume' THEN amount < 0 OR consumed <= 0
    ELSE kind <> 'refund' OR amount <= 0 OR consumed <> 0 END
OR (kind <> 'adjust' AND (kind = 'topup') <> (job_id IS NULL)) OR (job_id IS NULL) <> (run IS NULL))

-- name: M15
-- A run reserved exactly its price, and every reservation belongs to a run.
-- columns: job, run, price, reserved
-- slices: run.job_id
SELECT r.job_id, r.no, r.price, coalesce(-e.amount, 0)
FROM run r LEFT JOIN entry e ON e.job_id = r.job_id AND e.run = r.no AND e.kind = 'reserve'
WHERE {slice r.job_id} AND coalesce(-e.amount, 0) <> r.price
-- slices: entry.job_id WHERE kind = 'reserve'
SELECT e.job_id, e.run, 0, -e.amount FROM entry e LEFT JOIN run r ON r.job_id = e.job_id AND r.no = e.run
WHERE {slice e.job_id} AND e.kind = 'reserve' AND r.no IS NULL

-- name: M16
-- An operator refunds the consumed credits of a run at most once, completely, and after the run has ended.
-- columns: job, run, refunded, consumed
-- slices: entry.job_id WHERE kind = 'adjust' AND job_id IS NOT NULL
SELECT e.job_id, e.run, e.total, r.consumed FROM (
    SELECT job_id, run, CAST(sum(amount) AS {int}) AS total, min(at) AS at FROM entry
    WHERE {slice job_id} AND kind = 'adjust' AND job_id IS NOT NULL GROUP BY job_id, run
) e LEFT JOIN run r ON r.job_id = e.job_id AND r.no = e.run
WHERE r.status IS NULL OR r.status = 'open' OR e.total <> r.consumed OR e.at < r.finished_at

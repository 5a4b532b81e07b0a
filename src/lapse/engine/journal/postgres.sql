-- The journal's statements on PostgreSQL; the tables are made by lapse.db.postgres.migrations. Rows are appended and never changed.

-- name: append
-- All rows of a call in one statement, in their order. As one document: an array for each column takes a client, which
-- makes the text of every value by itself, twenty times as long.
INSERT INTO journal (
    time_ns, domain, address, uid, version, verdict, reason, anchor_ns, policy, actor, outcome, details, tick, attempt,
    store
)
SELECT
    time_ns, domain, address, uid, version, verdict, reason, anchor_ns, policy, actor, outcome, details, tick, attempt,
    store
FROM ROWS FROM (
    json_to_recordset(%(rows)s::json) AS (
        time_ns int8, domain text, address text, uid text, version text, verdict text, reason text, anchor_ns int8,
        policy text, actor text, outcome text, details text, tick text, attempt text, store text
    )
) WITH ORDINALITY AS given (
    time_ns, domain, address, uid, version, verdict, reason, anchor_ns, policy, actor, outcome, details, tick, attempt,
    store, place
)
ORDER BY place

-- name: entries
-- The conditions are put in between: one statement with "or not asked for" behind every condition would use no index.
SELECT
    time_ns, domain, address, uid, version, verdict, reason, anchor_ns, policy, actor, outcome, details, tick, attempt, id,
    written_by::text::int8
FROM journal

-- name: newest_first
ORDER BY time_ns DESC, id DESC LIMIT %(limit)s

-- name: behind
-- Only rows of transactions that are older than all that still run: those come later, and their ids may be smaller.
-- A place with a number that this server has not given yet is one of another server, before all rows of this one.
written_by < pg_snapshot_xmin(pg_current_snapshot()) AND (written_by, id) > (
    CASE WHEN %(after_transaction)s::text::xid8 <= pg_snapshot_xmax(pg_current_snapshot())
    THEN %(after_transaction)s::text::xid8 ELSE '0' END,
    %(after_id)s
)

-- name: as_committed
-- With the table's name: the column of the answer is called the same, and is in no index.
ORDER BY journal.written_by, id LIMIT %(limit)s

-- name: oldest_transaction
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::int8

-- name: adopt
-- Numbers that this server has not given yet are those of another one, whose tables were restored here.
UPDATE journal SET written_by = '0' WHERE written_by >= pg_snapshot_xmax(pg_current_snapshot())

-- name: oldest
-- By the index of times, from a place in it on.
SELECT time_ns, id, details FROM journal
WHERE time_ns < %(until_ns)s AND (time_ns, id) > (%(time_ns)s, %(id)s) ORDER BY time_ns, id LIMIT %(limit)s

-- name: remove
WITH removed AS (DELETE FROM journal WHERE id = ANY(%(ids)s) RETURNING id) SELECT count(*) FROM removed

-- name: of_stores
store = ANY(%(stores)s)

-- name: unfinished
-- Intents that no later row speaks of.
attempt IS NOT NULL AND outcome = 'intent' AND NOT EXISTS (
    SELECT 1 FROM journal AS later WHERE later.attempt = journal.attempt AND later.outcome <> 'intent'
)

-- name: acts
-- How many in each slice of time, after a certain row: what was ended, and what was begun and may have been done, because
-- nothing was written after it, or only a failure, which may be an answer that was lost.
SELECT time_ns / %(slice_ns)s::int8, count(*) FROM (
    SELECT time_ns FROM journal
    WHERE outcome = 'ended' AND store = %(store)s AND domain = %(domain)s AND time_ns >= %(since_ns)s AND id > %(after)s
    UNION ALL
    SELECT time_ns FROM journal AS begun
    WHERE outcome = 'intent' AND store = %(store)s AND domain = %(domain)s AND time_ns >= %(since_ns)s AND id > %(after)s
    AND NOT EXISTS (
        SELECT 1 FROM journal AS later WHERE later.attempt = begun.attempt AND later.outcome NOT IN ('intent', 'failed')
    )
) AS acts GROUP BY 1

-- name: brakes
SELECT store, name, since_ns, reason, by, counted_after FROM brakes WHERE store = ANY(%(stores)s) ORDER BY store

-- name: freeze
INSERT INTO brakes (store, name, since_ns, reason, by, counted_after)
VALUES (%(store)s, %(name)s, %(since)s, %(reason)s, %(by)s, 0)
ON CONFLICT (store, name) DO UPDATE SET since_ns = excluded.since_ns, reason = excluded.reason, by = excluded.by

-- name: frozen
-- Locked, so that of two who resume at the same moment one writes the row.
SELECT store, name, reason FROM brakes WHERE since_ns IS NOT NULL AND store = ANY(%(stores)s) ORDER BY store, name FOR UPDATE

-- name: last_row
SELECT coalesce(max(id), 0) FROM journal

-- name: resume
-- Acts count from here on, for this account.
INSERT INTO brakes (store, name, since_ns, reason, by, counted_after) VALUES (%(store)s, %(name)s, NULL, '', '', %(last)s)
ON CONFLICT (store, name) DO UPDATE SET since_ns = NULL, counted_after = excluded.counted_after

-- name: count_anew
-- The same for all domains together, whose own freeze, if there is one, stays.
INSERT INTO brakes (store, name, since_ns, reason, by, counted_after) VALUES (%(store)s, %(name)s, NULL, '', '', %(last)s)
ON CONFLICT (store, name) DO UPDATE SET counted_after = excluded.counted_after

-- name: take
-- Of another record: a freeze of either stays.
INSERT INTO brakes (store, name, since_ns, reason, by, counted_after)
VALUES (%(store)s, %(name)s, %(since_ns)s, %(reason)s, %(by)s, 0)
ON CONFLICT (store, name) DO UPDATE SET
    since_ns = coalesce(brakes.since_ns, excluded.since_ns),
    reason = CASE WHEN brakes.since_ns IS NULL THEN excluded.reason ELSE brakes.reason END,
    by = CASE WHEN brakes.since_ns IS NULL THEN excluded.by ELSE brakes.by END

-- name: note
SELECT text FROM safety_notes WHERE store = %(store)s AND name = %(name)s

-- name: notes
SELECT name, text FROM safety_notes WHERE store = %(store)s AND starts_with(name, %(prefix)s)

-- name: lock_note
-- Made where it is not there, so that of two transactions one waits for the other.
INSERT INTO safety_notes (store, name, text) VALUES (%(store)s, %(name)s, %(text)s)
ON CONFLICT (store, name) DO UPDATE SET text = safety_notes.text
RETURNING text

-- name: write_note
INSERT INTO safety_notes (store, name, text) VALUES (%(store)s, %(name)s, %(text)s)
ON CONFLICT (store, name) DO UPDATE SET text = excluded.text

-- name: forget_note
DELETE FROM safety_notes WHERE store = %(store)s AND name = %(name)s

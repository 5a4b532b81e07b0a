-- The journal's statements on PostgreSQL; the tables are made by lapse.db.postgres.migrations. Rows are appended and never changed.

-- name: append
-- All rows of a call in one statement, in their order.
INSERT INTO journal (
    time_ns, domain, address, uid, version, verdict, reason, anchor_ns, policy, actor, outcome, details, tick, attempt
)
SELECT
    time_ns, domain, address, uid, version, verdict, reason, anchor_ns, policy, actor, outcome, details, tick, attempt
FROM unnest(
    %(time_ns)s::int8[], %(domain)s::text[], %(address)s::text[], %(uid)s::text[], %(version)s::text[],
    %(verdict)s::text[], %(reason)s::text[], %(anchor_ns)s::int8[], %(policy)s::text[], %(actor)s::text[],
    %(outcome)s::text[], %(details)s::text[], %(tick)s::text[], %(attempt)s::text[]
) WITH ORDINALITY AS given (
    time_ns, domain, address, uid, version, verdict, reason, anchor_ns, policy, actor, outcome, details, tick, attempt,
    place
)
ORDER BY place

-- name: entries
-- The conditions are put in between: one statement with "or not asked for" behind every condition would use no index.
SELECT
    time_ns, domain, address, uid, version, verdict, reason, anchor_ns, policy, actor, outcome, details, tick, attempt, id
FROM journal

-- name: newest_first
ORDER BY time_ns DESC, id DESC LIMIT %(limit)s

-- name: unfinished
-- Intents that no later row speaks of.
attempt IS NOT NULL AND outcome = 'intent' AND NOT EXISTS (
    SELECT 1 FROM journal AS later WHERE later.attempt = journal.attempt AND later.outcome <> 'intent'
)

-- name: acts
-- How many in each slice of time, after a certain row.
SELECT time_ns / %(slice_ns)s::int8, count(*) FROM journal
WHERE outcome = 'ended' AND domain = %(domain)s AND time_ns >= %(since_ns)s AND id > %(after)s AND actor = ANY(%(actors)s)
GROUP BY 1

-- name: brakes
SELECT name, since_ns, reason, by, counted_after FROM brakes

-- name: freeze
INSERT INTO brakes (name, since_ns, reason, by, counted_after) VALUES (%(name)s, %(since)s, %(reason)s, %(by)s, 0)
ON CONFLICT (name) DO UPDATE SET since_ns = excluded.since_ns, reason = excluded.reason, by = excluded.by

-- name: frozen
-- Locked, so that of two who resume at the same moment one writes the row.
SELECT name FROM brakes WHERE since_ns IS NOT NULL ORDER BY name FOR UPDATE

-- name: last_row
SELECT coalesce(max(id), 0) FROM journal

-- name: resume
-- Acts count from here on, for this account.
INSERT INTO brakes (name, since_ns, reason, by, counted_after) VALUES (%(name)s, NULL, '', '', %(last)s)
ON CONFLICT (name) DO UPDATE SET since_ns = NULL, counted_after = excluded.counted_after

-- name: count_anew
-- The same for all domains together, whose own freeze, if there is one, stays.
INSERT INTO brakes (name, since_ns, reason, by, counted_after) VALUES (%(name)s, NULL, '', '', %(last)s)
ON CONFLICT (name) DO UPDATE SET counted_after = excluded.counted_after

-- name: take
-- Of another record: a freeze of either stays, and so does the longer count.
INSERT INTO brakes (name, since_ns, reason, by, counted_after)
VALUES (%(name)s, %(since_ns)s, %(reason)s, %(by)s, %(counted_after)s)
ON CONFLICT (name) DO UPDATE SET
    since_ns = coalesce(brakes.since_ns, excluded.since_ns),
    reason = CASE WHEN brakes.since_ns IS NULL THEN excluded.reason ELSE brakes.reason END,
    by = CASE WHEN brakes.since_ns IS NULL THEN excluded.by ELSE brakes.by END,
    counted_after = least(brakes.counted_after, excluded.counted_after)

-- name: note
SELECT text FROM safety_notes WHERE name = %(name)s

-- name: lock_note
-- Made where it is not there, so that of two transactions one waits for the other.
INSERT INTO safety_notes (name, text) VALUES (%(name)s, %(text)s)
ON CONFLICT (name) DO UPDATE SET text = safety_notes.text
RETURNING text

-- name: write_note
INSERT INTO safety_notes (name, text) VALUES (%(name)s, %(text)s) ON CONFLICT (name) DO UPDATE SET text = excluded.text

-- name: forget_note
DELETE FROM safety_notes WHERE name = %(name)s

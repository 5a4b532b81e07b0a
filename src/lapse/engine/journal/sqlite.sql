-- The journal's statements. Rows are appended and never changed: what was true when it was written stays written.

-- name: schema_1
-- The id is the order of appending; it decides between rows of the same moment.
CREATE TABLE journal (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    time_ns   INTEGER NOT NULL,
    domain    TEXT    NOT NULL,
    address   TEXT    NOT NULL,
    uid       TEXT    NOT NULL,
    version   TEXT    NOT NULL,
    verdict   TEXT    NOT NULL,
    reason    TEXT    NOT NULL,
    anchor_ns INTEGER,
    policy    TEXT    NOT NULL,
    actor     TEXT    NOT NULL,
    outcome   TEXT    NOT NULL,
    details   TEXT,
    tick      TEXT    NOT NULL,
    attempt   TEXT
) STRICT;
-- The id stands at the end of every index by itself, so each of these gives its rows in the order that is asked for.
CREATE INDEX journal_by_time ON journal (time_ns);
CREATE INDEX journal_by_address ON journal (address, time_ns);
CREATE INDEX journal_by_uid ON journal (uid, time_ns);
-- Only rows of acts that could not be written in one transaction with the act.
CREATE INDEX journal_by_attempt ON journal (attempt, outcome) WHERE attempt IS NOT NULL;

-- name: schema_2
-- What was done, for a deletion budget: counted without a look at the rows.
CREATE INDEX journal_acts ON journal (domain, time_ns, actor) WHERE outcome = 'ended';

-- name: schema_3
-- What may have been done, for the same.
CREATE INDEX journal_intents ON journal (domain, time_ns, attempt) WHERE outcome = 'intent';

-- name: acts
-- How many in each slice of time, after a certain row: what was ended, and what was begun and may have been done, because
-- nothing was written after it, or only a failure, which may be an answer that was lost.
SELECT time_ns / ?1, count(*) FROM (
    SELECT time_ns FROM journal WHERE outcome = 'ended' AND domain = ?2 AND time_ns >= ?3 AND id > ?4
    UNION ALL
    SELECT time_ns FROM journal AS begun WHERE outcome = 'intent' AND domain = ?2 AND time_ns >= ?3 AND id > ?4
    AND NOT EXISTS (
        SELECT 1 FROM journal AS later WHERE later.attempt = begun.attempt AND later.outcome NOT IN ('intent', 'failed')
    )
) GROUP BY 1

-- name: append
INSERT INTO journal (
    time_ns, domain, address, uid, version, verdict, reason, anchor_ns, policy, actor, outcome, details, tick, attempt
) VALUES :rows

-- name: entries
-- The conditions are put in between: one statement with "or not asked for" behind every condition would use no index.
SELECT
    time_ns, domain, address, uid, version, verdict, reason, anchor_ns, policy, actor, outcome, details, tick, attempt, id
FROM journal

-- name: newest_first
ORDER BY time_ns DESC, id DESC LIMIT ?

-- name: as_committed
ORDER BY id LIMIT ?

-- name: last_id
-- Of all rows that there ever were: the last ones may have been removed.
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'journal'), 0)

-- name: oldest
-- By the index of times, from a place in it on.
SELECT time_ns, id, details FROM journal WHERE time_ns < ?1 AND (time_ns, id) > (?2, ?3) ORDER BY time_ns, id LIMIT ?4

-- name: remove
-- The ids are a list in JSON: a statement has room for so many parameters only.
DELETE FROM journal WHERE id IN (SELECT value FROM json_each(?))

-- name: unfinished
-- Intents that no later row speaks of.
attempt IS NOT NULL AND outcome = 'intent' AND NOT EXISTS (
    SELECT 1 FROM journal AS later WHERE later.attempt = journal.attempt AND later.outcome <> 'intent'
)

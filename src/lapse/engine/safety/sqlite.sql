-- What is frozen. What was spent is not here: it is counted from the journal.

-- name: schema_1
-- One row for each domain that was ever frozen, and perhaps one for all of them. since_ns is null while it goes on;
-- counted_after is the journal's row of the last resume: by its id and not its time, because clocks jump.
CREATE TABLE brakes (
    name          TEXT    PRIMARY KEY,
    since_ns      INTEGER,
    reason        TEXT    NOT NULL,
    by            TEXT    NOT NULL,
    counted_after INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- name: schema_2
-- Short texts that outlive a process: what was believed of the clock, and when a policy was first seen.
CREATE TABLE safety_notes (
    name TEXT PRIMARY KEY,
    text TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- name: schema_3
-- Holds on things of domains that have no place for them. until_ns is null for one that has no end.
CREATE TABLE holds (
    domain   TEXT    NOT NULL,
    uid      TEXT    NOT NULL,
    address  TEXT    NOT NULL,
    reason   TEXT    NOT NULL,
    until_ns INTEGER,
    since_ns INTEGER NOT NULL,
    by       TEXT    NOT NULL,
    PRIMARY KEY (domain, uid)
) STRICT, WITHOUT ROWID;

-- name: schema_extensions
-- Legal holds, and later deadlines of things of domains that have no place for them.
ALTER TABLE holds ADD COLUMN is_legal INTEGER NOT NULL DEFAULT 0;
CREATE TABLE extensions (
    domain   TEXT    NOT NULL,
    uid      TEXT    NOT NULL,
    address  TEXT    NOT NULL,
    until_ns INTEGER NOT NULL,
    since_ns INTEGER NOT NULL,
    by       TEXT    NOT NULL,
    PRIMARY KEY (domain, uid)
) STRICT, WITHOUT ROWID;

-- name: hold
INSERT INTO holds (domain, uid, address, reason, until_ns, since_ns, by, is_legal) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (domain, uid) DO UPDATE SET
    address = excluded.address, reason = excluded.reason, until_ns = excluded.until_ns,
    since_ns = excluded.since_ns, by = excluded.by, is_legal = excluded.is_legal

-- name: release
DELETE FROM holds WHERE domain = ? AND uid = ?

-- name: held
-- The uids are a list in JSON: a statement has room for so many parameters only.
SELECT uid, reason, until_ns, by, is_legal FROM holds WHERE domain = ? AND uid IN (SELECT value FROM json_each(?))

-- name: extend
-- Never to an earlier time: of two at the same moment, the later one counts.
INSERT INTO extensions (domain, uid, address, until_ns, since_ns, by) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (domain, uid) DO UPDATE SET
    address = excluded.address, until_ns = max(until_ns, excluded.until_ns), since_ns = excluded.since_ns,
    by = excluded.by
RETURNING until_ns

-- name: extended
SELECT uid, until_ns FROM extensions WHERE domain = ? AND uid IN (SELECT value FROM json_each(?))

-- name: all_holds
SELECT domain, uid, address, reason, until_ns, since_ns, by, is_legal FROM holds

-- name: all_extensions
SELECT domain, uid, address, until_ns, since_ns, by FROM extensions

-- name: forget_hold
-- One that was moved; another one that was placed meanwhile stays, and is moved the next time.
DELETE FROM holds WHERE domain = ? AND uid = ? AND since_ns = ?

-- name: forget_extension
DELETE FROM extensions WHERE domain = ? AND uid = ? AND since_ns = ?

-- name: note
SELECT text FROM safety_notes WHERE name = ?

-- name: write_note
INSERT INTO safety_notes (name, text) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET text = excluded.text

-- name: write_note_once
INSERT INTO safety_notes (name, text) VALUES (?, ?) ON CONFLICT (name) DO NOTHING

-- name: notes
SELECT name, text FROM safety_notes

-- name: forget_note
DELETE FROM safety_notes WHERE name = ?

-- name: all
SELECT name, since_ns, reason, by, counted_after FROM brakes

-- name: freeze
INSERT INTO brakes (name, since_ns, reason, by, counted_after) VALUES (?, ?, ?, ?, 0)
ON CONFLICT (name) DO UPDATE SET since_ns = excluded.since_ns, reason = excluded.reason, by = excluded.by

-- name: frozen
SELECT name, reason FROM brakes WHERE since_ns IS NOT NULL ORDER BY name

-- name: last_row
SELECT max(id) FROM journal

-- name: resume
-- Acts count from here on, for this account.
INSERT INTO brakes (name, since_ns, reason, by, counted_after) VALUES (?1, NULL, '', '', ?2)
ON CONFLICT (name) DO UPDATE SET since_ns = NULL, counted_after = excluded.counted_after

-- name: count_anew
-- The same for all domains together, whose own freeze, if there is one, stays.
INSERT INTO brakes (name, since_ns, reason, by, counted_after) VALUES (?1, NULL, '', '', ?2)
ON CONFLICT (name) DO UPDATE SET counted_after = excluded.counted_after

-- name: take
-- Of another record: a freeze of either stays.
INSERT INTO brakes (name, since_ns, reason, by, counted_after) VALUES (?1, ?2, ?3, ?4, 0)
ON CONFLICT (name) DO UPDATE SET
    since_ns = coalesce(since_ns, excluded.since_ns),
    reason = CASE WHEN since_ns IS NULL THEN excluded.reason ELSE reason END,
    by = CASE WHEN since_ns IS NULL THEN excluded.by ELSE by END

-- name: row
SELECT
    time_ns, domain, address, uid, version, verdict, reason, anchor_ns, policy, actor, outcome, details, tick, attempt, id
FROM journal WHERE id = ?

-- name: rows_after
-- Rows to be moved, in their order.
SELECT
    time_ns, domain, address, uid, version, verdict, reason, anchor_ns, policy, actor, outcome, details, tick, attempt, id
FROM journal WHERE id > ? ORDER BY id LIMIT ?

-- name: forget_rows
DELETE FROM journal WHERE id <= ?

-- name: forget_brake
DELETE FROM brakes WHERE name = ? AND since_ns = ?

-- name: forget_resumed
DELETE FROM brakes WHERE since_ns IS NULL

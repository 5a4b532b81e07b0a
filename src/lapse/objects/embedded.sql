-- The embedded object store's tables and statements. A place is (kind, namespace, name): kind is "apiVersion/Kind", namespace is empty
-- for kinds of the whole cluster.

-- name: schema_1
-- What exists. Small rows, so that looking up, listing names and deleting never touch a body. A current body is the one in `changes`
-- whose version stands here: written once, not once for the object and once more for its history.
CREATE TABLE objects (
    kind      TEXT    NOT NULL,
    namespace TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    uid       TEXT    NOT NULL,
    version   INTEGER NOT NULL,
    size      INTEGER NOT NULL, -- bytes of the body
    owners    TEXT    NOT NULL, -- uids of the owners, as a JSON array: which rows of `owners` are this object's
    PRIMARY KEY (kind, namespace, name)
) WITHOUT ROWID, STRICT;
CREATE UNIQUE INDEX objects_by_uid ON objects (uid);
-- Every write has one row and one version, without gaps, in the order of the commits. body is NULL for a deletion; previous is the version
-- that was replaced, NULL for a creation. So the state at any moment V that the log reaches back to is: what is current with a version up to V,
-- and the previous ones of all changes after V where these are not after V themselves.
CREATE TABLE changes (
    version   INTEGER PRIMARY KEY,
    kind      TEXT    NOT NULL,
    namespace TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    previous  INTEGER,
    freed     INTEGER NOT NULL, -- bytes of the previous body, which is kept as long as this row counts
    body      BLOB              -- last, so that a look at the other columns does not walk over it
) STRICT;
-- Who depends on whom, by uid, whether or not the owner exists.
CREATE TABLE owners (
    owner     TEXT NOT NULL,
    dependent TEXT NOT NULL,
    PRIMARY KEY (owner, dependent)
) WITHOUT ROWID, STRICT;
-- Owners that are gone and may have left dependents: the collector's work, written with the change that made it.
CREATE TABLE garbage (
    id    INTEGER PRIMARY KEY,
    owner TEXT NOT NULL
) STRICT;
-- One row. Changes up to the horizon no longer count; bytes are those of previous bodies kept for changes in (horizon, counted].
CREATE TABLE log (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    horizon INTEGER NOT NULL,
    counted INTEGER NOT NULL,
    bytes   INTEGER NOT NULL
) STRICT;
-- Versions begin at 2, because "0" means "any" to Kubernetes clients, and an empty store is at 1.
INSERT INTO log (id, horizon, counted, bytes) VALUES (1, 1, 1, 0);

-- name: schema_2
-- What is asked about many objects at once: labels as they stand in the body ('' for none; keys are sorted, so equal labels are equal texts),
-- and creationTimestamp. No index on them: it would cost every write, and reading these small rows is twenty times cheaper than reading bodies.
ALTER TABLE objects ADD COLUMN labels TEXT NOT NULL DEFAULT '';
ALTER TABLE objects ADD COLUMN created TEXT NOT NULL DEFAULT '';
UPDATE objects SET (labels, created) = (
    SELECT coalesce(json_extract(document, '$.metadata.labels'), ''), coalesce(json_extract(document, '$.metadata.creationTimestamp'), '')
    FROM (SELECT CAST(changes.body AS TEXT) AS document FROM changes WHERE changes.version = objects.version)
);

-- name: schema_3
-- The annotations that hold an object, or note that it owns what is held, as JSON; '' for none. Few objects have them, so the index is small.
ALTER TABLE objects ADD COLUMN hold TEXT NOT NULL DEFAULT '';
UPDATE objects SET hold = (
    SELECT json_group_object(one.key, one.value) FROM changes, json_each(CAST(changes.body AS TEXT), '$.metadata.annotations') AS one
    WHERE changes.version = objects.version
    AND one.key IN ('lapse.dev/hold', 'lapse.dev/hold-reason', 'lapse.dev/hold-until', 'lapse.dev/held-dependents')
)
WHERE EXISTS (
    SELECT 1 FROM changes WHERE changes.version = objects.version AND instr(CAST(changes.body AS TEXT), '"lapse.dev/h')
);
CREATE INDEX objects_held ON objects (uid) WHERE hold <> '';

-- name: is_anything_held
SELECT EXISTS (SELECT 1 FROM objects INDEXED BY objects_held WHERE hold <> '');

-- name: holds_over
-- What holds the objects of ?1 (a JSON array of uids), by their places there. Above: their owners and what they follow, up the chain; ?2 has
-- the path to the uid that an object of a kind follows, by kind. Below: the objects themselves and what they own, down the chain.
WITH RECURSIVE
above (number, uid) AS (
    SELECT key, value FROM json_each(?1)
    UNION
    SELECT above.number, owner.value FROM above CROSS JOIN objects USING (uid) CROSS JOIN json_each(objects.owners) AS owner
    UNION
    SELECT above.number, json_extract(CAST(changes.body AS TEXT), followed.value)
    FROM above CROSS JOIN objects USING (uid) CROSS JOIN json_each(?2) AS followed ON followed.key = objects.kind
    CROSS JOIN changes ON changes.version = objects.version
),
below (number, uid) AS (
    SELECT key, value FROM json_each(?1)
    UNION
    SELECT below.number, owners.dependent FROM below CROSS JOIN owners ON owners.owner = below.uid
)
SELECT number, TRUE, hold FROM above CROSS JOIN objects INDEXED BY objects_held USING (uid) WHERE hold <> ''
UNION ALL
SELECT number, FALSE, hold FROM below CROSS JOIN objects INDEXED BY objects_held USING (uid) WHERE hold <> '';

-- name: tip
SELECT coalesce(max(version), 1) FROM changes;

-- name: moment
SELECT horizon, (SELECT coalesce(max(version), 1) FROM changes) FROM log;

-- name: body
SELECT changes.body FROM objects JOIN changes USING (version)
WHERE objects.kind = ? AND objects.namespace = ? AND objects.name = ?;

-- name: find
SELECT objects.uid, objects.version, objects.size, objects.owners, changes.body FROM objects JOIN changes USING (version)
WHERE objects.kind = ? AND objects.namespace = ? AND objects.name = ?;

-- name: identity
SELECT uid, version FROM objects WHERE kind = ? AND namespace = ? AND name = ?;

-- name: insert
INSERT INTO objects (kind, namespace, name, uid, version, size, owners, labels, created, hold) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (kind, namespace, name) DO NOTHING;

-- name: replace
UPDATE objects SET version = ?4, size = ?5, owners = ?6, labels = ?7, hold = ?8 WHERE kind = ?1 AND namespace = ?2 AND name = ?3;

-- name: remove
-- Compares and removes in one step.
DELETE FROM objects
WHERE kind = ?1 AND namespace = ?2 AND name = ?3 AND uid = coalesce(?4, uid) AND version = coalesce(?5, version)
RETURNING uid, version, size, owners;

-- name: log_change
INSERT INTO changes (version, kind, namespace, name, previous, freed, body) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: log_removal
INSERT INTO changes (version, kind, namespace, name, previous, freed, body)
VALUES ((SELECT max(version) + 1 FROM changes), ?, ?, ?, ?, ?, NULL);

-- name: log_removals
-- Of many that are as expected: the first of four statements that remove them. The rows are those of what is asked for.
WITH asked (kind, namespace, name, uid, version) AS (VALUES :rows)
INSERT INTO changes (kind, namespace, name, previous, freed, body)
SELECT kind, namespace, name, version, size, NULL FROM asked CROSS JOIN objects USING (kind, namespace, name, uid, version);

-- name: logged
SELECT kind, namespace, name, uid, previous FROM changes CROSS JOIN objects USING (kind, namespace, name)
WHERE changes.version > ?;

-- name: logged_owners
SELECT uid, owners FROM changes CROSS JOIN objects USING (kind, namespace, name)
WHERE changes.version > ? AND objects.owners <> '[]';

-- name: queue_logged
INSERT INTO garbage (owner) SELECT uid FROM changes CROSS JOIN objects USING (kind, namespace, name)
WHERE changes.version > ? AND EXISTS (SELECT 1 FROM owners WHERE owner = uid);

-- name: remove_logged
DELETE FROM objects WHERE (kind, namespace, name) IN (SELECT kind, namespace, name FROM changes WHERE version > ?);

-- name: list_current
-- Ordered by the primary key, and read only as far as the page goes.
SELECT objects.namespace, objects.name, changes.body FROM objects JOIN changes USING (version)
WHERE objects.kind = ?1 AND (objects.namespace, objects.name) > (?2, ?3) AND objects.namespace <= ?4 AND objects.version <= ?5
ORDER BY objects.namespace, objects.name;

-- name: list_some
-- The same, of those whose labels contain a text and that were created before a moment ('' for any): bodies of others are not read.
SELECT objects.namespace, objects.name, changes.body FROM objects JOIN changes USING (version)
WHERE objects.kind = ?1 AND (objects.namespace, objects.name) > (?2, ?3) AND objects.namespace <= ?4 AND objects.version <= ?5
AND (?6 = '' OR instr(objects.labels, ?6)) AND (?7 = '' OR objects.created < ?7)
ORDER BY objects.namespace, objects.name;

-- name: summary
-- No body is read.
SELECT namespace, labels, count(*), min(created) FROM objects
WHERE kind = ?1 AND namespace >= ?2 AND namespace <= ?3 AND (?4 = '' OR instr(labels, ?4))
GROUP BY namespace, labels
LIMIT ?5;

-- name: list_replaced
-- What was current at the moment ?5 and was changed or removed after it.
SELECT changes.namespace, changes.name, before.body FROM changes JOIN changes AS before ON before.version = changes.previous
WHERE changes.version > ?5 AND changes.previous <= ?5 AND changes.kind = ?1
AND (changes.namespace, changes.name) > (?2, ?3) AND changes.namespace <= ?4
ORDER BY changes.namespace, changes.name;

-- name: changes_since
-- A deletion reports the last body.
SELECT changes.version, changes.previous, changes.body IS NULL, coalesce(changes.body, before.body)
FROM changes LEFT JOIN changes AS before ON changes.body IS NULL AND before.version = changes.previous
WHERE changes.version > ?1 AND changes.kind = ?2 AND (?3 IS NULL OR changes.namespace = ?3)
ORDER BY changes.version;

-- name: is_alive
SELECT EXISTS (SELECT 1 FROM objects WHERE uid = ?);

-- name: add_owner
INSERT INTO owners (owner, dependent) VALUES (?, ?);

-- name: remove_owner
DELETE FROM owners WHERE owner = ? AND dependent = ?;

-- name: queue_if_owner
INSERT INTO garbage (owner) SELECT ?1 WHERE EXISTS (SELECT 1 FROM owners WHERE owner = ?1);

-- name: queue_if_gone
INSERT INTO garbage (owner) SELECT ?1 WHERE NOT EXISTS (SELECT 1 FROM objects WHERE uid = ?1);

-- name: is_anything_queued
SELECT EXISTS (SELECT 1 FROM garbage);

-- name: first_queued
SELECT id, owner FROM garbage ORDER BY id LIMIT 1;

-- name: unqueue
DELETE FROM garbage WHERE id = ?;

-- name: queue_gone_above
-- Whatever a hold has saved is looked at again when that changes: the owners that are gone, of the object and up the chain.
WITH RECURSIVE above (uid) AS (
    SELECT ?1
    UNION
    SELECT owner.value FROM above CROSS JOIN objects USING (uid) CROSS JOIN json_each(objects.owners) AS owner
)
INSERT INTO garbage (owner) SELECT uid FROM above WHERE NOT EXISTS (SELECT 1 FROM objects WHERE objects.uid = above.uid);

-- name: dependents
SELECT objects.kind, objects.namespace, objects.name, objects.owners, objects.uid
FROM owners CROSS JOIN objects ON objects.uid = owners.dependent
WHERE owners.owner = ? AND owners.dependent > ? ORDER BY owners.dependent LIMIT ?;

-- name: owned
SELECT objects.kind, changes.body FROM owners JOIN objects ON objects.uid = owners.dependent JOIN changes USING (version)
WHERE owners.owner = ?;

-- name: owning
-- Which of the objects of ?1 (a JSON array of uids) own something.
SELECT value FROM json_each(?1) WHERE EXISTS (SELECT 1 FROM owners WHERE owners.owner = value);

-- name: count_bytes
UPDATE log SET
    bytes = bytes + (SELECT coalesce(sum(freed), 0) FROM changes WHERE version > log.counted AND version <= ?1),
    counted = ?1
RETURNING horizon, bytes;

-- name: oldest_changes
SELECT version, previous, freed, body IS NULL FROM changes WHERE version > ? ORDER BY version LIMIT ?;

-- name: forget
DELETE FROM changes WHERE version = ?;

-- name: move_horizon
UPDATE log SET horizon = ?1, bytes = bytes - ?2;

-- name: check
SELECT count(*) FROM log;

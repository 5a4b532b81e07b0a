-- The file backend's statements. Every comparison of an expiry takes the moment from the caller's clock (floored to the
-- millisecond): a record is over when expires_ms <= now_ms, and then counts as absent.

-- name: schema_1
-- Keys and values are BLOB although they are text: what SQL does with a NUL inside TEXT is undefined, and bytes compare in the
-- order that the contract asks for. WITHOUT ROWID: a record lies in its primary key's tree, so that a lookup walks one tree, not two.
CREATE TABLE records (
    partition  BLOB    NOT NULL,
    key        BLOB    NOT NULL,
    value      BLOB    NOT NULL,
    expires_ms INTEGER NOT NULL,
    PRIMARY KEY (partition, key)
) WITHOUT ROWID, STRICT;
-- What the sweep walks. It carries the primary key, so finding what is due reads no record.
CREATE INDEX records_by_expiry ON records (expires_ms);
-- What was decided when the file was first used.
CREATE TABLE settings (
    name  TEXT NOT NULL PRIMARY KEY,
    value ANY  NOT NULL
) WITHOUT ROWID, STRICT;

-- name: record_buckets
INSERT INTO settings (name, value) VALUES ('buckets', ?) ON CONFLICT DO NOTHING;

-- name: recorded_buckets
SELECT value FROM settings WHERE name = 'buckets';

-- name: find
-- The expiry is compared by the caller, which spares this statement, the hottest of all, a parameter.
SELECT value, expires_ms FROM records WHERE partition = ? AND key = ?;

-- name: find_expiry
SELECT expires_ms FROM records WHERE partition = ? AND key = ?;

-- name: insert
-- Changes a row if there was none, or one that is over.
INSERT INTO records (partition, key, value, expires_ms) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT DO UPDATE SET value = excluded.value, expires_ms = excluded.expires_ms WHERE expires_ms <= ?5;

-- name: put
INSERT INTO records (partition, key, value, expires_ms) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT DO UPDATE SET value = excluded.value, expires_ms = excluded.expires_ms;

-- name: swap
UPDATE records SET value = ?4, expires_ms = ?5
WHERE partition = ?1 AND key = ?2 AND value = ?3 AND expires_ms > ?6;

-- name: touch
UPDATE records SET expires_ms = ?3 WHERE partition = ?1 AND key = ?2 AND expires_ms > ?4;

-- name: delete
DELETE FROM records WHERE partition = ?1 AND key = ?2 AND expires_ms > ?3;

-- name: delete_if
DELETE FROM records WHERE partition = ?1 AND key = ?2 AND value = ?3 AND expires_ms > ?4;

-- name: find_many
-- Run once per key inside one read transaction: measured as quick as one long IN list, without building SQL.
SELECT key, value, expires_ms FROM records WHERE partition = ? AND key = ?;

-- name: scan
SELECT key, value, expires_ms FROM records
WHERE partition = ?1 AND key >= ?2 AND key < ?3 AND expires_ms > ?4 ORDER BY key LIMIT ?5;

-- name: sweep
-- One statement, so nothing is renewed between finding and removing; the outer condition says it once more, so that no future change of
-- the inner one can remove a live record.
DELETE FROM records
WHERE (partition, key) IN (
    SELECT partition, key FROM records INDEXED BY records_by_expiry WHERE expires_ms <= ?1 ORDER BY expires_ms LIMIT ?2
) AND expires_ms <= ?1
RETURNING expires_ms, partition;

-- name: is_anything_over
SELECT EXISTS (SELECT 1 FROM records INDEXED BY records_by_expiry WHERE expires_ms <= ?1);

-- name: free_pages
SELECT freelist_count, page_count FROM pragma_freelist_count, pragma_page_count;

-- name: counts
SELECT partition, count(*) FROM records GROUP BY partition;

-- name: expiring
-- Live records that are over at ?2: one range of the index, which carries the partition.
SELECT partition, count(*), min(expires_ms) FROM records INDEXED BY records_by_expiry
WHERE expires_ms > ?1 AND expires_ms <= ?2 GROUP BY partition;

-- name: check
SELECT count(*) FROM (SELECT 1 FROM records LIMIT 1);

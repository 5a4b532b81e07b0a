-- Plans that are kept for others to find. A document is compressed; what lists tell of a plan is beside it.

-- name: schema_plans
-- What is after due is null until the plan is carried out. Names in domains have commas between them.
CREATE TABLE plans (
    id         TEXT    PRIMARY KEY,
    digest     TEXT    NOT NULL,
    author     TEXT    NOT NULL,
    created_ns INTEGER NOT NULL,
    expires_ns INTEGER NOT NULL,
    until_ns   INTEGER NOT NULL,
    domains    TEXT    NOT NULL,
    items      INTEGER NOT NULL,
    due        INTEGER NOT NULL,
    applied_by TEXT,
    applied_ns INTEGER,
    ended      INTEGER,
    left_over  INTEGER,
    document   BLOB    NOT NULL
) STRICT;

-- name: forget_expired
DELETE FROM plans WHERE expires_ns < ?

-- name: is_kept
SELECT 1 FROM plans WHERE id = ?

-- name: count
SELECT count(*) FROM plans

-- name: forget_done
-- The oldest that is carried out and has nothing left.
DELETE FROM plans WHERE id = (
    SELECT id FROM plans WHERE left_over = 0 ORDER BY created_ns, id LIMIT 1
) RETURNING id

-- name: keep
INSERT INTO plans (id, digest, author, created_ns, expires_ns, until_ns, domains, items, due, document)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: plans
SELECT id, digest, author, created_ns, expires_ns, until_ns, domains, items, due, applied_by, applied_ns, ended, left_over
FROM plans WHERE expires_ns >= ?

-- name: document
SELECT document FROM plans WHERE id = ? AND expires_ns >= ?

-- name: note
UPDATE plans SET
    applied_by = :by, applied_ns = :at, ended = coalesce(ended, 0) + :ended,
    left_over = coalesce(:left, max(0, coalesce(left_over, items) - :ended))
WHERE id = :id AND digest = :digest

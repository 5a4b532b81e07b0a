-- The row that whoever leads owns. It stays when nobody does, and its fencing number with it.

-- name: sqlite_schema
-- until_ns is time since boot, of the boot that boot_id names.
CREATE TABLE leases (
    name     TEXT    PRIMARY KEY,
    owner    TEXT    NOT NULL,
    fence    INTEGER NOT NULL,
    boot_id  TEXT    NOT NULL,
    until_ns INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- name: sqlite_acquire
-- Free when its time is over, when it is of another boot, or when it is ours, after an answer that was lost.
INSERT INTO leases (name, owner, fence, boot_id, until_ns) VALUES (:name, :owner, :first, :boot_id, :now + :ttl)
ON CONFLICT (name) DO UPDATE SET
    owner = excluded.owner, fence = max(fence + 1, excluded.fence), boot_id = excluded.boot_id, until_ns = excluded.until_ns
WHERE owner IN (excluded.owner, '') OR boot_id <> excluded.boot_id OR until_ns <= :now
RETURNING fence

-- name: sqlite_renew
UPDATE leases SET until_ns = :now + :ttl, boot_id = :boot_id
WHERE name = :name AND owner = :owner AND fence = :fence RETURNING fence

-- name: sqlite_release
UPDATE leases SET owner = '' WHERE name = :name AND owner = :owner AND fence = :fence RETURNING fence

-- name: postgres_acquire
INSERT INTO leases (name, owner, fence, until)
VALUES (%(name)s, %(owner)s, %(first)s, clock_timestamp() + make_interval(secs => %(ttl)s))
ON CONFLICT (name) DO UPDATE SET
    owner = excluded.owner, fence = greatest(leases.fence + 1, excluded.fence), until = excluded.until
WHERE leases.owner IN (excluded.owner, '') OR leases.until <= clock_timestamp()
RETURNING fence

-- name: postgres_renew
UPDATE leases SET until = clock_timestamp() + make_interval(secs => %(ttl)s)
WHERE name = %(name)s AND owner = %(owner)s AND fence = %(fence)s RETURNING fence

-- name: postgres_release
UPDATE leases SET owner = '' WHERE name = %(name)s AND owner = %(owner)s AND fence = %(fence)s RETURNING fence

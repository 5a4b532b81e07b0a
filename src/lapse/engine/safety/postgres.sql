-- Holds and extensions on things of domains that have no place for them. A row says which store the thing is in, as the journal's do.

-- name: lock_held
-- Locked, so that of two who change the hold of one thing the second sees what the first has done.
SELECT reason, until_ns, by, is_legal FROM holds
WHERE store = %(store)s AND domain = %(domain)s AND uid = %(uid)s FOR UPDATE

-- name: hold
INSERT INTO holds (store, domain, uid, address, reason, until_ns, since_ns, by, is_legal)
VALUES (%(store)s, %(domain)s, %(uid)s, %(address)s, %(reason)s, %(until)s, %(since)s, %(by)s, %(is_legal)s)
ON CONFLICT (store, domain, uid) DO UPDATE SET
    address = excluded.address, reason = excluded.reason, until_ns = excluded.until_ns,
    since_ns = excluded.since_ns, by = excluded.by, is_legal = excluded.is_legal

-- name: hold_first
-- Of two who hold a thing that was not held, one; the other one compares with it.
INSERT INTO holds (store, domain, uid, address, reason, until_ns, since_ns, by, is_legal)
VALUES (%(store)s, %(domain)s, %(uid)s, %(address)s, %(reason)s, %(until)s, %(since)s, %(by)s, %(is_legal)s)
ON CONFLICT (store, domain, uid) DO NOTHING
RETURNING uid

-- name: release
DELETE FROM holds WHERE store = %(store)s AND domain = %(domain)s AND uid = %(uid)s

-- name: held
SELECT uid, reason, until_ns, by, is_legal FROM holds
WHERE store = %(store)s AND domain = %(domain)s AND uid = ANY(%(uids)s)

-- name: extend
-- Never to an earlier time: of two at the same moment, the later one counts.
INSERT INTO extensions (store, domain, uid, address, until_ns, since_ns, by)
VALUES (%(store)s, %(domain)s, %(uid)s, %(address)s, %(until)s, %(since)s, %(by)s)
ON CONFLICT (store, domain, uid) DO UPDATE SET
    address = excluded.address, until_ns = greatest(extensions.until_ns, excluded.until_ns),
    since_ns = excluded.since_ns, by = excluded.by
RETURNING until_ns

-- name: extended
SELECT uid, until_ns FROM extensions WHERE store = %(store)s AND domain = %(domain)s AND uid = ANY(%(uids)s)

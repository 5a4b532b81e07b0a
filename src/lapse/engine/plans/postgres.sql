-- Plans that are kept for others to find. A row says which state folder signed the plan: no other one takes it.

-- name: lock
-- So that two who keep a plan at the same moment do not both take the last place. Who reads does not wait.
LOCK TABLE plans IN SHARE ROW EXCLUSIVE MODE

-- name: forget_expired
DELETE FROM plans WHERE store = %(store)s AND expires_ns < %(now)s

-- name: is_kept
SELECT 1 FROM plans WHERE store = %(store)s AND id = %(id)s

-- name: count
SELECT count(*) FROM plans WHERE store = %(store)s

-- name: forget_done
-- The oldest that is carried out and has nothing left.
DELETE FROM plans WHERE store = %(store)s AND id = (
    SELECT id FROM plans WHERE store = %(store)s AND left_over = 0 ORDER BY created_ns, id LIMIT 1
) RETURNING id

-- name: keep
INSERT INTO plans (store, id, digest, author, created_ns, expires_ns, until_ns, domains, items, due, document)
VALUES (
    %(store)s, %(id)s, %(digest)s, %(author)s, %(created_ns)s, %(expires_ns)s, %(until_ns)s, %(domains)s, %(items)s,
    %(due)s, %(document)s
)

-- name: plans
SELECT id, digest, author, created_ns, expires_ns, until_ns, domains, items, due, applied_by, applied_ns, ended, left_over
FROM plans WHERE store = %(store)s AND expires_ns >= %(now)s

-- name: document
SELECT document FROM plans WHERE store = %(store)s AND id = %(id)s AND expires_ns >= %(now)s

-- name: note
UPDATE plans SET
    applied_by = %(by)s, applied_ns = %(at)s, ended = coalesce(ended, 0) + %(ended)s,
    left_over = coalesce(%(left)s::bigint, greatest(0, coalesce(left_over, items) - %(ended)s))
WHERE store = %(store)s AND id = %(id)s AND digest = %(digest)s

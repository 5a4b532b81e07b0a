-- The state database: what `lapse up` must remember beside the stores of its domains.

-- name: schema_1
-- A token is kept as its SHA-256 only. Revoked rows stay: the journal names tokens by their id.
CREATE TABLE tokens (
    id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    scopes TEXT NOT NULL, -- separated by spaces
    digest BLOB NOT NULL,
    created_ms INTEGER NOT NULL,
    revoked_ms INTEGER
) STRICT, WITHOUT ROWID;
-- Key material that must be the same in every server on this database.
CREATE TABLE secrets (
    name TEXT NOT NULL PRIMARY KEY,
    secret BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- name: schema_2
-- The owner's token is in a file beside this database; people are named by the others.
ALTER TABLE tokens ADD COLUMN is_owner INTEGER NOT NULL DEFAULT 0;
-- A ticket, as its SHA-256, begins one session of a browser, in the name of a token.
CREATE TABLE tickets (
    digest BLOB NOT NULL PRIMARY KEY,
    token_id TEXT NOT NULL,
    expires_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- name: add_token
INSERT INTO tokens (id, name, scopes, digest, created_ms, is_owner) VALUES (?, ?, ?, ?, ?, ?);

-- name: list_tokens
SELECT id, name, scopes, created_ms, revoked_ms FROM tokens ORDER BY created_ms, id;

-- name: find_usable_token
SELECT scopes, digest, name, is_owner FROM tokens WHERE id = ? AND revoked_ms IS NULL;

-- name: revoke_token
-- Once: the time of the first revocation is the one that counts.
UPDATE tokens SET revoked_ms = coalesce(revoked_ms, ?2) WHERE id = ?1 RETURNING id;

-- name: named_tokens
SELECT name, scopes FROM tokens WHERE revoked_ms IS NULL AND is_owner = 0;

-- name: is_any_named_token
SELECT EXISTS (SELECT 1 FROM tokens WHERE revoked_ms IS NULL AND is_owner = 0);

-- name: revoke_owner_tokens
UPDATE tokens SET revoked_ms = ? WHERE is_owner = 1 AND revoked_ms IS NULL;

-- name: add_ticket
INSERT INTO tickets (digest, token_id, expires_ms) VALUES (?, ?, ?);

-- name: remove_old_tickets
DELETE FROM tickets WHERE expires_ms <= ?;

-- name: redeem_ticket
-- Of any number of servers one gets the row.
DELETE FROM tickets WHERE digest = ?1 AND expires_ms > ?2 RETURNING token_id;

-- name: add_secret
-- Whoever comes first decides; everybody then reads the same.
INSERT INTO secrets (name, secret) VALUES (?, ?) ON CONFLICT DO NOTHING;

-- name: find_secret
SELECT secret FROM secrets WHERE name = ?;

-- The state database: what `lapse up` must remember beside the stores of its domains.

-- name: schema_1
-- A token is kept as its SHA-256 only. Revoked rows stay: a server with a token that was revoked must not become an open one.
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

-- name: add_token
INSERT INTO tokens (id, name, scopes, digest, created_ms) VALUES (?, ?, ?, ?, ?);

-- name: list_tokens
SELECT id, name, scopes, created_ms, revoked_ms FROM tokens ORDER BY created_ms, id;

-- name: find_usable_token
SELECT scopes, digest FROM tokens WHERE id = ? AND revoked_ms IS NULL;

-- name: revoke_token
-- Once: the time of the first revocation is the one that counts.
UPDATE tokens SET revoked_ms = coalesce(revoked_ms, ?2) WHERE id = ?1 RETURNING id;

-- name: is_any_token
SELECT EXISTS (SELECT 1 FROM tokens);

-- name: is_any_usable_token
SELECT EXISTS (SELECT 1 FROM tokens WHERE revoked_ms IS NULL);

-- name: add_secret
-- Whoever comes first decides; everybody then reads the same.
INSERT INTO secrets (name, secret) VALUES (?, ?) ON CONFLICT DO NOTHING;

-- name: find_secret
SELECT secret FROM secrets WHERE name = ?;

-- Workspaces in SQLite. The statements have the names and the parameters of those in postgres_store.sql; {columns} are those of the model.

-- name: schema_1
-- No index, and no condition of one, may name last_access_at: it is written all the time, and an access would cost as many index writes.
CREATE TABLE workspaces (
    id                  TEXT    NOT NULL PRIMARY KEY,
    name                TEXT    NOT NULL,
    owner               TEXT    NOT NULL,
    command             TEXT    NOT NULL, -- a JSON array
    port                INTEGER NOT NULL,
    node_id             TEXT,
    desired_state       TEXT    NOT NULL CHECK (desired_state IN ('PENDING', 'STANDBY', 'RUNNING')),
    desired_by          TEXT    NOT NULL CHECK (desired_by IN ('user', 'access', 'ttl')),
    version             INTEGER NOT NULL,
    observed_status     TEXT    NOT NULL CHECK (observed_status IN ('PENDING', 'STANDBY', 'RUNNING', 'ERROR')),
    observed_at         INTEGER,
    status_changed_at   INTEGER NOT NULL,
    operation           TEXT    NOT NULL CHECK (operation IN
        ('NONE', 'PROVISIONING', 'RESTORING', 'STARTING', 'STOPPING', 'ARCHIVING', 'DELETING')),
    op_id               TEXT,
    op_started_at       INTEGER,
    op_tries            INTEGER NOT NULL,
    archive_key         TEXT,
    error_reason        TEXT,
    error_message       TEXT,
    standby_ttl_seconds INTEGER NOT NULL CHECK (standby_ttl_seconds > 0),
    archive_ttl_seconds INTEGER NOT NULL CHECK (archive_ttl_seconds > 0),
    last_access_at      INTEGER NOT NULL,
    check_after         INTEGER NOT NULL,
    created_at          INTEGER NOT NULL,
    deleted_at          INTEGER,
    hold_reason         TEXT,
    hold_until          INTEGER,
    CHECK ((operation = 'NONE') = (op_id IS NULL))
) STRICT;
CREATE UNIQUE INDEX workspaces_by_name ON workspaces (name) WHERE deleted_at IS NULL;
CREATE INDEX workspaces_by_owner ON workspaces (owner, name) WHERE deleted_at IS NULL;
CREATE INDEX workspaces_to_standby ON workspaces (check_after, id)
    WHERE observed_status = 'RUNNING' AND desired_state = 'RUNNING' AND operation = 'NONE' AND deleted_at IS NULL;
CREATE INDEX workspaces_to_archive ON workspaces (check_after, id)
    WHERE observed_status = 'STANDBY' AND desired_state = 'STANDBY' AND operation = 'NONE' AND deleted_at IS NULL;
CREATE INDEX workspaces_with_work ON workspaces (id)
    WHERE deleted_at IS NOT NULL OR operation <> 'NONE' OR (desired_state <> observed_status AND error_reason IS NULL);

-- name: schema_2
ALTER TABLE workspaces ADD COLUMN next_port INTEGER;
ALTER TABLE workspaces ADD COLUMN probe TEXT;
ALTER TABLE workspaces ADD COLUMN probed_at INTEGER;
ALTER TABLE workspaces ADD COLUMN probe_error TEXT;
CREATE INDEX workspaces_by_port ON workspaces (port) WHERE deleted_at IS NULL;
CREATE INDEX workspaces_by_next_port ON workspaces (next_port) WHERE next_port IS NOT NULL;

-- name: schema_3
-- What is known of programs that end by themselves, of errors and of operations under way. A running_since of 0 is one that was not noted.
ALTER TABLE workspaces ADD COLUMN running_since INTEGER NOT NULL DEFAULT 0;
ALTER TABLE workspaces ADD COLUMN restarts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE workspaces ADD COLUMN exit_status INTEGER;
ALTER TABLE workspaces ADD COLUMN exited_at INTEGER;
ALTER TABLE workspaces ADD COLUMN exit_output TEXT;
ALTER TABLE workspaces ADD COLUMN error_status TEXT;
ALTER TABLE workspaces ADD COLUMN op_note TEXT;
DROP INDEX workspaces_to_standby;
CREATE INDEX workspaces_to_standby ON workspaces (check_after, id)
    WHERE (observed_status = 'RUNNING' OR (observed_status = 'STANDBY' AND restarts > 0))
        AND desired_state = 'RUNNING' AND operation = 'NONE' AND deleted_at IS NULL;

-- name: schema_4
-- Journal and freezes are in the record of the state folder. Whoever opens an older file has moved their rows there before: where there
-- still are any, the condition fails, and nothing is changed.
CREATE TABLE record_is_moved (rows_left INTEGER CHECK (rows_left = 0));
INSERT INTO record_is_moved
SELECT (SELECT count(*) FROM journal) + (SELECT count(*) FROM brakes)
    + (SELECT count(*) FROM safety_notes WHERE name <> 'record');
DROP TABLE record_is_moved;
DROP TABLE journal;
DROP TABLE brakes;
DROP TABLE safety_notes;

-- name: schema_5
-- Who holds it, whether that is a legal hold, and until when a person has extended it.
ALTER TABLE workspaces ADD COLUMN hold_by TEXT;
ALTER TABLE workspaces ADD COLUMN hold_is_legal INTEGER NOT NULL DEFAULT 0;
ALTER TABLE workspaces ADD COLUMN extended_until INTEGER;

-- name: schema_6
-- The trash: until when a deleted one can come back. What rests there is no work for anybody.
ALTER TABLE workspaces ADD COLUMN trash_until INTEGER;
CREATE INDEX workspaces_in_trash ON workspaces (id) WHERE trash_until IS NOT NULL;
DROP INDEX workspaces_with_work;
CREATE INDEX workspaces_with_work ON workspaces (id)
    WHERE (deleted_at IS NOT NULL AND (trash_until IS NULL OR observed_status <> 'PENDING'))
        OR operation <> 'NONE' OR (desired_state <> observed_status AND error_reason IS NULL);

-- name: get
SELECT {columns} FROM workspaces WHERE id = :id

-- name: by_name
SELECT {columns} FROM workspaces WHERE name = :name AND deleted_at IS NULL

-- name: list
SELECT {columns} FROM workspaces WHERE deleted_at IS NULL AND name > :after ORDER BY name LIMIT :limit

-- name: list_of_owner
SELECT {columns} FROM workspaces WHERE deleted_at IS NULL AND owner = :owner AND name > :after ORDER BY name LIMIT :limit

-- name: standby_candidates
SELECT {columns} FROM workspaces
WHERE (observed_status = 'RUNNING' OR (observed_status = 'STANDBY' AND restarts > 0))
    AND desired_state = 'RUNNING' AND operation = 'NONE' AND deleted_at IS NULL
    AND check_after <= :now AND (check_after, id) > (:after_check, :after_id)
ORDER BY check_after, id LIMIT :limit

-- name: archive_candidates
SELECT {columns} FROM workspaces
WHERE observed_status = 'STANDBY' AND desired_state = 'STANDBY' AND operation = 'NONE' AND deleted_at IS NULL
    AND check_after <= :now AND (check_after, id) > (:after_check, :after_id)
ORDER BY check_after, id LIMIT :limit

-- name: at_port
SELECT {columns} FROM workspaces
WHERE deleted_at IS NULL AND (port = :port OR next_port = :port) AND (:node IS NULL OR node_id IS NULL OR node_id = :node)
ORDER BY name

-- name: count_by_status
-- Reads the whole table. An index by status would be five times as fast, and the planner would take it for the candidates as well: then the
-- cost of each tick of the TTL manager would grow with all workspaces in standby.
SELECT observed_status, count(*) FROM workspaces WHERE deleted_at IS NULL GROUP BY observed_status

-- name: fingerprint
-- Most changes make another version; those that do not are the others here. Sums, because a table has no counter of its changes, and one that
-- every change writes would make all of them wait for each other.
SELECT
    count(*), sum(version), sum(status_changed_at), sum(op_started_at), sum(op_tries), count(op_note), count(error_reason), sum(exited_at),
    sum(restarts), count(probe_error), count(deleted_at), sum(last_access_at / 60000)
FROM workspaces

-- name: pending_work
-- Word for word the condition of its index, else that would not be used.
SELECT {columns} FROM workspaces
WHERE ((deleted_at IS NOT NULL AND (trash_until IS NULL OR observed_status <> 'PENDING'))
        OR operation <> 'NONE' OR (desired_state <> observed_status AND error_reason IS NULL))
    AND id > :after
ORDER BY id LIMIT :limit

-- name: check
SELECT 1 FROM workspaces LIMIT 1

-- name: create
INSERT INTO workspaces (
    id, name, owner, command, port, node_id, desired_state, desired_by, version, observed_status, status_changed_at, operation,
    op_tries, standby_ttl_seconds, archive_ttl_seconds, last_access_at, check_after, created_at, probe
) VALUES (
    :id, :name, :owner, :command, :port, :node_id, :desired_state, 'user', 1, 'PENDING', :now, 'NONE',
    0, :standby_ttl_seconds, :archive_ttl_seconds, :now, :now, :now, :probe
)
ON CONFLICT (name) WHERE deleted_at IS NULL DO NOTHING
RETURNING {columns}

-- name: set_desired
-- Who wants it to run has just been there: otherwise the tick that comes a moment later would undo what was asked for.
UPDATE workspaces SET
    desired_state = :state, desired_by = :by, version = version + 1, restarts = 0,
    last_access_at = CASE :state WHEN 'RUNNING' THEN max(last_access_at, :now) ELSE last_access_at END
WHERE id = :id AND deleted_at IS NULL AND version = coalesce(:version, version)
    AND (operation = 'NONE' OR :by = 'access' OR (operation = 'ARCHIVING' AND :state = 'RUNNING'))
RETURNING {columns}

-- name: configure
-- The port of a program that runs, or may run, stays where the proxy and its probe find it; the new one waits for the next start.
UPDATE workspaces SET
    owner = coalesce(:owner, owner),
    command = coalesce(:command, command),
    port = CASE WHEN observed_status IN ('RUNNING', 'ERROR') THEN port ELSE coalesce(:port, port) END,
    next_port = CASE
        WHEN :port IS NULL THEN next_port
        WHEN observed_status IN ('RUNNING', 'ERROR') AND :port <> port THEN :port
    END,
    standby_ttl_seconds = coalesce(:standby_ttl_seconds, standby_ttl_seconds),
    archive_ttl_seconds = coalesce(:archive_ttl_seconds, archive_ttl_seconds),
    probe = CASE WHEN :probe IS NULL THEN probe ELSE nullif(:probe, '') END,
    probed_at = CASE WHEN :probe IS NULL THEN probed_at END,
    probe_error = CASE WHEN :probe IS NULL THEN probe_error END,
    check_after = min(check_after, :now),
    version = version + 1
WHERE id = :id AND deleted_at IS NULL AND version = coalesce(:version, version) AND (operation = 'NONE' OR NOT :unless_busy)
RETURNING {columns}

-- name: hold
-- It may end earlier than the one before, whose end the next look waits for.
UPDATE workspaces SET
    hold_reason = :reason, hold_until = :until, hold_by = :by, hold_is_legal = :is_legal,
    check_after = min(check_after, :now), version = version + 1
WHERE id = :id AND deleted_at IS NULL AND version = coalesce(:version, version)
RETURNING {columns}

-- name: release
-- Whoever looks at a held one may have put off the next look for long.
UPDATE workspaces SET
    hold_reason = NULL, hold_until = NULL, hold_by = NULL, hold_is_legal = 0,
    check_after = min(check_after, :now), version = version + 1
WHERE id = :id AND deleted_at IS NULL AND version = coalesce(:version, version)
RETURNING {columns}

-- name: extend
-- The next look stays where it is: it comes too early, and is put off then.
UPDATE workspaces SET extended_until = max(coalesce(extended_until, :until), :until), version = version + 1
WHERE id = :id AND deleted_at IS NULL AND version = coalesce(:version, version)
RETURNING {columns}

-- name: trashed
SELECT {columns} FROM workspaces WHERE trash_until IS NOT NULL AND trash_until < :before AND id > :after ORDER BY id LIMIT :limit

-- name: mark_deleted
-- In the trash it is wanted as an archive, and an error does not keep anybody from making it one.
UPDATE workspaces SET
    deleted_at = :now, trash_until = :trash_until, version = version + 1,
    desired_state = CASE WHEN :trash_until IS NULL THEN desired_state ELSE 'PENDING' END,
    error_reason = CASE WHEN :trash_until IS NULL THEN error_reason END,
    error_message = CASE WHEN :trash_until IS NULL THEN error_message END,
    error_status = CASE WHEN :trash_until IS NULL THEN error_status END
WHERE id = :id AND deleted_at IS NULL AND version = coalesce(:version, version) AND operation = 'NONE'
RETURNING {columns}

-- name: bring_back
-- Its data is wanted in place again, where it has any.
UPDATE workspaces SET
    deleted_at = NULL, trash_until = NULL, version = version + 1, desired_by = 'user',
    desired_state = CASE WHEN observed_status = 'PENDING' AND archive_key IS NULL AND operation = 'NONE' THEN 'PENDING' ELSE 'STANDBY' END,
    last_access_at = max(last_access_at, :now), check_after = min(check_after, :now)
WHERE id = :id AND trash_until IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM workspaces AS other WHERE other.name = workspaces.name AND other.deleted_at IS NULL)
RETURNING {columns}

-- name: clear_error
UPDATE workspaces SET error_reason = NULL, error_message = NULL, error_status = NULL
WHERE id = :id AND deleted_at IS NULL
RETURNING {columns}

-- name: revive
-- Only with the data in place: without it, the next step would be an empty volume or an older archive.
UPDATE workspaces SET
    error_reason = NULL, error_message = NULL, error_status = NULL, restarts = 0,
    last_access_at = max(last_access_at, :now), desired_state = 'RUNNING', desired_by = 'access', version = version + 1
WHERE id = :id AND deleted_at IS NULL AND error_reason IS NOT NULL AND error_status IN ('STANDBY', 'RUNNING')
    AND status_changed_at <= :before AND observed_at >= :seen
RETURNING {columns}

-- name: connected
UPDATE workspaces SET
    last_access_at = max(last_access_at, :now), desired_state = 'RUNNING', desired_by = 'access', version = version + 1
WHERE id = :id AND deleted_at IS NULL
RETURNING {columns}

-- name: flush_access
UPDATE workspaces SET last_access_at = :time WHERE id = :id AND last_access_at < :time

-- name: advance_checks
UPDATE workspaces SET check_after = :check_after
WHERE id = :id AND version = :version AND status_changed_at = :status_changed_at AND check_after < :check_after

-- name: to_standby
UPDATE workspaces SET desired_state = 'STANDBY', desired_by = 'ttl', version = version + 1
WHERE id = :id AND version = :version AND last_access_at = :last_access_at AND status_changed_at = :status_changed_at
    AND (observed_status = 'RUNNING' OR (observed_status = 'STANDBY' AND restarts > 0))
    AND desired_state = 'RUNNING' AND operation = 'NONE' AND deleted_at IS NULL
    AND (probe IS NULL OR probe_error IS NULL)  -- written without another version, and a doubt
RETURNING id

-- name: to_pending
UPDATE workspaces SET desired_state = 'PENDING', desired_by = 'ttl', version = version + 1
WHERE id = :id AND version = :version AND last_access_at = :last_access_at AND status_changed_at = :status_changed_at
    AND observed_status = 'STANDBY' AND desired_state = 'STANDBY' AND operation = 'NONE' AND deleted_at IS NULL
RETURNING id

-- name: to_removal
UPDATE workspaces SET trash_until = NULL, version = version + 1
WHERE id = :id AND version = :version AND last_access_at = :last_access_at AND status_changed_at = :status_changed_at
    AND trash_until IS NOT NULL AND operation = 'NONE'
RETURNING id

-- name: claim
UPDATE workspaces SET operation = :operation, op_id = :op_id, op_started_at = :now, op_tries = 0, op_note = NULL
WHERE id = :id AND operation = 'NONE' AND version = coalesce(:version, version)
    AND CASE
        WHEN deleted_at IS NULL THEN :operation <> 'DELETING'
        WHEN trash_until IS NULL THEN :operation = 'DELETING'
        ELSE :operation IN ('STOPPING', 'ARCHIVING')
    END
    AND (error_reason IS NULL OR :operation = 'DELETING')
RETURNING id

-- name: tried
UPDATE workspaces SET op_tries = op_tries + 1 WHERE id = :id AND op_id = :op_id RETURNING op_tries

-- name: complete
UPDATE workspaces SET
    last_access_at = CASE operation WHEN 'STOPPING' THEN max(last_access_at, :now) ELSE last_access_at END,
    archive_key = CASE WHEN :keeps_archive THEN archive_key ELSE :archive_key END,
    restarts = CASE operation WHEN 'STOPPING' THEN 0 ELSE restarts END,
    operation = 'NONE', op_id = NULL, op_started_at = NULL, op_tries = 0, op_note = NULL
WHERE id = :id AND op_id = :op_id
RETURNING id

-- name: fail
UPDATE workspaces SET
    status_changed_at = CASE observed_status WHEN 'ERROR' THEN status_changed_at ELSE :now END,
    observed_status = 'ERROR', observed_at = :now, error_reason = :reason, error_message = :message, error_status = NULL,
    operation = 'NONE', op_id = NULL, op_started_at = NULL, op_tries = 0, op_note = NULL
WHERE id = :id AND op_id = :op_id
RETURNING id

-- name: note_exit
-- The same exit is counted once, however often it is told.
UPDATE workspaces SET
    restarts = CASE WHEN :steady THEN 1 ELSE restarts + 1 END, exit_status = :status, exited_at = :at, exit_output = :output
WHERE id = :id AND operation = 'NONE' AND deleted_at IS NULL AND exited_at IS NOT :at
RETURNING restarts

-- name: note_operation
UPDATE workspaces SET op_note = :note WHERE id = :id AND op_id = :op_id RETURNING id

-- name: forget
DELETE FROM workspaces WHERE id = :id AND op_id = :op_id AND operation = 'DELETING' RETURNING id

-- name: probed
UPDATE workspaces SET probed_at = coalesce(:at, probed_at), probe_error = :problem WHERE id = :id AND probe = :probe

-- name: observe_changed
-- A program that is started again after it ended by itself is no new one: idle time goes on, and with it the next look.
-- Without a program there is nothing left that listens on the old port.
UPDATE workspaces SET
    observed_status = :status, observed_at = :now, status_changed_at = :now,
    port = CASE :status WHEN 'RUNNING' THEN port ELSE coalesce(next_port, port) END,
    next_port = CASE :status WHEN 'RUNNING' THEN next_port END,
    running_since = CASE WHEN :status = 'RUNNING' AND (restarts = 0 OR running_since = 0) THEN :now ELSE running_since END,
    check_after = CASE
        WHEN :status = 'RUNNING' AND restarts > 0 THEN min(check_after, :now + 1000 * standby_ttl_seconds)
        WHEN :status = 'RUNNING' THEN :now + 1000 * standby_ttl_seconds
        WHEN :status = 'STANDBY' AND desired_state = 'RUNNING' THEN min(check_after, :now + 1000 * archive_ttl_seconds)
        WHEN :status = 'STANDBY' THEN :now + 1000 * archive_ttl_seconds
        ELSE check_after
    END
WHERE id = :id AND observed_status <> :status AND error_reason IS NULL
RETURNING id

-- name: observe_same
-- After the other one, so it finds those that were changed as well, and writes to them what they have.
UPDATE workspaces SET observed_at = :now, error_status = CASE WHEN error_reason IS NULL THEN NULL ELSE :status END
WHERE id = :id AND (observed_at IS NOT :now OR error_reason IS NOT NULL)

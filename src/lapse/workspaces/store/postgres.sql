-- Workspaces in PostgreSQL. The tables are made by lapse.db.postgres.migrations; {columns} are those of the model.
--
-- Steps over many rows are one statement each, with an array for each column. Their arrays are sorted by id, so that two of them that meet
-- mostly take the rows in the same order; where they do not, one is ended as a deadlock and repeated.

-- name: get
SELECT {columns} FROM workspaces WHERE id = %(id)s

-- name: by_name
SELECT {columns} FROM workspaces WHERE name = %(name)s AND deleted_at IS NULL

-- name: list
SELECT {columns} FROM workspaces WHERE deleted_at IS NULL AND name > %(after)s ORDER BY name LIMIT %(limit)s::int8

-- name: list_of_owner
SELECT {columns} FROM workspaces WHERE deleted_at IS NULL AND owner = %(owner)s AND name > %(after)s ORDER BY name LIMIT %(limit)s::int8

-- name: standby_candidates
SELECT {columns} FROM workspaces
WHERE (observed_status = 'RUNNING' OR (observed_status = 'STANDBY' AND restarts > 0))
    AND desired_state = 'RUNNING' AND operation = 'NONE' AND deleted_at IS NULL
    AND check_after <= %(now)s::int8 AND (check_after, id) > (%(after_check)s::int8, %(after_id)s::text)
ORDER BY check_after, id LIMIT %(limit)s::int8

-- name: archive_candidates
SELECT {columns} FROM workspaces
WHERE observed_status = 'STANDBY' AND desired_state = 'STANDBY' AND operation = 'NONE' AND deleted_at IS NULL
    AND check_after <= %(now)s::int8 AND (check_after, id) > (%(after_check)s::int8, %(after_id)s::text)
ORDER BY check_after, id LIMIT %(limit)s::int8

-- name: at_port
SELECT {columns} FROM workspaces
WHERE deleted_at IS NULL AND (port = %(port)s::int8 OR next_port = %(port)s::int8)
    AND (%(node)s::text IS NULL OR node_id IS NULL OR node_id = %(node)s::text)
ORDER BY name

-- name: count_by_status
-- Reads the whole table; why it has no index is said in sqlite.sql.
SELECT observed_status, count(*) FROM workspaces WHERE deleted_at IS NULL GROUP BY observed_status

-- name: fingerprint
-- Most changes make another version; those that do not are the others here. Sums, because a table has no counter of its changes, and one that
-- every change writes would make all of them wait for each other.
SELECT
    count(*), sum(version), sum(status_changed_at), sum(op_started_at), sum(op_tries), count(op_note), count(error_reason), sum(exited_at),
    sum(restarts), count(probe_error), count(deleted_at), sum(last_access_at / 60000)
FROM workspaces

-- name: pending_work
-- The condition of its index.
SELECT {columns} FROM workspaces
WHERE ((deleted_at IS NOT NULL AND (trash_until IS NULL OR observed_status <> 'PENDING'))
        OR operation <> 'NONE' OR (desired_state <> observed_status AND error_reason IS NULL))
    AND id > %(after)s
ORDER BY id LIMIT %(limit)s::int8

-- name: check
SELECT 1 FROM workspaces LIMIT 1

-- name: create
INSERT INTO workspaces (
    id, name, owner, command, port, node_id, desired_state, desired_by, version, observed_status, status_changed_at, operation,
    op_tries, standby_ttl_seconds, archive_ttl_seconds, last_access_at, check_after, created_at, probe
) VALUES (
    %(id)s, %(name)s, %(owner)s, %(command)s, %(port)s, %(node_id)s, %(desired_state)s, 'user', 1, 'PENDING', %(now)s::int8, 'NONE',
    0, %(standby_ttl_seconds)s, %(archive_ttl_seconds)s, %(now)s::int8, %(now)s::int8, %(now)s::int8, %(probe)s::text
)
ON CONFLICT (name) WHERE deleted_at IS NULL DO NOTHING
RETURNING {columns}

-- name: set_desired
-- Who wants it to run has just been there: otherwise the tick that comes a moment later would undo what was asked for.
UPDATE workspaces SET
    desired_state = %(state)s, desired_by = %(by)s, version = version + 1, restarts = 0,
    last_access_at = CASE %(state)s::text WHEN 'RUNNING' THEN greatest(last_access_at, %(now)s::int8) ELSE last_access_at END
WHERE id = %(id)s AND deleted_at IS NULL AND version = coalesce(%(version)s::int8, version)
    AND (operation = 'NONE' OR %(by)s::text = 'access' OR (operation = 'ARCHIVING' AND %(state)s::text = 'RUNNING'))
RETURNING {columns}

-- name: configure
-- The port of a program that runs, or may run, stays where the proxy and its probe find it; the new one waits for the next start.
UPDATE workspaces SET
    owner = coalesce(%(owner)s::text, owner),
    command = coalesce(%(command)s::text[], command),
    port = CASE WHEN observed_status IN ('RUNNING', 'ERROR') THEN port ELSE coalesce(%(port)s::int4, port) END,
    next_port = CASE
        WHEN %(port)s::int4 IS NULL THEN next_port
        WHEN observed_status IN ('RUNNING', 'ERROR') AND %(port)s::int4 <> port THEN %(port)s::int4
    END,
    standby_ttl_seconds = coalesce(%(standby_ttl_seconds)s::int8, standby_ttl_seconds),
    archive_ttl_seconds = coalesce(%(archive_ttl_seconds)s::int8, archive_ttl_seconds),
    probe = CASE WHEN %(probe)s::text IS NULL THEN probe ELSE nullif(%(probe)s::text, '') END,
    probed_at = CASE WHEN %(probe)s::text IS NULL THEN probed_at END,
    probe_error = CASE WHEN %(probe)s::text IS NULL THEN probe_error END,
    check_after = least(check_after, %(now)s::int8),
    version = version + 1
WHERE id = %(id)s AND deleted_at IS NULL AND version = coalesce(%(version)s::int8, version)
    AND (operation = 'NONE' OR NOT %(unless_busy)s::bool)
RETURNING {columns}

-- name: hold
-- It may end earlier than the one before, whose end the next look waits for.
UPDATE workspaces SET
    hold_reason = %(reason)s, hold_until = %(until)s, hold_by = %(by)s, hold_is_legal = %(is_legal)s,
    check_after = least(check_after, %(now)s::int8), version = version + 1
WHERE id = %(id)s AND deleted_at IS NULL AND version = coalesce(%(version)s::int8, version)
RETURNING {columns}

-- name: release
-- Whoever looks at a held one may have put off the next look for long.
UPDATE workspaces SET
    hold_reason = NULL, hold_until = NULL, hold_by = NULL, hold_is_legal = false,
    check_after = least(check_after, %(now)s::int8), version = version + 1
WHERE id = %(id)s AND deleted_at IS NULL AND version = coalesce(%(version)s::int8, version)
RETURNING {columns}

-- name: extend
-- The next look stays where it is: it comes too early, and is put off then.
UPDATE workspaces SET extended_until = greatest(extended_until, %(until)s::int8), version = version + 1
WHERE id = %(id)s AND deleted_at IS NULL AND version = coalesce(%(version)s::int8, version)
RETURNING {columns}

-- name: trashed
SELECT {columns} FROM workspaces
WHERE trash_until IS NOT NULL AND trash_until < %(before)s::int8 AND id > %(after)s ORDER BY id LIMIT %(limit)s::int8

-- name: mark_deleted
-- In the trash it is wanted as an archive, and an error does not keep anybody from making it one.
UPDATE workspaces SET
    deleted_at = %(now)s::int8, trash_until = %(trash_until)s::int8, version = version + 1,
    desired_state = CASE WHEN %(trash_until)s::int8 IS NULL THEN desired_state ELSE 'PENDING' END,
    error_reason = CASE WHEN %(trash_until)s::int8 IS NULL THEN error_reason END,
    error_message = CASE WHEN %(trash_until)s::int8 IS NULL THEN error_message END,
    error_status = CASE WHEN %(trash_until)s::int8 IS NULL THEN error_status END
WHERE id = %(id)s AND deleted_at IS NULL AND version = coalesce(%(version)s::int8, version) AND operation = 'NONE'
RETURNING {columns}

-- name: bring_back
-- Its data is wanted in place again, where it has any.
UPDATE workspaces AS kept SET
    deleted_at = NULL, trash_until = NULL, version = version + 1, desired_by = 'user',
    desired_state = CASE WHEN observed_status = 'PENDING' AND archive_key IS NULL AND operation = 'NONE' THEN 'PENDING' ELSE 'STANDBY' END,
    last_access_at = greatest(last_access_at, %(now)s::int8), check_after = least(check_after, %(now)s::int8)
WHERE id = %(id)s AND trash_until IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM workspaces AS other WHERE other.name = kept.name AND other.deleted_at IS NULL)
RETURNING {columns}

-- name: clear_error
UPDATE workspaces SET error_reason = NULL, error_message = NULL, error_status = NULL
WHERE id = %(id)s AND deleted_at IS NULL
RETURNING {columns}

-- name: revive
-- Only with the data in place: without it, the next step would be an empty volume or an older archive.
UPDATE workspaces SET
    error_reason = NULL, error_message = NULL, error_status = NULL, restarts = 0,
    last_access_at = greatest(last_access_at, %(now)s::int8), desired_state = 'RUNNING', desired_by = 'access', version = version + 1
WHERE id = %(id)s AND deleted_at IS NULL AND error_reason IS NOT NULL AND error_status IN ('STANDBY', 'RUNNING')
    AND status_changed_at <= %(before)s::int8 AND observed_at >= %(seen)s::int8
RETURNING {columns}

-- name: connected
UPDATE workspaces SET
    last_access_at = greatest(last_access_at, %(now)s::int8), desired_state = 'RUNNING', desired_by = 'access', version = version + 1
WHERE id = %(id)s AND deleted_at IS NULL
RETURNING {columns}

-- name: flush_access
-- Only last_access_at, which is in no index: all of these are heap-only updates as long as the pages have room.
UPDATE workspaces AS kept SET last_access_at = seen.time
FROM unnest(%(id)s::text[], %(time)s::int8[]) AS seen (id, time)
WHERE kept.id = seen.id AND kept.last_access_at < seen.time

-- name: advance_checks
UPDATE workspaces AS kept SET check_after = seen.check_after
FROM unnest(%(id)s::text[], %(version)s::int8[], %(status_changed_at)s::int8[], %(check_after)s::int8[])
    AS seen (id, version, status_changed_at, check_after)
WHERE kept.id = seen.id AND kept.version = seen.version AND kept.status_changed_at = seen.status_changed_at
    AND kept.check_after < seen.check_after

-- name: to_standby
UPDATE workspaces AS kept SET desired_state = 'STANDBY', desired_by = 'ttl', version = kept.version + 1
FROM unnest(%(id)s::text[], %(version)s::int8[], %(last_access_at)s::int8[], %(status_changed_at)s::int8[])
    AS seen (id, version, last_access_at, status_changed_at)
WHERE kept.id = seen.id AND kept.version = seen.version AND kept.last_access_at = seen.last_access_at
    AND kept.status_changed_at = seen.status_changed_at
    AND (kept.observed_status = 'RUNNING' OR (kept.observed_status = 'STANDBY' AND kept.restarts > 0))
    AND kept.desired_state = 'RUNNING' AND kept.operation = 'NONE' AND kept.deleted_at IS NULL
    AND (kept.probe IS NULL OR kept.probe_error IS NULL)  -- written without another version, and a doubt
RETURNING kept.id

-- name: to_pending
UPDATE workspaces AS kept SET desired_state = 'PENDING', desired_by = 'ttl', version = kept.version + 1
FROM unnest(%(id)s::text[], %(version)s::int8[], %(last_access_at)s::int8[], %(status_changed_at)s::int8[])
    AS seen (id, version, last_access_at, status_changed_at)
WHERE kept.id = seen.id AND kept.version = seen.version AND kept.last_access_at = seen.last_access_at
    AND kept.status_changed_at = seen.status_changed_at
    AND kept.observed_status = 'STANDBY' AND kept.desired_state = 'STANDBY' AND kept.operation = 'NONE' AND kept.deleted_at IS NULL
RETURNING kept.id

-- name: to_removal
UPDATE workspaces AS kept SET trash_until = NULL, version = kept.version + 1
FROM unnest(%(id)s::text[], %(version)s::int8[], %(last_access_at)s::int8[], %(status_changed_at)s::int8[])
    AS seen (id, version, last_access_at, status_changed_at)
WHERE kept.id = seen.id AND kept.version = seen.version AND kept.last_access_at = seen.last_access_at
    AND kept.status_changed_at = seen.status_changed_at AND kept.trash_until IS NOT NULL AND kept.operation = 'NONE'
RETURNING kept.id

-- name: claim
UPDATE workspaces SET operation = %(operation)s, op_id = %(op_id)s, op_started_at = %(now)s::int8, op_tries = 0, op_note = NULL
WHERE id = %(id)s AND operation = 'NONE' AND version = coalesce(%(version)s::int8, version)
    AND CASE
        WHEN deleted_at IS NULL THEN %(operation)s::text <> 'DELETING'
        WHEN trash_until IS NULL THEN %(operation)s::text = 'DELETING'
        ELSE %(operation)s::text IN ('STOPPING', 'ARCHIVING')
    END
    AND (error_reason IS NULL OR %(operation)s::text = 'DELETING')
RETURNING id

-- name: tried
UPDATE workspaces SET op_tries = op_tries + 1 WHERE id = %(id)s AND op_id = %(op_id)s RETURNING op_tries

-- name: complete
UPDATE workspaces SET
    last_access_at = CASE operation WHEN 'STOPPING' THEN greatest(last_access_at, %(now)s::int8) ELSE last_access_at END,
    archive_key = CASE WHEN %(keeps_archive)s::bool THEN archive_key ELSE %(archive_key)s::text END,
    restarts = CASE operation WHEN 'STOPPING' THEN 0 ELSE restarts END,
    operation = 'NONE', op_id = NULL, op_started_at = NULL, op_tries = 0, op_note = NULL
WHERE id = %(id)s AND op_id = %(op_id)s
RETURNING id

-- name: fail
UPDATE workspaces SET
    status_changed_at = CASE observed_status WHEN 'ERROR' THEN status_changed_at ELSE %(now)s::int8 END,
    observed_status = 'ERROR', observed_at = %(now)s::int8, error_reason = %(reason)s, error_message = %(message)s,
    error_status = NULL, operation = 'NONE', op_id = NULL, op_started_at = NULL, op_tries = 0, op_note = NULL
WHERE id = %(id)s AND op_id = %(op_id)s
RETURNING id

-- name: note_exit
-- The same exit is counted once, however often it is told.
UPDATE workspaces SET
    restarts = CASE WHEN %(steady)s::bool THEN 1 ELSE restarts + 1 END, exit_status = %(status)s::int8, exited_at = %(at)s::int8, exit_output = %(output)s::text
WHERE id = %(id)s AND operation = 'NONE' AND deleted_at IS NULL AND exited_at IS DISTINCT FROM %(at)s::int8
RETURNING restarts

-- name: note_operation
UPDATE workspaces SET op_note = %(note)s::text WHERE id = %(id)s AND op_id = %(op_id)s RETURNING id

-- name: forget
DELETE FROM workspaces WHERE id = %(id)s AND op_id = %(op_id)s AND operation = 'DELETING' RETURNING id

-- name: probed
UPDATE workspaces AS kept SET probed_at = coalesce(seen.at, kept.probed_at), probe_error = seen.problem
FROM unnest(%(id)s::text[], %(probe)s::text[], %(at)s::int8[], %(problem)s::text[]) AS seen (id, probe, at, problem)
WHERE kept.id = seen.id AND kept.probe = seen.probe

-- name: observe
-- Both halves see the same rows before either writes, so each row belongs to one of them. A program that is started
-- again after it ended by itself is no new one: idle time goes on, and with it the next look.
WITH seen AS MATERIALIZED (
    SELECT id, status FROM unnest(%(id)s::text[], %(status)s::text[]) AS given (id, status)
), changed AS (
    UPDATE workspaces AS kept SET
        observed_status = seen.status, observed_at = %(now)s::int8, status_changed_at = %(now)s::int8,
        -- Without a program there is nothing left that listens on the old port.
        port = CASE seen.status WHEN 'RUNNING' THEN kept.port ELSE coalesce(kept.next_port, kept.port) END,
        next_port = CASE seen.status WHEN 'RUNNING' THEN kept.next_port END,
        running_since = CASE
            WHEN seen.status = 'RUNNING' AND (kept.restarts = 0 OR kept.running_since = 0) THEN %(now)s::int8
            ELSE kept.running_since
        END,
        check_after = CASE
            WHEN seen.status = 'RUNNING' AND kept.restarts > 0
                THEN least(kept.check_after, %(now)s::int8 + 1000 * kept.standby_ttl_seconds)
            WHEN seen.status = 'RUNNING' THEN %(now)s::int8 + 1000 * kept.standby_ttl_seconds
            WHEN seen.status = 'STANDBY' AND kept.desired_state = 'RUNNING'
                THEN least(kept.check_after, %(now)s::int8 + 1000 * kept.archive_ttl_seconds)
            WHEN seen.status = 'STANDBY' THEN %(now)s::int8 + 1000 * kept.archive_ttl_seconds
            ELSE kept.check_after
        END
    FROM seen WHERE kept.id = seen.id AND kept.observed_status <> seen.status AND kept.error_reason IS NULL
    RETURNING kept.id
), same AS (
    UPDATE workspaces AS kept SET
        observed_at = %(now)s::int8, error_status = CASE WHEN kept.error_reason IS NULL THEN NULL ELSE seen.status END
    FROM seen WHERE kept.id = seen.id AND (kept.observed_status = seen.status OR kept.error_reason IS NOT NULL)
)
SELECT id FROM changed

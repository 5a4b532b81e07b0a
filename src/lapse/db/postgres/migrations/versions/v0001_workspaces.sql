-- Times are Unix milliseconds. Texts that are ordered or compared are in the order of their code points ("C"), as in SQLite, and the
-- same on every server.
--
-- fillfactor leaves room on each page for the next version of a row, so that an access needs neither another page nor an index entry.
-- No index, and no condition of one, may name last_access_at or observed_at: then no such update would be heap-only any more.
CREATE TABLE workspaces (
    id                  text COLLATE "C" PRIMARY KEY,
    name                text COLLATE "C" NOT NULL,
    owner               text COLLATE "C" NOT NULL,
    command             text[] NOT NULL,
    port                integer NOT NULL,
    node_id             text,
    desired_state       text NOT NULL CHECK (desired_state IN ('PENDING', 'STANDBY', 'RUNNING')),
    desired_by          text NOT NULL CHECK (desired_by IN ('user', 'access', 'ttl')),
    version             bigint NOT NULL,
    observed_status     text NOT NULL CHECK (observed_status IN ('PENDING', 'STANDBY', 'RUNNING', 'ERROR')),
    observed_at         bigint,
    status_changed_at   bigint NOT NULL,
    operation           text NOT NULL CHECK (operation IN
        ('NONE', 'PROVISIONING', 'RESTORING', 'STARTING', 'STOPPING', 'ARCHIVING', 'DELETING')),
    op_id               text,
    op_started_at       bigint,
    op_tries            integer NOT NULL,
    archive_key         text,
    error_reason        text,
    error_message       text,
    standby_ttl_seconds bigint NOT NULL CHECK (standby_ttl_seconds > 0),
    archive_ttl_seconds bigint NOT NULL CHECK (archive_ttl_seconds > 0),
    last_access_at      bigint NOT NULL,
    check_after         bigint NOT NULL,
    created_at          bigint NOT NULL,
    deleted_at          bigint,
    hold_reason         text,
    hold_until          bigint,
    CHECK ((operation = 'NONE') = (op_id IS NULL))
) WITH (fillfactor = 90);
CREATE UNIQUE INDEX workspaces_by_name ON workspaces (name) WHERE deleted_at IS NULL;
CREATE INDEX workspaces_by_owner ON workspaces (owner, name) WHERE deleted_at IS NULL;
CREATE INDEX workspaces_to_standby ON workspaces (check_after, id)
    WHERE observed_status = 'RUNNING' AND desired_state = 'RUNNING' AND operation = 'NONE' AND deleted_at IS NULL;
CREATE INDEX workspaces_to_archive ON workspaces (check_after, id)
    WHERE observed_status = 'STANDBY' AND desired_state = 'STANDBY' AND operation = 'NONE' AND deleted_at IS NULL;
CREATE INDEX workspaces_with_work ON workspaces (id)
    WHERE deleted_at IS NOT NULL OR operation <> 'NONE' OR (desired_state <> observed_status AND error_reason IS NULL);

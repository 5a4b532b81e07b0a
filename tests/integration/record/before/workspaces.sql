-- A state folder of the version before the one record, with a few rows of everything; made by running it once.
PRAGMA page_size=4096;

BEGIN TRANSACTION;

CREATE TABLE brakes (
    name          TEXT    PRIMARY KEY,
    since_ns      INTEGER,
    reason        TEXT    NOT NULL,
    by            TEXT    NOT NULL,
    counted_after INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO brakes VALUES('workspaces',1780000013000000000,'old habits','cli (ada)',0);

CREATE TABLE journal (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    time_ns   INTEGER NOT NULL,
    domain    TEXT    NOT NULL,
    address   TEXT    NOT NULL,
    uid       TEXT    NOT NULL,
    version   TEXT    NOT NULL,
    verdict   TEXT    NOT NULL,
    reason    TEXT    NOT NULL,
    anchor_ns INTEGER,
    policy    TEXT    NOT NULL,
    actor     TEXT    NOT NULL,
    outcome   TEXT    NOT NULL,
    details   TEXT,
    tick      TEXT    NOT NULL,
    attempt   TEXT
) STRICT;
INSERT INTO journal VALUES(1,1780000011000000000,'workspaces','workspace/gone','uid-11','11','due','ttl_expired',NULL,'p','lapse','ended','{"n":11}','t11',NULL);
INSERT INTO journal VALUES(2,1780000012000000000,'workspaces','workspace/other','uid-12','12','due','ttl_expired',NULL,'p','lapse','ended','{"n":12}','t12',NULL);
INSERT INTO journal VALUES(3,1780000013000000000,'workspaces','','','','unknown','by_person',NULL,'','cli (ada)','frozen','{"reason":"old habits"}','',NULL);
CREATE INDEX journal_acts ON journal (domain, time_ns, actor) WHERE outcome = 'ended';
CREATE INDEX journal_by_address ON journal (address, time_ns);
CREATE INDEX journal_by_attempt ON journal (attempt, outcome) WHERE attempt IS NOT NULL;
CREATE INDEX journal_by_time ON journal (time_ns);
CREATE INDEX journal_by_uid ON journal (uid, time_ns);

CREATE TABLE safety_notes (
    name TEXT PRIMARY KEY,
    text TEXT NOT NULL
) STRICT, WITHOUT ROWID;

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
    hold_until          INTEGER, next_port INTEGER, probe TEXT, probed_at INTEGER, probe_error TEXT, running_since INTEGER NOT NULL DEFAULT 0, restarts INTEGER NOT NULL DEFAULT 0, exit_status INTEGER, exited_at INTEGER, exit_output TEXT, error_status TEXT, op_note TEXT,
    CHECK ((operation = 'NONE') = (op_id IS NULL))
) STRICT;
INSERT INTO workspaces VALUES('dc7174cb-45b7-42a1-8750-49d54ca965c2','lab','ada','["serve"]',9000,NULL,'PENDING','user',1,'PENDING',NULL,1794893420839,'NONE',NULL,NULL,0,NULL,NULL,NULL,300,86400,1794893420839,1794893420839,1794893420839,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,NULL,NULL,NULL,NULL,NULL);
CREATE UNIQUE INDEX workspaces_by_name ON workspaces (name) WHERE deleted_at IS NULL;
CREATE INDEX workspaces_by_next_port ON workspaces (next_port) WHERE next_port IS NOT NULL;
CREATE INDEX workspaces_by_owner ON workspaces (owner, name) WHERE deleted_at IS NULL;
CREATE INDEX workspaces_by_port ON workspaces (port) WHERE deleted_at IS NULL;
CREATE INDEX workspaces_to_archive ON workspaces (check_after, id)
    WHERE observed_status = 'STANDBY' AND desired_state = 'STANDBY' AND operation = 'NONE' AND deleted_at IS NULL;
CREATE INDEX workspaces_to_standby ON workspaces (check_after, id)
    WHERE (observed_status = 'RUNNING' OR (observed_status = 'STANDBY' AND restarts > 0))
        AND desired_state = 'RUNNING' AND operation = 'NONE' AND deleted_at IS NULL;
CREATE INDEX workspaces_with_work ON workspaces (id)
    WHERE deleted_at IS NOT NULL OR operation <> 'NONE' OR (desired_state <> observed_status AND error_reason IS NULL);

DELETE FROM main.sqlite_sequence WHERE name='journal';
INSERT INTO main.sqlite_sequence VALUES ('journal', 3);

pragma user_version=7;
pragma application_id=1281454167;

COMMIT TRANSACTION;

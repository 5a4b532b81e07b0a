-- A database of the version before the one record, with a few rows of everything; made by running it once.
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

-- The journal, and what is frozen, beside the rows that they are about: a transition and its row are one transaction, and every machine
-- counts the same acts. Rows are appended and never changed. The id is the order of appending, and decides between rows of one moment.
CREATE TABLE journal (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    time_ns   bigint NOT NULL,
    domain    text COLLATE "C" NOT NULL,
    address   text COLLATE "C" NOT NULL,
    uid       text COLLATE "C" NOT NULL,
    version   text NOT NULL,
    verdict   text NOT NULL,
    reason    text NOT NULL,
    anchor_ns bigint,
    policy    text NOT NULL,
    actor     text COLLATE "C" NOT NULL,
    outcome   text COLLATE "C" NOT NULL,
    details   text,
    tick      text NOT NULL,
    attempt   text COLLATE "C"
);
CREATE INDEX journal_by_time ON journal (time_ns, id);
CREATE INDEX journal_by_address ON journal (address, time_ns, id);
CREATE INDEX journal_by_uid ON journal (uid, time_ns, id);
-- Only rows of acts that could not be written in one transaction with the act.
CREATE INDEX journal_by_attempt ON journal (attempt, outcome) WHERE attempt IS NOT NULL;
-- What was done, for a deletion budget: counted without a look at the rows.
CREATE INDEX journal_acts ON journal (domain, time_ns, actor, id) WHERE outcome = 'ended';

-- One row for each domain that was ever frozen, and perhaps one for all of them. since_ns is null while it goes on; counted_after is the
-- journal's row of the last resume.
CREATE TABLE brakes (
    name          text COLLATE "C" PRIMARY KEY,
    since_ns      bigint,
    reason        text NOT NULL,
    by            text NOT NULL,
    counted_after bigint NOT NULL
);

ALTER TABLE workspaces
    ADD COLUMN next_port integer,
    ADD COLUMN probe text,
    ADD COLUMN probed_at bigint,
    ADD COLUMN probe_error text;
CREATE INDEX workspaces_by_port ON workspaces (port) WHERE deleted_at IS NULL;
CREATE INDEX workspaces_by_next_port ON workspaces (next_port) WHERE next_port IS NOT NULL;

-- What is known of programs that end by themselves, of errors and of operations under way. A running_since of 0 is one
-- that was not noted.
ALTER TABLE workspaces
    ADD COLUMN running_since bigint NOT NULL DEFAULT 0,
    ADD COLUMN restarts integer NOT NULL DEFAULT 0,
    ADD COLUMN exit_status integer,
    ADD COLUMN exited_at bigint,
    ADD COLUMN exit_output text,
    ADD COLUMN error_status text,
    ADD COLUMN op_note text;
DROP INDEX workspaces_to_standby;
CREATE INDEX workspaces_to_standby ON workspaces (check_after, id)
    WHERE (observed_status = 'RUNNING' OR (observed_status = 'STANDBY' AND restarts > 0))
        AND desired_state = 'RUNNING' AND operation = 'NONE' AND deleted_at IS NULL;

CREATE TABLE lapse_schema (version_num varchar(32) PRIMARY KEY);
INSERT INTO lapse_schema (version_num) VALUES ('0004');
INSERT INTO journal (id, time_ns, domain, address, uid, version, verdict, reason, anchor_ns, policy, actor, outcome, details, tick, attempt) OVERRIDING SYSTEM VALUE VALUES (1, 1780000021000000000, 'workspaces', 'workspace/away', 'uid-21', '21', 'due', 'ttl_expired', NULL, 'p', 'lapse', 'ended', '{"n":21}', 't21', NULL);
INSERT INTO journal (id, time_ns, domain, address, uid, version, verdict, reason, anchor_ns, policy, actor, outcome, details, tick, attempt) OVERRIDING SYSTEM VALUE VALUES (2, 1780000022000000000, 'workspaces', 'workspace/far', 'uid-22', '22', 'due', 'ttl_expired', NULL, 'p', 'lapse', 'ended', '{"n":22}', 't22', NULL);
INSERT INTO journal (id, time_ns, domain, address, uid, version, verdict, reason, anchor_ns, policy, actor, outcome, details, tick, attempt) OVERRIDING SYSTEM VALUE VALUES (3, 1780000023000000000, 'all', '', '', '', 'unknown', 'by_person', NULL, '', 'cli (ada)', 'frozen', '{"reason":"stop"}', '', NULL);
INSERT INTO journal (id, time_ns, domain, address, uid, version, verdict, reason, anchor_ns, policy, actor, outcome, details, tick, attempt) OVERRIDING SYSTEM VALUE VALUES (4, 1780000024000000000, 'all', '', '', '', 'keep', 'by_person', NULL, '', 'cli (ada)', 'resumed', NULL, '', NULL);
INSERT INTO journal (id, time_ns, domain, address, uid, version, verdict, reason, anchor_ns, policy, actor, outcome, details, tick, attempt) OVERRIDING SYSTEM VALUE VALUES (5, 1780000025000000000, 'workspaces', 'workspace/late', 'uid-25', '25', 'due', 'ttl_expired', NULL, 'p', 'lapse', 'ended', '{"n":25}', 't25', NULL);
INSERT INTO journal (id, time_ns, domain, address, uid, version, verdict, reason, anchor_ns, policy, actor, outcome, details, tick, attempt) OVERRIDING SYSTEM VALUE VALUES (6, 1780000026000000000, 'workspaces', '', '', '', 'unknown', 'by_person', NULL, '', 'cli (ada)', 'frozen', '{"reason":"mine"}', '', NULL);
INSERT INTO brakes (name, since_ns, reason, by, counted_after) VALUES ('all', NULL, 'stop', 'cli (ada)', 4);
INSERT INTO brakes (name, since_ns, reason, by, counted_after) VALUES ('workspaces', 1780000026000000000, 'mine', 'cli (ada)', 0);
INSERT INTO workspaces (id, name, owner, command, port, node_id, desired_state, desired_by, version, observed_status, observed_at, status_changed_at, operation, op_id, op_started_at, op_tries, archive_key, error_reason, error_message, standby_ttl_seconds, archive_ttl_seconds, last_access_at, check_after, created_at, deleted_at, hold_reason, hold_until, next_port, probe, probed_at, probe_error, running_since, restarts, exit_status, exited_at, exit_output, error_status, op_note) VALUES ('8e1ea664-ec30-47a4-89a7-7a6c4b16ba22', 'far', 'ada', '{serve}', 9000, 'node-1', 'PENDING', 'user', 1, 'PENDING', NULL, 1794893421144, 'NONE', NULL, NULL, 0, NULL, NULL, NULL, 300, 86400, 1794893421144, 1794893421144, 1794893421144, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL, NULL, NULL);
SELECT setval(pg_get_serial_sequence('journal', 'id'), (SELECT max(id) FROM journal));

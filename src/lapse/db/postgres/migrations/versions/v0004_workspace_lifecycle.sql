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

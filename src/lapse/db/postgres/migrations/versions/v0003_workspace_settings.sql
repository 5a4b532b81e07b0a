ALTER TABLE workspaces
    ADD COLUMN next_port integer,
    ADD COLUMN probe text,
    ADD COLUMN probed_at bigint,
    ADD COLUMN probe_error text;
CREATE INDEX workspaces_by_port ON workspaces (port) WHERE deleted_at IS NULL;
CREATE INDEX workspaces_by_next_port ON workspaces (next_port) WHERE next_port IS NOT NULL;

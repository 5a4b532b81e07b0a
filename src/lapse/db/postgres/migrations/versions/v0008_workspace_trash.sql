-- The trash of workspaces: until when a deleted one can come back. What rests there is no work for anybody.
ALTER TABLE workspaces ADD COLUMN trash_until bigint;
CREATE INDEX workspaces_in_trash ON workspaces (id) WHERE trash_until IS NOT NULL;
DROP INDEX workspaces_with_work;
CREATE INDEX workspaces_with_work ON workspaces (id)
    WHERE (deleted_at IS NOT NULL AND (trash_until IS NULL OR observed_status <> 'PENDING'))
        OR operation <> 'NONE' OR (desired_state <> observed_status AND error_reason IS NULL);

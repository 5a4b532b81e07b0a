-- Holds and extensions of things whose domains have no place for them; store as in the journal.
CREATE TABLE holds (
    store    text COLLATE "C" NOT NULL,
    domain   text COLLATE "C" NOT NULL,
    uid      text COLLATE "C" NOT NULL,
    address  text NOT NULL,
    reason   text NOT NULL,
    until_ns bigint,
    since_ns bigint NOT NULL,
    by       text NOT NULL,
    is_legal boolean NOT NULL,
    PRIMARY KEY (store, domain, uid)
);
CREATE TABLE extensions (
    store    text COLLATE "C" NOT NULL,
    domain   text COLLATE "C" NOT NULL,
    uid      text COLLATE "C" NOT NULL,
    address  text NOT NULL,
    until_ns bigint NOT NULL,
    since_ns bigint NOT NULL,
    by       text NOT NULL,
    PRIMARY KEY (store, domain, uid)
);
-- Who holds a workspace, whether that is a legal hold, and until when a person has extended it.
ALTER TABLE workspaces ADD COLUMN hold_by text;
ALTER TABLE workspaces ADD COLUMN hold_is_legal boolean NOT NULL DEFAULT false;
ALTER TABLE workspaces ADD COLUMN extended_until bigint;

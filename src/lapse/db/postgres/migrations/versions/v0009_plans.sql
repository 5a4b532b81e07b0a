-- Plans that are kept for others to find; a document is compressed. Of each state folder those that it has signed.
-- What is after due is null until the plan is carried out. Names in domains have commas between them.
CREATE TABLE plans (
    store      text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    digest     text NOT NULL,
    author     text NOT NULL,
    created_ns bigint NOT NULL,
    expires_ns bigint NOT NULL,
    until_ns   bigint NOT NULL,
    domains    text NOT NULL,
    items      bigint NOT NULL,
    due        bigint NOT NULL,
    applied_by text,
    applied_ns bigint,
    ended      bigint,
    left_over  bigint,
    document   bytea NOT NULL,
    PRIMARY KEY (store, id)
);

-- The rest of the record: short texts that outlive a process, such as what was believed of the clock; and who leads.
CREATE TABLE safety_notes (
    name text COLLATE "C" PRIMARY KEY,
    text text NOT NULL
);
-- The row stays when nobody leads, and its fencing number with it; the owner is empty then.
CREATE TABLE leases (
    name  text COLLATE "C" PRIMARY KEY,
    owner text NOT NULL,
    fence bigint NOT NULL,
    until timestamptz NOT NULL
);

-- The rest of the record. A row says which store it is about: empty is this database, everything else the name of a state folder,
-- whose things are its own.
ALTER TABLE journal ADD COLUMN store text COLLATE "C" NOT NULL DEFAULT '';
DROP INDEX journal_acts;
CREATE INDEX journal_acts ON journal (store, domain, time_ns, id) WHERE outcome = 'ended';
CREATE INDEX journal_intents ON journal (store, domain, time_ns, id, attempt) WHERE outcome = 'intent';
ALTER TABLE brakes ADD COLUMN store text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE brakes DROP CONSTRAINT brakes_pkey;
ALTER TABLE brakes ADD PRIMARY KEY (store, name);
-- Short texts that outlive a process, such as what was believed of the clock of a machine.
CREATE TABLE safety_notes (
    store text COLLATE "C" NOT NULL,
    name  text COLLATE "C" NOT NULL,
    text  text NOT NULL,
    PRIMARY KEY (store, name)
);
-- Who leads.
-- The row stays when nobody does, and its fencing number with it; the owner is empty then.
CREATE TABLE leases (
    name  text COLLATE "C" PRIMARY KEY,
    owner text NOT NULL,
    fence bigint NOT NULL,
    until timestamptz NOT NULL
);

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

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
INSERT INTO brakes VALUES('all',NULL,'','',4);
INSERT INTO brakes VALUES('history',1780000008000000000,'audit','cli (ada)',0);
INSERT INTO brakes VALUES('keepers',NULL,'look first','cli (ada)',4);

CREATE TABLE changes (
    version   INTEGER PRIMARY KEY,
    kind      TEXT    NOT NULL,
    namespace TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    previous  INTEGER,
    freed     INTEGER NOT NULL, -- bytes of the previous body, which is kept as long as this row counts
    body      BLOB              -- last, so that a look at the other columns does not walk over it
) STRICT;
INSERT INTO changes VALUES(2,'state-snapshotter.deckhouse.io/v1alpha1/ManifestCaptureRequest','default','kept',NULL,0,X'7B2261706956657273696F6E223A2273746174652D736E617073686F747465722E6465636B686F7573652E696F2F7631616C70686131222C226B696E64223A224D616E69666573744361707475726552657175657374222C226D65746164617461223A7B226372656174696F6E54696D657374616D70223A22323032362D31312D31375430353A33303A31375A222C2267656E65726174696F6E223A312C226E616D65223A226B657074222C226E616D657370616365223A2264656661756C74222C227265736F7572636556657273696F6E223A2232222C22756964223A2237336230316438612D666133612D343339342D383866612D373036623030666531373362227D2C2273706563223A7B2274617267657473223A5B7B2261706956657273696F6E223A227631222C226B696E64223A22436F6E6669674D6170222C226E616D65223A2273657474696E6773227D5D7D7D');

CREATE TABLE garbage (
    id    INTEGER PRIMARY KEY,
    owner TEXT NOT NULL
) STRICT;

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
INSERT INTO journal VALUES(1,1780000001000000000,'requests','vcr/default/one','uid-1','1','due','ttl_expired',NULL,'p','lapse','ended','{"n":1}','t1',NULL);
INSERT INTO journal VALUES(2,1780000002000000000,'requests','vcr/default/two','uid-2','2','due','ttl_expired',NULL,'p','lapse','ended','{"n":2}','t2',NULL);
INSERT INTO journal VALUES(3,1780000003000000000,'keepers','','','','unknown','by_person',NULL,'','cli (ada)','frozen','{"reason":"look first"}','',NULL);
INSERT INTO journal VALUES(4,1780000004000000000,'keepers','','','','keep','by_person',NULL,'','cli (ada)','resumed',NULL,'',NULL);
INSERT INTO journal VALUES(5,1780000005000000000,'keepers','keeper/a','uid-5','5','due','ttl_expired',NULL,'p','lapse','ended','{"n":5}','t5',NULL);
INSERT INTO journal VALUES(6,1780000006000000000,'history','history/x','uid-6','6','due','ttl_expired',NULL,'p','lapse','intent','{"n":6}','t6','att-1');
INSERT INTO journal VALUES(7,1780000007000000000,'requests','vcr/default/same','uid-7','7','due','ttl_expired',NULL,'p','lapse','ended','{"n":7}','t7',NULL);
INSERT INTO journal VALUES(8,1780000007000000000,'requests','vcr/default/same','uid-7','7','due','ttl_expired',NULL,'p','lapse','ended','{"n":7}','t7',NULL);
INSERT INTO journal VALUES(9,1780000008000000000,'history','','','','unknown','by_person',NULL,'','cli (ada)','frozen','{"reason":"audit"}','',NULL);
CREATE INDEX journal_acts ON journal (domain, time_ns, actor) WHERE outcome = 'ended';
CREATE INDEX journal_by_address ON journal (address, time_ns);
CREATE INDEX journal_by_attempt ON journal (attempt, outcome) WHERE attempt IS NOT NULL;
CREATE INDEX journal_by_time ON journal (time_ns);
CREATE INDEX journal_by_uid ON journal (uid, time_ns);

CREATE TABLE log (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    horizon INTEGER NOT NULL,
    counted INTEGER NOT NULL,
    bytes   INTEGER NOT NULL
) STRICT;
INSERT INTO log VALUES(1,1,1,0);

CREATE TABLE objects (
    kind      TEXT    NOT NULL,
    namespace TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    uid       TEXT    NOT NULL,
    version   INTEGER NOT NULL,
    size      INTEGER NOT NULL, -- bytes of the body
    owners    TEXT    NOT NULL, labels TEXT NOT NULL DEFAULT '', created TEXT NOT NULL DEFAULT '', hold TEXT NOT NULL DEFAULT '', -- uids of the owners, as a JSON array: which rows of `owners` are this object's
    PRIMARY KEY (kind, namespace, name)
) WITHOUT ROWID, STRICT;
INSERT INTO objects VALUES('state-snapshotter.deckhouse.io/v1alpha1/ManifestCaptureRequest','default','kept','73b01d8a-fa3a-4394-88fa-706b00fe173b',2,340,'[]','','2026-11-17T05:30:17Z','');
CREATE UNIQUE INDEX objects_by_uid ON objects (uid);
CREATE INDEX objects_held ON objects (uid) WHERE hold <> '';

CREATE TABLE owners (
    owner     TEXT NOT NULL,
    dependent TEXT NOT NULL,
    PRIMARY KEY (owner, dependent)
) WITHOUT ROWID, STRICT;

CREATE TABLE safety_notes (
    name TEXT PRIMARY KEY,
    text TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO safety_notes VALUES('clock','{"boot_id":"","wall_ns":1780000000000000000,"boottime_ns":5}');
INSERT INTO safety_notes VALUES('first-seen/default','2026-05-01T00:00:00Z');

DELETE FROM main.sqlite_sequence WHERE name='journal';
INSERT INTO main.sqlite_sequence VALUES ('journal', 9);

pragma user_version=7;
pragma application_id=1281454159;

COMMIT TRANSACTION;

-- Which transaction wrote a row: followers read rows in that order, and miss none. What was written before comes first, by its id.
-- In two steps, because a default that is another one for each row would write the whole table anew.
ALTER TABLE journal ADD COLUMN written_by xid8 NOT NULL DEFAULT '0';
ALTER TABLE journal ALTER COLUMN written_by SET DEFAULT pg_current_xact_id();
CREATE INDEX journal_as_committed ON journal (written_by, id);

-- What a pool asks on its own account. BEGIN, COMMIT, ROLLBACK and the settings of a session are in pool.py: they are steps of its
-- code, and say nothing about tables.

-- name: now
-- The server's clock at this very moment, not at the begin of a transaction; in microseconds, which is as fine as it is.
SELECT (1000000 * extract(epoch FROM clock_timestamp()))::int8;

-- name: version
-- The revision of the tables, written by the migrations: one row, or none in an empty database.
SELECT version_num FROM lapse_schema;

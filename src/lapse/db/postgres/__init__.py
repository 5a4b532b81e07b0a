"""PostgreSQL by psycopg: the pool, its errors, and the migrations of the schema."""

"""Stores of workspaces: the port, and its implementations on SQLite and PostgreSQL."""

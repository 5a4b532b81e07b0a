"""SQLite by apsw: files, shared commits, readers and the room to delete on a full disk."""

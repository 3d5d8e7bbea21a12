"""SQLite: the embedded default. One writer, WAL, durable commits, safe for several processes on one file."""

"""The database layer: one SQL text for SQLite and PostgreSQL. SQL reads and writes rows; decisions choose statuses."""

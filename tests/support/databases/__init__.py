"""Databases for tests: PostgreSQL servers, pools and failing connections."""

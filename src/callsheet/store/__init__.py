"""Rows at rest: one SQL text on two databases. SQL fetches and writes; it never chooses a status."""

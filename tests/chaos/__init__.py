"""Chaos runs: real servers, workers and PostgreSQL are killed under load; every acknowledged call is checked."""

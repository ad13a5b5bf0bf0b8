"""Tests of the commands about jobs."""

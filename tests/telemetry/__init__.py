"""Tests of the structured log and its files."""

"""Tests with real processes: servers, workers and commands that are started, stopped and killed."""

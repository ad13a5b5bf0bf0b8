"""Scenarios of jobs: submit, update, pause, cancel, retry, delete."""

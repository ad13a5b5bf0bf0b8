"""Scenarios of jobs: submit, amend, pause, cancel, retry, delete."""

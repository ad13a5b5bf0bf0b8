"""Scenarios of workers, API keys and provider calls."""

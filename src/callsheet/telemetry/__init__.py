"""Structured log lines from events and refusals."""

from callsheet.telemetry.event_log import JsonLogWriter, log_records

__all__ = ["JsonLogWriter", "log_records"]

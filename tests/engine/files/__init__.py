"""Scenarios of files: uploads, outputs, retention, orphans."""

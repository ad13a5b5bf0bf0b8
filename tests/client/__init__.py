"""Tests of the Python client: both drivers, against live servers and against scripted ones."""

"""Harness and reference models for engine tests."""

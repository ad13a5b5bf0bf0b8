"""Tests of the shared HTTP building blocks."""

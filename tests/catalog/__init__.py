"""Tests of workflow files."""

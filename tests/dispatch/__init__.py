"""Tests of the dispatch layer."""

"""Tests of uploads, downloads and the names of saved files."""

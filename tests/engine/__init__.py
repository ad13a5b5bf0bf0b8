"""Scenarios as sentences, each on both databases."""

"""Tests of the store: both databases give the same results, and `verify` finds broken invariants."""

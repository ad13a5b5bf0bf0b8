"""Tests of `callsheet verify`: every rule finds the fault that is planted for it."""

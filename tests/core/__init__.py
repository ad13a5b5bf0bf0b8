"""Tests of the core: commands are decided against rows in memory, without a database."""

"""Tests of the command line, in this process and in processes of its own."""

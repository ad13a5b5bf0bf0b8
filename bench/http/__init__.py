"""Benchmarks of a server over HTTP: requests, streams and the worker protocol."""

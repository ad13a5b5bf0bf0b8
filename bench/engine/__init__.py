"""Benchmarks of the engine without HTTP: throughput, latency, CPU and large queues."""

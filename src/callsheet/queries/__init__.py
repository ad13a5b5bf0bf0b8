"""Application layer for reads: jobs, outputs, events, files, estimates, workers and quotes as a caller may see them."""

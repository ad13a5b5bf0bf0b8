"""Application layer, reading: what a caller may see of jobs, outputs, estimates, workers and prices."""

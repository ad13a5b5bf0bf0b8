"""Background loops, one module for each duty. Each has `run_once(now)`; any number may run at once."""

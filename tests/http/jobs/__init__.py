"""Jobs and their parts: submitting, listing, quoting, stages, tasks, attempts and outputs."""

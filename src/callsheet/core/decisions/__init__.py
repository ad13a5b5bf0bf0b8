"""What each command changes: pure functions from a working set and a command to an answer or a refusal."""

"""The vocabulary of the core: statuses and transitions, rows, commands, ids, errors, workflow definitions."""

"""Input schemas: validation of a job's input with a limit on its cost."""

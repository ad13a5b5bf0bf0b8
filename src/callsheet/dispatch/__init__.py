"""Application layer, working: what a worker receives with a task, and how its reports are verified."""

"""Why a job waits: its constraints, its position in the queue, and estimates of its start and end."""

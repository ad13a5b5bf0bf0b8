"""The worker process: claims tasks, runs handlers, sends heartbeats, shuts down."""

"""The HTTP server: connections, framing, routing, validation, errors and metrics."""

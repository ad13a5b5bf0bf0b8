"""The HTTP server: connections, routing, requests, responses, errors. It knows nothing about jobs."""

"""Real processes for tests: servers, command lines, workers and a browser."""

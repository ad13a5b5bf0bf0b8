"""The listener: connections, their limits and the Host header."""

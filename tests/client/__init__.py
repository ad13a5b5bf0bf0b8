"""The client library: both clients, from one source, through the same scenarios."""

"""Raw HTTP and event streams for tests."""

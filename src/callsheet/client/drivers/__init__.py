"""The two ways to run a client operation: blocking, and with asyncio."""

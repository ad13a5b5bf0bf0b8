"""The two drivers that perform a client's operations: blocking, and asyncio."""

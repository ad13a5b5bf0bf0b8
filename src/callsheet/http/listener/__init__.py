"""Sockets and connections: uvicorn with limits on what one client may use."""

"""Sockets and connections: uvicorn, with limits on what one client can use."""

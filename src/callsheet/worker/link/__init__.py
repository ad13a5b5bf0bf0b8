"""How a worker talks to a server: the interface, and its implementation over HTTP."""

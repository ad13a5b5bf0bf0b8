"""The HTTP layer: the server, authentication, the routes of the native API, and its reference. It reads no rows."""

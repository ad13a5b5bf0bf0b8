"""Wire schemas: the structs that the server, the client, the workers and the reference pages share."""

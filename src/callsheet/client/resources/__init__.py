"""The resource namespaces of a client: one module per namespace, `client.jobs` in `jobs`."""

"""The wire schema: one struct per request, response and query, shared by server, client, worker and reference pages.

Each field carries its description and an example, so OpenAPI and the reference pages are generated from these structs.
Nothing here imports the engine, the store or a database driver: a client's import stays light.
"""

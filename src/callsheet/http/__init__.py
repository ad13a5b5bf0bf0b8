"""The native API: thin. A handler parses, asks one thing of the engine, and renders."""

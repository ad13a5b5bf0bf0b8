"""The commands of the CLI, one module per group."""

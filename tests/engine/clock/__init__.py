"""The engine and the clock of its database."""

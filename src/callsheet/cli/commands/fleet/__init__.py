"""Commands that run workers, and commands that manage them."""

"""The rules without a database: a dictionary is the store."""

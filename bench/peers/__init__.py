"""Other systems under the same load, on the same PostgreSQL with the same durability."""

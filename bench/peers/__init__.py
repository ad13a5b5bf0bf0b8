"""Other job systems under the same load, on the same PostgreSQL server with the same durability."""

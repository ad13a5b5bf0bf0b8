"""The command line, against a served Callsheet and in processes of its own."""

"""The API over real sockets, on both databases."""

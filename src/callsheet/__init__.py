"""Callsheet: the durable job backend for products that sell AI-made media."""

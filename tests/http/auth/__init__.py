"""Keys, tokens, signatures and what administrators do with them."""

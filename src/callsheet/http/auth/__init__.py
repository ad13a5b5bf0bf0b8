"""Authentication: API keys, user tokens, signatures, and a limit for failed authentication."""

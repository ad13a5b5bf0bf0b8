"""Authentication: API keys, user tokens, signatures, throttles for failed attempts."""

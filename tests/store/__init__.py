"""The store: both databases keep one contract, and `verify` finds what would break it."""

"""The worker SDK at work on real engines."""

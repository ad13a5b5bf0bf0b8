"""The worker protocol, the fleet's administration and scaling signals."""

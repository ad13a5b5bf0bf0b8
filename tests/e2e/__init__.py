"""Real processes, as a person starts them."""

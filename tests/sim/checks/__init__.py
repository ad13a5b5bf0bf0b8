"""What a simulation checks after each commit and at its end."""

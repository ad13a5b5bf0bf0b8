"""The checks of a simulation after each commit and at its end."""

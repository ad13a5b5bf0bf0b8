"""Stand-ins for services outside the project, and for the clock."""

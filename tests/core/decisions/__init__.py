"""The decision of each command, against rows in memory."""

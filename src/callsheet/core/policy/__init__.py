"""Rules that decisions and queries apply: limits, rates, fair order, capacity, redaction, estimates."""

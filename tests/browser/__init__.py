"""What only a real browser can show: pages that load from one place, and pages of others that may call."""

"""Files of a task: signed URLs, transfers, a cache by content, temporary folders."""

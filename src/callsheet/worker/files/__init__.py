"""Files of a task: signed URLs, transfers, the file cache, temporary folders."""

"""HTTP building blocks shared by the client, the worker and the S3 store: backoff, Retry-After, server-sent events."""

"""Building blocks shared by the client, the worker and the stores: backoff, Retry-After, SSE and digests."""

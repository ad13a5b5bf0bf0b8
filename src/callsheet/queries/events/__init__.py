"""Events of a job and of a tenant: pages, streams, and the feed of all tenants behind them."""

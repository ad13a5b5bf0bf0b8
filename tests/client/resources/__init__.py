"""Tests of the resources: jobs, wallets, workflows, keys, tenants and workers."""

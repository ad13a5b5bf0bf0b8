"""The routes of the native API, one module for each resource."""

"""Tests in a real browser: the API reference page, and product pages of other origins."""

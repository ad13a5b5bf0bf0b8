"""Blob storage: files in a local folder or in an S3 bucket."""

"""Uploads and downloads of file contents."""

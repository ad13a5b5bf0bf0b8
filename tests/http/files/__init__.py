"""Uploads, downloads, references and deletion of files."""

"""Application layer for workers and files: claims, task payloads, reports, uploads and deletion."""

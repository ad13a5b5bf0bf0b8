"""Tests of the demo. Its media files are decoded by other decoders than ours."""

"""Tests of ComfyUI graphs."""

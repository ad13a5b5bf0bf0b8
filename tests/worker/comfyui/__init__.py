"""Tests of the worker that runs ComfyUI graphs."""

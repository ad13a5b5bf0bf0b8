"""Tests of `callsheet worker`, `callsheet comfyui` and `callsheet workers`."""

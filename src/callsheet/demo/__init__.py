"""A demonstration that needs no network, GPU or weights: real pictures, drawn on the CPU from a prompt."""

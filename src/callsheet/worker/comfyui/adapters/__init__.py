"""One adapter for each way to run a ComfyUI graph: self-hosted server, Comfy Cloud v1 and v2."""

"""One backend per ComfyUI API: self-hosted server, Comfy Cloud v1, Comfy API v2."""

"""ComfyUI graphs, pure: parse, validate, fill in, draft a workflow. Nothing here does I/O."""

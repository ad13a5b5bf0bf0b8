"""Doubles of the servers that run ComfyUI graphs: real HTTP and WebSockets, real bytes, and faults on demand.

`server.py` behaves as ComfyUI 0.7.0 and 0.33.0 were observed to behave; `cloud_v1.py` and `cloud_v2.py` follow the
documentation of Comfy Cloud and of the Comfy API v2.
"""

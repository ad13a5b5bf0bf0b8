"""Doubles of the servers that run ComfyUI graphs: real HTTP and WebSockets, real bytes, and faults on demand.

`server.py` behaves as ComfyUI 0.7.0 and 0.33.0 were seen to behave on the wire; `cloud.py` and `cloud2.py` as the
documents of Comfy Cloud and of the Comfy API v2 say.
"""

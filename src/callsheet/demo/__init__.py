"""The demo: generates pictures, sound and video from a prompt on the CPU, without network, GPU or model weights."""

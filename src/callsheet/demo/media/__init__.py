"""Media generators of the demo: pictures, sound, video and text, made on the CPU from a prompt."""

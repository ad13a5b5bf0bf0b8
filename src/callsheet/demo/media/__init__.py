"""Media generators of the demo: pictures, sound, video and text, generated on the CPU from a prompt."""

"""Landscapes of the demo: layers painted from the sky to the foreground, still or animated."""

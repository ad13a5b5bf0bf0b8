"""The landscapes of the demonstration: layers painted from the sky to the foreground, still or moving."""

"""The makers of the demonstration: their files are read back by decoders that are not ours."""

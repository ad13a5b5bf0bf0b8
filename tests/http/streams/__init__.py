"""Events: lists, streams and long polls."""

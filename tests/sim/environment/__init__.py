"""The environment of a simulation: servers, databases, the network and storage."""

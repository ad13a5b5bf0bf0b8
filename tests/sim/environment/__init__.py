"""What the actors of a simulation run on: servers, databases, the network and storage."""

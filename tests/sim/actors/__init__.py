"""Everything that sends commands in a simulation: clients, workers, the operator, providers and loops."""

"""The actors of a simulation, which send commands: clients, workers, the operator, providers and loops."""

"""Random scenarios that are compared with a model of the engine."""

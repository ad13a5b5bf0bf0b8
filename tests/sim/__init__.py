"""Seeded simulations of the whole engine: real decisions, real SQL, virtual time, and injected faults.

In one simulation clients, workers, an operator, a provider and the loops act on one database while connections break,
servers crash, messages get lost and clocks jump. Then the faults stop, and every job must end. The same seed gives the
same trace. `python -m tests.sim --seed K --verbose` runs one seed again and prints its trace.
"""

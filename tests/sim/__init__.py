"""Seeded lives of the whole engine: real rules, real SQL, virtual time, and every fault that we know of.

One seed is one life: clients, workers of house and fleet, an operator, a provider and the loops act on one database
while connections break, servers crash, messages get lost and clocks jump; then the faults stop and everything must
come to its end. The same seed gives the same trace. `python -m tests.sim --seed K --verbose` plays one life again.
"""

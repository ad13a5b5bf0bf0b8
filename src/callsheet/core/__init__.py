"""The rules of Callsheet: statuses and moves, cascade rules, credits, fair order, limits and errors.

Nothing here does I/O, reads a clock, draws a random number, starts a thread or writes a log.
"""

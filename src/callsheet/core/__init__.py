"""The rules of the house, pure: statuses and moves, cascade, money, order, limits and errors.

Nothing here does I/O, reads a clock, draws a random number, starts a thread or writes a log.
"""

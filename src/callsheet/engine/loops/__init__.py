"""Background loops, one module per duty.

Every loop has `run_once(now)`. A loop finds rows that are due and sends commands; the decisions check each row again.
So no loop needs a leader, and any number of servers may run the same loop at once.
"""

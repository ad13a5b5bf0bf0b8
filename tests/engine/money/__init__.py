"""Scenarios of money: reserve, consume, refund."""

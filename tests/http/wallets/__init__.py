"""Wallets, ledgers and refunds."""

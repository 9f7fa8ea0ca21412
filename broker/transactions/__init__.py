"""Transactions: their coordinator, its stored state, and the markers that end them."""

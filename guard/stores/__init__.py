"""Counters: one contract, three stores."""

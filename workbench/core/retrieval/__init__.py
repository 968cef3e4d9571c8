"""Ranking, evidence and sessions. Everything but ``sessions`` is pure: arrays and frozen records in and out."""

"""Preference objectives."""

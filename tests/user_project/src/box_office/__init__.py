"""Seats for a concert."""

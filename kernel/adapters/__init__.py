"""Stores that ship with the kernel: `memory` for tests and measurements, `sqlite` as the embedded default (K-LOG-5)."""

"""The kernel under the harness: simulated stores, services and time for its ports, and invariants over its events."""

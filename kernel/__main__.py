"""`python -m kernel` is the operator's command line."""

from __future__ import annotations

if __name__ == "__main__":
    from kernel.cli import main

    main()

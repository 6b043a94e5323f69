"""`python -m dst` is the command `dst`."""

from __future__ import annotations

if __name__ == "__main__":
    from dst.cli import main  # here, since worker processes import this module and need none of it

    main()

"""The simulated content store: large payloads, apart from the log."""

from __future__ import annotations

from dst.durable.faults import CONTENT_MISSING, STORE_REFUSED
from dst.durable.stores import POINT, SimStore
from dst.faults import Options, menu
from dst.footprints import ADD, READ

_WRITE: Options = (*POINT, ("refused", STORE_REFUSED))
_READ: Options = (("missing", CONTENT_MISSING),)


class SimContents:
    """Keeps texts under their hash.  Mutable: part of the durable world of `db`, whose points it has too."""

    def __init__(self, db: SimStore) -> None:
        self._db = db
        self.texts: dict[str, str] = {}
        self._write_menu = menu(db.sim.faults, _WRITE)
        self._read_menu = menu(db.sim.faults, _READ)

    async def put_content(self, hash: str, text: str) -> None:
        """Keep a text, at a point `content:<first digits of its hash>`."""
        point, act = await self._db.come_to(f"content:{hash[:8]}", self._write_menu)
        self._db.sim.touch(f"content:{hash}", ADD)
        self.texts[hash] = text
        await self._db.leave(point, act)

    async def content(self, hash: str) -> str | None:
        """Return a text, at a point `resolve:<first digits of its hash>`; None if there is none, or for once."""
        sim = self._db.sim
        point, act = sim.enter(f"resolve:{hash[:8]}", self._read_menu)
        if act or sim.crowded():
            await sim.approach(point, act)
        sim.touch(f"content:{hash}", READ)
        sim.happened(point)
        if act == "missing":
            self._db.trouble()
            return None
        return self.texts.get(hash)

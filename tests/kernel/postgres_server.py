"""A PostgreSQL server of the tests' own, with nothing to set up but its programs.

`initdb` makes a cluster in a temporary directory, `pg_ctl` starts it: on a Unix socket in that directory and on no
port, with fsync on, as a server in earnest has it.  PostgreSQL refuses to run as root: where the tests do, the
directory belongs to the user `postgres`, or else `nobody`, and the programs run as that user; otherwise as whoever runs
the tests.  The database's language is English where the server has ICU, so that whatever relies on the order of code
points without saying so is found out.  A process beside the tests stops the server and removes its directory when they
end, killed or not.

The programs are looked for on the PATH, in the places of Debian and of Homebrew, and by `pg_config`.  On Debian and
Ubuntu `apt-get install postgresql` brings them; no server of the system's needs to run.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

USER = "loom"
DATABASE = "tests"

_SETTINGS = """
listen_addresses = ''
unix_socket_permissions = 0777
max_connections = 60
shared_buffers = 32MB
fsync = on
synchronous_commit = on
full_page_writes = on
logging_collector = off
log_min_messages = warning
timezone = 'UTC'
"""


# In memory where there is room.  A process that dies loses nothing that it has written, wherever that is, and no test
# cuts the power; but after a crash the server syncs some thousand files, which takes long on a disk that others use.
# Short names, because the path of a socket has 107 bytes at most; and where another user may pass.
_DIRECTORIES = (("/dev/shm", 2**30), ("/tmp", 0))


class NoServer(Exception):
    """No server can be started here; the text says what is missing and how to get it."""


@attrs.frozen(kw_only=True)
class Server:
    """A running server, or one that is being restarted."""

    programs: Path
    directory: Path
    account: pwd.struct_passwd | None  # whom the programs run as; None: whoever runs the tests

    @property
    def dsn(self) -> str:
        """How to connect."""
        return f"host={self.directory} user={USER} dbname={DATABASE}"

    def start(self) -> None:
        self._control("start", "-w", "-l", str(self.directory / "log"), "-o", f"-k {self.directory}")

    def stop(self) -> None:
        """Stop it as a crash would: what has been committed is in the write-ahead log."""
        self._control("stop", "-w", "-m", "immediate")

    def restart(self) -> None:
        self.stop()
        self.start()

    def make(self) -> None:
        """Make the cluster."""
        self._run("initdb", "-D", str(self.cluster), "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        with (self.cluster / "postgresql.conf").open("a") as settings:
            settings.write(_SETTINGS)

    def make_database(self) -> None:
        """Make the database, in English if the server can."""
        import psycopg

        english = "TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'"
        with psycopg.connect(f"host={self.directory} user={USER} dbname=postgres", autocommit=True) as connection:
            try:
                connection.execute(f"CREATE DATABASE {DATABASE} {english}")
            except psycopg.Error:
                connection.execute(f"CREATE DATABASE {DATABASE}")

    @property
    def cluster(self) -> Path:
        return self.directory / "cluster"

    def _control(self, *arguments: str) -> None:
        self._run("pg_ctl", "-D", str(self.cluster), "-s", "-t", "60", *arguments)

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Have it stopped and removed at the end of the block, or when this process dies, however that comes about."""
        script = 'read -r _; "$0" -D "$1/cluster" -s -w -m immediate stop; rm -rf "$1"'
        guard = subprocess.Popen(
            ["/bin/sh", "-c", script, str(self.programs / "pg_ctl"), str(self.directory)],
            cwd="/",
            stdin=subprocess.PIPE,  # that it ends is the sign
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what interrupts the tests must not end this as well
            **self._as_whom(),
        )
        with guard:
            yield

    def _as_whom(self) -> dict[str, Any]:
        if self.account is None:
            return {}
        return {"user": self.account.pw_uid, "group": self.account.pw_gid, "extra_groups": []}

    def _run(self, program: str, *arguments: str) -> None:
        # Output to a file: a server that was started keeps its output open, and a pipe would be waited for for ever.
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(
                [str(self.programs / program), *arguments],
                cwd=self.directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=120,
                **self._as_whom(),
            )
            if done.returncode:
                output.seek(0)
                raise NoServer(f"`{program} {arguments[0]}` failed ({done.returncode}): {output.read()[-2000:]}")


@contextlib.contextmanager
def running_server() -> Iterator[Server]:
    """Run a server for the length of the block.  Raises `NoServer`."""
    programs = _programs()
    account = _account()
    place = next((place for place, bytes_min in _DIRECTORIES if _has_room(place, bytes_min)), None)
    with tempfile.TemporaryDirectory(prefix="loom-pg-", dir=place, ignore_cleanup_errors=True) as name:
        server = Server(programs=programs, directory=Path(name), account=account)
        if account is not None:
            os.chown(name, account.pw_uid, account.pw_gid)
        os.chmod(name, 0o711)
        with server.guarded():
            server.make()
            server.start()
            server.make_database()
            yield server


def _has_room(place: str, bytes_min: int) -> bool:
    return os.path.isdir(place) and shutil.disk_usage(place).free >= bytes_min


def _account() -> pwd.struct_passwd | None:
    """Return whom to run as in place of root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise NoServer("the tests run as root, PostgreSQL does not, and there is no user `postgres` or `nobody`: add one")


def _programs() -> Path:
    """Return the directory of `initdb`, `pg_ctl` and `postgres`; of several, the newest version's."""
    for directory in _places():
        if all(os.access(directory / program, os.X_OK) for program in ("initdb", "pg_ctl", "postgres")):
            return directory
    raise NoServer("no PostgreSQL server programs (initdb, pg_ctl, postgres) here: `apt-get install postgresql`")


def _places() -> Iterator[Path]:
    on_path = shutil.which("pg_ctl")
    if on_path is not None:
        yield Path(on_path).resolve().parent  # `initdb` looks for its neighbours where it really lies
    config = shutil.which("pg_config")
    if config is not None:
        yield Path(subprocess.run([config, "--bindir"], capture_output=True, text=True, check=True).stdout.strip())
    found = [
        *Path("/usr/lib/postgresql").glob("*/bin"),
        *Path("/opt/homebrew/opt").glob("postgresql*/bin"),
        *Path("/usr/local/opt").glob("postgresql*/bin"),
    ]
    yield from sorted(found, key=lambda place: [int(part) for part in re.findall(r"\d+", str(place))], reverse=True)

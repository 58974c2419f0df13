"""A real PostgreSQL server of the tests' own: started in a temporary folder as an ordinary user, stopped at the end."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

SECONDS = 60


def find_binaries() -> Path | None:
    """Folder with initdb and pg_ctl (Debian's postgresql keeps them out of PATH), or None."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    on_path = shutil.which("initdb")
    return found[0].parent if found else Path(on_path).resolve().parent if on_path else None


def why_not() -> str:
    """Why the tests cannot run here; empty when they can."""
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "psycopg is not installed (extra 'postgres')"
    if find_binaries() is None:
        return "no PostgreSQL server (Debian: apt-get install postgresql)"
    if os.geteuid() == 0 and (_ordinary_user() is None or not shutil.which("setpriv")):
        return "PostgreSQL refuses to run as root, and there is no user 'postgres' or 'nobody' (or no setpriv) to run it as"
    return ""


def _ordinary_user() -> pwd.struct_passwd | None:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A server in a folder of its own; only on 127.0.0.1, trusting the local user."""

    def __init__(self) -> None:
        binaries = find_binaries()
        assert binaries is not None
        self.binaries, self.port = binaries, free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="shapefront-pg-"))
        user = _ordinary_user() if os.geteuid() == 0 else None
        self._as: list[str] = []
        if user is not None:
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            self._as = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        self._run("initdb", "-D", str(self.folder / "data"), "-A", "trust", "-U", "shapefront", "--no-sync")
        self.start()

    @property
    def url(self) -> str:
        """URL of its database."""
        return f"postgresql://shapefront@127.0.0.1:{self.port}/postgres"

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [*self._as, str(self.binaries / program), *arguments],
            check=True, cwd=self.folder, timeout=SECONDS, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def start(self) -> None:
        """Start, and wait until it answers."""
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync=on"
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-o", options, "-l", str(self.folder / "log"), "-w", "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop; ``immediate`` is a crash."""
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-m", mode, "-w", "stop")

    def close(self) -> None:
        """Stop and remove everything."""
        try:
            self.stop("immediate")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

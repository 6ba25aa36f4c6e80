"""Debian packages: one for each role, with a virtual environment of its own in /opt/edgeveil.

Built on a machine with the hosts' own Python version and processor; installing it needs no network.
State and configuration are no part of a package: an upgrade or a removal never touches them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from edgeveil.errors import UsageError
from edgeveil_tools.deploy.containers import EXTRAS
from edgeveil_tools.deploy.systemd import USER

PREFIX = Path("/opt/edgeveil")
_DEPENDS = {"broker": ("mosquitto",)}
_UNUSED = ("__pycache__", "tests")

_POSTINST = f"""#!/bin/sh
set -e
if ! getent passwd {USER} >/dev/null; then
    useradd --system --home-dir /var/lib/edgeveil --shell /usr/sbin/nologin --user-group {USER}
fi
mkdir -p /var/lib/edgeveil
if [ -d /run/systemd/system ]; then
    systemctl try-restart 'edgeveil-*.service' || true
fi
"""


def build(role: str, wheel: Path, out: Path, constraints: Path | None = None) -> Path:
    """The package of one role of `EXTRAS`, made from a wheel of EdgeVeil; its path.

    Raises UsageError: no such role or wheel, no dpkg-deb, an installation that fails.
    """
    if role not in EXTRAS:
        fix = f"use one of {', '.join(EXTRAS)}"
        raise UsageError(f"there is no role '{role[:64]}'", fix=fix)
    if shutil.which("dpkg-deb") is None:
        raise UsageError("dpkg-deb is not installed", fix="build on Debian: apt install dpkg")
    if not wheel.is_file() or wheel.suffix != ".whl":
        fix = "make one: pip wheel --no-deps -w dist ."
        raise UsageError("is no wheel", where=str(wheel), fix=fix)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".deb-") as scratch:
        root = Path(scratch) / "root"
        venv = root / PREFIX.relative_to("/")
        _environment(venv, role, wheel, constraints)
        version = wheel.name.split("-")[1]
        target = out / f"edgeveil-{role}_{version}_{_architecture()}.deb"
        _control(root / "DEBIAN", role, version)
        _run(["dpkg-deb", "--build", "--root-owner-group", str(root), str(target)])
    return target


def _environment(venv: Path, role: str, wheel: Path, constraints: Path | None) -> None:
    _run([sys.executable, "-m", "venv", str(venv)])
    extras = f"[{','.join(EXTRAS[role])}]" if EXTRAS[role] else ""
    pip = [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    limits = ["-c", str(constraints)] if constraints is not None else []
    _run([*pip, "install", "--no-compile", *limits, f"{wheel.absolute()}{extras}"])
    _run([*pip, "uninstall", "-y", "pip", "setuptools"])
    for folder in [path for path in venv.rglob("*") if path.is_dir() and path.name in _UNUSED]:
        shutil.rmtree(folder, ignore_errors=True)
    _move(venv)


def _move(venv: Path) -> None:
    """Everything that says where the environment was made says where it will be."""
    made, goes = str(venv).encode(), str(PREFIX).encode()
    for path in (venv / "bin").iterdir():
        if path.is_symlink() or not path.is_file():
            continue
        raw = path.read_bytes()
        if made in raw:
            path.write_bytes(raw.replace(made, goes))
    python = venv / "bin" / "python3"
    for name in ("python", "python3", f"python3.{sys.version_info.minor}"):
        (venv / "bin" / name).unlink(missing_ok=True)
    python.symlink_to("/usr/bin/python3")
    (venv / "bin" / "python").symlink_to("python3")
    home = "home = /usr/bin\ninclude-system-site-packages = false\n"
    (venv / "pyvenv.cfg").write_text(f"{home}version = {sysconfig.get_python_version()}\n")


def _control(folder: Path, role: str, version: str) -> None:
    minor = sys.version_info.minor
    python = (f"python3 (>= 3.{minor})", f"python3 (<< 3.{minor + 1})")
    depends = ", ".join([*python, *_DEPENDS.get(role, ())])
    others = ", ".join(f"edgeveil-{other}" for other in EXTRAS if other != role)
    folder.mkdir(parents=True)
    (folder / "control").write_text(
        f"Package: edgeveil-{role}\nVersion: {version}\nArchitecture: {_architecture()}\n"
        f"Maintainer: EdgeVeil <noreply@localhost>\nDepends: {depends}\nConflicts: {others}\n"
        "Section: net\nPriority: optional\n"
        f"Description: EdgeVeil, {role}\n Private federated learning for edge boxes, over MQTT.\n"
    )
    (folder / "postinst").write_text(_POSTINST)
    (folder / "postinst").chmod(0o755)


def _architecture() -> str:
    return _run(["dpkg", "--print-architecture"]).strip()


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise UsageError(
            f"{Path(command[0]).name} failed: {''.join(last)[:300]}",
            where=" ".join(command[:4]),
            fix="see that the packages can be fetched, and try again",
        )
    return done.stdout

"""Plug-ins built as wheels and installed into their own folder, as by pip."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```\w+ (\S+)\n(.*?)^```$", re.M | re.S)


def files_of(page):
    """Return the files shown on a page, by the name beside their language."""
    return dict(BLOCK.findall(page.read_text("utf-8")))


def written(files, folder):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return folder


def laid_out(folder, name, points, files):
    """Lay a distribution out in `folder` as an installer does, without building a wheel."""
    lines = "\n".join(f"{point} = {target}" for point, target in points.items())
    info = f"{name.replace('-', '_')}-1.0.dist-info"
    metadata = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/entry_points.txt": f"[edgeveil.parts]\n{lines}\n",
    }
    record = "".join(f"{path},,\n" for path in (*files, *metadata, f"{info}/RECORD"))
    return written({**files, **metadata, f"{info}/RECORD": record}, folder)


def install(source, target):
    wheels = target.parent / f"{target.name}-wheels"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    quiet = {**os.environ, "PIP_NO_INPUT": "1", "PYTHONWARNINGS": "ignore"}
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(source)]
    subprocess.run(build, check=True, env=quiet, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    put = [*pip, "install", "--no-deps", "--no-index", "--upgrade", "--target", str(target)]
    subprocess.run([*put, str(wheel)], check=True, env=quiet, capture_output=True)
    shutil.rmtree(wheels)
    return target


def edgeveil(*arguments, plugins, cwd, code=None):
    """Run the command, or `code`, in a process that has the folder's plug-ins."""
    path = os.pathsep.join([str(plugins), *filter(None, sys.path)])
    command = ["-c", code, *arguments] if code else ["-m", "edgeveil_tools.cli", *arguments]
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path},
    )

"""Container files: one for each role, on any slim base with Python, for any processor.

The first stage installs into a virtual environment, the second holds that and nothing to build
with. `docker build --build-arg BASE=… -f edge.Containerfile .` in a folder with the wheel beside.
`BUILDER` is another image for the first stage, where the base has no `venv`; its Python must be the
same.
"""

from __future__ import annotations

BASE = "docker.io/library/python:3.11-slim"
EXTRAS = {
    "cloud": ("cloud", "tools"),
    "proxy": ("proxy",),
    "broker": (),
    "edge-infer": ("infer",),
    "edge-train-fm": ("train-fm",),
    "edge-train": ("train",),
}
# What nothing here imports, 45 MB of an image that infers: folders of libraries, and ONNX Runtime
# once more, for programs in C (Python's module holds its own).
_UNUSED = " -o ".join(
    [
        "-name __pycache__ -o -name tests -o -name test_data",
        *(f"-path '*/onnxruntime/{n}'" for n in ("transformers", "tools", "quantization")),
        *(f"-path '*/onnxruntime/{n}'" for n in ("datasets", "backend")),
        *(f"-path '*/numpy/{n}'" for n in ("f2py", "distutils")),
    ]
)
_PACKAGES = {"broker": "mosquitto"}


def files() -> dict[str, str]:
    """File names to texts."""
    return {f"{name}.Containerfile": _containerfile(name) for name in EXTRAS}


def _containerfile(name: str) -> str:
    extras = f"[{','.join(EXTRAS[name])}]" if EXTRAS[name] else ""
    package = _PACKAGES.get(name)
    more = f"\nRUN {_apt(package)}" if package else ""
    return f"""\
# docker build -t edgeveil/{name} -f {name}.Containerfile .
# with edgeveil-*.whl and constraints.txt in this folder.
ARG BASE={BASE}
ARG BUILDER=${{BASE}}
FROM ${{BUILDER}} AS build
RUN python3 -m venv /opt/edgeveil
COPY constraints.txt edgeveil-*.whl /tmp/
RUN wheel="$(ls /tmp/edgeveil-*.whl)" \\
 && /opt/edgeveil/bin/pip install --no-cache-dir -c /tmp/constraints.txt "$wheel{extras}" \\
 && /opt/edgeveil/bin/pip uninstall -y pip setuptools \\
 && find /opt/edgeveil -type d \\( {_UNUSED} \\) -prune -exec rm -rf {{}} + \\
 && find /opt/edgeveil \\( -name '*.pyi' -o -name 'libonnxruntime.so.*' \\) -delete

FROM ${{BASE}}
LABEL org.opencontainers.image.title="EdgeVeil {name}"{more}
COPY --from=build /opt/edgeveil /opt/edgeveil
ENV PATH=/opt/edgeveil/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /etc/edgeveil
STOPSIGNAL SIGTERM
ENTRYPOINT ["edgeveil"]
CMD ["--help"]
"""  # noqa: S608 - no SQL


def _apt(package: str) -> str:
    install = f"apt-get install -y --no-install-recommends {package}"
    return f"apt-get update && {install} && rm -rf /var/lib/apt/lists/*"

"""What a proxy's process carries: nothing that computes, no web framework, little memory."""

import subprocess
import sys

import pytest

MODULES, RESIDENT_KIB = 60, 55 << 10
CODE = """
import sys
from pathlib import Path
from edgeveil.config.site_files import load_site
load_site(Path("configs/proxy.yaml"))
import edgeveil_proxy.main
print(*sys.modules)
for line in Path("/proc/self/status").read_text().splitlines():
    if line.startswith("VmRSS:"):
        print(line.split()[1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_a_proxy_is_small():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    modules, resident_kib = done.stdout.splitlines()
    tops = [name.partition(".")[0] for name in modules.split()]
    assert sum(top.startswith("edgeveil") for top in tops) <= MODULES
    assert not {"numpy", "torch", "sklearn", "onnx", "onnxruntime", "aiohttp"} & set(tops)
    assert int(resident_kib) <= RESIDENT_KIB

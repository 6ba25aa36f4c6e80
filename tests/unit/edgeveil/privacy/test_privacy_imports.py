import subprocess
import sys

CODE = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        blocked = {"torch", "scipy", "onnx", "onnxruntime", "sklearn", "dp_accounting"}
        if name.split(".")[0] in blocked:
            raise ImportError(name)
sys.meta_path.insert(0, Block())
import numpy as np
import edgeveil.privacy.ledger, edgeveil.privacy.gaussian_mechanism, edgeveil.parts.methods
from edgeveil.privacy.laplace_mechanism import softmax_laplace
print(len(softmax_laplace(np.ones(4) / 4, 1.0)[0]))
"""


def test_an_inference_only_box_needs_neither_torch_nor_scipy():
    found = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert (found.stdout.strip(), found.returncode) == ("4", 0), found.stderr

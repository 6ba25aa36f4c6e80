"""Runs a notebook's cells in this process and returns their outputs.

python -m tests.kits.notebooks docs/examples/quickstart.ipynb"""

import ast
import contextlib
import io
import json
import sys
from pathlib import Path


def run_cells(notebook):
    """Return the outputs of each code cell, run in order in one namespace."""
    names = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [_outputs("".join(cell["source"]), names, n) for n, cell in enumerate(cells, start=1)]


def _outputs(source, names, number):
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    said, value = io.StringIO(), None
    with contextlib.redirect_stdout(said):
        exec(compile(tree, f"cell {number}", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
    found = []
    if said.getvalue():
        found.append({"name": "stdout", "output_type": "stream", "text": _lines(said.getvalue())})
    if value is not None:
        data = {"text/plain": _lines(repr(value))}
        shown = getattr(value, "_repr_html_", None)
        if shown is not None:
            data["text/html"] = _lines(shown())
        kind = {"execution_count": number, "metadata": {}, "output_type": "execute_result"}
        found.append({"data": data, **kind})
    return found


def _lines(text):
    return text.splitlines(keepends=True)


def write(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    with contextlib.chdir(path.parent):
        outputs = run_cells(notebook)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, (cell, found) in enumerate(zip(cells, outputs, strict=True), start=1):
        cell["outputs"], cell["execution_count"] = found, number
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))

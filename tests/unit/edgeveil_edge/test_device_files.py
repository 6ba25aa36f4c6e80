"""A device and its own files: forms that a record could flip, files that shrink or go."""

import numpy as np
import pytest
from edge_kit import CENTRE, PLAN, QUADRATIC, Device

from edgeveil.parts.sources import arrays, idx, tables
from edgeveil_edge.compute import load_own

RNG = np.random.default_rng(0)
X, Y = RNG.integers(0, 2, (40, 4)), RNG.integers(0, 3, 40)


def write_csv(path, x, y):
    lines = [",".join(map(str, [*row, label])) for row, label in zip(x, y, strict=True)]
    path.write_text("\n".join(["a,b,c,d,label", *lines]))


def write_npz(path, x, y):
    with path.open("wb") as file:
        np.savez(file, x=x, y=y)


def write_idx(path, x, y):
    for file, array in ((path, x), (path.with_name("labels"), y)):
        header = bytes([0, 0, 8, array.ndim]) + np.asarray(array.shape, ">u4").tobytes()
        file.write_bytes(header + array.astype(np.uint8).tobytes())


WRITERS = {"csv": write_csv, "npz": write_npz, "idx": write_idx}


def box(folder, source):
    more = {"csv": {"header": True}, "idx": {"labels_path": folder / "labels"}}.get(source, {})
    block = {"name": "bench", "source": source, "path": folder / "records", **more}
    return Device(folder / "state", load_own, data=block).knows(PLAN)


def why(device):
    answer = device.declines(PLAN, CENTRE)
    assert device.ledger.spent().epsilon == 0
    return answer.why


def test_a_file_that_is_gone_or_of_another_size_declines_until_it_is_whole(tmp_path):
    path, device = tmp_path / "records", box(tmp_path, "npz")
    write_npz(path, X, Y)
    path.write_bytes(path.read_bytes()[:-3])
    assert str(path) in why(device)
    path.unlink()
    assert str(path) in why(device)
    write_npz(path, X, Y)
    device.seals(PLAN, QUADRATIC)


def test_records_of_another_shape_decline(tmp_path):
    write_npz(tmp_path / "records", X[:, :3], Y)
    assert "shape" in why(box(tmp_path, "npz"))


def test_a_csv_that_shrinks_while_it_is_read_declines(tmp_path, monkeypatch):
    """It states no size, so the rest alone would look like a smaller data set."""
    write_csv(tmp_path / "records", np.tile(X, (400, 1)), np.tile(Y, 400))
    read, cut = tables._row, []

    def row(cells, *others):
        if not cut:
            cut.append(cells)
            with (tmp_path / "records").open("r+b") as file:
                file.truncate(9000)
        return read(cells, *others)

    monkeypatch.setattr(tables, "_row", row)
    assert "was changed while it was read" in why(box(tmp_path, "csv"))


@pytest.mark.parametrize(("source", "module"), [("npz", arrays), ("idx", idx)])
def test_a_file_that_is_replaced_between_its_two_reads_declines(
    source, module, tmp_path, monkeypatch
):
    """Values of one file and labels of another would pass for records."""
    WRITERS[source](tmp_path / "records", X, Y)
    name, replaced = f"{source}_array", []
    read = getattr(module, name)

    def array(*arguments):
        found = read(*arguments)
        if not replaced:
            replaced.append(True)
            WRITERS[source](tmp_path / "new", X, Y[::-1])
            (tmp_path / "new").rename(tmp_path / "records")
        return found

    monkeypatch.setattr(module, name, array)
    assert "was changed while it was read" in why(box(tmp_path, source))

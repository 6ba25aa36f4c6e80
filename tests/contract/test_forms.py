"""What a file's form decides follows from the owner and the job, never from a record.

Files of every form that owners have, jobs of every kind that a hostile cloud can write, and the
device's own code between them: with any one record changed or gone it answers or declines as
before, for the same reason, at the same time, in the same groups and sizes.
"""

from __future__ import annotations

import csv
import hashlib
import hmac
import json
import struct
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pyarrow import ipc, parquet, table

from edgeveil.config.base import ImpossibleMixError
from edgeveil.crypto.labels import RECORD_RANK, context
from edgeveil.data.records import as_records
from edgeveil.data.schema import DataSchema
from edgeveil.jobs import compile_job
from edgeveil.parts import own_records
from edgeveil.parts.sources import SOURCES, has_own_test
from edgeveil.protocol.device_round import NoAnswer, SealedAnswer
from edgeveil_edge.compute import Computer, load_own
from tests.unit.edgeveil_edge.edge_kit import CENTRE, Device, Round, job
from tests.unit.edgeveil_edge.edge_kit import site as kit_site

NAMES = ["age", "work", "rich"]
CELLS = ["39", "38", "1", "0", "2.5", "1e400", "nan", "Private", "<=50K", ">50K", "", "?", "true"]
HOSTILE = [*CELLS, '"', "a,b", "\ufeff39", "9" * 400, " 39 ", "\x00"]
ROW = st.lists(st.sampled_from(HOSTILE), min_size=3, max_size=3)
NEIGHBOUR = st.one_of(st.none(), ROW, st.lists(st.sampled_from(HOSTILE), max_size=5))
"""One record: gone, another one, or one of another width."""


def _csv(folder, rows, header):
    with (folder / "records").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([*([header] if header else ()), *rows])


def csv_of(header):
    def form(folder, rows):
        _csv(folder, rows, NAMES if header else None)
        said = {} if header is None else {"header": header}  # site files of before do not say it
        return {"source": "csv", "path": folder / "records", **said}

    return form


OWNERS_FORM = {
    "separator": ";",
    "decimal": ",",
    "encoding": "utf-16",
    "comment": "#",
    "skip_lines": 1,
    "multiline": True,
}


def csv_by_form(folder, rows):
    with (folder / "records").open("w", newline="", encoding="utf-16") as file:
        file.write("of box 7\n# and so on\n")
        quoted = csv.writer(file, delimiter=";", quoting=csv.QUOTE_ALL)
        quoted.writerows([NAMES, *([f"{cell}\n" for cell in row] for row in rows)])
    return {"source": "csv", "path": folder / "records", "header": True, "form": OWNERS_FORM}


def json_lines(folder, rows):
    records = [dict(zip(NAMES, row, strict=False)) for row in rows]
    lines = ("[" * 9999 if "a,b" in one.values() else json.dumps(one) for one in records)
    (folder / "records").write_text("".join(f"{line}\n" for line in lines))
    return {"source": "jsonl", "path": folder / "records"}


def numbers_or_texts(cells):
    for kind in (int, float):
        with suppress(ValueError, OverflowError):
            found = [None if cell == "" else kind(cell) for cell in cells]
            if kind is float or all(one is None or abs(one) < 2**63 for one in found):
                return found
    return list(cells)


def parquet_file(folder, rows):
    whole = [[*row, "", "", ""][:3] for row in rows]
    columns = [numbers_or_texts([row[at] for row in whole]) for at in range(3)]
    parquet.write_table(table(dict(zip(NAMES, columns, strict=True))), folder / "records")
    return {"source": "parquet", "path": folder / "records"}


def hf_folder(folder, rows):
    place = folder / "records"
    place.mkdir()
    whole = [[*row, "", "", ""][:3] for row in rows]
    columns = [numbers_or_texts([row[at] for row in whole]) for at in range(3)]
    found = table(dict(zip(NAMES, columns, strict=True)))
    with ipc.new_stream(place / "data.arrow", found.schema) as stream:
        stream.write_table(found)
    (place / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    return {"source": "hf", "path": place}


def arrays(rows):
    """x (n, 1, 2) and y (n,) with the types that NumPy takes from what they hold."""
    whole = [[*row, "", "", ""][:3] for row in rows]

    def array(cells, shape):
        flat = [cell for row in cells for cell in row]
        typed = numbers_or_texts([cell or "nan" for cell in flat])
        return np.array(typed).reshape(shape)

    return array([row[:2] for row in whole], (-1, 1, 2)), array([row[2:] for row in whole], (-1,))


def npz(folder, rows):
    x, y = arrays(rows)
    with (folder / "records").open("wb") as file:
        np.savez(file, x=x, y=y)
    return {"source": "npz", "path": folder / "records"}


def idx(folder, rows):
    whole = [[sum(map(ord, cell)) % 256 for cell in [*row, "", "", ""][:3]] for row in rows]
    values = np.array(whole).reshape(-1, 3).astype(np.uint8)
    for name, array in (("records", values[:, :2]), ("labels", values[:, 2] % 3)):
        header = bytes([0, 0, 8, array.ndim]) + np.asarray(array.shape, ">u4").tobytes()
        (folder / name).write_bytes(header + array.tobytes())
    return {"source": "idx", "path": folder / "records", "labels_path": folder / "labels"}


def files_of(place, rows, ending):
    """Yield a file for each row in the folder of its class, and a digest that decides on it."""
    for name in ("<=50K", ">50K"):
        (place / name).mkdir(parents=True)
    for row in rows:
        digest = hashlib.sha256(repr(row).encode()).digest()
        below = place / (row[-1] if row and row[-1] in ("<=50K", ">50K") else "others")
        below.mkdir(exist_ok=True)
        yield below / f"{digest.hex()[:16]}{ending}", digest


def images(folder, rows):
    place = folder / "records"
    for file, digest in files_of(place, rows, ".png"):
        if digest[0] % 3:
            mode, size = ("L", "RGB", "RGBA", "I;16")[digest[1] % 4], (1 + digest[2] % 9,) * 2
            Image.new(mode, size).save(file)
        else:
            file.write_bytes(digest)
    form = {"size": (1, 2), "classes": ("<=50K", ">50K")}
    return {"source": "images", "path": place, "images": form}


def audio(folder, rows):
    place = folder / "records"
    for file, digest in files_of(place, rows, ".wav"):
        if digest[0] % 3:
            # 16-bit integers, or floats, among which are NaN and infinities
            kind, bits = ((1, 16), (3, 32))[digest[1] % 2]
            rate, sound = (4000, 8000, 11025)[digest[3] % 3], digest * (1 + digest[2])
            head = struct.pack(
                "<4s4sIHHIIHH", b"WAVE", b"fmt ", 16, kind, 1, rate, 0, bits // 8, bits
            )
            body = head + struct.pack("<4sI", b"data", len(sound)) + sound
            file.write_bytes(struct.pack("<4sI", b"RIFF", len(body)) + body)
        else:
            file.write_bytes(digest)
    return {"source": "audio", "path": place}


def python(folder, rows):
    """An owner's function, which states its shape; its types NumPy takes from what it holds."""
    held["rows"] = rows
    return {"source": f"python: {__name__}:made"}


held = {}


def made():
    if any("raise" in row for row in held["rows"]):
        raise LookupError(held["rows"])
    return arrays(held["rows"])


FORMS = {
    "csv, a line of names": csv_of(True),
    "csv, none": csv_of(False),
    "csv, not said": csv_of(None),
    "csv, by a form": csv_by_form,
    "jsonl": json_lines,
    "parquet": parquet_file,
    "hf": hf_folder,
    "npz": npz,
    "idx": idx,
    "images": images,
    "audio": audio,
    "python": python,
}


def test_every_source_of_own_records_is_played():
    on_devices = {name for name in SOURCES if not has_own_test(name)} - {"memory"}
    assert {form.partition(",")[0] for form in FORMS} == on_devices


@st.composite
def schemas(draw, form):
    """What a cloud may write of records, with names and lists taken from guesses at them; of three
    in four the kind that is read of such a form."""
    names = draw(st.permutations([*NAMES, *(cell for cell in CELLS if cell)]))
    names = names[:3] if draw(st.booleans()) else NAMES
    by = SOURCES[form.partition(",")[0]].by_schema or "none"
    by = "columns" if by == "any" else by
    kind = draw(st.sampled_from([by, by, by, "columns", "image", "audio", "none"]))
    classes = draw(st.sampled_from([["<=50K", ">50K"], ["0", "1"], ["1", ["2", "0"]]]))
    if kind == "none":
        return None
    if kind == "image":
        form = {"size": draw(st.sampled_from([[1, 2], [2, 2]])), "channels": 1}
        return {"origin": "public", "label": {"classes": classes}, "image": form}
    if kind == "audio":
        audio = {
            "rate_hz": 4000,
            "seconds": 0.1,
            "form": draw(st.sampled_from(["logmel", "waveform"])),
        }
        return {"origin": "public", "label": {"classes": classes}, "audio": audio}
    said = [
        {"text": {"buckets": 8}},
        {"tokens": {"buckets": 8, "length": 2}},
        {"number": [0, 100]},
        {"number": [38.5, 39.5]},
        {"category": ["Private", "39"]},
        {"number": [0, 100], "bins": [38.5, 39.5]},
    ]
    labels = [{"classes": classes}, {"number": [0, 50]}, {"normal": ["<=50K"]}]
    label = draw(st.sampled_from(labels))
    columns = [{"name": name, **draw(st.sampled_from(said))} for name in names[:2]]
    schema = {
        "origin": "public",
        "label": {"column": names[2], **label},
        "columns": columns[: draw(st.integers(1, 2))],
        "missing": draw(st.lists(st.sampled_from(["?", "nan"]), max_size=1)),
    }
    if draw(st.booleans()):
        every = draw(st.sampled_from([None, 1.0, 30.0]))
        ordering = {"time": names[1], "every_s": every} if every else {"group": names[1]}
        schema |= {"columns": columns[:1], "windows": {"length": 2, **ordering}}
    if draw(st.booleans()) or form == "csv, none":
        schema["header"] = draw(st.sampled_from([names, [*names, "more"]]))
    return schema


def plan_of(schema):
    """The job's plan; None for a job that nobody can compile, whoever holds records."""
    data = {"source": "bench", "nominal_records": 30}
    if schema is None:
        return compile_job(job(data={**data, "classes": 3, "input_shape": (2,)}))
    data["schema"] = DataSchema.model_validate_json(json.dumps(schema), strict=True)
    changes = {"data": data, "train": {"method": "fm", "rounds": 3}}
    if "normal" in schema["label"]:
        changes["train"] = {"method": "pca_residual"}
    if "classes" not in schema["label"]:
        changes["unsupervised"] = {"eval_type": "NOT_EVAL"}
    with suppress(ImpossibleMixError):
        return compile_job(job(**changes))
    return None


def device_of(folder, data, **policy):
    limits = {"min_devices": 3, "allowed_methods": ("fm", "pca_residual"), **policy}
    return Device(folder / "state", load_own, data={"name": "bench", **data}, policy=limits)


def answered(folder, form, rows, plan, max_records=20_000):
    """All that anybody but the owner sees of a device's answer to the job's first round, and
    what it cost."""
    folder.mkdir()
    place = folder.parent / "box"  # one place for all: paths stand in reasons
    place.unlink(missing_ok=True)
    place.symlink_to(folder, target_is_directory=True)
    device = device_of(place, FORMS[form](place, rows), max_records=max_records)
    with suppress(AssertionError):
        device.knows(plan)
    try:
        answer = device.answer(Round(plan, CENTRE, device.keys()))
    finally:
        device.store.close()
    cost = device.ledger.spent().epsilon
    if isinstance(answer, NoAnswer):
        return ("declined", answer.why, cost)
    assert isinstance(answer, SealedAnswer), answer
    return ("answered", cost, answer.groups, answer.sizes, answer.at_once, answer.dummy)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=15, deadline=None)
@given(
    data=st.data(),
    rows=st.lists(ROW, min_size=1, max_size=4),
    at=st.integers(0, 3),
    other=NEIGHBOUR,
)
def test_one_record_changes_neither_whether_nor_when_nor_in_what_form_a_device_answers(
    tmp_path_factory, form, data, rows, at, other
):
    plan = plan_of(data.draw(schemas(form)))
    if plan is None:
        return
    at %= len(rows)
    neighbour = [*rows[:at], *([] if other is None else [other]), *rows[at + 1 :]]
    folder = tmp_path_factory.mktemp("forms")
    one = answered(folder / "one", form, rows, plan)
    assert one == answered(folder / "neighbour", form, neighbour, plan)


FIRST_CELL = {
    "origin": "public",
    "label": {"column": "<=50K", "classes": ["<=50K", ">50K"]},
    "columns": [{"name": "39", "number": [0, 100]}],
}
ADULT = [["39", "Private", "<=50K"], ["50", "State", ">50K"]]
NUMBERS = [["1", "2", "0"], ["3", "4", "1"]]
HEADED = "csv, a line of names"


@pytest.mark.parametrize(
    ("form", "how"),
    [("csv, none", "answered"), ("csv, not said", "declined"), (HEADED, "declined")],
)
def test_a_job_that_names_a_file_s_columns_by_cells_is_answered_alike(form, how, tmp_path):
    """Whatever the first record holds: whether a line names columns is the owner's word alone."""
    found = set()
    for guess in ("38", "39", "40"):
        columns = [{"name": guess, "number": [0, 100]}]
        header = [guess, "Private", "<=50K"]
        plan = plan_of({**FIRST_CELL, "columns": columns, "header": header})
        found.add(answered(tmp_path / guess, form, ADULT, plan)[0])
    assert found == {how}


def test_a_record_that_an_owner_wrongly_calls_a_line_of_names_is_taken_for_none(tmp_path):
    plan, block = plan_of(FIRST_CELL), csv_of(None)(tmp_path, ADULT)
    device = device_of(tmp_path, {**block, "header": True}).knows(plan)
    answer = device.answer(Round(plan, CENTRE, device.keys()))
    assert isinstance(answer, NoAnswer)
    assert "may be a record" in answer.why


def test_a_file_s_own_names_stand_before_those_that_a_job_makes_up(tmp_path):
    """Or an owner who allows columns by their names would be read another one."""
    columns = [{"name": "work", "category": ["Private", "State"]}]
    plan = plan_of({**COLUMNS, "columns": columns, "header": ["work", "age", "rich"]})
    block = FORMS[HEADED](tmp_path, ADULT)
    device = device_of(tmp_path, block, allowed_columns=("work", "rich")).knows(plan)
    assert isinstance(device.answer(Round(plan, CENTRE, device.keys())), SealedAnswer)
    training, evaluation = load_own(device.site, bytes(32), 0.5, plan.job.data.schema_)
    rows = np.concatenate([training.x, evaluation.x])
    assert sorted(rows.tolist()) == [[0, 1, 0], [1, 0, 0]], "Private and State, as the file says"


@pytest.mark.parametrize("form", ["parquet", "hf", "npz", "python"])
def test_one_text_among_numbers_makes_no_table_unreadable(form, tmp_path):
    plain = answered(tmp_path / "plain", form, NUMBERS, plan_of(None))
    text = answered(tmp_path / "text", form, [*NUMBERS, ["secret", "x", "y"]], plan_of(None))
    assert plain == text and plain[0] == "answered"


COLUMNS = {
    "origin": "public",
    "label": {"column": "rich", "classes": ["<=50K", ">50K"]},
    "columns": [
        {"name": "age", "number": [0, 100]},
        {"name": "work", "category": [str(n) for n in range(40)]},
    ],
}
READ_BY = {
    HEADED: COLUMNS,
    "csv, by a form": COLUMNS,
    "jsonl": COLUMNS,
    "csv, none": {**COLUMNS, "header": NAMES},
    "parquet": COLUMNS,
    "hf": COLUMNS,
    "images": {
        "origin": "public",
        "label": {"classes": ["<=50K", ">50K"]},
        "image": {"size": [1, 2], "channels": 1},
    },
    "audio": {
        "origin": "public",
        "label": {"classes": ["<=50K", ">50K"]},
        "audio": {"rate_hz": 4000, "seconds": 0.1, "bands": 2},
    },
}
BY_A_SCHEMA = list(READ_BY.items())
BY_VALUES = [
    (form, None) for form in FORMS if form == HEADED or form[:3] not in ("csv", "jso", "aud")
]


def different(count):
    return [[str(n + 10), str(n), ("<=50K", ">50K")[n % 2]] for n in range(count)]


def with_room_for(monkeypatch, size_bytes):
    real = own_records.origin_of
    monkeypatch.setattr(
        own_records, "origin_of", lambda *given: replace(real(*given), max_bytes=size_bytes)
    )


@pytest.mark.parametrize(("form", "schema"), BY_A_SCHEMA + BY_VALUES)
def test_records_past_the_limit_of_memory_change_not_whether_a_device_answers_and_pays(
    form, schema, tmp_path, monkeypatch
):
    plan, found = plan_of(schema), set()
    for size_bytes in (1 << 20, 800, 400, 64, 8):
        with_room_for(monkeypatch, size_bytes)
        folder = tmp_path / str(size_bytes)
        found.add(answered(folder, form, different(12), plan, max_records=8))
    ((how, cost, *_),) = found
    assert how == "answered" and cost > 0


@pytest.mark.parametrize(("form", "schema"), BY_A_SCHEMA)
@pytest.mark.parametrize("most", [1, 5, 90])
def test_however_wide_a_schema_makes_records_those_of_least_rank_are_read(
    form, schema, most, tmp_path, monkeypatch
):
    """As many as the owner says, where a width could be chosen at which n fit and n + 1 do not."""
    plan = plan_of(schema)

    def read(limit, rows):
        """Half, values, label and place of each record that is used."""
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        block = {"name": "bench", **FORMS[form](folder, rows)}
        site = kit_site(folder / "state", data=block, policy={"max_records": limit})
        halves, unread = Computer(site, bytes(32)).halves(plan)
        assert not unread
        return [
            (name, *(part[at].tobytes() for part in (one.x, one.y, one.places)))
            for name, one in zip((b"train", b"test"), halves, strict=True)
            for at in range(len(one))
        ]

    everything = read(300, different(300))
    assert len(everything) == 300
    ranks = [hmac.digest(bytes(32), context(RECORD_RANK, one[-1]), "sha256") for one in everything]
    least = sorted(sorted(range(300), key=ranks.__getitem__)[:most])
    rooms = {"parquet": 8_000, "hf": 9_000, "images": 8 * most, "audio": 32 * most}
    with_room_for(monkeypatch, rooms.get(form, 8))
    kept = read(most, different(300))
    assert kept == [everything[index] for index in least]
    for gone in (0, 100, 299):  # of which some are kept
        rows = different(300)
        del rows[gone]
        beside = read(most, rows)
        assert (Counter(beside) - Counter(kept)).total() <= 1
        assert (Counter(kept) - Counter(beside)).total() <= 1


@pytest.mark.parametrize("value", [None, 2**64])
@pytest.mark.parametrize("form", ["npz", "python"])
def test_one_value_that_makes_objects_of_an_array_changes_not_whether_a_device_answers(
    form, value, tmp_path, monkeypatch
):
    plain = answered(tmp_path / "plain", form, NUMBERS, plan_of(None))
    x, y = np.array([[1, 2], [3, 4]]).reshape(-1, 1, 2), np.array([0, value])
    assert y.dtype == object
    monkeypatch.setitem(globals(), "arrays", lambda _rows: (x, y))
    assert plain == answered(tmp_path / "objects", form, NUMBERS, plan_of(None))
    assert plain[0] == "answered"
    assert as_records(x, y, "here").y.tolist() == [0, -1]


def test_owner_s_code_that_fails_for_a_record_is_answered_for_as_without_records(tmp_path):
    plain, raises = (
        answered(tmp_path / str(len(rows)), "python", rows, plan_of(None))
        for rows in (NUMBERS, [*NUMBERS, ["raise"]])
    )
    assert plain == raises and plain[0] == "answered"

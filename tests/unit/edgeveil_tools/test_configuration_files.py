"""Laws that every configuration file and every key keeps."""

import json
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeveil.config.base import Block, key_texts
from edgeveil.config.explain import SchemaWalk
from edgeveil.errors import ConfigError, UsageError
from edgeveil_tools.checks import KINDS, load, schema, validate
from edgeveil_tools.cli import main

FILES = sorted(set(Path("configs").rglob("*.yaml")) - set(Path("configs/load").iterdir()))
LINE = re.compile(r"^\S+:[1-9]\d* [^\s:]+: \S[^\n]*$")
pytestmark = pytest.mark.usefixtures("encoders")


def blocks(kind=Block):
    found = kind.__subclasses__()
    return found + [inner for block in found for inner in blocks(block)]


def keys_of(walk, node):
    for key in walk.keys(node):
        yield key
        yield from keys_of(walk, walk.property(node, key) or {})


def test_every_key_is_documented():
    texts = {
        f"{block.__name__}.{name}": key_texts(block).get(name)
        for block in blocks()
        for name in block.model_fields
    }
    assert len(texts) > 100
    assert [name for name, text in texts.items() if not text] == []


def test_a_block_without_source_has_a_schema_of_its_keys():
    made = {}
    exec("class Made(Block):\n    devices: int = 3\n", {"Block": Block, "__name__": "prompt"}, made)
    assert list(made["Made"].model_json_schema()["properties"]) == ["devices"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_is_closed_and_every_key_of_it_stands_in_an_example(kind):
    examples = "\n".join(path.read_text() for path in FILES)
    found = json.loads(json.dumps(schema(kind)))
    assert found["additionalProperties"] is False
    assert found["$schema"].startswith("https://json-schema.org/")
    walk = SchemaWalk(found)
    keys = set(keys_of(walk, walk.root))
    assert keys
    assert {key for key in keys if not re.search(rf"\b{key}\b", examples)} == set()


@pytest.mark.slow
def test_every_shipped_file_is_sound(capsys):
    assert main(["check", *map(str, FILES)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if not line.startswith("  ")]) == len(FILES)


def test_a_check_tells_kinds_apart_and_exits_with_2(tmp_path, capsys):
    bad, good = tmp_path / "bad.yaml", "configs/proxy.yaml"
    bad.write_text("job: A\n")
    assert main(["check", str(bad), good]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{bad}:1 job: ")
    assert lines[-1] == f"{good}: ok (proxy)"


def check(path, text):
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        load(path)
    except ConfigError as error:
        assert error.problems
        for line in error.problems:
            assert LINE.match(line), line
            assert line.startswith(f"{path}:")
    except UsageError as error:  # two devices of one name
        assert error.where.startswith(str(path)) and error.fix


ODD = ["null", "~", "true", ".inf", "-1", "0", "1e-5", "0x1F", "1:30", "2020-01-01", "9" * 70]
SYNTAX = [*"{}[]#\n\t'\"=|", ": ", "  ", "- ", "&a ", "*a", "!!x ", "|\n", "<<: ", "? ", "---\n"]
SYNTAX += ["...", "%YAML 9.9\n", '"\\ud800"']
PIECES = st.one_of(st.text(max_size=8), st.sampled_from(SYNTAX), st.sampled_from(ODD))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), name=st.sampled_from(FILES))
def test_a_mutated_file_loads_or_is_explained(tmp_path_factory, data, name):
    text = name.read_text()
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        stop = min(len(text), start + data.draw(st.integers(0, 12)))
        text = text[:start] + data.draw(PIECES) + text[stop:]
    check(tmp_path_factory.getbasetemp() / "mutated.yaml", text)


VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(), st.text(max_size=20)
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=4,
)


def swap(node, value, pick):
    """The tree with one value replaced: `pick` chooses the way down."""
    if not pick or not isinstance(node, (dict, list)) or not node:
        return value
    if isinstance(node, list):
        at = pick[0] % len(node)
        return [*node[:at], swap(node[at], value, pick[1:]), *node[at + 1 :]]
    key = sorted(node)[pick[0] % len(node)]
    return {**node, key: swap(node[key], value, pick[1:])}


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(FILES), value=VALUES, pick=st.lists(st.integers(0, 20), max_size=4))
def test_a_file_with_another_value_loads_or_is_explained(tmp_path_factory, name, value, pick):
    tree = swap(yaml.safe_load(name.read_text()), value, pick)
    path = tmp_path_factory.getbasetemp() / "swapped.yaml"
    check(path, yaml.safe_dump(tree, sort_keys=False))


def test_the_engine_of_earlier_job_files_is_dropped_where_it_is_the_usual_one(tmp_path):
    path, text = tmp_path / "job.yaml", Path("configs/jobs/quickstart.yaml").read_text()
    for engine, problems in (("auto", []), ("ray", ["local_run.engine"])):
        path.write_text(text.replace("\nlocal_run:", f"\nlocal_run:\n  engine: {engine}  #"))
        assert [one.key for one in validate(path)] == problems

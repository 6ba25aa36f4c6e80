"""Targets: YAML files, and jobs as they come over the wire."""

import re
from functools import cache
from pathlib import Path

from edgeveil.config.site_files import load_site
from edgeveil.config.yaml_tree import DEPTH, NODES, read_tree
from edgeveil.errors import ConfigError, ProtocolError
from edgeveil.jobs import compile_canonical, parse_job
from edgeveil.jobs.job import Job
from edgeveil_tools.checks import schema
from tests.fuzz.target import Target, as_file, demand

_CONFIGS = Path(__file__).parents[2] / "configs"
_TEXT_BYTES = 1024  # a longer text is only slower to read
SMALLEST_JOB = """\
job: small
data: {source: digits, classes: 10, input_shape: [64], nominal_records: 150}
features: [{name: identity, input_scale: 16, shift: -0.3}]
train: {method: fm, rounds: 3}
privacy: {epsilon: 8.0, delta: 1.0e-5}
round: {deadline_s: 20, min_batch: 3}
encrypt: {privacy_eval_type: LAPLACE, laplace_eval: {laplace_eval_eps: 20}}
"""


def _tree(data):
    tree = read_tree(data)
    demand(bool(tree.lines) or bool(tree.problems), "what is not read is explained")
    depth, count = _measured(tree.value)
    demand(depth <= DEPTH and count <= NODES, "the bounds hold")


def _measured(value):
    """Levels and values."""
    inner = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(inner, list):
        return 1, 1
    each = [_measured(one) for one in inner]
    return 1 + max((d for d, _ in each), default=0), 1 + sum(n for _, n in each)


def _job(data):
    job = parse_job(data)
    demand(Job.from_canonical(job.canonical()).digest() == job.digest(), "a job has one digest")


def _canonical(data):
    job = compile_canonical(data).job
    demand(job.canonical() == data, "a job has one spelling")


def _site(data):
    load_site(as_file("site.yaml", data))


def _short(text):
    """Without comments: they would only make inputs long."""
    lines = (re.sub(r"\s+#.*", "", line) for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("#")).encode()


def _jobs():
    yield SMALLEST_JOB.encode()
    texts = (_short(p.read_text("utf-8")) for p in sorted((_CONFIGS / "jobs").glob("*.yaml")))
    yield from (text for text in texts if len(text) <= _TEXT_BYTES)


def _canonicals():
    yield parse_job(SMALLEST_JOB).canonical()


def _sites():
    texts = (_short(path.read_text("utf-8")) for path in sorted(_CONFIGS.glob("*.yaml")))
    yield from (text for text in texts if len(text) <= _TEXT_BYTES)


def _trees():
    yield from (b"a: [1, 2.5, true, null, 'x']\nb:\n  - c: 0x1f\n", b"- - - a\n", b"? a\n: b\n")
    yield from (b"a: &x 1\nb: *x\n", b"<<: {a: 1}\n", b"a: !!python/object:x y\n", b"a: |\n  b\n c")


@cache
def _words(kind):
    """Keys and choices of a kind of file."""

    def within(schema):
        if isinstance(schema, dict):
            yield from schema.get("properties", {})
            yield from (one for one in schema.get("enum", []) if isinstance(one, str))
            for inner in schema.values():
                yield from within(inner)
        elif isinstance(schema, list):
            for inner in schema:
                yield from within(inner)

    return tuple(f"{word}: ".encode() for word in sorted(set(within(schema(kind)))))


_YAML = tuple(b": ~- ~&a ~*a~!!map ~1e999~-1~null~[~{~|\n ~? ".split(b"~"))
_SITE_WORDS = tuple(word for kind in ("cloud", "proxy", "edge") for word in _words(kind))

TARGETS = {
    "yaml": Target(_tree, _trees, (), max_bytes=256, words=_YAML),
    "job_yaml": Target(_job, _jobs, (ConfigError,), _TEXT_BYTES, _YAML + _words("job")),
    "job_wire": Target(
        _canonical, _canonicals, (ProtocolError,), 2048, (b'":null', b"1e308", b"[")
    ),
    "site_yaml": Target(_site, _sites, (ConfigError,), _TEXT_BYTES, _YAML + _SITE_WORDS),
}

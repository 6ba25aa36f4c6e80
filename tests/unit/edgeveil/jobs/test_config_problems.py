"""Files that cannot be used or would cost memory: every problem with its line, key and fix."""

import re
import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest

from edgeveil.config.site_files import load_site
from edgeveil.config.yaml_tree import TEXT_BYTES
from edgeveil.errors import ConfigError, ProtocolError
from edgeveil.jobs import Job, load_job, parse_job
from edgeveil_tools.local.local_run import owners_policy, parse_local_job

JOB = Path("tests/kits/quickstart.yaml").read_text()
FORM = re.compile(r"^\S+:[1-9]\d* [^\s:]+: \S.*$")


def problems(text):
    with pytest.raises(ConfigError) as caught:
        parse_local_job(text, "j.yaml")
    assert caught.value.problems
    for line in caught.value.problems:
        assert FORM.match(line), line
    return caught.value.problems


def only(text):
    found = problems(text)
    assert len(found) == 1, found
    return found[0]


def changed(old, new):
    assert JOB.count(old) == 1, old
    return JOB.replace(old, new), JOB[: JOB.index(old)].count("\n") + 1


def line_of(text, key):
    """The line of a dotted key: its last name, from the line of its first on."""
    block, leaf = key.split(".")[0], key.split(".")[-1]
    lines = text.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"{block}:"))
    return next(n for n in range(start, len(lines)) if re.search(rf"\b{leaf}:", lines[n])) + 1


@pytest.mark.parametrize(
    ("old", "new", "key", "what"),
    [
        ("delta: 1.0e-5 ", "delta: 1.5 ", "privacy.delta", "must be in (0, 1), got 1.5"),
        ("delta: 1.0e-5 ", "delta: 1e-5 ", "privacy.delta", "write 1.0e-5"),
        ("epsilon: 8\n", "epsilon: .nan\n", "privacy.epsilon", "no finite number"),
        ("epsilon: 8\n", "epsilon: yes\n", "privacy.epsilon", "must be a number more than 0"),
        ("rounds: 15\n", "rounds: 15.5\n", "train.rounds", "must be a whole number"),
        ("rounds: 15\n", "round: 15\n", "train.round", "did you mean 'rounds'?"),
        ("method: fm\n", "method: mf\n", "train.method", "did you mean 'fm'?"),
        ("method: fm\n", "method: fm\n  batch_norm: local\n", "train.batch_norm", "method: fedbn"),
        ("identity, input", "hashed_text, input", "features[0]", "write text: {}"),
        ("identity, input", "logmel, input", "features[0]", "write audio: {}"),
        ("identity, input", "pictures, patches: 7, input", "features[0].patches", "multiple of 2"),
        ("  method: fm\n", "  \n", "train.method", "is missing"),
        ("job: quickstart\n", "job: on\n", "job", "put it in quotes"),
        ("job: quickstart\n", "job: A b\n", "job", "of the form"),
        ("shift: -0.3}", "shfit: -0.3}", "features[0].shfit", "did you mean 'shift'?"),
        ("devices: all ", "devices: some ", "selection.devices", "'all', got 'some'"),
        ("deadline_s: 30\n", "deadline_s: 1:30\n", "round.deadline_s", "base-60"),
        ("deadline_s: 30\n", "deadline_s: 030\n", "round.deadline_s", "octal"),
        ("{name: fedavg}", "{name: fedavgg}", "aggregation.name", "did you mean 'fedavg'?"),
        (
            "{name: fedavg}",
            "{name: fedavg, server_optimizer: {name: fedadm, tau: 0.1}}",
            "aggregation.server_optimizer.name",
            "did you mean 'fedadam'?",
        ),
        ("retries: 2\n", "retries: 2\n  quorum: 1\n", "round.quorum", "given twice"),
        ("workers: 2 ", "epsilon: 2 ", "local_run.epsilon", "unknown key"),
    ],
)
def test_one_fault_is_named_with_its_line(old, new, key, what):
    text, line = changed(old, new)
    entry = next(entry for entry in problems(text) if f" {key}: " in entry)
    assert what in entry
    if what != "is missing":
        last = line + new.rstrip().count("\n")
        assert entry.startswith(f"j.yaml:{last} "), entry


@pytest.mark.parametrize(
    ("old", "new", "key", "what"),
    [
        ("min_batch: 5 ", "min_batch: 21 ", "round.min_batch", "20 training devices"),
        ("devices: all ", "devices: 30 ", "selection.devices", "30 devices are required"),
        ("infer_only: 0 ", "infer_only: 21 ", "local_run.infer_only", "20 devices of the run"),
        ("min_devices: 20 ", "min_devices: 21 ", "selection.min_devices", "for ever"),
        ("type: LAPLACE ", "type: NOT_ENCRYPT ", "encrypt.privacy_eval_type", "accept_unproven"),
        ("laplace_eval: {laplace_eval_eps: 20}", "", "encrypt.privacy_eval_type", "add for ex"),
        ("every_rounds: 5 ", "every_rounds: 16 ", "unsupervised.every_rounds", "at most 15"),
        ("share: 0.1 ", "share: 0 ", "data.evaluation_share", "reserve no records"),
        ("ations: null ", "ations: 14 ", "privacy.max_participations", "after round 14"),
        ("epsilon: 8\n", "epsilon: 0.001\n", "privacy.epsilon", "noise of more than 2^40"),
        ("epsilon: 8\n", "epsilon: 40\n", "privacy.epsilon", "lower epsilon"),
        ("_eps: 20}", "_eps: 1.0e-7}", "encrypt.laplace_eval.laplace_eval_eps", "raise epsilon"),
        ("classes: 10", "classes: 9", "data.classes", "digits has 10 classes"),
        ("[64]", "[1000000, 1000000]", "data.input_shape", "make it smaller"),
        ("[64]", "[8, 8]", "data.input_shape", "write input_shape: [64]"),
    ],
)
def test_an_impossible_mix_is_refused_with_its_reason(old, new, key, what):
    text, _ = changed(old, new)
    found = only(text)
    assert what in found and found.startswith(f"j.yaml:{line_of(text, key)} {key}: ")


@pytest.mark.parametrize(
    ("changes", "policy", "parts"),
    [
        ((), "max_epsilon_per_job: 1, lifetime_epsilon: 2", ["per_job", "lifetime"]),
        ((), "lifetime_delta: 0", ["take 1e-05"]),
        ((), "allowed_methods: [fm_paper]", ["method 'fm'"]),
        ((), "require_cover: true", ["no cover traffic"]),
        (
            (("devices: all ", "devices: 18 "), ("select: 1.0", "select: 1.1")),
            "min_devices: 20",
            [],
        ),
    ],
)
def test_a_job_that_a_named_policy_declines_is_refused(tmp_path, changes, policy, parts):
    (tmp_path / "owner.yaml").write_text(f"policy: {{{policy}}}\n")
    text = JOB
    for old, new in changes:
        text = text.replace(old, new)
    text += "  policy: owner.yaml\n"
    if not parts:
        parse_local_job(text, folder=tmp_path)
        return
    with pytest.raises(ConfigError) as raised:
        parse_local_job(text, folder=tmp_path)
    assert len(raised.value.problems) == len(parts)
    for problem, part in zip(raised.value.problems, parts, strict=True):
        assert " local_run.policy: policy." in problem and part in problem


def test_owners_allow_what_the_job_needs_and_an_older_files_policy_is_dropped():
    text = JOB.replace("accept_unproven: false    #", "accept_unproven: true #")
    text = text.replace("type: LAPLACE ", "type: NOT_ENCRYPT ").replace("epsilon: 8", "epsilon: 16")
    for own in ("", "  policy: {max_epsilon_per_job: 1, allowed_methods: [sgd]}\n"):
        found = parse_local_job(text + own)[0]
        assert found.local_run.policy is None
        assert owners_policy(found, found.local_run).allowed_methods == ("fm",)


def test_keys_of_earlier_versions_keep_their_bytes_and_take_their_usual_value_alone():
    usual = JOB.replace("upload: mean", "labels: argmax\n  upload: mean")
    usual = usual.replace("accept_unproven:", "stop: null\n  accept_unproven:")
    raw = parse_job(usual).canonical()
    assert raw == parse_job(JOB).canonical()
    assert b'"labels":"argmax"' in raw and b'"stop":null' in raw
    for other in (raw.replace(b'"stop":null', b'"stop":1'), raw.replace(b',"stop":null', b"")):
        with pytest.raises(ProtocolError):
            Job.from_canonical(other)
    text = JOB.replace("grace_s:", "max_staleness: 3\n  grace_s:")
    assert " round.max_staleness: is always " in only(text)


def test_devices_may_answer_fewer_rounds_where_not_all_are_selected():
    limited = JOB.replace("ations: null ", "ations: 14 ")
    parse_local_job(limited.replace("devices: all ", "devices: 10 "))
    assert "after round 14" in only(limited.replace("devices: all ", "devices: 20 "))
    widened = limited.replace("devices: all ", "devices: 10 ").replace("select: 1.0 ", "select: 2 ")
    assert "after round 14" in only(widened)


def test_a_job_is_read_without_a_look_at_how_one_machine_plays_it():
    text = JOB.replace("workers: 2 ", "wrkers: 2 ")
    assert parse_job(text) == parse_job(JOB[: JOB.index("local_run:")])
    with pytest.raises(ConfigError, match="did you mean 'local_run'"):
        parse_job(text.replace("local_run:", "local_rum:"))


def test_all_problems_come_at_once_in_the_order_of_lines():
    text = (
        JOB.replace("epsilon: 8\n", 'epsilon: -8\n  "\\e[31mx": 1\n')
        .replace("rounds: 15\n", "rounds: many\n")
        .replace("workers: 2 ", "wrkers: 2 ")
        .replace("infer_only: 0 ", "infer_only: 21 ")
    )
    found = problems(text)
    keys = [line.split(" ")[1].rstrip(":") for line in found]
    assert keys[:2] == ["train.rounds", "privacy.epsilon"]
    assert keys[-2:] == ["local_run.wrkers", "local_run.infer_only"]
    assert all(line.isprintable() for line in found)  # a terminal is not steered


@pytest.mark.parametrize(
    ("raw", "line", "what"),
    [
        (b"", 1, "the file is empty"),
        (b"null\n", 1, "must be a block of keys"),
        (b"\n- 1\n", 2, "must be a block of keys"),
        (b"job: a\ndata: {classes: 3\n", 3, "not YAML"),
        (b"job: a\n\tdata: 1\n", 2, "not YAML: a tab; indent with spaces"),
        (b"job: a\ndata: \xff\n", 2, "UTF-8"),
    ],
)
def test_a_file_that_is_no_configuration(raw, line, what):
    found = only(raw)
    assert found.startswith(f"j.yaml:{line} (file): ")
    assert what in found


def test_a_file_that_is_absent_no_file_or_too_large_is_refused_unread(tmp_path, monkeypatch):
    large = tmp_path / "large.yaml"
    large.write_bytes(b"a: 1\n" * 400_000)
    monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("opened"))
    for path in (tmp_path / "no.yaml", tmp_path, large):
        for load in (load_job, load_site):
            with pytest.raises(ConfigError) as caught:
                load(path)
            assert caught.value.problems[0].startswith(f"{path}:1 (file): ")


LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in pairwise("abcdefghi")
)
ROOM = 64 << 20

TEXTS = {
    "a billion laughs": (LAUGHS, "anchors and aliases"),
    "a merge": ("a: &a {b: 1}\nc: {<<: *a}\n", "anchors and aliases"),
    "deep lists": ("a: " + "[" * 1_000, "more than 32 levels"),
    "deep keys": ("? " * 1_000 + "a", "more than 32 levels"),
    "a flood of values": ("a: [" + "1," * 20_001 + "]", "more than 20000 values"),
    "a text too long": ("a" * (TEXT_BYTES + 1), "must be at most"),
    "a number too long": ("a: " + "9" * 5_000, "more than 64 characters"),
    "a number that is none": ("a: 1.0e+99999", "finite number"),
    "code": ("a: !!python/name:os.system id", "tags"),
    "binary": ("a: !!binary aGVsbG8=", "tags"),
    "a second document": ("a: 1\n---\nb: 2\n", "not YAML"),
    "control characters": ("a: \x1b[31m", "control character"),
    "letters that turn a line round": ("job: \u202e\u200b\n", "data: is missing"),
}


@pytest.mark.parametrize(("text", "message"), TEXTS.values(), ids=TEXTS)
def test_a_costly_text_is_refused(text, message):
    if len(text) < 20_000:  # tracing makes a larger one slow
        tracemalloc.start()
    try:
        with pytest.raises(ConfigError, match=message) as caught:
            parse_job(text)
        assert tracemalloc.get_traced_memory()[1] < ROOM
    finally:
        tracemalloc.stop()
    assert all(problem.startswith("(posted):") for problem in caught.value.problems)
    assert str(caught.value).replace("\n", "").isprintable()

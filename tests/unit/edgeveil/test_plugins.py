"""Parts of others: who may join, and that what is wrong with one affects nothing else."""

import hashlib
import json
import re
import textwrap

import pytest

from tests.kits.plugin_wheels import ROOT, edgeveil, files_of, laid_out

RULE = files_of(ROOT / "docs" / "extending.md")["my_parts/midrange.py"]
SOURCE = files_of(ROOT / "docs" / "extending.md")["my_parts/vectors.py"]
POINTS = {"aggregation.midrange": "good_parts.midrange:PART"}
GOOD = {"good_parts/__init__.py": "", "good_parts/midrange.py": RULE}
JOB = """
job: one
data: {source: digits, classes: 10, input_shape: [64], nominal_records: 60}
features: [{name: identity, input_scale: 16}]
train: {method: fm, rounds: 2}
privacy: {epsilon: 8}
aggregation: {name: RULE}
unsupervised: {eval_type: NOT_EVAL}
"""
START = """
import sys
from edgeveil import plugins
from edgeveil.errors import EdgeVeilError
from edgeveil.jobs import Job, parse_plan
TEXT = '''JOB'''
def named(rule):
    return TEXT.replace("RULE", rule)
def said(call):
    try:
        call()
    except (EdgeVeilError, ValueError) as error:
        print(str(error).replace("\\n", " "))
    else:
        print("fine")
""".replace("JOB", JOB)


def play(folder, code):
    """Lines that the code prints, in a process that has the folder's plug-ins."""
    ran = edgeveil(plugins=folder, cwd=ROOT, code=START + textwrap.dedent(code))
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


@pytest.fixture
def good(tmp_path):
    return laid_out(tmp_path / "good", "good-parts", POINTS, GOOD)


def test_what_is_wrong_with_a_plugin_is_named_and_the_others_join(good):
    bad = {
        "aggregation.broken": "bad_parts.broken:PART",
        "aggregation.krum": "bad_parts.krum:PART",
        "aggregation.leaves": "bad_parts.leaves",
        "aggregation.late": "bad_parts.late",  # in a union, it would take the others down with it
        "aggregation.other": "good_parts.midrange:PART",
        "aggregation.twice": "good_parts.midrange:PART",
        "rules.midrange": "good_parts.midrange:PART",
    }
    files = {
        "bad_parts/__init__.py": "",
        "bad_parts/broken.py": "raise RuntimeError('no licence')\n",
        "bad_parts/leaves.py": "raise SystemExit(0)\n",
        "bad_parts/krum.py": RULE.replace("midrange", "krum"),
    }
    later = "from __future__ import annotations\n\nfrom typing import Literal"
    late = RULE.replace("from typing import Literal", later).replace("midrange", "late")
    own = "class MidrangeParameters(RuleParameters):\n"
    files["bad_parts/late.py"] = late.replace(own, f"{own}    share: Undefined = 1\n")
    laid_out(good, "bad-parts", bad, files)
    laid_out(good, "twin-parts", {"aggregation.twice": "good_parts.midrange:PART"}, {})
    found = play(
        good,
        """
        for rule in ("midrange", "median", "broken", "other", "late", "twice"):
            said(lambda: parse_plan(named(rule)))
        from edgeveil.parts.aggregation import AGGREGATIONS
        print(AGGREGATIONS["krum"].source)
        print(*plugins.complaints(), sep=" | ")
        """,
    )
    assert found[0] == found[1] == "fine"
    assert "'broken' of plug-in bad-parts 1.0 cannot be imported" in found[2]
    assert "calls itself 'midrange'" in found[3]
    assert "'late' of plug-in bad-parts 1.0: its parameters cannot be read" in found[4]
    assert "bad-parts" in found[5] and "twin-parts" in found[5], "neither of two has the name"
    assert found[6] == "Blanchard et al. 2017"
    for what in ("broken", "SystemExit", "has a name of EdgeVeil's own", "no such family"):
        assert what in " ".join(found[7:])


def test_a_device_imports_what_its_owner_allows_and_nothing_else(good):
    """Its own process, the one that computes, and the owner's consent alike."""
    found = play(
        good,
        """
        import json
        from edgeveil.config.edge import EdgeSite
        from edgeveil_edge import compute_worker as wire
        from edgeveil_edge.consent import judge
        plan = parse_plan(named("midrange"))
        raw, digest = plan.job.canonical(), plugins.digest("good-parts")
        for allowed in ([], [{"distribution": "good-parts", "sha256": digest}]):
            site = EdgeSite.model_validate_json(json.dumps({
                "name": "box", "broker": {"url": "mqtt://localhost"}, "cloud_key_file": "a",
                "proxy_key_file": "b", "data": {"name": "digits", "source": "digits"},
                "policy": {"allowed_plugins": allowed}}))
            said(lambda: judge(site, plan))
        del sys.modules["good_parts.midrange"], sys.modules["good_parts"]
        plugins.admit(())
        said(lambda: Job.from_canonical(raw))
        said(lambda: parse_plan(named("median")))
        plugins.admit([plugins.Allowance("good-parts", "0" * 64)])
        said(lambda: Job.from_canonical(raw))
        print("good_parts" in sys.modules)
        server = wire.ComputeServer()
        for allowed in ((), (("Good_Parts", digest),)):
            load = wire.LoadJob(b"1", raw, b"", (), True, allowed)
            reply = wire.decode_reply(server.change_state(wire.encode(load)))
            print(wire.error_of(reply) if isinstance(reply, wire.Refusal) else "taken")
        said(lambda: Job.from_canonical(raw))
        print("good_parts" in sys.modules)
        """,
    )
    assert "policy.allowed_plugins" in found[0] and found[1] == "fine"
    assert "is not allowed by policy.allowed_plugins" in found[2] and found[3] == "fine"
    assert "has other files here than policy.allowed_plugins allows" in found[4]
    assert found[5] == "False" and "policy.allowed_plugins" in found[6]
    assert found[7:] == ["taken", "fine", "True"]


def test_a_site_names_a_source_only_with_its_owners_word(tmp_path):
    files = {"source_parts/__init__.py": SOURCE}
    points = {"sources.vectors": "source_parts:PART"}
    folder = laid_out(tmp_path / "site", "source-parts", points, files)
    text = (ROOT / "configs" / "edge.yaml").read_text()
    text = re.sub(r"(?m)^    source: .*", "    source: vectors", text)
    ran = edgeveil("methods", "--json", "digest", "vectors", plugins=folder, cwd=tmp_path)
    for allowed in ([], json.loads(ran.stdout)["allowed"]):
        line = f"allowed_plugins: {json.dumps(allowed)}"
        (tmp_path / "edge.yaml").write_text(re.sub(r"(?m)allowed_plugins: .*", line, text))
        ran = edgeveil("check", "edge.yaml", plugins=folder, cwd=tmp_path)
        assert ("which the owner does not allow" in ran.stdout) is (not allowed)
        assert ("add path" in ran.stdout) is bool(allowed), "which the part demands"


def test_a_digest_is_that_of_the_files_and_changes_with_any_code_that_python_would_take(good):
    def digest():
        return play(good, 'print(plugins.digest("good-parts"))')[0]

    lines = []
    for path in sorted(one.relative_to(good).as_posix() for one in good.rglob("*")):
        if (good / path).is_file() and not path.endswith("/RECORD"):
            content = hashlib.sha256((good / path).read_bytes()).hexdigest()
            lines.append(f"{content}  {path}\n")
    first = hashlib.sha256("".join(lines).encode()).hexdigest()
    assert digest() == first
    cached = good / "good_parts" / "__pycache__" / "midrange.cpython-311.pyc"
    cached.parent.mkdir(exist_ok=True)
    cached.write_bytes(b"\0\0\0\0" + bytes(4) + b"by time and size")
    assert digest() == first
    cached.write_bytes(b"\0\0\0\0\1\0\0\0" + b"by no source")
    assert digest() != first
    cached.unlink()
    (good / "good_parts" / "unlisted.py").write_text("")
    assert digest() != first


def test_a_device_in_a_program_imports_nothing_before_its_owners_word(good, tmp_path):
    spy = {"spy_parts/__init__.py": "", "spy_parts/spy.py": "print('imported')\n" + SOURCE}
    laid_out(good, "spy-parts", {"sources.vectors": "spy_parts.spy"}, spy)
    site = tmp_path / "edge.yaml"
    site.write_text((ROOT / "configs" / "edge.yaml").read_text())
    found = play(
        good,
        f"""
        import edgeveil
        edgeveil.Device({str(site)!r})
        edgeveil.validate({str(site)!r})
        print("done")
        from edgeveil.parts.sources import SOURCES
        "vectors" in SOURCES and SOURCES["vectors"]
        """,
    )
    assert found == ["done", "imported"]


def test_what_is_not_imported_from_its_own_files_alone_has_no_digest(good, tmp_path):
    elsewhere = laid_out(tmp_path / "elsewhere", "no-parts", {}, {"good_parts/__init__.py": ""})
    code = f"""
    import os
    os.symlink({str(tmp_path)!r}, {str(good / "good_parts" / "more")!r})
    said(lambda: plugins.digest("good-parts"))
    os.unlink({str(good / "good_parts" / "more")!r})
    sys.path.insert(0, {str(elsewhere)!r})
    said(lambda: plugins.digest("good-parts"))
    said(lambda: plugins.digest("never-parts"))
    """
    link, moved, absent = play(good, code)
    assert "holds a link, good_parts/more" in link
    assert "is not imported from its installed files" in moved
    assert "no plug-in 'never-parts' is installed" in absent

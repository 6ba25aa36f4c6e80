"""What becomes of a release on a device after it came: its report, withdrawal, and expiry."""

import numpy as np
import pytest
from edge_kit import JOB_ID, PLAN, Device, final_model

from edgeveil.crypto.keys import OpeningKey, SealingKey
from edgeveil.errors import DataError, UsageError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.device import (
    AdoptRelease,
    ApplyStatement,
    InstallRelease,
    MadeReport,
    ReportDue,
    ReportSettled,
    SealReport,
    StatementApplied,
)
from edgeveil.protocol.device_round import OpenPackage
from edgeveil.protocol.messages import (
    HEALTH,
    REPORT_BYTES,
    ReleaseOutcome,
    ReleaseStatement,
    RoundId,
)
from edgeveil.protocol.sealed import (
    ReleasePackage,
    Terms,
    encode_package,
    open_segment,
    seal_broadcast,
)
from edgeveil_edge.predict import RELEASES, predict
from edgeveil_edge.releases import ReleaseStore

RECORDS = np.zeros((2, 4), np.float32)
NOW_S = 1_700_000_000.0


class SealingCloud:
    """Seals releases to a device, and opens what it reports."""

    def __init__(self):
        self.opening = OpeningKey.generate()
        self.tags = {}

    def seal(self, keys, package, sequence):
        terms = Terms(
            kind="release",
            at=RoundId(JOB_ID, 0, sequence),
            sequence=sequence,
            job_digest=PLAN.job.digest(),
            phase="release",
            deadline_s=10.0,
            groups=(HEALTH,),
            cloud_key=self.opening.public().to_bytes(),
        )
        recipients = [SealingKey(key) for key in keys]
        manifest, blob, tag = seal_broadcast(terms, encode_package(package), recipients, 4096)
        self.tags[manifest] = tag
        return manifest, blob

    def read(self, manifest, made):
        assert isinstance(made, MadeReport)
        assert len(made.sealed) == REPORT_BYTES
        opened = open_segment(
            self.opening, manifest.at, manifest.job_digest, HEALTH, self.tags[manifest], made.sealed
        )
        return ReleaseOutcome.from_bytes(opened) if opened is not None else None


@pytest.fixture
def device(tmp_path):
    return Device(tmp_path / "box")


def package(onnx, data_set="bench", expires_s=0.0):
    return ReleasePackage("boxed", onnx, data_set, expires_s)


def brought(device, cloud, sent, sequence):
    """A release comes and is opened; whatever becomes of it."""
    manifest, blob = cloud.seal(device.keys(), sent, sequence)
    opened = device.host.perform(OpenPackage(manifest, blob))
    assert opened.package == sent
    device.host.perform(InstallRelease(manifest, sent))
    return manifest


def outcome(device, cloud, manifest):
    return cloud.read(manifest, device.host.perform(SealReport(manifest)))


def model(turn=0):
    """Another one for each turn: the same numbers in more bytes."""
    from onnx import load_model_from_string

    made = load_model_from_string(final_model())
    made.doc_string = "x" * turn
    return bytes(made.SerializeToString())


def in_use(device):
    found = ReleaseStore(device.folder / RELEASES).current()
    return found.version if found else ""


def test_a_device_tells_what_became_of_a_release(device):
    cloud = SealingCloud()
    for number, (sent, said) in enumerate(
        [
            (package(model()), ReleaseOutcome.IN_USE),
            (package(b"no model"), ReleaseOutcome.REFUSED_BY_CHECK),
            (package(model(1), data_set="other"), ReleaseOutcome.REFUSED_BY_POLICY),
        ]
    ):
        manifest = brought(device, cloud, sent, number)
        assert outcome(device, cloud, manifest) is said


def test_that_an_owner_went_back_is_nobody_else_s_business(device):
    """It may follow from what the model said of their records."""
    cloud = SealingCloud()
    brought(device, cloud, package(model()), 1)
    bad = package(model(1))
    manifest = brought(device, cloud, bad, 2)
    ReleaseStore(device.folder / RELEASES).rollback()
    assert outcome(device, cloud, manifest) is ReleaseOutcome.IN_USE
    again = brought(device, cloud, bad, 3)
    assert outcome(device, cloud, again) is ReleaseOutcome.IN_USE
    assert in_use(device) == "0001-boxed"


def test_who_could_not_open_a_release_seals_a_dummy_of_the_same_size(device):
    cloud = SealingCloud()
    others = [OpeningKey.generate().public().to_bytes() for _ in range(3)]
    manifest, blob = cloud.seal(others, package(model()), 1)
    assert device.host.perform(OpenPackage(manifest, blob)).package is None
    assert outcome(device, cloud, manifest) is None


def test_a_report_that_is_due_outlives_the_process(device):
    cloud = SealingCloud()
    manifest = brought(device, cloud, package(model()), 4)
    device.host.store(ReportDue(manifest))
    again = device.restarted()
    assert again.store.load().report_due == manifest
    assert outcome(again, cloud, manifest) is ReleaseOutcome.IN_USE
    again.host.store(ReportSettled(4))
    memory = again.store.load()
    assert (memory.report_due, memory.reported) == (None, 4)


def say(device, number, renewed=(), withdrawn=(), expires_s=0.0):
    said = ReleaseStatement(number, expires_s, tuple(renewed), tuple(withdrawn))
    return device.host.perform(ApplyStatement(said))


def test_a_withdrawn_release_makes_room_for_the_one_before_and_does_not_come_back(device):
    cloud = SealingCloud()
    brought(device, cloud, package(model()), 1)
    bad = package(model(1))
    brought(device, cloud, bad, 2)
    assert in_use(device) == "0002-boxed"
    assert say(device, 1, [1], [2]) == StatementApplied(left=True)
    assert in_use(device) == "0001-boxed"
    assert say(device, 2, [1], [2]) == StatementApplied(left=False)
    manifest, _ = cloud.seal(device.keys(), package(model(2)), 2)
    assert device.host.perform(InstallRelease(manifest, bad)) == fx.WorkFailed("withdrawn_release")
    assert device.restarted().store.load().statement == 2


def test_an_owner_who_went_back_is_not_brought_forward_again(device):
    cloud = SealingCloud()
    brought(device, cloud, package(model()), 1)
    left = package(model(1))
    brought(device, cloud, left, 2)
    ReleaseStore(device.folder / RELEASES).rollback()
    again, _ = cloud.seal(device.keys(), left, 3)
    device.host.perform(AdoptRelease(again))
    say(device, 1, [], [3])
    assert in_use(device) == "0001-boxed"


def test_a_release_that_is_not_renewed_goes_stale_and_is_told_once(device):
    brought(device, SealingCloud(), package(model(), expires_s=NOW_S), 1)
    assert device.host.look_at_release(NOW_S - 1) == ""
    device.said.clear()
    assert "not renewed" in device.host.look_at_release(NOW_S)
    assert "not renewed" in device.host.look_at_release(NOW_S + 1)
    assert len(device.said) == 1
    say(device, 1, [1], [], expires_s=NOW_S + 100)
    assert device.host.look_at_release(NOW_S + 99) == ""
    say(device, 2, [9], [], expires_s=NOW_S + 900)  # a newer one, which never came here
    assert "not renewed" in device.host.look_at_release(NOW_S + 100)


@pytest.mark.parametrize("word", ["warn", "stop"])
def test_the_owner_says_whether_a_stale_release_is_used(tmp_path, word):
    device = Device(tmp_path / "box", policy={"on_expired_release": word})
    brought(device, SealingCloud(), package(model(), expires_s=NOW_S), 1)
    if word == "stop":
        with pytest.raises(UsageError, match="stale since 2023-11-14"):
            predict(device.folder, RECORDS)
    else:
        assert "stale since 2023-11-14" in predict(device.folder, RECORDS).stale
    say(device, 1, [1], [], expires_s=4e9)
    assert predict(device.folder, RECORDS).stale == ""


def test_a_release_that_stops_to_run_makes_room_for_the_one_before(device, monkeypatch):
    cloud = SealingCloud()
    brought(device, cloud, package(model()), 1)
    manifest = brought(device, cloud, package(model(1)), 2)

    class Broken:
        """What an ONNX Runtime of another version may do with a model."""

        def __init__(self, _graph):
            raise DataError("an operator is not known any more")

    with monkeypatch.context() as patched:
        for module in ("predict", "release_trial"):
            patched.setattr(f"edgeveil_edge.{module}.OnnxModel", Broken)
        with pytest.raises(DataError, match="0001-boxed takes its place"):
            predict(device.folder, RECORDS)
    assert predict(device.folder, RECORDS).model == "0001-boxed"
    assert outcome(device, cloud, manifest) is ReleaseOutcome.ROLLED_BACK

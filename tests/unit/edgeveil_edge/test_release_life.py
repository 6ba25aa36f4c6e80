"""What becomes of a release on a device after it came: its report, withdrawal, and expiry."""

import numpy as np
import onnx
import pytest
from edge_kit import JOB_ID, PLAN, Device, final_model

from edgeveil.crypto.keys import OpeningKey, SealingKey
from edgeveil.errors import DataError, UsageError
from edgeveil.protocol import device as machine
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages
from edgeveil.protocol.device_round import OpenPackage
from edgeveil.protocol.sealed import (
    ReleasePackage,
    Terms,
    encode_package,
    open_segment,
    seal_broadcast,
)
from edgeveil_edge.predict import RELEASES, predict
from edgeveil_edge.releases import ReleaseStore

NOW_S = 1_700_000_000.0


class SealingCloud:
    def __init__(self):
        self.opening, self.tags = OpeningKey.generate(), {}

    def seal(self, keys, package, sequence):
        at, own = messages.RoundId(JOB_ID, 0, sequence), self.opening.public().to_bytes()
        terms = Terms(
            kind="release",
            at=at,
            sequence=sequence,
            job_digest=PLAN.job.digest(),
            phase="release",
            deadline_s=10.0,
            groups=(messages.HEALTH,),
            cloud_key=own,
        )
        recipients = [SealingKey(key) for key in keys]
        manifest, blob, tag = seal_broadcast(terms, encode_package(package), recipients, 4096)
        self.tags[manifest] = tag
        return manifest, blob

    def read(self, manifest, made):
        assert isinstance(made, machine.MadeReport)
        assert len(made.sealed) == messages.REPORT_BYTES
        where = manifest.at, manifest.job_digest, messages.HEALTH, self.tags[manifest]
        opened = open_segment(self.opening, *where, made.sealed)
        return messages.ReleaseOutcome.from_bytes(opened) if opened is not None else None


@pytest.fixture
def device(tmp_path):
    return Device(tmp_path / "box")


def brought(device, cloud, graph, sequence, *, data_set="bench", expires_s=0.0):
    sent = ReleasePackage("boxed", graph, data_set, expires_s)
    manifest, blob = cloud.seal(device.keys(), sent, sequence)
    opened = device.host.perform(OpenPackage(manifest, blob))
    assert opened.package == sent
    device.host.perform(machine.InstallRelease(manifest, sent))
    return manifest


def outcome(device, cloud, manifest):
    return cloud.read(manifest, device.host.perform(machine.SealReport(manifest)))


def stated(device, number, renewed=(), withdrawn=(), expires_s=0.0):
    statement = messages.ReleaseStatement(number, expires_s, tuple(renewed), tuple(withdrawn))
    return device.host.perform(machine.ApplyStatement(statement))


def in_use(device):
    found = ReleaseStore(device.folder / RELEASES).current()
    return found.version if found else ""


def model(turn=0):
    """Another one for each turn: the same numbers in more bytes."""
    made = onnx.load_model_from_string(final_model())
    made.doc_string = "x" * turn
    return bytes(made.SerializeToString())


OTHER_OPERATOR = final_model().replace(b"Softmax", b"Hardmax")


def test_a_report_tells_what_became_of_a_release_and_outlives_the_process(device):
    cloud, outcomes = SealingCloud(), messages.ReleaseOutcome
    for number, (sent, data_set, found) in enumerate(
        [
            *((bad, "bench", outcomes.REFUSED_BY_CHECK) for bad in (b"no model", OTHER_OPERATOR)),
            (final_model(1), "bench", outcomes.FAILED_TRIAL),
            *((model(), other, outcomes.REFUSED_BY_POLICY) for other in ("other", "")),
            (model(), "bench", outcomes.IN_USE),
            (model(1), "other", outcomes.REFUSED_BY_POLICY),
        ]
    ):
        manifest = brought(device, cloud, sent, number, data_set=data_set)
        device.host.store(machine.ReportDue(manifest))
        device = device.restarted()
        assert device.store.load().report_due == manifest
        assert outcome(device, cloud, manifest) is found
        assert in_use(device) == ("" if number < 5 else "0001-boxed")
        device.host.store(machine.ReportSettled(number))
        memory = device.store.load()
        assert (memory.report_due, memory.reported) == (None, number)


def test_that_an_owner_went_back_is_nobody_else_s_business_and_is_not_undone(device):
    """It may follow from what the model said of their records."""
    cloud = SealingCloud()
    brought(device, cloud, model(), 1)
    manifest = brought(device, cloud, model(1), 2)
    ReleaseStore(device.folder / RELEASES).rollback()
    assert outcome(device, cloud, manifest) is messages.ReleaseOutcome.IN_USE
    again = brought(device, cloud, model(1), 3)
    assert outcome(device, cloud, again) is messages.ReleaseOutcome.IN_USE
    device.host.perform(machine.AdoptRelease(again))
    stated(device, 1, [], [3])
    assert in_use(device) == "0001-boxed"


def test_who_could_not_open_a_release_seals_a_dummy_of_the_same_size(device):
    cloud = SealingCloud()
    others = [OpeningKey.generate().public().to_bytes() for _ in range(3)]
    manifest, blob = cloud.seal(others, ReleasePackage("boxed", model(), "bench"), 1)
    assert device.host.perform(OpenPackage(manifest, blob)).package is None
    assert outcome(device, cloud, manifest) is None


def test_a_withdrawn_release_makes_room_for_the_one_before_and_does_not_come_back(device):
    cloud = SealingCloud()
    brought(device, cloud, model(), 1)
    manifest = brought(device, cloud, model(1), 2)
    assert in_use(device) == "0002-boxed"
    assert stated(device, 1, [1], [2]) == machine.StatementApplied(left=True)
    assert in_use(device) == "0001-boxed"
    assert stated(device, 2, [1], [2]) == machine.StatementApplied(left=False)
    again = machine.InstallRelease(manifest, ReleasePackage("boxed", model(1), "bench"))
    assert device.host.perform(again) == fx.WorkFailed("withdrawn_release")
    assert device.restarted().store.load().statement == 2


@pytest.mark.parametrize("use", ["warn", "stop"])
def test_a_release_that_is_not_renewed_goes_stale_is_told_once_and_used_as_the_owner_says(
    tmp_path, use
):
    device = Device(tmp_path / "box", policy={"on_expired_release": use})
    brought(device, SealingCloud(), model(), 1, expires_s=NOW_S)
    device.said.clear()
    look, x = device.host.look_at_release, np.zeros((2, 4), np.float32)
    assert (look(NOW_S - 1), bool(look(NOW_S)), bool(look(NOW_S + 1))) == ("", True, True)
    assert len(device.said) == 1
    if use == "stop":
        with pytest.raises(UsageError, match="stale"):
            predict(device.folder, x)
    else:
        assert predict(device.folder, x).stale
    stated(device, 1, [1], [], expires_s=4e9)
    assert look(NOW_S) == predict(device.folder, x).stale == ""
    stated(device, 2, [9], [], expires_s=5e9)  # a newer one, which never came here
    assert look(4e9)


def test_a_release_that_stops_to_run_makes_room_for_the_one_before(device, monkeypatch):
    cloud, x = SealingCloud(), np.zeros((2, 4), np.float32)
    brought(device, cloud, model(), 1)
    manifest = brought(device, cloud, model(1), 2)

    def broken(_graph):
        """As an ONNX Runtime of another version may do with a model."""
        raise DataError("an operator is not known any more")

    with monkeypatch.context() as patched:
        for module in ("predict", "release_trial"):
            patched.setattr(f"edgeveil_edge.{module}.OnnxModel", broken)
        with pytest.raises(DataError):
            predict(device.folder, x)
    assert predict(device.folder, x).model == "0001-boxed"
    assert outcome(device, cloud, manifest) is messages.ReleaseOutcome.ROLLED_BACK

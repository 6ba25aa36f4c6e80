"""The owner's word to a running device, over the socket in its state folder."""

import asyncio
import json
import stat

import pytest

from edgeveil.errors import UsageError
from edgeveil.privacy.laplace_mechanism import softmax_event
from edgeveil.privacy.policy import JobRequest, Limits
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import RoundId
from edgeveil.transport.listener import connect_unix
from edgeveil_edge.compute_process import ComputeProcess
from edgeveil_edge.control import CONTROL_FILE, ControlSocket, ask
from edgeveil_edge.main import DeviceProcess, Lanes
from edgeveil_tools.cli import main
from tests.unit.edgeveil_edge.edge_kit import own_site
from tests.unit.edgeveil_edge.test_conditions import WELL


def heard(folder, work, obey):
    async def run():
        control = ControlSocket(folder, obey)
        await control.start()
        try:
            return await asyncio.to_thread(work)
        finally:
            await control.stop()

    return asyncio.run(run())


def test_anything_but_a_command_changes_nothing_and_errors_are_reported(tmp_path):
    obeyed, path = [], tmp_path / CONTROL_FILE

    async def obey(command):
        obeyed.append(command)
        raise UsageError("the ledger is broken", where="ledger.sqlite")

    def work():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        for line in (
            *(b"pause\n", b"[" * 1000 + b"\n", b"x" * 100_000 + b"\n", b"[]\n"),
            *(b'{"command": "stop"}\n', b'{"command": ["pause"]}\n'),
        ):
            with connect_unix(path, 30.0) as connection, connection.makefile("rb") as stream:
                connection.sendall(line)
                assert "error" in json.loads(stream.readline())
        assert obeyed == []
        for _ in range(2):
            with pytest.raises(UsageError, match="the ledger is broken"):
                ask(tmp_path, "status")

    heard(tmp_path, work, obey)
    assert len(obeyed) == 2 and not path.exists()


@pytest.fixture
def own(tmp_path):
    return own_site(tmp_path, conditions={"charging": True})


def running(own, box, work):
    async def run():
        computing = ComputeProcess()
        with Lanes() as lanes:
            process = DeviceProcess(own, lanes, computing, on_message=lambda _: None, sensors=box)
            living = asyncio.ensure_future(process.run())
            while not (own.state_dir / CONTROL_FILE).exists():
                await asyncio.wait([living], timeout=0.01)
                assert not living.done()
            try:
                return await asyncio.to_thread(work, process)
            finally:
                living.cancel()
                await asyncio.gather(living, return_exceptions=True)
                await process.stop()
                computing.end()

    return asyncio.run(run())


def test_a_pause_holds_over_a_restart_until_it_is_taken_back(own):
    def pause(process):
        assert ask(own.state_dir, "status")["state"] == "running"
        assert ask(own.state_dir, "pause")["state"] == "paused"
        assert process.device.host._work.paused

    def resume(process):
        assert process.device.host._work.paused
        assert ask(own.state_dir, "status")["state"] == "paused"
        assert ask(own.state_dir, "resume")["state"] == "running"
        assert not process.device.host._work.paused

    running(own, WELL, pause)
    running(own, WELL, resume)
    running(own, WELL, lambda _: ask(own.state_dir, "status")["state"] == "running" or 1 / 0)


def written(own):
    path = own.state_dir / "edge.yaml"
    plain = own.model_dump(mode="json", exclude_unset=True, exclude={"page"})
    path.write_text(json.dumps({"edge": plain}))
    return path


def test_the_owner_is_told_what_was_declined_and_what_will_not_fit_any_more(own, capsys):
    path, job = written(own), bytes(range(16))

    def status(process):
        limit = own.policy.max_inference_epsilon
        request = JobRequest(job.hex(), 1e-5, (softmax_event(10, 0.6 * limit),))
        process.device.ledger.open_job(request, Limits(1, 1, 1e-4, limit))
        refused = [(3, "conditions"), (2, "budget"), (1, "budget")]
        for number, cause in reversed(refused):
            told = {"job": "short", "round": number, "cause": cause, "why": f"reason {number}"}
            process.device.host.report(fx.Report("declined", told, RoundId(job, number, 1)))
        told = ask(own.state_dir, "status")
        assert told["budget"]["next_refusal"]["limit"] == "max_inference_epsilon"
        newest = [(one["round"], one["cause"]) for one in told["refused_lately"]]
        assert newest == refused[:2]
        assert main(["edge", "status", "--config", str(path)]) == 0
        shown = capsys.readouterr().out
        assert "reason 3" in shown and "policy.max_inference_epsilon" in shown

    running(own, WELL, status)


def test_an_error_at_the_warm_up_is_told_in_the_log_without_its_text(caplog):
    class Host:
        def warm_up(self):
            raise OSError(28, "No space left", "/records/of/ada")

    with Lanes() as lanes:
        lanes.warm_up(Host())
    (told,) = caplog.records
    assert (told.message, told.error) == ("warm_up_failed", "OSError")
    assert "ada" not in str(told.__dict__)

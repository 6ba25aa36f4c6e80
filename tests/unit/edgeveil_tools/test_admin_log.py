"""What operators do at cloud and proxy is written down first, chained and signed."""

import asyncio
import json

import aiohttp
import pytest
import yaml

from edgeveil.audit_log import AUDIT_FILE, AuditLog, AuditLogError, OwnAuditLog, read_audit
from edgeveil.crypto.keys import OpeningKey, SigningKey
from edgeveil.enrolment import Enrolment
from edgeveil.transport.process import make_signing_key, own_audit_log
from edgeveil_cloud.http import make_app
from edgeveil_cloud.http_guard import Scope
from edgeveil_cloud.store import Store
from edgeveil_tools.cli import main
from tests.kits.cloud_control import StoreControl

TOKENS = {Scope.SUBMIT: "s" * 43, Scope.READ: "r" * 43}


@pytest.fixture
def proxy(tmp_path):
    site = {
        "edge_broker": {"url": "mqtt://127.0.0.1:1"},
        "cloud_broker": {"url": "mqtt://127.0.0.1:2"},
        "state_dir": str(tmp_path / "state"),
        "cloud_key_file": "cloud.pub",
    }
    path = tmp_path / "proxy.yaml"
    path.write_text(yaml.safe_dump({"proxy": site}))
    make_signing_key(tmp_path / "state", "proxy")
    return path


def enrolment(folder):
    identity, opening = SigningKey.generate(), OpeningKey.generate()
    made = Enrolment.make(identity, opening)
    path = folder / f"{made.device_id}.json"
    path.write_text(made.to_json())
    return path, made.device_id


def test_half_a_line_stands_in_nobodys_way(tmp_path, monkeypatch):
    path, key = tmp_path / AUDIT_FILE, SigningKey.generate()
    log = AuditLog(path, key)
    log.append("admit", {"device": "a"})
    log.append("admit", {"device": "b"})
    path.write_bytes(path.read_bytes()[:-40])  # the power failed meanwhile: it was not done
    log.append("revoke", {"device": "a"})
    assert [one["action"] for one in read_audit(path)] == ["admit", "revoke"]
    before = path.read_bytes()

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("edgeveil.audit_log.os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            log.append("revoke", {"device": "b"})
    assert path.read_bytes() == before
    path.write_bytes(b"{}\n" + before)
    with pytest.raises(AuditLogError, match=r"audit\.jsonl:1"):
        read_audit(path)


def test_the_proxys_operator_reads_who_was_admitted_and_revoked(proxy, tmp_path, capsys):
    assert main(["log", str(proxy)]) == 0
    assert capsys.readouterr().out == "nothing was done yet\n"
    file, device = enrolment(tmp_path)
    asked = ["--config", str(proxy)]
    assert main(["proxy", "admit", *asked, "--note", "the ward of Ada", str(file)]) == 0
    assert main(["proxy", "revoke", *asked, device]) == 0
    assert main(["keys", *asked, "--next"]) == 0
    capsys.readouterr()
    assert main(["log", str(proxy), "--json"]) == 0
    lines = json.loads(capsys.readouterr().out)["entries"]
    assert [(one["action"], one["what"]) for one in lines] == [
        ("admit", {"device": device}),
        ("revoke", {"device": device}),
        ("next_key", {"key": "proxy"}),
    ]
    log = tmp_path / "state" / AUDIT_FILE
    assert log.stat().st_mode & 0o777 == 0o600 and "Ada" not in log.read_text()
    log.write_text(log.read_text().replace("revoke", "admits"))
    assert main(["log", str(proxy)]) == AuditLogError.exit_code
    assert f"{log}:2" in capsys.readouterr().err


def test_nothing_is_done_that_cannot_be_written_down(proxy, tmp_path, capsys):
    file, device = enrolment(tmp_path)
    (tmp_path / "state" / AUDIT_FILE).mkdir(parents=True)
    assert main(["proxy", "admit", "--config", str(proxy), str(file)]) != 0
    assert "nothing is done unlogged" in capsys.readouterr().err
    assert main(["proxy", "devices", "--config", str(proxy)]) == 0
    assert device not in capsys.readouterr().out


def test_a_new_key_vouches_for_the_lines_of_the_one_before(tmp_path):
    old = make_signing_key(tmp_path, "proxy")
    log = own_audit_log(tmp_path, "proxy")
    log.append("admit", {"device": "a"})
    (tmp_path / "proxy.key").unlink()
    SigningKey.generate().save(tmp_path / "proxy.key")
    for device in ("b", "c"):
        log.append("admit", {"device": device})
    found = [(one["action"], one["what"]) for one in log.read()]
    succeeded = ("new_key", {"before": old.public().to_bytes().hex()})
    devices = [("admit", {"device": name}) for name in "abc"]
    assert found == [devices[0], succeeded, *devices[1:]]


@pytest.mark.parametrize("claims", [False, True])
def test_a_log_that_a_stranger_wrote_anew_is_not_trusted(tmp_path, claims):
    own, stranger = SigningKey.generate(), SigningKey.generate()
    forged = AuditLog(tmp_path / AUDIT_FILE, stranger)
    forged.append("admit", {"device": "a"})
    if claims:  # to have vouched for, or to come after, the real key
        forged.append("new_key", {"before": own.public().to_bytes().hex()})
        forged.append("next_key", {"key": own.public().to_bytes().hex()})
    with pytest.raises(AuditLogError, match="nobody vouches for"):
        OwnAuditLog(tmp_path, lambda: own).read()


class LoggedControl(StoreControl):
    def __init__(self, store, log):
        super().__init__(store)
        self.log = log

    def check(self, job_yaml):
        pass

    def submit(self, job_yaml):
        assert self.log.read()[-1]["action"] == "submit"  # written before it is done
        return self.store.submit_job("a", job_yaml.encode(), bytes(32)).id


def test_the_cloud_writes_down_who_submits_and_cancels(tmp_path):
    make_signing_key(tmp_path, "cloud")
    log = own_audit_log(tmp_path, "cloud")

    async def run():
        store = Store()
        control = LoggedControl(store, log)
        app = make_app(store, control, lambda: TOKENS, audit=log.append)
        server = await app.start()
        async with aiohttp.ClientSession(server.url) as session:

            async def ask(method, path, scope=Scope.SUBMIT, **options):
                headers = {"Authorization": f"Bearer {TOKENS[scope]}"}
                async with session.request(method, path, headers=headers, **options) as answer:
                    return answer.status, await answer.json()

            job = (await ask("POST", "/jobs", data=b"job: a"))[1]["id"]
            assert (await ask("POST", f"/jobs/{job}/cancel", Scope.READ))[0] == 403
            assert (await ask("POST", "/jobs/none/cancel"))[0] == 404
            assert (await ask("POST", f"/jobs/{job}/cancel"))[0] == 200
            (tmp_path / AUDIT_FILE).rename(tmp_path / "away")
            (tmp_path / AUDIT_FILE).mkdir()
            status, told = await ask("POST", "/jobs", data=b"job: b")
            assert status == 409 and "nothing is done unlogged" in told["what"]
            assert len(store.jobs()) == 1
        await server.stop()
        store.close()
        return job

    job = asyncio.run(run())
    (tmp_path / AUDIT_FILE).rmdir()
    (tmp_path / "away").rename(tmp_path / AUDIT_FILE)
    submitted, cancelled = log.read()
    assert submitted["action"] == "submit" and submitted["what"]["by"] == "token submit"
    assert cancelled["action"] == "cancel"
    assert cancelled["what"] == {"job": job, "by": "token submit"}

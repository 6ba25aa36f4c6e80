"""What operators do at cloud and proxy is written down first, chained and signed."""

import asyncio
import json

import aiohttp
import pytest
import yaml

from edgeveil.audit_log import AUDIT_FILE, AuditLog, AuditLogError, OwnAuditLog, read_audit
from edgeveil.crypto.keys import OpeningKey, SigningKey
from edgeveil.enrolment import Enrolment
from edgeveil.tokens import read_token
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
    made = Enrolment.make(SigningKey.generate(), OpeningKey.generate())
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

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr("edgeveil.audit_log.os.fsync", full)
        log.append("revoke", {"device": "b"})
    assert path.read_bytes() == before


def test_the_proxys_operator_reads_who_was_admitted_and_revoked(proxy, tmp_path, capsys):
    assert main(["log", str(proxy)]) == 0
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
    log.unlink()
    log.mkdir()  # nothing can be written down
    file, device = enrolment(tmp_path)
    assert main(["proxy", "admit", *asked, str(file)]) != 0
    assert main(["proxy", "devices", *asked]) == 0
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
    with pytest.raises(AuditLogError, match="an unknown key"):
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
    file, away = tmp_path / AUDIT_FILE, tmp_path / "away"

    async def run():
        store = Store()
        app = make_app(store, LoggedControl(store, log), lambda: TOKENS, audit=log.append)
        server = await app.start()
        async with aiohttp.ClientSession(server.url) as session:

            async def ask(path, scope=Scope.SUBMIT, **options):
                headers = {"Authorization": f"Bearer {TOKENS[scope]}"}
                async with session.post(path, headers=headers, **options) as answer:
                    return answer.status, await answer.json()

            job = (await ask("/jobs", data=b"job: a"))[1]["id"]
            assert (await ask(f"/jobs/{job}/cancel", Scope.READ))[0] == 403
            assert (await ask("/jobs/none/cancel"))[0] == 404
            assert (await ask(f"/jobs/{job}/cancel"))[0] == 200
            file.rename(away)
            file.mkdir()
            assert (await ask("/jobs", data=b"job: b"))[0] == 409
            assert len(store.jobs()) == 1
        await server.stop()
        store.close()
        return job

    job = asyncio.run(run())
    file.rmdir()
    away.rename(file)
    submitted, cancelled = log.read()
    assert submitted["action"] == "submit" and submitted["what"]["by"] == "token submit"
    assert cancelled["action"] == "cancel"
    assert cancelled["what"] == {"job": job, "by": "token submit"}


@pytest.mark.parametrize(
    ("scope", "name"),
    [("read", "http-read.token"), ("submit", "http-submit.token"), ("admin", "http.token")],
)
def test_a_scopes_token_is_kept_or_rotated_and_that_is_written_down(tmp_path, capsys, scope, name):
    state, config = tmp_path / "state", tmp_path / "cloud.yaml"
    site = {"broker": {"url": "mqtt://127.0.0.1:1"}, "state_dir": str(state)}
    config.write_text(yaml.safe_dump({"cloud": site | {"proxy_key_file": "proxy.pub"}}))
    make_signing_key(state, "cloud")
    tokens = []
    for more in ([], [], ["--next"]):
        assert main(["keys", "--config", str(config), "--token", scope, *more]) == 0
        tokens.append(read_token(state / name))
    first, kept, second = tokens
    assert first == kept != second
    assert (state / name).stat().st_mode & 0o777 == 0o600
    shown = capsys.readouterr()
    assert shown.out.split() == [str(state / name)] * 3
    assert first not in shown.err and second not in shown.err
    assert [one.name for one in state.iterdir() if "token" in one.name] == [name]
    assert main(["log", str(config)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.split()[2:] == ["rotate_token", "scope", scope]

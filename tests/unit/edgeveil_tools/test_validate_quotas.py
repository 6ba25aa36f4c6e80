"""A job beside site files, and a job at a cloud, are held against their brokers' quotas."""

import pytest
import yaml

from edgeveil.config.site_files import load_site
from edgeveil.jobs import load_job
from edgeveil_cloud.control import Control
from edgeveil_cloud.host import CloudHost
from edgeveil_cloud.rehearsal import RefusedJobError
from edgeveil_cloud.role import limits_of
from edgeveil_cloud.store import Store
from edgeveil_tools.cli import main
from edgeveil_tools.local.job import submitted

JOB = {
    "job": "wide",
    "data": {"source": "digits", "classes": 10, "input_shape": [64], "nominal_records": 100},
    "model": {"name": "mlp", "hidden": [2000]},
    "train": {"method": "sgd", "rounds": 1},
    "privacy": {"epsilon": 1, "accept_unproven": True},
    "round": {"deadline_s": 5},
}


@pytest.fixture
def files(tmp_path):
    """By profile: a job of 0.6 MB a model, in packets of 4 KiB, and its cloud and proxy."""

    def written(profile):
        def broker(port):
            return {"url": f"mqtt://127.0.0.1:{port}", "profile": profile}

        limits = {"limits": {"packet_bytes": 4096}}
        cloud = {"broker": broker(1), "proxy_key_file": "proxy.pub", **limits}
        proxy = {"edge_broker": broker(2), "cloud_broker": broker(1), **limits}
        proxy["cloud_key_file"] = "cloud.pub"
        paths = []
        for name, value in (("job", JOB), ("cloud", {"cloud": cloud}), ("proxy", {"proxy": proxy})):
            paths.append(tmp_path / f"{name}.yaml")
            paths[-1].write_text(yaml.safe_dump(value, sort_keys=False))
        return paths

    return written


def test_validate_names_the_jobs_line_and_the_broker(files, capsys):
    job, cloud, proxy = map(str, files("emqx_serverless"))
    assert main(["check", job]) == 0
    capsys.readouterr()
    for beside, broker in ((cloud, "cloud.broker"), (proxy, "proxy.edge_broker")):
        assert main(["check", job, beside]) == 2
        out = capsys.readouterr().out
        assert "round.deadline_s: a round needs" in out
        assert f"{broker} (emqx_serverless)" in out and "learn a smaller model" in out
    assert main(["check", *map(str, files("default"))]) == 0


@pytest.mark.parametrize("profile", ["default", "emqx_serverless"])
def test_a_cloud_refuses_a_job_that_its_broker_cannot_carry(files, profile):
    job, cloud, _ = files(profile)
    store = Store()
    host = CloudHost(store, None, limits_of(load_site(cloud)))
    control = Control(store, host, None, None)
    text = submitted(load_job(job)).decode()
    if profile == "default":
        assert control.submit(text)
    else:
        with pytest.raises(RefusedJobError, match=r"cloud.broker \(emqx_serverless\)") as caught:
            control.submit(text)
        assert caught.value.where == "round.deadline_s" and caught.value.fix
        assert store.jobs() == ()
    store.close()

"""The cloud keeps backbones by digest and sends a job with those that it names."""

import asyncio
import json

import aiohttp
import pytest

from edgeveil.errors import DataError
from edgeveil.jobs import load_job
from edgeveil.parts.features.onnx import MAX_BACKBONE_BYTES, sha256_hex
from edgeveil_cloud.http import make_app
from edgeveil_cloud.http_guard import Scope
from edgeveil_cloud.store import Store
from edgeveil_tools.local.job import submitted
from tests.kits.backbone_files import small_backbone
from tests.kits.cloud_control import idle_control

BACKBONE = small_backbone(side=2, features=3)
TOKEN = "t" * 43


def tokens():
    return {Scope.ADMIN: TOKEN}


YAML = """
job: frozen
data: {source: bench, classes: 3, input_shape: [4], nominal_records: 30}
features: [{name: onnx, file: backbone.onnx}, {name: identity}]
train: {method: fm, rounds: 2}
privacy: {epsilon: 4.0}
round: {min_batch: 3}
"""


@pytest.fixture
def store(tmp_path):
    return Store(f"sqlite:///{tmp_path / 'cloud.sqlite'}")


@pytest.fixture
def sent(tmp_path):
    (tmp_path / "backbone.onnx").write_bytes(BACKBONE)
    (tmp_path / "job.yaml").write_text(YAML)
    return submitted(load_job(tmp_path / "job.yaml")).decode()


def test_a_job_whose_backbone_is_not_here_is_not_queued(store, sent):
    with pytest.raises(DataError, match="not here") as caught:
        idle_control(store).submit(sent)
    assert "edgeveil job submit" in caught.value.fix
    store.put_backbone(BACKBONE)
    assert store.job(idle_control(store).submit(sent)).status == "queued"


def test_a_job_that_says_another_form_is_not_queued(store, sent):
    store.put_backbone(BACKBONE)
    with pytest.raises(DataError, match="another form"):
        idle_control(store).submit(sent.replace("output_dim: 3", "output_dim: 4"))
    assert store.jobs() == ()


def test_backbones_are_put_over_http_up_to_their_limit(store, sent):
    async def scenario():
        server = await make_app(store, idle_control(store), tokens).start()
        async with aiohttp.ClientSession(server.url) as session:

            async def ask(method, path, data, token=TOKEN):
                headers = {"Authorization": f"Bearer {token}"}
                async with session.request(method, path, data=data, headers=headers) as answer:
                    return answer.status, await answer.text()

            assert (await ask("PUT", "/backbones", BACKBONE, "x" * 43))[0] == 401
            assert (await ask("POST", "/jobs", sent.encode()))[0] == 409
            status, text = await ask("PUT", "/backbones", BACKBONE)
            assert (status, json.loads(text)) == (201, {"sha256": sha256_hex(BACKBONE)})
            status, text = await ask("PUT", "/backbones", bytes(MAX_BACKBONE_BYTES + 1))
            assert status == 409
            assert "smaller" in text
            assert (await ask("POST", "/jobs", sent.encode()))[0] == 201
        await server.stop()

    asyncio.run(scenario())

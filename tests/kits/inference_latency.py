"""Latency of a device's inference service for one record, over its socket."""

import asyncio
import json
import multiprocessing
import tempfile
import time
from pathlib import Path

import numpy as np

from edgeveil.config.edge import Inference
from edgeveil.parts.features.values import Identity, IdentityParameters
from edgeveil.parts.models.heads import bake, build_graph
from edgeveil.transport.listener import connect_unix
from edgeveil_edge.inference import InferenceService
from edgeveil_edge.releases import ReleaseStore

RECORD, CLASSES = 64, 10
START_S = ANSWER_S = 60.0


def digits_model():
    chance = np.random.default_rng(0)
    weights = {
        "centre": np.zeros(RECORD, np.float32),
        "radius": np.ones(1, np.float32),
        "weight": chance.normal(size=(RECORD, CLASSES)).astype(np.float32),
    }
    return bake(build_graph(Identity(IdentityParameters()), (RECORD,), CLASSES), weights)


def latencies_s(requests):
    """Return the seconds of each request, from the connection to the whole answer."""
    with tempfile.TemporaryDirectory() as folder:
        ReleaseStore(Path(folder) / "releases").install("digits", digits_model(), {})
        context = multiprocessing.get_context("spawn")
        ready, stop = context.Event(), context.Event()
        server = context.Process(target=_serve, args=(Path(folder), ready, stop))
        server.start()
        try:
            if not ready.wait(START_S):
                raise TimeoutError("the service did not start")
            return [_ask(Path(folder) / "predict.sock") for _ in range(requests)]
        finally:
            stop.set()
            server.join()


def _serve(folder, ready, stop):
    async def run():
        settings = Inference(socket=folder / "predict.sock")
        service = InferenceService(settings, ReleaseStore(folder / "releases"))
        await service.start()
        ready.set()
        await asyncio.to_thread(stop.wait)
        await service.stop()

    asyncio.run(run())


def _ask(path):
    content = json.dumps({"record": [0.5] * RECORD}).encode()
    head = f"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
    head += "Connection: close\r\n"
    begun_s = time.perf_counter()
    with connect_unix(path, ANSWER_S) as connection:
        connection.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + content)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    elapsed_s = time.perf_counter() - begun_s
    if b" 200 " not in answer.partition(b"\r\n")[0]:
        raise ValueError("the service refused the record")
    return elapsed_s

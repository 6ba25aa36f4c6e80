"""A whole fleet over the memory transport: real machines, real hosts, real encryption."""

from __future__ import annotations

from pathlib import Path

from edgeveil.jobs import Job
from edgeveil.sites.data import Partition
from edgeveil.sites.policy import Policy
from edgeveil.transport.memory import Faults, no_faults
from edgeveil_tools.local.simulate import MemoryFleet
from edgeveil_tools.site.site_plan import SitePlan

PACKET_BYTES = 16384


class Fleet(MemoryFleet):
    """`devices` boxes on digits, one proxy, one cloud, in virtual time."""

    def __init__(
        self,
        folder: Path,
        devices: int,
        *,
        faults: Faults = no_faults,
        policy: Policy | None = None,
        infer_only: int = 0,
        floor: int = 3,
        seed: int = 7,
        **options: object,
    ) -> None:
        plan = SitePlan(
            folder=folder,
            devices=devices,
            infer_only=infer_only,
            partition=Partition(kind="n_class", classes_per_device=2),
            policy=policy or Policy(),
            min_batch_floor=floor,
            seed=seed,
        )
        packet: dict[str, object] = {"packet_bytes": PACKET_BYTES, **options}
        super().__init__(plan, faults=faults, clock=lambda: self.net.now_s, **packet)  # type: ignore[arg-type]
        for box in self.boxes:
            box.site.__dict__["name"] = f"secret-{box.site.name}"

    def finish(self, job_id: str, limit_s: float = 3600.0) -> str:
        """Run until the job has ended or paused; its status."""
        self.net.run(lambda: self.settled(job_id), self.net.now_s + limit_s)
        return self.store.job(job_id).status

    def settled(self, job_id: str) -> bool:
        """Nothing more happens to the job by itself."""
        entry = self.store.job(job_id)
        return entry.ended or entry.status == "paused"


def small_job(**changes: object) -> Job:
    """A short job over digits."""
    plain = {
        "job": "small",
        "data": {
            "source": "digits",
            "classes": 10,
            "input_shape": (64,),
            "nominal_records": 150,
            "evaluation_share": 0.1,
        },
        "features": ({"name": "identity", "input_scale": 16.0, "shift": -0.3},),
        "train": {"method": "fm", "rounds": 3},
        "privacy": {"epsilon": 8.0, "delta": 1e-5},
        "round": {"deadline_s": 20.0, "min_batch": 3, "grace_s": 1.0},
        "encrypt": {"privacy_eval_type": "LAPLACE", "laplace_eval": {"laplace_eval_eps": 20.0}},
        "unsupervised": {"every_rounds": 2, "eval_type": "SILHOUETTE_SCORE"},
    }
    return Job.model_validate({**plain, **changes})

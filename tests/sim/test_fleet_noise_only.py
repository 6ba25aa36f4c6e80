"""A link test over a whole fleet: every upload counted, nothing spent, and an owner may refuse."""

from edgeveil.config.policy import Policy
from edgeveil.protocol.tensors import unpack_tensors
from tests.kits.fleet import Fleet, committed, small_job


def test_it_runs_to_its_end_at_no_price_and_needs_the_owner_s_word(tmp_path):
    fleet = Fleet(tmp_path, 6, policy=Policy(allowed_methods=("noise_only",)))
    fleet.devices[2].site.__dict__["policy"] = Policy()
    job = fleet.submit(
        small_job(
            train={"method": "noise_only", "rounds": 2, "values": 16_384, "package_values": 40_000},
            unsupervised={"every_rounds": 0},
        )
    )
    assert fleet.finish(job) == "completed"
    events = fleet.store.events_after(0, job)
    rounds = committed(fleet, job)
    assert [(r["uploads"], r["declined"]) for r in rounds] == [(5, 1), (5, 1)]
    printed = events[-1].data["privacy"]["training"]
    assert (printed["epsilon"], printed["status"]) == (0, "proven")
    assert all(box.ledger.spent().epsilon == 0 for box in fleet.devices)
    commit = fleet.store.last_commit(job)
    assert commit is not None
    state = unpack_tensors(commit.state)
    assert state["uploads"].tolist() == [10]
    assert abs(state["mean"][0]) < 0.02
    assert fleet.store.release(job) is not None

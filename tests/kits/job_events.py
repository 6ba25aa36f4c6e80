"""Events of a job as the cloud sends them, and the facts of its run."""

FACTS = {
    "job": "digits",
    "status": "completed",
    "reason": "",
    "broker": "mosquitto 2.0.11",
    "protocol": 5,
    "devices": 9,
    "infer_only": 0,
    "seconds": 12.5,
    "memory_peak_bytes": 3 << 20,
    "reference": [0.9] * 6,
    "bytes": {"cloud_to_proxy": 5000, "proxy_to_devices": 5000},
}


def committed(round, number, seq, uploads=18, **more):
    data = {
        "exchange": round,
        "phase": "train" if number else "centre",
        "number": number,
        "attempt": 1,
        "uploads": uploads,
        "declined": 2,
        "accuracy": 0.5 if number else None,
        "loss": 1.25 if number else None,
        "seconds": 0.5,
        "timeline": {"seal_s": 0.1, "broadcast_s": 0.1, "wait_s": 0.2, "absorb_s": 0.1},
        "bytes": {"cloud_out": 100, "cloud_in": 200},
        "epsilon": {"training": 0.001 * round, "inference": 0.0},
        "refused": {"not_finite": 1},
        **more,
    }
    return {"seq": seq, "time": 10.0 * seq, "type": "exchange_committed", "data": data}


def broadcast(label, seq, selected=20):
    data = {"kind": "round", "round": label, "selected": selected}
    return {"seq": seq, "time": 10.0 * seq - 1, "type": "broadcast", "data": data}


def course(rounds):
    found = []
    for round in range(1, rounds + 2):
        number = round - 1
        label = f"round {number}" if number else "centre"
        found.append(broadcast(label, 2 * round - 1))
        found.append(committed(round, number, 2 * round))
    return found

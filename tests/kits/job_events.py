"""Events of a job as the cloud tells them."""


def committed(exchange, number, seq, uploads=18, **more):
    """A commit: round `number`, or a preparatory exchange where that is 0."""
    data = {
        "exchange": exchange,
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
        "epsilon": {"training": 0.001 * exchange, "inference": 0.0},
        "refused": {"not_finite": 1},
        **more,
    }
    return {"seq": seq, "time": 10.0 * seq, "type": "exchange_committed", "data": data}


def broadcast(label, seq, selected=20):
    """A round that was sent."""
    data = {"kind": "round", "round": label, "selected": selected}
    return {"seq": seq, "time": 10.0 * seq - 1, "type": "broadcast", "data": data}


def course(rounds):
    """A job with one preparatory exchange and so many rounds, not ended."""
    found = []
    for exchange in range(1, rounds + 2):
        number = exchange - 1
        label = f"round {number}" if number else "centre"
        found.append(broadcast(label, 2 * exchange - 1))
        found.append(committed(exchange, number, 2 * exchange))
    return found

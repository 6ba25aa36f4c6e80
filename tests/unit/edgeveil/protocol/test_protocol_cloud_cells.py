"""Several cells at one cloud: a step ends once no cell is awaited, with what came."""

import protocol_kit as kit
from cloud_bench import batch, done, sealed, start, state

from edgeveil.protocol import cloud_job as cj
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol.cloud import CloudMachine
from edgeveil.protocol.transfer import describe

NORTH, SOUTH = "north", "south"
CELLS = (NORTH, SOUTH)
PROXIES = {cell: m.Signer("proxy", kit.signing_key(50 + n)) for n, cell in enumerate(CELLS)}
ANNOUNCE = cj.SealJob(kit.JOB, CELLS)
ROUND = cj.SealRound(kit.JOB, 1, 1)
ONCE = cj.StartJob(kit.JOB, 1, 1, rounds=1, retries=1)


def cells_cloud():
    keys = {cell: m.PeerKeys.pinned(proxy=one.key.public()) for cell, one in PROXIES.items()}
    return CloudMachine(kit.CLOUD, keys, cj.CloudSettings(packet_bytes=kit.PACKET_BYTES))


def hear(machine, cell, message):
    return machine.handle(fx.MessageReceived(fx.ProxyAddress(cell), message), 0.0)


def fire(machine, name, cell):
    return machine.handle(fx.Timer(cj.timer_name(name, kit.JOB, cell)), 0.0)


def seal(machine, task, cells=CELLS, **changes):
    """Sealed for these cells; of a round each has another package."""
    made = {}
    for cell in cells:
        _, data = sealed(task)
        data = data + (cell.encode() if isinstance(task, cj.SealRound) else b"")
        kind = {cj.SealJob: "job", cj.SealRelease: "release"}.get(type(task), "round")
        where = kit.at(task.round, task.attempt) if kind == "round" else kit.at(0, 1)
        made[cell] = cj.Broadcast(kit.manifest(data, where, kind=kind, **changes), data)
    manifests = {cell: one.manifest for cell, one in made.items()}
    return manifests, done(machine, task, cj.CellBroadcasts(made))


def hold(machine, cell, header):
    return hear(machine, cell, PROXIES[cell].note(m.Ack(header.blob.digest, "held")))


def spread(machine, task, **changes):
    found, out = seal(machine, task, **changes)
    for cell, header in found.items():
        out = hold(machine, cell, header)
    return out


def waiting(what=ONCE, **changes):
    """Both cells hold the first round's broadcast."""
    machine = cells_cloud()
    start(machine, what)
    spread(machine, ANNOUNCE)
    spread(machine, ROUND, **changes)
    assert state(machine) is cj.CloudState.WAITING
    return machine


def of_cell(cell):
    return batch(fill=cell[:1].encode())


def come(machine, cell):
    header, data = of_cell(cell)
    return hear(machine, cell, kit.offer(header, data, PROXIES[cell]))


def receivers(effects, kind):
    """The cells that are sent a header of this kind, or a note with such a body."""
    found = set()
    for one in kit.of(effects, fx.Send):
        told = kit.headers([one]) + kit.bodies([one], kind)
        if any(isinstance(body, kind) for body in told):
            found.add(one.to.cell)
    return found


def test_a_silent_cell_costs_its_own_devices_only():
    machine = waiting()
    come(machine, NORTH)
    out = fire(machine, "watchdog", SOUTH)
    assert kit.tasks(out) == [cj.Absorb({NORTH: of_cell(NORTH)[0]})]
    assert kit.reports(out)["cell_gone"]["cell"] == SOUTH
    late = come(machine, SOUTH)
    assert kit.tasks(late) == [] and kit.bodies(late, m.Ack) == []


def test_it_is_asked_again_once_it_was_heard_and_holds_the_job():
    machine = waiting(cj.StartJob(kit.JOB, 1, 1, rounds=3, retries=1))
    come(machine, NORTH)
    fire(machine, "watchdog", SOUTH)
    come(machine, SOUTH)  # it is there again
    commit = cj.RoundCommit(*kit.commit_of(kit.at(), [b"x"]))
    out = done(machine, cj.Absorb({NORTH: of_cell(NORTH)[0]}), commit)
    again, next_round = kit.tasks(out)
    assert again == cj.SealJob(kit.JOB, (SOUTH,))
    assert next_round == cj.SealRound(kit.JOB, 2, 1) and next_round.cells == (NORTH,)
    found, out = seal(machine, again, (SOUTH,))
    assert receivers(out, m.Manifest) == {SOUTH}
    hold(machine, SOUTH, found[SOUTH])
    assert machine.runs[kit.JOB].sealing.cells == CELLS


def test_a_quorum_of_all_closes_the_round_after_its_grace():
    machine = waiting(quorum=1)
    out = come(machine, NORTH)
    grace = [one for one in kit.of(out, fx.SetTimer) if one.name.startswith("enough")]
    assert [one.delay_s for one in grace] == [5.0]
    out = machine.handle(fx.Timer(grace[0].name), 0.0)
    assert kit.tasks(out) == [cj.Absorb({NORTH: of_cell(NORTH)[0]})]
    assert kit.reports(out)["cell_gone"]["cell"] == SOUTH


def tell_masks(machine, cell, of=None):
    question = machine.runs[kit.JOB].cells[of or cell].masks.question
    data = b"masks of " + cell.encode()
    header = m.MaskSums(kit.at(), question, describe(data, kit.PART_BYTES))
    return hear(machine, cell, kit.offer(header, data, PROXIES[cell]))


def test_the_sum_of_a_cell_that_gives_no_masks_is_left_out_and_none_answers_for_another():
    machine = waiting()
    for cell in CELLS:
        come(machine, cell)
    batches = {cell: of_cell(cell)[0] for cell in CELLS}
    asked = {cell: m.Unmask(kit.at(), one.blob.digest, b"\7") for cell, one in batches.items()}
    out = done(machine, cj.Absorb(batches), cj.AskUnmask(asked))
    assert receivers(out, m.Unmask) == set(CELLS)
    tell_masks(machine, NORTH)
    assert kit.tasks(tell_masks(machine, SOUTH, of=NORTH)) == []
    out = fire(machine, "watchdog", SOUTH)
    assert kit.tasks(out) == [cj.TakeMasks(kit.at(), {NORTH: b"masks of north"})]


def test_a_proxy_speaks_for_its_own_cell_alone():
    machine = waiting()
    header, data = of_cell(SOUTH)
    out = hear(machine, NORTH, kit.offer(header, data, PROXIES[SOUTH]))
    assert [one.reason for one in kit.of(out, fx.Refuse)] == ["forged"]
    assert machine.runs[kit.JOB].cells[NORTH].arrival.whole_batch is None

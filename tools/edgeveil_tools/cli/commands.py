"""Table of all commands of `edgeveil`, with arguments, examples and handlers."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from edgeveil_tools.cli.common import arg, row

GROUPS = {
    "ask": ("ask", "draft"),
    "learn": ("init", "check", "run", "report", "predict"),
    "parts of a job": ("methods", "backbone"),
    "submit and control jobs": ("job",),
    "run the processes": ("broker", "cloud", "proxy", "edge", "health"),
    "deploy a fleet": ("site", "deploy", "trust", "keys", "backup", "restore"),
    "privacy and audit": ("ledger", "log", "audit", "attack"),
    "test and measure": ("loadtest", "capacity", "reproduce"),
}
"""Commands by task in `edgeveil --help`; others are listed at the end."""


def _within(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"must be in {least}..{most}, got '{text[:20]}'")
        return int(text)

    return number


_PORT, _DAYS_LONG, _POSITIVE = _within(1, 65535), _within(1, 36500), _within(1, 1 << 31)


_CONFIG = arg("--config FILE", "site file", Path, required=True)
_OWN_CONFIG = arg("--config FILE", "site file", Path, default=argparse.SUPPRESS)
"""For a process with sub-commands: their default must not replace a value given before them."""
_PART_CONFIG = arg("--config FILE", "site file", Path, required=True, default=argparse.SUPPRESS)
_JOB = arg("job JOB", "job file", Path)
_ID = arg("id ID", "a job's id, see `job show`")
_CLOUD = (
    arg("--config FILE", "the cloud's site file, for address and token; configs/cloud.yaml", Path),
    arg("--cloud URL", "http://127.0.0.1:8701, https://HOST:8701 or unix:PATH (EDGEVEIL_CLOUD)"),
    arg("--token-file FILE", "one of http*.token in its state_dir (EDGEVEIL_TOKEN_FILE)", Path),
)
_YES_NO = argparse.BooleanOptionalAction
_REPEATED = {"action": "append", "default": []}
_TRACK = arg("--track WHERE", "also log to mlflow:URI or tensorboard:DIR", **_REPEATED)
_PASSPHRASE = [
    arg(
        "--passphrase-file FILE",
        "file with the passphrase in its first line; default: prompt",
        Path,
    ),
    arg("--no-passphrase", "do not encrypt the keys; for trials"),
]
_DIR = arg("dir DIR", "the site's folder", Path)
_ASKED = (
    ("mean", "mean of a number"),
    ("deviation", "standard deviation of a number"),
    ("quantiles", "deciles of a number"),
    ("count", "records, missing and clipped values, or records by category"),
    ("values", "frequent values that no list names"),
)
_SAMPLES = ("classification", "images", "anomaly")
_KINDS = ("job", "cloud", "proxy", "edge", "broker")
_ROLES = ("cloud-jobs", "cloud-releases", "proxy-rosters", "site")
_ROOT = arg("dir DIR", "the root's folder", Path)
_SIGNING = (
    _PASSPHRASE,
    arg("--days DAYS", "validity of the delegations, default 180", _DAYS_LONG, default=180),
    arg("--root-days DAYS", "validity of the root, default 1825", _DAYS_LONG, default=1825),
)
_NEW_ROOT = (
    arg("--keys N", "number of root keys, default 1", int, default=1),
    arg("--threshold T", "number of keys that must sign, default 1", int, default=1),
    *_SIGNING,
)

COMMANDS = (
    row(
        "init",
        "write a first job, with records to run it on",
        "setup.init_job:command",
        arg("kind KIND", choices=_SAMPLES, nargs="?", default=_SAMPLES[0]),
        arg("--out DIR", "default my-KIND, or my-FILE", Path),
        arg("--from FILE", "CSV, Parquet or pictures to draft a job from", Path, dest="records"),
        arg("--label COLUMN", "column of the label; default: a guess"),
        about="""Writes a commented job, records (CSV, or PNG for images) and a README to DIR.
        Existing files are kept. --from drafts a job from your own records: review its lists
        and ranges, because they may reveal a record.
        edgeveil init --from people.csv --label income --out people""",
    ),
    row(
        "ask",
        "ask a fleet for statistics of its records",
        "statistics.ask:command",
        arg("file FILE", "records for a simulated fleet; without one ask a cloud's", nargs="?"),
        *(arg(f"--{name} COLUMN", f"{what}; several: a,b", **_REPEATED) for name, what in _ASKED),
        arg(
            "--histogram COLUMN=BINS",
            "shares by value, 20 bins by default; several: a=10,b",
            **_REPEATED,
        ),
        arg("--table A,B", "counts by two columns", **_REPEATED),
        arg("--correlation A,B", "correlation of two numbers", **_REPEATED),
        arg("--where TEXT", "only records such as 'age >= 60 and sex = female'"),
        arg("--range COLUMN=LOW,HIGH", "public range of a number", **_REPEATED),
        arg("--category COLUMN=A,B", "public list of a text's values", **_REPEATED),
        arg("--epsilon E", "ε of all answers together, per record, default 1", float, default=1.0),
        arg("--delta D", "δ of all answers together, default 1e-6", float, default=1e-6),
        arg("--devices N", "devices that hold FILE, default 100, or least of a cloud", _POSITIVE),
        arg("--records N", "public number of records of a device", _POSITIVE),
        arg("--out DIR", "folder for result and report; default: a temporary one", Path),
        arg("--source NAME", "without FILE: data.name of the devices to ask"),
        *_CLOUD,
        about="""All questions together cost one ε; each answer has its ±, 95 % of the noise.
        Without a question it asks everything about every column of FILE. With FILE a fleet is
        simulated: answers are as exact as a real fleet's, and nothing is protected. Without FILE
        it submits the job to a running cloud and waits for the answers. A public range or list
        that is missing is read from FILE, and ε does not cover it.
        edgeveil ask people.csv --mean age --histogram pulse=20 --epsilon 0.5
        edgeveil ask --source people --records 300 --range age=0,100 --quantiles age""",
    ),
    row(
        "draft",
        "write a schema from a fleet's answers",
        "statistics.draft:command",
        arg("--from-statistics WHERE", "folder of a run, or a job's id at a cloud", required=True),
        arg("--label COLUMN", "column of the label", required=True),
        arg("--out FILE", "file for the block `data`; default: standard output", Path),
        *_CLOUD,
        about="""Writes the block `data` of a job: ranges from noised histograms, rounded outward,
        categories and values found, and class weights, each with its share of the ε that the
        answers have cost. The block costs nothing further and may be published.
        edgeveil draft --from-statistics out/census --label income""",
    ),
    row(
        "check",
        "check files or this machine; estimate accuracy and cost of a job",
        "cli.learning:check",
        arg("files FILE", "file to check; default: check this machine", Path, nargs="*"),
        arg("--schema", "print the JSON Schema of a kind of file", choices=_KINDS),
        arg("--estimate", "simulate jobs to estimate accuracy and cost"),
        arg("--devices N", "devices to simulate", int),
        arg("--seeds N", "simulations; default 3", _POSITIVE, default=3),
        arg("--show", "print whole jobs, with values of presets and defaults"),
        about="""Prints every problem of every file as `file:line key: what, fix`. A job is
        rehearsed on made-up records, within the limits of a given cloud.yaml; a device's site
        file is checked on the device, with its records as each given job reads them. Records
        are checked against each given job; without a job they are drafted as a `data` block.
        It also checks policies, fleet files, backbones, weights and bundles. Python code that
        a job names runs here with your rights: read it first. Exit code 2: error in a file, 4:
        in records, 1: on this machine. --estimate spends no budget.
        edgeveil check --schema job > job.schema.json
        edgeveil check edge.yaml job.yaml
        edgeveil check job.yaml --estimate --devices 200 --seeds 5""",
    ),
    row(
        "run",
        "run a whole job on this machine",
        "cli.learning:run",
        _JOB,
        arg("--out DIR", "folder for results; default out/JOB", Path),
        arg("--broker", "broker to start", choices=("auto", "amqtt", "mosquitto")),
        arg("--devices N", "number of devices", int),
        arg("--workers N", "processes that host the devices", int),
        arg("--seed N", "seed of the partition; in a simulation also of the noise", int),
        arg("--simulate", "run in memory; default: local_run.simulate of the job", action=_YES_NO),
        arg("--seeds N", "run once for each of N seeds, starting at --seed", int),
        arg("--sweep KEY=A,B", "run once for each of these values of a job key", **_REPEATED),
        arg("--ray HOST:PORT", "simulate on a Ray cluster; `local` starts one on this machine"),
        arg("--accept-unprotected", "run a job without proven privacy", default=None),
        arg("--data PATH", "file of records, or folder of pictures or of a published set", Path),
        arg(
            "--reference", "also train without noise; default: for a published set", action=_YES_NO
        ),
        _TRACK,
        arg("--record", "record everything the cloud sees, for edgeveil attack"),
        arg("--keep", "also keep keys, ledgers and stores"),
        arg("--force", "overwrite an earlier result in DIR"),
        about="""Starts two brokers, a cloud, a proxy and devices on this machine, runs the job over
        MQTT and writes result, events, model and report to DIR. --simulate runs the rounds in
        memory: no broker, no encryption, exactly repeatable. --seeds and --sweep run the job
        once for each seed and value, keep completed runs, and write table.json and
        comparison.html.
        edgeveil run job.yaml --simulate --seeds 3 --sweep privacy.epsilon=0.5,1,2""",
    ),
    row(
        "report",
        "redraw a run's page, or compare runs",
        "cli.learning:report",
        arg("folders DIR", "folder of a run, or of several", Path, nargs="+"),
        arg("--out FILE", "file of the page; default DIR/report.html or comparison.html", Path),
        about="""Redraws report.html of one run from the files in its DIR. For several runs it
        writes one page that compares them: accuracy by round, accuracy with both guarantees,
        and settings that differ. Runs that differ only in their seed form one row.
        edgeveil report out/fm out/dp_sgd --out comparison.html""",
    ),
    row(
        "predict",
        "use a released model on your own records",
        "cli.learning:predict",
        arg("model MODEL", "ONNX file, or a device's state folder", Path),
        arg("input FILE", "file of records", Path, nargs="?"),
        arg("--rollback", "return to the previous release"),
        arg("--personal", "use this box's own model of `edge personalise`"),
        about="""Prints label and probability of each record. For a device's state folder it uses
        the release in use. A model of a job with data.schema reads the same tables and pictures
        as the devices and prints class names; other models read arrays of numbers.""",
    ),
    row(
        "methods",
        "list the names that a job may use, with their privacy status",
        "methods:command",
        arg("names NAME", "a name, or a family of names; `check NAME`, `digest NAME`", nargs="*"),
        about="""Prints source, needs, disclosure and privacy status (proven, claimed or none) of
        each name. `check` tests each named part against the laws of its family, exit code 1
        if one is broken; `digest` prints the policy entry that allows a plug-in.
        edgeveil methods check krum""",
    ),
    row(
        "backbone",
        "train a public encoder, as a frozen backbone",
        "cli.learning:backbone",
        arg("what WHAT", choices=("digits",)),
        arg("--out FILE", "ONNX file to write; default: in the user's cache", Path),
        arg("--force", "train again and overwrite the file"),
        arg("--seed N", "default 0", int, default=0),
        about="""Trains an encoder on public images of digits (28 x 28) in some minutes. A job uses
        it by `file: digits`.""",
    ),
    row(
        "job",
        "submit, watch and end jobs, fetch models, control releases",
        about="""Controls the jobs of a cloud over HTTP.
        Over https, EDGEVEIL_CA_FILE names the authority of the cloud's certificate, and
        EDGEVEIL_CERT_FILE and EDGEVEIL_KEY_FILE your own certificate, which replaces a token.
        EDGEVEIL_INSECURE_HTTP=1 sends the token over http:// to another machine.""",
    ),
    row(
        "job submit",
        "queue a job; prints its id",
        "cli.jobs:submit",
        arg("file JOB", "job file", Path),
        arg("--watch", "follow the job to its end"),
        arg("--wait-s S", "seconds to wait for the cloud's start", float, default=0.0),
        *_CLOUD,
        about="""edgeveil job submit configs/jobs/quickstart.yaml --config site/cloud.yaml""",
    ),
    row(
        "job show",
        "list all jobs, or show or follow one",
        "cli.jobs:show_command",
        arg("id ID", "a job's id; default: list all jobs", nargs="?"),
        arg("--watch", "follow the job to its end"),
        _TRACK,
        *_CLOUD,
        about="""Shows status and release of a job: uploads, declined rounds, late devices and
        refused segments of repeated attempts and of a pause, and the devices' reports on the
        release. --watch --json prints one event per line and the job last.
        edgeveil job show quickstart-1a2b3c4d --watch --track mlflow:http://mlflow:5000""",
    ),
    row(
        "job resume",
        "resume a paused job",
        "cli.jobs:change",
        _ID,
        *_CLOUD,
        about="Resumes a paused job at its round. `job show` prints why it paused.",
    ),
    row("job cancel", "cancel a job that has not ended", "cli.jobs:change", _ID, *_CLOUD),
    row(
        "job fetch",
        "download a completed job's model",
        "cli.jobs:fetch",
        _ID,
        arg("--out FILE", "FILE.onnx or FILE.safetensors; default ID.onnx", Path),
        *_CLOUD,
        about="Downloads the model as ONNX, for any ONNX runtime, or its weights as .safetensors.",
    ),
    row(
        "job release",
        "promote or withdraw a job's release",
        "cli.jobs:change",
        _ID,
        arg("change", choices=("promote", "withdraw")),
        *_CLOUD,
        about="""promote: send the release to all devices now, without waiting for its canary.
        withdraw: return all devices to the previous release.""",
    ),
    row(
        "broker",
        "run an MQTT broker",
        "cli.parties:broker",
        _CONFIG,
        about="Runs mosquitto if it is installed, otherwise the embedded amqtt, until Ctrl-C.",
    ),
    row(
        "cloud",
        "run the cloud",
        "cli.parties:cloud",
        _CONFIG,
        arg("--accept-registry", "accept the next roster, from any registry"),
        about="""Runs jobs until Ctrl-C. Submit them with `edgeveil job submit`. --accept-registry
        is for a site without a root whose proxy has rebuilt its registry: first check that it
        lists no revoked device, afterwards resume the paused jobs.""",
    ),
    row(
        "proxy",
        "run the proxy, or manage its devices",
        "cli.parties:proxy",
        _OWN_CONFIG,
        about="Without a sub-command: runs the proxy until Ctrl-C.",
    ),
    row(
        "proxy admit",
        "admit devices by enrolment files or one-time claims",
        "cli.parties:admit",
        _PART_CONFIG,
        arg("names FILE|NAME", "enrolment file, or name of a waiting claim", nargs="+"),
        arg("--note TEXT", "note on these devices", default=""),
        arg("--again", "also admit revoked devices"),
        arg("--claim", "create claims for these names and replace unused ones"),
        arg("--valid-h HOURS", "validity of an unused claim, default 72", float, default=72.0),
        arg("--out FILE", "file for `name,claim` lines (0600); default: standard output", Path),
        about="""Admits devices, also while the proxy runs. A claim is for one device without an
        enrolment: copy it to claim.claim_file of the device's site file. At its first start the
        device is admitted under the claim's name, or waits until you admit that name.
        edgeveil proxy admit --config proxy.yaml --claim ward-7 ward-8 --out claims.csv""",
    ),
    row(
        "proxy devices",
        "list the registry: its lineage, admitted devices and claims",
        "cli.parties:devices",
        _PART_CONFIG,
        arg("--all", "also list revoked devices"),
        about="""Lists the registry and, if the proxy runs, devices whose messages it refused. The
        lineage distinguishes this registry from a rebuilt one (`edgeveil trust rotate DIR
        registry LINEAGE`).""",
    ),
    row(
        "proxy revoke",
        "revoke devices, or end unused claims",
        "cli.parties:revoke",
        _PART_CONFIG,
        arg("ids ID|NAME", "device id, or a claim's name", nargs="+"),
    ),
    row(
        "edge",
        "run a device, or control a running one",
        "cli.parties:edge",
        arg("--config FILE", "site file, or several", Path, nargs="+", action="extend"),
        about="""Without a sub-command: runs a device until Ctrl-C. Several site files run several
        devices in one process, for demonstrations.""",
    ),
    row(
        "edge status",
        "show the status of the running device",
        "cli.parties:control",
        _PART_CONFIG,
        arg("--page", "print a one-time address of its page"),
        about="""With --page, if the site file has `page`, prints an address that logs a browser on
        this box in, once within a minute; from another machine forward the port with ssh -L.""",
    ),
    row(
        "edge pause",
        "pause or resume the running device",
        "cli.parties:control",
        _PART_CONFIG,
        arg("--end", "end the pause, at the next change of presence"),
        about="""The device declines new rounds at once, sends an answer that is already computed
        and disconnects at its next change of presence. The pause survives restarts.""",
    ),
    row(
        "edge personalise",
        "train this box's own model from the release in use",
        "cli.parties:personalise",
        _PART_CONFIG,
        about="""Trains the release's last layer on this box's training records, without noise, and
        compares both models on its evaluation records. The result stays in the state folder.
        edgeveil predict --personal site/state/edge-1 records.npz""",
    ),
    row(
        "health",
        "check whether a process works",
        "probe:command",
        _CONFIG,
        arg("--live", "report only problems that a restart would fix"),
        about="""Checks that the process responds, its links are up and its state folder is
        writable. For a liveness probe use --live.""",
    ),
    row(
        "site",
        "plan a fleet, and make a bundle for each party",
        about="""fleet.yaml in the site's folder describes a fleet; `apply` makes a bundle for each
        party with only its own files. Apply again after every change of fleet.yaml: owners'
        policies, ledgers and keys are kept.
        edgeveil site init clinics --host broker.example.org --devices 20
        edgeveil site apply clinics
        edgeveil site install clinics/bundles/box-0001 /var/lib/edgeveil/box-0001""",
    ),
    row(
        "site init",
        "write a first fleet file",
        "cli.fleet:init",
        _DIR,
        arg("--host NAME", "public name of the brokers", default="127.0.0.1"),
        arg("--devices N", "number of devices, default 3", int, default=3),
        arg("--local", "make a site on this machine, for trials"),
        arg("--tls", "with --local: encrypt its links"),
        arg("--cells NAME,NAME", "cells, each with its own proxy", default=""),
        about="""edgeveil site init clinics --host broker.example.org --devices 20""",
    ),
    row(
        "site apply",
        "make a bundle for each party of the fleet file",
        "cli.fleet:apply",
        _DIR,
        arg("--dry-run", "print changes without writing"),
        _PASSPHRASE,
    ),
    row(
        "site revoke",
        "revoke a device permanently, and apply",
        "cli.fleet:revoke",
        _DIR,
        arg("name NAME", "name or id of the device"),
        _PASSPHRASE,
        about="""Invalidates the device's certificate or account and removes it from the proxy, once
        the new bundles of edge broker and proxy are installed. Its record is kept.""",
    ),
    row(
        "site rotate",
        "replace a domain's certificate authority, and apply",
        "cli.fleet:rotate",
        _DIR,
        arg("what WHAT", choices=("edge-authority", "cloud-authority", "claims-authority")),
        arg("--finish", "second step: drop the old authority"),
        arg("--cell CELL", "cell that has its own broker or claims", default=""),
        _PASSPHRASE,
        about="""First step: both authorities are valid and clients' next bundles have certificates
        of the new one; install the bundles, the brokers' first. Second step: --finish. Devices
        enrolled by a claim get a certificate of the new authority within a week.""",
    ),
    row("site status", "list all parties and their certificates", "cli.fleet:status", _DIR),
    row(
        "site install",
        "install a bundle on this machine",
        "cli.fleet:install",
        arg("bundle BUNDLE", "folder of the bundle", Path),
        arg("to FOLDER", "folder to install to", Path),
        arg("--site FINGERPRINT", "expected site key, for a first installation"),
        about="""Checks the whole bundle before writing a file. Never overwrites keys, the ledger
        or the owner's policy.
        edgeveil site install box-0001 /var/lib/edgeveil/box-0001 --site 1a2b3c4d5e6f7081""",
    ),
    row(
        "deploy",
        "write service files for installed bundles",
        "cli.fleet:deploy",
        arg("target TARGET", choices=("systemd", "compose", "kubernetes", "containers")),
        arg("bundles BUNDLE", "folder of an installed bundle", Path, nargs="*"),
        arg("--out DIR", "folder for the files", Path, required=True),
        arg("--tag TAG", "tag of the images; default: the version of edgeveil", default=""),
        about="""systemd: hardened units and a daily check. compose: services, read-only except for
        their state. kubernetes: a kustomization under the restricted profile. containers: the
        Containerfile of both. systemd and containers take no bundles.
        edgeveil deploy compose clinics/bundles/* --out clinics/bundles""",
    ),
    row(
        "trust",
        "manage the offline root, which certifies cloud and proxy",
        about="""The root's keys are kept on an offline machine. They sign the keys of cloud and
        proxy, with an expiry. Every party has trust.json; after a change copy it to cloud and
        proxy, which send it to the devices.
        edgeveil trust rotate root cloud-jobs cloud-next.pub""",
    ),
    row(
        "trust init",
        "make a root and its first delegations",
        "cli.trust:init",
        _ROOT,
        arg("--cloud-jobs KEY.pub", "key that signs jobs", Path, required=True),
        arg("--cloud-releases KEY.pub", "key that signs releases", Path, required=True),
        arg("--proxy-rosters KEY.pub", "key that signs rosters", Path, required=True),
        arg(
            "--site KEY.pub", "key that signs moves of devices: site.pub of the site's folder", Path
        ),
        *_NEW_ROOT,
        about="""edgeveil trust init root --keys 3 --threshold 2 --cloud-jobs cloud.pub \\
            --cloud-releases releases.pub --proxy-rosters proxy.pub""",
    ),
    row(
        "trust show",
        "show the trusted keys and their expiry",
        "cli.trust:show",
        arg("dir DIR", "a root's folder, or a trust.json", Path),
    ),
    row(
        "trust rotate",
        "replace a key, a registry or the root's own keys",
        "cli.trust:rotate",
        _ROOT,
        arg("what WHAT", choices=(*_ROLES, "registry", "root")),
        arg("value VALUE", "KEY.pub, none, or a registry's lineage", nargs="?"),
        arg("--cell NAME", "cell; default: the unnamed one", default=""),
        arg("--without FINGERPRINT", "lost key to remove from the root"),
        *_NEW_ROOT,
        about="""  cloud-jobs, cloud-releases, proxy-rosters, site   KEY.pub replaces the role's
                             key, which becomes invalid; its sequence numbers restart.
                             `edgeveil keys --next` makes the new key at its party.
                             `none` revokes the key before there is a new one
          registry           the lineage of a rebuilt registry, from `proxy devices`
          root               new root keys; --without removes a lost one, signed by
                             a threshold of the remaining keys
        edgeveil trust rotate root cloud-jobs cloud-next.pub
        edgeveil trust rotate root registry 5f0c…""",
    ),
    row(
        "trust sign",
        "sign pending changes with this folder's keys, or renew",
        "cli.trust:sign",
        _ROOT,
        arg("--renew", "extend the validity of root and delegations"),
        *_SIGNING,
        about="""Prints the changes, then signs them. If the keys are on several machines, copy the
        folder without keys/ to each and sign there.""",
    ),
    row(
        "keys",
        "make a party's keys, tokens or enrolment",
        "cli.parties:keys",
        _CONFIG,
        arg("--next", "make the next keys, or the next token"),
        arg("--token", "make a token of the cloud", choices=("read", "submit", "admin")),
        arg("--out FILE", "file for a device's enrolment; default: standard output", Path),
        about="""Cloud or proxy: prints the files of its public keys for the root; --next makes the
        next keys, valid once the root names them (`edgeveil trust rotate`).
        Cloud: --token makes a token. read: jobs, status, metrics; submit: also submit, cancel,
        resume, fetch; admin: everything. With --next the old token is refused at once.
        Device: prints the enrolment; give it to the proxy's operator in a way that cannot be
        forged. --next, with the device stopped, makes a new sealing key; identity, ledger and
        admission are kept.
        edgeveil keys --config configs/edge.yaml --out enrolment.json""",
    ),
    row(
        "backup",
        "archive the state of a cloud, proxy or device",
        "cli.parties:backup",
        _CONFIG,
        arg("--out ARCHIVE", "file to write", Path, required=True),
        about="""Archives the state folder; the process may be running. The archive contains secret
        keys: protect it like them. It excludes a store on PostgreSQL: use pg_dump.
        edgeveil backup --config edge.yaml --out box-0001.backup""",
    ),
    row(
        "restore",
        "restore a state folder from an archive",
        "cli.parties:restore",
        _CONFIG,
        arg("--from ARCHIVE", "archive of edgeveil backup", Path, dest="archive", required=True),
        arg("--replace", "replace the existing state, kept as …-before-restore-N"),
        [
            arg("--nothing-since", "without a ledger: no answer since the backup"),
            arg("--ask-proxy", "without a ledger: get the answers since from the proxy"),
        ],
        about="""Stop the process first. An existing ledger is never replaced by an older one.
        Without a ledger --ask-proxy counts as spent all answers that the proxy received since
        the backup; if the proxy is another one, --nothing-since confirms that there were none.
        A proxy's registry gets a new lineage (`edgeveil trust rotate DIR registry LINEAGE`).
        edgeveil restore --config edge.yaml --from box-0001.backup --ask-proxy""",
    ),
    row(
        "ledger",
        "show a device's spent budget, and verify its ledger",
        "cli.ledger:show",
        arg("place PLACE", "edge site file, or a device's state folder", Path),
        arg(
            "--export FORM",
            "print the events that count as JSON for the library dp-accounting",
            choices=("dp-accounting",),
        ),
        about="""Verifies the ledger and lists releases, prices and, with a site file, the remaining
        budget. Exit code 5: the ledger was altered. The device may be running.""",
    ),
    row(
        "log",
        "list administrators' actions, verifying each line",
        "cli.parties:log",
        arg("place PLACE", "site file of a cloud or proxy, a site's folder or the root's", Path),
        arg("--key FINGERPRINT", "fingerprint of a site's key, as printed by apply"),
        about="""Lines are signed, chained and written before each change; a changed, removed or
        moved line is reported. They contain no secrets and no names of devices.
        edgeveil log clinics --key 1a2b3c4d5e6f7081""",
    ),
)

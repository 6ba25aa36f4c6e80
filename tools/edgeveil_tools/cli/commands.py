"""Table of all commands of `edgeveil`, with arguments, examples and handlers."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from edgeveil_tools.cli.common import arg, row

GROUPS = {
    "learn": ("init", "check", "run", "report", "predict"),
    "what a job may name": ("methods", "backbone"),
    "submit and steer jobs": ("job",),
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
_TRACK = arg("--track WHERE", "log to mlflow:URI or tensorboard:DIR too", **_REPEATED)
_PASSPHRASE = [
    arg("--passphrase-file FILE", "first line is the passphrase; else you are asked", Path),
    arg("--no-passphrase", "the keys are not encrypted; for trials"),
]
_DIR = arg("dir DIR", "the site's folder", Path)
_SAMPLES = ("classification", "images", "anomaly")
_KINDS = ("job", "cloud", "proxy", "edge", "broker")
_ROLES = ("cloud-jobs", "cloud-releases", "proxy-rosters", "site")
_ROOT = arg("dir DIR", "the root's folder", Path)
_SIGNING = (
    _PASSPHRASE,
    arg("--days DAYS", "the delegations expire after so many; 180", _DAYS_LONG, default=180),
    arg("--root-days DAYS", "the root expires after; 1825", _DAYS_LONG, default=1825),
)
_NEW_ROOT = (
    arg("--keys N", "of the root, default 1", int, default=1),
    arg("--threshold T", "so many of them must sign, default 1", int, default=1),
    *_SIGNING,
)

COMMANDS = (
    row(
        "init",
        "write a job to begin with, and records to play it on",
        "setup.init_job:command",
        arg("kind KIND", choices=_SAMPLES, nargs="?", default=_SAMPLES[0]),
        arg("--out DIR", "default my-KIND, or my-FILE", Path),
        arg("--from FILE", "CSV, Parquet or pictures to draft it from", Path, dest="records"),
        arg("--label COLUMN", "its label's column; default: a guess"),
        about="""Writes a commented job, records (CSV, or PNG for images) and a README to DIR.
        Nothing is written over. --from drafts a job from your own records: judge its lists and
        ranges, which may tell of a record.
        edgeveil init --from people.csv --label income --out people""",
    ),
    row(
        "check",
        "check files, or this machine; estimate what a job comes to",
        "cli.learning:check",
        arg("files FILE", "without one: what this machine has and lacks", Path, nargs="*"),
        arg("--schema", "print the JSON Schema of a kind of file", choices=_KINDS),
        arg("--estimate", "simulate jobs: accuracy and cost"),
        arg("--devices N", "of the fleet", int),
        arg("--seeds N", "simulations; default 3", _POSITIVE, default=3),
        arg("--show", "print jobs whole, with what presets and defaults give"),
        about="""Prints every problem of every file as `file:line key: what, fix`. A job is played
        on made-up records, with cloud.yaml beside it within its limits; a device's site file,
        on the device, with its records as each job beside it reads them; records against
        each job beside them, alone they are drafted as a `data` block. Also policies,
        plans, backbones, weights and bundles. Python that a job names is run here, with
        your rights: read it before. Exit code 2: a file is wrong, 4: records are, 1: this
        machine is. --estimate spends nothing.
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
        arg("--devices N", "devices to play", int),
        arg("--workers N", "processes that host them", int),
        arg("--seed N", "of the dealing of records; simulated: of the noise", int),
        arg("--simulate", "play in memory; default: as the job says", action=_YES_NO),
        arg("--seeds N", "run with N seeds from that one on", int),
        arg("--sweep KEY=A,B", "run with each of these values of a job's key", **_REPEATED),
        arg("--ray HOST:PORT", "simulate on a Ray cluster, or with `local` on one started here"),
        arg("--accept-unprotected", "run a job without proven privacy", default=None),
        arg("--data PATH", "file of records, folder of pictures, or of a published set", Path),
        arg("--reference", "also without noise; default: for a published set", action=_YES_NO),
        _TRACK,
        arg("--record", "keep what the cloud sees, for edgeveil attack"),
        arg("--keep", "keep keys, ledgers and stores too"),
        arg("--force", "write over a result that DIR holds"),
        about="""Starts two brokers, a cloud, a proxy and devices on this machine, runs the job over
        MQTT and writes result, events, model and report to DIR. With --simulate its rounds
        are played in memory: no broker, no encryption, and a run repeats exactly. With
        --seeds or --sweep it runs once for each seed and value, and writes table.json and
        comparison.html; runs that have completed are kept.
        edgeveil run job.yaml --simulate --seeds 3 --sweep privacy.epsilon=0.5,1,2""",
    ),
    row(
        "report",
        "draw a run's page again, or compare runs",
        "cli.learning:report",
        arg("folders DIR", "folder of a run, or of such folders", Path, nargs="+"),
        arg("--out FILE", "the page; default DIR/report.html, of several comparison.html", Path),
        about="""Writes report.html of one run again from the files in its DIR. Of several it writes
        one page that compares them: accuracy by round, accuracy beside both guarantees, and
        the settings that differ. Runs that differ in their seed alone are one row.
        edgeveil report out/fm out/dp_sgd --out comparison.html""",
    ),
    row(
        "predict",
        "use a released model on your own records",
        "cli.learning:predict",
        arg("model MODEL", "", Path),
        arg("input FILE", "of records", Path, nargs="?"),
        arg("--rollback", "put the release before in use"),
        arg("--personal", "use what `edge personalise` made of the release on this box"),
        about="""Prints label and probability of each record. MODEL is an ONNX file or a device's
        state folder, whose release in use is then taken. A model of a job with data.schema
        reads tables and pictures as its devices do and prints names; others take numbers.""",
    ),
    row(
        "methods",
        "list the names that a job may use, with their privacy status",
        "methods:command",
        arg("names NAME", "a name, or a family of names; `check NAME`, `digest NAME`", nargs="*"),
        about="""Of each name its source, needs, what it reveals, and whether its guarantee is
        proven, claimed or none. `check` plays the laws of its family on each named part, exit
        code 1 where one is broken; `digest` prints what lets a device import a plug-in.
        edgeveil methods check krum""",
    ),
    row(
        "backbone",
        "train a public encoder, as a frozen backbone",
        "cli.learning:backbone",
        arg("what WHAT", choices=("digits",)),
        arg("--out FILE", "the ONNX file; default: the user's cache", Path),
        arg("--force", "train again, write over the file"),
        arg("--seed N", "default 0", int, default=0),
        about="""It learns from public images of digits (28 x 28) alone, for some minutes. Jobs
         name it `file: digits`.""",
    ),
    row(
        "job",
        "submit, watch and end jobs, fetch models, steer releases",
        about="""Steers the jobs of a cloud over its HTTP control.
        Over https, EDGEVEIL_CA_FILE names the authorities that vouch for the cloud's certificate,
        EDGEVEIL_CERT_FILE and EDGEVEIL_KEY_FILE a certificate of your own in place of a token.
        EDGEVEIL_INSECURE_HTTP=1 sends the token over http:// to another machine.""",
    ),
    row(
        "job submit",
        "queue a job; prints its id",
        "cli.jobs:submit",
        arg("file JOB", "job file", Path),
        arg("--watch", "follow it until it has ended"),
        arg("--wait-s S", "wait so long for the cloud's start", float, default=0.0),
        *_CLOUD,
        about="""edgeveil job submit configs/jobs/quickstart.yaml --config site/cloud.yaml""",
    ),
    row(
        "job show",
        "list all jobs; show one, its release and what failed attempts lacked; follow it",
        "cli.jobs:show_command",
        arg("id ID", "a job's id; without one all jobs are listed", nargs="?"),
        arg("--watch", "follow it until it has ended"),
        _TRACK,
        *_CLOUD,
        about="""Of repeated attempts and of a pause the counts of uploads, declines, late devices
        and segments that did not count; of its release the counts of the devices' reports.
        With --watch --json one event a line, the object last.
        edgeveil job show quickstart-1a2b3c4d --watch --track mlflow:http://mlflow:5000""",
    ),
    row(
        "job resume",
        "let a paused job go on",
        "cli.jobs:change",
        _ID,
        *_CLOUD,
        about="`job show` says why it paused. It goes on at its round.",
    ),
    row("job cancel", "cancel a job that has not ended", "cli.jobs:change", _ID, *_CLOUD),
    row(
        "job fetch",
        "download a completed job's model",
        "cli.jobs:fetch",
        _ID,
        arg("--out FILE", "FILE.onnx or FILE.safetensors; default ID.onnx", Path),
        *_CLOUD,
        about="As ONNX for every ONNX runtime, or as .safetensors, the weights alone.",
    ),
    row(
        "job release",
        "promote or withdraw a job's release",
        "cli.jobs:change",
        _ID,
        arg("change", choices=("promote", "withdraw")),
        *_CLOUD,
        about="""promote: to all devices now, whatever its canary says. withdraw: all devices go
        back to the release before this one.""",
    ),
    row(
        "broker",
        "run an MQTT broker",
        "cli.parties:broker",
        _CONFIG,
        about="Runs mosquitto where it is installed, else the embedded amqtt, until Ctrl-C.",
    ),
    row(
        "cloud",
        "run the cloud",
        "cli.parties:cloud",
        _CONFIG,
        arg("--accept-registry", "believe the next roster, of whatever registry it is"),
        about="""Runs jobs until Ctrl-C. Submit them with `edgeveil job submit`. --accept-registry
        is for a site without a root, whose proxy has rebuilt its registry: see first that no
        revoked device is in it. Then resume the paused jobs.""",
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
        arg("names FILE|NAME", "enrolment file, or a box that waits with its claim", nargs="+"),
        arg("--note TEXT", "your own words on these devices", default=""),
        arg("--again", "also devices that were revoked before"),
        arg("--claim", "make claims for these names; an unused one of the name ends"),
        arg("--valid-h HOURS", "after which an unused claim ends, default 72", float, default=72.0),
        arg("--out FILE", "claims as `name,claim` lines, mode 0600, not to standard output", Path),
        about="""A running proxy sees them within a second or two. A claim is handed to one box that
        nobody has prepared, in the file that claim.claim_file of its site file names: at its
        first start it is admitted under the claim's name, or waits for you to admit that.
        edgeveil proxy admit --config proxy.yaml --claim ward-7 ward-8 --out claims.csv""",
    ),
    row(
        "proxy devices",
        "list the registry: its lineage, admitted devices and claims",
        "cli.parties:devices",
        _PART_CONFIG,
        arg("--all", "revoked devices too"),
        about="""Where the proxy runs, also whose messages it refused or drops. The lineage tells
        this registry from one that was rebuilt (`edgeveil trust rotate DIR registry
        LINEAGE`).""",
    ),
    row(
        "proxy revoke",
        "take devices out, or end unused claims",
        "cli.parties:revoke",
        _PART_CONFIG,
        arg("ids ID|NAME", "device id, or a claim's name", nargs="+"),
    ),
    row(
        "edge",
        "run a device, or steer a running one",
        "cli.parties:edge",
        arg("--config FILE", "site file, or several", Path, nargs="+", action="extend"),
        about="""Without a sub-command: runs a device until Ctrl-C. Several site files make several
        devices in one process, for demonstrations.""",
    ),
    row(
        "edge status",
        "show how the running device stands",
        "cli.parties:control",
        _PART_CONFIG,
        arg("--page", "print an address that opens its page, and no more"),
        about="""The address of --page logs a browser on this box in, once and within a minute,
        where the site file has `page`; from another machine forward the port with ssh -L.""",
    ),
    row(
        "edge pause",
        "have the running device decline rounds, or take part again",
        "cli.parties:control",
        _PART_CONFIG,
        arg("--end", "take part again, from its next change of presence"),
        about="""Rounds are declined at once, and the device goes at its next change of presence; an
        answer that is under way still leaves. Holds over restarts, until --end.""",
    ),
    row(
        "edge personalise",
        "learn this box's own model from the release in use",
        "cli.parties:personalise",
        _PART_CONFIG,
        about="""Trains the release's last layer on this box's training records, without noise, and
        compares both on its evaluation records. Model and figures stay in the state folder.
        edgeveil predict --personal site/state/edge-1 records.npz""",
    ),
    row(
        "health",
        "say whether a process does its work, for health checks",
        "probe:command",
        _CONFIG,
        arg("--live", "whether it turns, so that a new start would mend nothing"),
        about="""Asks the process beside it whether it turns, its links are up and its state folder
        takes what it writes. For a liveness probe --live.""",
    ),
    row(
        "site",
        "plan a fleet, and make a bundle for each party",
        about="""One folder plans a fleet: fleet.yaml says what there is, and each party gets a
        bundle with its own files and nobody else's. Apply again after every change of the
        plan: owners' policies, ledgers and keys stay as they are.
        edgeveil site init clinics --host broker.example.org --devices 20
        edgeveil site apply clinics
        edgeveil site install clinics/bundles/box-0001 /var/lib/edgeveil/box-0001""",
    ),
    row(
        "site init",
        "write a plan to begin with",
        "cli.fleet:init",
        _DIR,
        arg("--host NAME", "of the brokers, public", default="127.0.0.1"),
        arg("--devices N", "default 3", int, default=3),
        arg("--local", "a site on this machine for trials: site files, to be started by hand"),
        arg("--tls", "with --local: its links are encrypted"),
        arg("--cells NAME,NAME", "each with a proxy of its own", default=""),
        about="""edgeveil site init clinics --host broker.example.org --devices 20""",
    ),
    row(
        "site apply",
        "make the bundles that the plan asks for",
        "cli.fleet:apply",
        _DIR,
        arg("--dry-run", "print what would change, and write nothing"),
        _PASSPHRASE,
    ),
    row(
        "site revoke",
        "take a device out for good, and apply",
        "cli.fleet:revoke",
        _DIR,
        arg("name NAME", "its name, or its id"),
        _PASSPHRASE,
        about="""Its certificate or account counts no more, and the proxy drops it: hand the bundles
        of the edge broker and the proxy over. What the record knows of it stays.""",
    ),
    row(
        "site rotate",
        "replace a domain's certificate authority, and apply",
        "cli.fleet:rotate",
        _DIR,
        arg("what WHAT", choices=("edge-authority", "cloud-authority", "claims-authority")),
        arg("--finish", "the second step"),
        arg("--cell CELL", "of this cell's own broker or claims", default=""),
        _PASSPHRASE,
        about="""In two steps: from the first on both authorities count, and every client's next
        bundle has a certificate of the new one. Once all are installed, the brokers' first,
        --finish drops the one before. Boxes that came with a claim take up a certificate of
        the new claims-authority within a week.""",
    ),
    row("site status", "list all parties, and what needs doing", "cli.fleet:status", _DIR),
    row(
        "site install",
        "put a bundle in its place on this machine",
        "cli.fleet:install",
        arg("bundle BUNDLE", "", Path),
        arg("to FOLDER", "", Path),
        arg("--site FINGERPRINT", "of the site's key, for the first time"),
        about="""All of the bundle is checked before the first file is written. What the party has
        made or changed since (keys, ledger, the owner's policy) is never written over.
        edgeveil site install box-0001 /var/lib/edgeveil/box-0001 --site 1a2b3c4d5e6f7081""",
    ),
    row(
        "deploy",
        "write what runs installed bundles as services",
        "cli.fleet:deploy",
        arg("target TARGET", choices=("systemd", "compose", "kubernetes", "containers")),
        arg("bundles BUNDLE", "", Path, nargs="*"),
        arg("--out DIR", "", Path, required=True),
        arg("--tag TAG", "of the images, default the version of edgeveil", default=""),
        about="""systemd: hardened units and a daily check. compose: services, read-only but for
        their state. kubernetes: a kustomization under the restricted profile. containers: the
        file that the images of both are built from. Units and this file take no bundles.
        edgeveil deploy compose clinics/bundles/* --out clinics/bundles""",
    ),
    row(
        "trust",
        "keep the offline root: who may speak for cloud and proxy",
        about="""The keys of the root lie on a machine that is not connected. They sign which keys
        speak for the cloud and the proxy, and until when. Every party is handed trust.json;
        after a change, hand it to cloud and proxy: devices get it from them.
        edgeveil trust rotate root cloud-jobs cloud-next.pub""",
    ),
    row(
        "trust init",
        "make a root and its first delegations",
        "cli.trust:init",
        _ROOT,
        arg("--cloud-jobs KEY.pub", "", Path, required=True),
        arg("--cloud-releases KEY.pub", "", Path, required=True),
        arg("--proxy-rosters KEY.pub", "", Path, required=True),
        arg("--site KEY.pub", "who moves devices: site.pub of edgeveil site", Path),
        *_NEW_ROOT,
        about="""edgeveil trust init root --keys 3 --threshold 2 --cloud-jobs cloud.pub \\
            --cloud-releases releases.pub --proxy-rosters proxy.pub""",
    ),
    row(
        "trust show",
        "say who is trusted, and until when",
        "cli.trust:show",
        arg("dir DIR", "a root's folder, or a trust.json", Path),
    ),
    row(
        "trust rotate",
        "replace a key, a registry or the root's own keys; name a cell",
        "cli.trust:rotate",
        _ROOT,
        arg("what WHAT", choices=(*_ROLES, "registry", "root")),
        arg("value VALUE", "KEY.pub, none, or a registry's lineage", nargs="?"),
        arg("--cell NAME", "of this cell; else of the unnamed one", default=""),
        arg("--without FINGERPRINT", "of the root: leave a lost key out"),
        *_NEW_ROOT,
        about="""  cloud-jobs, cloud-releases, proxy-rosters, site   KEY.pub in place of the role's
                             key, whose words count no more: sequence numbers begin anew.
                             `edgeveil keys --next` makes the next key where it stays.
                             `none` at once, before there is one: nobody speaks for it
          registry           the lineage of a rebuilt one, as `proxy devices` prints it
          root               new keys, or with --without the others of the same: as many of
                             them as must sign leave a lost one out
        edgeveil trust rotate root cloud-jobs cloud-next.pub
        edgeveil trust rotate root registry 5f0c…""",
    ),
    row(
        "trust sign",
        "add this folder's signatures to what is pending, or renew all of it",
        "cli.trust:sign",
        _ROOT,
        arg("--renew", "the same for longer, before it expires"),
        *_SIGNING,
        about="""Where the keys are on several machines: copy the folder without keys/ to each, and
        sign there. What changes is printed first.""",
    ),
    row(
        "keys",
        "make a party's keys and tokens, and print what others need of them",
        "cli.parties:keys",
        _CONFIG,
        arg("--next", "what follows the keys, or the token, in use"),
        arg("--token", "of a cloud: its token file", choices=("read", "submit", "admin")),
        arg("--out FILE", "of a device: the enrolment, not to standard output", Path),
        about="""Of a cloud or proxy the public key files that the root vouches for; --next: those
        that take their place once the root names them (`edgeveil trust rotate`). --token
        read: jobs, status, metrics; submit: also submit, cancel, resume, fetch; admin:
        everything. With --next a running cloud refuses the old token at once. Of a device the
        enrolment: hand it to the proxy's operator over a way that cannot be forged. --next,
        with the device stopped: a new sealing key; identity and ledger stay, nobody admits
        anew.
        edgeveil keys --config configs/edge.yaml --out enrolment.json""",
    ),
    row(
        "backup",
        "put a cloud's, proxy's or device's state into one archive",
        "cli.parties:backup",
        _CONFIG,
        arg("--out ARCHIVE", "", Path, required=True),
        about="""The process may run meanwhile. The archive holds its secret keys: keep it where
        they may be kept. A store on PostgreSQL is not in it: use pg_dump.
        edgeveil backup --config edge.yaml --out box-0001.backup""",
    ),
    row(
        "restore",
        "put an archive in place of a state folder",
        "cli.parties:restore",
        _CONFIG,
        arg("--from ARCHIVE", "", Path, dest="archive", required=True),
        arg("--replace", "what is in place is kept beside it, as …-before-restore-N"),
        [
            arg("--nothing-since", "a device without a ledger answered nothing since the backup"),
            arg("--ask-proxy", "the proxy of a device without a ledger knows what it answered"),
        ],
        about="""With the process stopped. A device never gets an older ledger than the one in
        place. On an empty disk --ask-proxy counts as spent what its proxy saw it answer
        since; with another proxy by now its owner vouches that there was nothing. A proxy's
        registry comes back as one that was rebuilt (edgeveil trust rotate DIR registry).
        edgeveil restore --config edge.yaml --from box-0001.backup --ask-proxy""",
    ),
    row(
        "ledger",
        "show what a device has spent, and check every link of its record",
        "cli.ledger:show",
        arg("place PLACE", "edge site file, or a device's state folder", Path),
        about="""Lists the releases, their prices, and what the policy leaves, where a site file
        says it. Exit code 5 at a broken link. The device may be running.""",
    ),
    row(
        "log",
        "list what administrators did, each line checked",
        "cli.parties:log",
        arg("place PLACE", "site file of a cloud or proxy, a site's folder or the root's", Path),
        arg("--key FINGERPRINT", "of a site's key, as apply prints it"),
        about="""Lines are chained and signed, and written before each change; one that was changed,
        removed or put elsewhere is named. `what` holds no secret and no name of a device.
        edgeveil log clinics --key 1a2b3c4d5e6f7081""",
    ),
)

"""Site files: kinds, relative paths, impossible mixes."""

import re
from pathlib import Path

import pytest
import yaml

from edgeveil.config.broker import BrokerSite
from edgeveil.config.cloud import CloudSite
from edgeveil.config.edge import EdgeSite
from edgeveil.config.file import RETIRED
from edgeveil.config.links import BrokerLink
from edgeveil.config.proxy import ProxySite
from edgeveil.config.site_files import load_site
from edgeveil.errors import ConfigError
from edgeveil_tools.checks import load

SITES = {
    "cloud": ("configs/cloud.yaml", CloudSite),
    "proxy": ("configs/proxy.yaml", ProxySite),
    "edge": ("configs/edge.yaml", EdgeSite),
    "broker": ("configs/broker-edge.yaml", BrokerSite),
}


def changed(tmp_path, kind, old, new):
    text = Path(SITES[kind][0]).read_text()
    assert old in text, old
    path = tmp_path / "site.yaml"
    path.write_text(text.replace(old, new, 1))
    return path


@pytest.mark.parametrize("kind", SITES)
def test_the_top_level_key_says_the_kind(kind):
    name, model = SITES[kind]
    found_kind, site = load(Path(name))
    assert found_kind == kind
    assert isinstance(site, model)


@pytest.mark.parametrize("kind", ["cloud", "proxy", "edge"])
def test_keys_that_became_constants_are_dropped_with_their_usual_value_alone(tmp_path, kind):
    path = tmp_path / "site.yaml"
    for shift in (False, True):
        block = yaml.safe_load(Path(SITES[kind][0]).read_text())
        written = []
        for dotted, usual in RETIRED[kind].items():
            *steps, key = dotted.split(".")
            holder = block[kind]
            for step in steps:
                holder = holder.get(step) if isinstance(holder, dict) else None
            if holder is not None:
                holder[key] = usual ^ shift if isinstance(usual, bool) else usual + shift
                written.append(f"{kind}.{dotted}")
        path.write_text(yaml.safe_dump(block))
        if not shift:
            assert load_site(path)
            continue
        with pytest.raises(ConfigError) as caught:
            load_site(path)
        problems = "\n".join(caught.value.problems)
        assert [name for name in written if f" {name}: is always" not in problems] == []


def test_relative_paths_count_from_the_folder_of_the_file(tmp_path):
    path = changed(tmp_path, "edge", "../site/state/device-0 ", "here/state ")
    site = load_site(path)
    assert site.state_dir == tmp_path / "here" / "state"
    assert site.cloud_key_file == tmp_path.parent / "site/keys/cloud.pub"
    path = changed(tmp_path, "edge", "  state_dir: ../site/state/device-0 ", "  ")
    assert load_site(path).state_dir == tmp_path / "state/edge"
    path = changed(tmp_path, "edge", "../site/keys/cloud.pub", "/etc/keys/cloud.pub")
    assert load_site(path).cloud_key_file == Path("/etc/keys/cloud.pub")
    assert site.broker.password_file == tmp_path.parent / "site/passwords/device-0"


OWN = "source: 'python: own.data:read' "
DIGITS, SEED, LINK = "source: digits ", "seed: 7\n", "mqtt://127.0.0.1:1884 "
IID, RANGE = "partition: {kind: iid, ", "data.shard.partition.lq_range"
DEALT = "partition: {kind: n_class, classes_per_device: 2}"
SIZED = "source: images\n    path: .\n    images: {size: [9, 9]} "
FOLD = OWN + "\n    test_share: 0.2\n    test_fold: 5 "
KEEP = "\n    keepalive_s: 10 "
HTTP_PASSWORD = "broker.http_proxy_password_file"
SECOND = "password_file: ../site/passwords/proxy-cloud\n"


@pytest.mark.parametrize(
    ("kind", "old", "new", "key", "what"),
    [
        ("cloud", LINK, "http://x ", "broker.url", "must begin mqtt://"),
        ("cloud", LINK, "[] ", "broker.url", "1 to 8 addresses"),
        ("cloud", LINK, "[mqtt://a, mqtt://a] ", "broker.url", "twice"),
        ("cloud", "# ca_file", "ca_file", "broker.ca_file", "write mqtts://"),
        ("cloud", "  username: cloud\n", "\n", "broker.password_file", "needs a user name"),
        ("cloud", "# http_proxy: ", "http_proxy: socks5://a:1 #", "broker.http_proxy", "http://"),
        ("cloud", "# http_proxy_password", "http_proxy_password", HTTP_PASSWORD, "user name"),
        ("cloud", "store_url: null", "store_url: mysql://x", "store_url", "postgresql"),
        ("cloud", "packet_bytes: 65536", "packet_bytes: 10", "limits.packet_bytes", "[4096"),
        ("cloud", "proxy_key_file: ../", "proxy_key: ../", "proxy_key", "proxy_key_file"),
        ("cloud", "source: digits", "source: npz", "test_data.source", "add path"),
        ("proxy", "upload_bytes: 6", "upload_bytes: 966", "limits.upload_bytes", "spool"),
        ("proxy", "devices: 100000", "cool_down_s: 3", "limits.cool_down_s", "always 30"),
        ("proxy", "url: mqtt://127.0.0.1:1883\n", "\n", "edge_broker.url", "is missing"),
        ("proxy", "links: 1 ", f"profile: aws_iot{KEEP}", "edge_broker.keepalive_s", "30 to 1200"),
        ("proxy", "links: 1 ", "profile: event_grid ", "limits.packet_bytes", "set 64000 or less"),
        ("proxy", SECOND, "password_file: x\n    links: 3\n", "cloud_broker.links", "at most 2"),
        ("edge", "index: 0", "index: 20", "data.shard.index", "below shard.devices = 20"),
        ("edge", DIGITS, "source: parket ", "data.source", "unknown data source"),
        ("edge", DIGITS, "source: idx ", "data.source", "add labels_path"),
        ("edge", DIGITS, "source: python ", "data.source", "names no function"),
        ("edge", "# label_column", "label_column", "data.label_column", "for csv, hf and parquet"),
        ("edge", "../site/keys/cloud.pub", "''", "cloud_key_file", "must be a path"),
        ("edge", "between: []", "between: [22-6]", "conditions.between[0]", "22:00-06:00"),
        ("edge", DIGITS, OWN, "data.shard.partition", "add classes: 10"),
        ("edge", SEED, SEED + "      classes: 10\n", "data.shard.classes", "is for own files"),
        ("edge", DIGITS, OWN + "\n    test_records: 40", "data.test_records", "test_share: 0.2"),
        ("edge", DIGITS, DIGITS + "\n    test_share: 0.2 ", "data.test_share", "is for files of"),
        ("edge", DIGITS, FOLD, "data.test_fold", "no fold 5 of test_share 0.2"),
        ("edge", DIGITS, SIZED, "data.images", "add classes: [cat, dog]"),
        ("edge", DEALT, IID + "lq_user: 0.5, lq_data: 0.5, lq_range: [0, 1]}", RANGE, "own files"),
        ("edge", DEALT, IID + "lq_range: [1, 0]}", RANGE, "[1.0, 0.0]"),
        ("broker", "  users_file", "  # users_file", "acl", "add users_file"),
        ("broker", "sockets_port: null ", "sockets_port: 1883 ", "websockets_port", "another"),
    ],
)
def test_one_fault_is_named_with_its_line(tmp_path, kind, old, new, key, what):
    path = changed(tmp_path, kind, old, new)
    with pytest.raises(ConfigError) as caught:
        load_site(path)
    at = [line for line in caught.value.problems if f" {kind}.{key}: " in line and what in line]
    assert len(at) == 1, caught.value.problems
    number = int(re.match(re.escape(str(path)) + r":(\d+) ", at[0])[1])
    leaf = key.split(".")[-1].partition("[")[0]
    if what not in ("is missing", "1 to 8 addresses"):
        assert f"{leaf}:" in path.read_text().splitlines()[number - 1]


def test_a_broker_open_to_the_network_needs_logins(tmp_path):
    path = changed(tmp_path, "broker", "host: 127.0.0.1", "host: 0.0.0.0")
    assert load_site(path).host == "0.0.0.0"
    path.write_text(re.sub(r"(?m)^  (users_file|acl):.*$", "", path.read_text()))
    with pytest.raises(ConfigError, match=r"broker\.host: "):
        load_site(path)


SECRET = "hunter2"
PROXY = "http_proxy: http://box:hunter2@10.0.0.1"


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("mqtt://127", "mqtt://me:hunter2@127", "broker.url"),
        ("password_file: ../site/passwords/cloud", "password: hunter2", "broker.password"),
        ("# http_proxy: ", f"{PROXY}:x #", "broker.http_proxy"),
    ],
)
def test_a_password_in_a_wrong_place_is_refused_and_never_repeated(tmp_path, old, new, key):
    with pytest.raises(ConfigError, match=rf"cloud\.{key}: ") as caught:
        load_site(changed(tmp_path, "cloud", old, new))
    assert SECRET not in str(caught.value)
    site = load_site(changed(tmp_path, "cloud", "# http_proxy: ", f"{PROXY}:3128 #"))
    assert SECRET not in repr(site)


def test_one_file_is_for_one_process(tmp_path):
    path = tmp_path / "both.yaml"
    path.write_text(Path("configs/cloud.yaml").read_text() + "proxy: {}\nhttp: {}\n")
    with pytest.raises(ConfigError) as caught:
        load_site(path)
    assert [line.split(" ")[1] for line in caught.value.problems] == ["proxy:", "http:"]


@pytest.mark.filterwarnings("error")
def test_a_link_has_one_address_or_several_and_is_written_as_it_was_read(tmp_path):
    for written, urls in (
        ("[mqtts://a, 'wss://b:444/x/y?z=1']", ("mqtts://a", "wss://b:444/x/y?z=1")),
        ("ws://b", ("ws://b",)),
    ):
        path = changed(tmp_path, "proxy", "url: mqtt://127.0.0.1:1883", f"url: {written}")
        link = load_site(path).edge_broker
        assert link.urls == urls
        # A device passes its site to its computing process as JSON.
        assert BrokerLink.model_validate_json(link.model_dump_json()) == link

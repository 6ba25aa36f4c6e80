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
        told = "\n".join(caught.value.problems)
        assert [name for name in written if f" {name}: is always" not in told] == []


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


@pytest.mark.parametrize(
    ("kind", "old", "new", "key", "what"),
    [
        ("cloud", "mqtt://127.0.0.1:1884 ", "http://x ", "cloud.broker.url", "must begin mqtt://"),
        ("cloud", "# ca_file", "ca_file", "cloud.broker.ca_file", "write mqtts://"),
        ("cloud", "  username: cloud\n", "\n", "cloud.broker.password_file", "needs a user name"),
        ("cloud", "store_url: null", "store_url: mysql://x", "cloud.store_url", "postgresql"),
        ("cloud", "packet_bytes: 65536", "packet_bytes: 10", "cloud.limits.packet_bytes", "[4096"),
        ("cloud", "proxy_key_file: ../", "proxy_key: ../", "cloud.proxy_key", "proxy_key_file"),
        ("cloud", "source: digits", "source: npz", "cloud.test_data.source", "add path"),
        ("proxy", "upload_bytes: 6", "upload_bytes: 966", "proxy.limits.upload_bytes", "spool"),
        ("proxy", "devices: 100000", "cool_down_s: 3", "proxy.limits.cool_down_s", "always 30"),
        ("proxy", "url: mqtt://127.0.0.1:1883\n", "\n", "proxy.edge_broker.url", "is missing"),
        ("edge", "role: train", "role: trian", "edge.role", "did you mean 'train'?"),
        ("edge", "index: 0", "index: 20", "edge.data.shard.index", "below shard.devices = 20"),
        ("edge", "source: digits ", "source: parket ", "edge.data.source", "unknown data source"),
        ("edge", "source: digits ", "source: idx ", "edge.data.source", "add labels_path"),
        ("edge", "source: digits ", "source: python ", "edge.data.source", "names no function"),
        ("edge", "# label_column", "label_column", "edge.data.label_column", "for csv and parquet"),
        ("edge", "../site/keys/cloud.pub", "''", "edge.cloud_key_file", "must be a path"),
        ("broker", "  users_file", "  # users_file", "broker.acl", "add users_file"),
        ("edge", "between: []", "between: [22-6]", "edge.conditions.between[0]", "22:00-06:00"),
        ("broker", "engine: auto", "engine: emqx", "broker.engine", "got 'emqx'"),
    ],
)
def test_one_fault_is_named_with_its_line(tmp_path, kind, old, new, key, what):
    path = changed(tmp_path, kind, old, new)
    with pytest.raises(ConfigError) as caught:
        load_site(path)
    at = [line for line in caught.value.problems if f" {key}: " in line and what in line]
    assert len(at) == 1, caught.value.problems
    number = int(re.match(re.escape(str(path)) + r":(\d+) ", at[0])[1])
    if "is missing" not in what:
        assert (
            f"{key.split('.')[-1].partition('[')[0]}:" in path.read_text().splitlines()[number - 1]
        )


def test_a_python_source_is_two_names(tmp_path):
    path = changed(tmp_path, "edge", "source: digits ", "source: 'python: own.data:read' ")
    path.write_text(path.read_text().replace("seed: 7\n", "seed: 7\n      classes: 10\n"))
    assert load_site(path).data.source == "python: own.data:read"


OWN = "source: 'python: own.data:read' "


IID = "partition: {kind: iid, "
DEALT = "partition: {kind: n_class, classes_per_device: 2}"
DIGITS = "source: digits "
SIZED = "source: images\n    path: .\n    images: {size: [9, 9]} "
FOLD = OWN + "\n    test_share: 0.2\n    test_fold: 5 "


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (DIGITS, OWN, r"data\.shard\.partition: deals or disturbs by class.*add classes: 10"),
        ("seed: 7\n", "seed: 7\n      classes: 10\n", r"shard\.classes: is for own files"),
        (DIGITS, OWN + "\n    test_records: 40", r"test_records: .*write test_share: 0\.2"),
        (DIGITS, "source: digits\n    test_share: 0.2 ", r"test_share: is for files of"),
        (DIGITS, FOLD, r"test_fold: there is no fold 5 of test_share 0\.2; count from 0"),
        (DIGITS, SIZED, r"images: .*may not number the classes; add classes: \[cat, dog\]"),
        (DEALT, IID + "lq_user: 0.5, lq_data: 0.5, lq_range: [0, 1]}", "_range: is for own files"),
        (DEALT, IID + "lq_range: [1, 0]}", r"lq_range: must be least and greatest.*\[1\.0, 0\.0\]"),
    ],
)
def test_what_own_records_need_and_published_ones_do_not(tmp_path, old, new, text):
    path = changed(tmp_path, "edge", old, new)
    with pytest.raises(ConfigError, match=text):
        load_site(path)


def test_own_records_are_not_disturbed_in_a_range_of_their_own(tmp_path):
    path = changed(tmp_path, "edge", "source: digits ", OWN)
    plain = path.read_text().replace("      seed: 7\n", "      seed: 7\n      classes: 10\n")
    poor = "kind: iid, lq_user: 0.5, lq_data: 0.5"
    path.write_text(plain.replace("kind: n_class, classes_per_device: 2", poor))
    with pytest.raises(ConfigError, match=r"lq_data: .*add lq_range: \[0, 255\]"):
        load_site(path)
    ranged = f"{poor}, lq_range: [0, 255]"
    path.write_text(plain.replace("kind: n_class, classes_per_device: 2", ranged))
    assert load_site(path).data.shard.partition.lq_range == (0.0, 255.0)


def test_a_broker_open_to_the_network_needs_logins(tmp_path):
    path = changed(tmp_path, "broker", "host: 127.0.0.1", "host: 0.0.0.0")
    assert load_site(path).host == "0.0.0.0"
    path.write_text(re.sub(r"(?m)^  (users_file|acl):.*$", "", path.read_text()))
    with pytest.raises(ConfigError, match=r"broker\.host: 0\.0\.0\.0 is open to the network"):
        load_site(path)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("mqtt://127", "mqtt://me:hunter2@127", "cloud.broker.url: holds credentials"),
        ("password_file: ../site/passwords/cloud", "password: hunter2", "mean 'password_file'?"),
    ],
)
def test_a_password_in_a_wrong_place_is_refused_and_never_repeated(tmp_path, old, new, told):
    path = changed(tmp_path, "cloud", old, new)
    with pytest.raises(ConfigError) as caught:
        load_site(path)
    assert told in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_one_file_is_for_one_process(tmp_path):
    path = tmp_path / "both.yaml"
    path.write_text(Path("configs/cloud.yaml").read_text() + "proxy: {}\nhttp: {}\n")
    with pytest.raises(ConfigError) as caught:
        load_site(path)
    assert [line.split(" ")[1] for line in caught.value.problems] == ["proxy:", "http:"]
    path.write_text("edge:\n")
    with pytest.raises(ConfigError, match="edge: must be a block of keys"):
        load_site(path)


URLS = {
    "one": ("[mqtt://a]", ("mqtt://a",)),
    "many": ("[mqtts://a, 'wss://b:444/x/y?z=1']", ("mqtts://a", "wss://b:444/x/y?z=1")),
    "text": ("ws://b", ("ws://b",)),
}


@pytest.mark.parametrize(("written", "urls"), URLS.values(), ids=URLS)
def test_a_link_has_one_address_or_several(tmp_path, written, urls):
    path = changed(tmp_path, "proxy", "url: mqtt://127.0.0.1:1883", f"url: {written}")
    assert load_site(path).edge_broker.urls == urls


KEEP = "\n    keepalive_s: 10 "
SECOND = "password_file: ../site/passwords/proxy-cloud\n"


@pytest.mark.parametrize(
    ("kind", "old", "new", "key", "what"),
    [
        ("cloud", "mqtt://127.0.0.1:1884 ", "[] ", "broker.url", "1 to 8 addresses"),
        ("cloud", "mqtt://127.0.0.1:1884 ", "[mqtt://a, ftp://b] ", "broker.url", "got 'ftp://b'"),
        ("cloud", "mqtt://127.0.0.1:1884 ", "[mqtt://a, mqtt://a] ", "broker.url", "twice"),
        ("cloud", "# http_proxy: ", "http_proxy: socks5://a:1 #", "broker.http_proxy", "http://"),
        ("cloud", "# http_proxy_password", "http_proxy_password", "broker.http_proxy", "user name"),
        ("cloud", "profile: default ", "profile: aws ", "broker.profile", "aws_iot"),
        ("proxy", "links: 1 ", f"profile: aws_iot{KEEP}", "edge_broker.keepalive_s", "30 to 1200"),
        ("proxy", "links: 1 ", "profile: event_grid ", "limits.packet_bytes", "set 64000 or less"),
        ("proxy", SECOND, "password_file: x\n    links: 3\n", "cloud_broker.links", "at most 2"),
        ("broker", "sockets_port: null ", "sockets_port: 1883 ", "websockets_port", "another"),
    ],
)
def test_what_a_link_cannot_do_is_named_with_the_fix(tmp_path, kind, old, new, key, what):
    path = changed(tmp_path, kind, old, new)
    with pytest.raises(ConfigError) as caught:
        load_site(path)
    found = [line for line in caught.value.problems if f"{kind}.{key}" in line and what in line]
    assert len(found) == 1, caught.value.problems


def test_a_password_of_an_http_proxy_is_in_no_text(tmp_path):
    new = "http_proxy: http://box:tunnel-word@10.0.0.1:3128 #"
    site = load_site(changed(tmp_path, "cloud", "# http_proxy: ", new))
    assert "tunnel-word" not in repr(site)
    path = changed(tmp_path, "cloud", "# http_proxy: ", new.replace(":3128", ":x"))
    with pytest.raises(ConfigError) as caught:
        load_site(path)
    assert "tunnel-word" not in str(caught.value)


@pytest.mark.filterwarnings("error")
def test_a_list_of_addresses_is_written_as_it_was_read():
    """A device tells its site to its computing process as JSON."""
    link = BrokerLink(url=["mqtt://a:1", "mqtt://b:2"])
    assert BrokerLink.model_validate_json(link.model_dump_json()) == link

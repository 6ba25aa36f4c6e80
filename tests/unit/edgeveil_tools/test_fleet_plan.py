"""A fleet's plan: what it may say, and which devices it comes to."""

from functools import reduce
from operator import getitem

import pytest
import yaml

from edgeveil.errors import ConfigError, UsageError
from edgeveil_tools.site.fleet_spec import FLEET_FILE, devices_of, load_spec
from tests.kits.site_folders import planned


@pytest.fixture
def folder(tmp_path):
    return planned(tmp_path / "site")


@pytest.fixture
def change(folder):
    def changed(*path, to):
        plan = yaml.safe_load((folder / FLEET_FILE).read_text())
        *steps, last = path
        reduce(getitem, steps, plan["fleet"])[last] = to
        (folder / FLEET_FILE).write_text(yaml.safe_dump(plan))

    return changed


@pytest.mark.parametrize("host", ["2001:db8::5", "[2001:db8::5]"])
def test_a_fleet_begins_at_an_ipv6_address(tmp_path, host):
    plan = load_spec(planned(tmp_path / "six", 1, "--host", host))
    assert plan.edge_broker.public == "[2001:db8::5]:8883"
    assert plan.cloud_broker.public == "[2001:db8::5]:8884"


def devices(folder):
    return devices_of(load_spec(folder), FLEET_FILE)


def test_devices_come_by_list_table_and_count(folder, change):
    change("devices", "csv", to="boxes.csv")
    template = {"name": "scans", "source": "npz", "path": "/data/{ward}/{name}.npz"}
    change("devices", "data", to=template)
    change("devices", "count", to=0)
    (folder / "boxes.csv").write_text("name,role,host,ward\nw-3,,pc-3,three\nw-4,infer,,four\n")
    three, four = devices(folder)
    assert (three.name, three.role, three.host) == ("w-3", "train", "pc-3")
    assert four.data == {"name": "scans", "source": "npz", "path": "/data/four/w-4.npz"}
    change("devices", "data", to={"name": "digits", "source": "digits"})
    change("devices", "list", to=[{"name": "first", "role": "infer"}])
    change("devices", "count", to=2)
    names = [device.name for device in devices(folder)]
    assert names == ["first", "w-3", "w-4", "box-0001", "box-0002"]
    change("devices", "list", to=[{"name": "box-0002", "role": "infer"}])
    found = [(device.name, device.role) for device in devices(folder)]
    assert found[2:] == [("box-0001", "train"), ("box-0002", "infer")], "in the place of that one"


def test_a_placeholder_alone_may_be_a_number(folder):
    shards = [device.data["shard"] for device in devices(folder)]
    assert shards == [{"devices": 3, "index": index} for index in range(3)]


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("brokers",), {}, "unknown key"),
        (("edge_broker", "public"), "0.0.0.0:8883", "write its public name"),
        (("edge_broker", "public"), "[::ffff:0.0.0.0]:8883", "write its public name"),
        (("edge_broker", "public"), "0x0.0:8883", "no host name"),
        (("edge_broker", "also"), ["a b"], "no host name"),
        (("edge_broker", "listen"), "0.0.0.0\nallow_anonymous true:8883", "no host name"),
        (("edge_broker", "public"), "broker", "must be host:port"),
        (("edge_broker", "listen"), None, "needs listen and public"),
        (("edge_broker", "url"), "mqtts://x:1", "drop listen and public"),
        (("edge_broker", "url"), "mqtt://x:1", "not encrypted"),
        (("edge_broker", "engine"), "amqtt", "set mosquitto, or passwords"),
        (("root", "threshold"), 2, "so many signatures"),
        (("renew_days",), 400, "renew each time"),
        (("devices", "policy", "lifetime"), 1, "unknown key"),
    ],
)
def test_an_impossible_plan_is_refused_by_name(folder, change, path, value, told):
    change(*path, to=value)
    with pytest.raises(ConfigError, match=told) as caught:
        load_spec(folder)
    assert FLEET_FILE in str(caught.value)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("name\nw-3\nw-3\n", "two parties have this name"),
        ("name\ncloud\n", "two parties have this name"),
        ("name,role\nw-3,teach\n", "device w-3: role: "),
        ("name,role\nw-3\n", "another number of values"),
        ("box\nw-3\n", "no column name"),
        ("name\n../w-3\n", "device ../w-3: name: "),
    ],
)
def test_a_wrong_table_is_refused_at_its_line(folder, change, table, told):
    change("devices", "csv", to="boxes.csv")
    (folder / "boxes.csv").write_text(table)
    with pytest.raises(UsageError, match=told) as caught:
        devices(folder)
    assert "boxes.csv:" in str(caught.value)


def test_a_template_may_name_columns_alone_that_there_are(folder, change):
    change("devices", "data", to={"name": "x", "source": "npz", "path": "{ward}"})
    with pytest.raises(UsageError, match="no column 'ward'"):
        devices(folder)
    change("devices", "data", to={"name": "x", "source": "npz", "paths": "x"})
    with pytest.raises(UsageError, match=r"device box-0001.*paths"):
        devices(folder)


ROWS = {"name": "people", "source": "csv", "path": "/data/rows.csv"}


def test_a_table_of_which_nobody_says_what_names_its_columns_is_refused_as_it_is_planned(
    folder, change
):
    """And not by each box, job after job."""
    change("devices", "data", to=ROWS)
    with pytest.raises(ConfigError) as caught:
        load_spec(folder)
    (place,) = caught.value.places
    assert place.key == "fleet.devices.data.source" and place.line > 0
    change("devices", "data", to={**ROWS, "header": False})
    assert all(device.data["header"] is False for device in devices(folder))
    change("devices", "list", to=[{"name": "first", "data": ROWS}])
    with pytest.raises(ConfigError, match=r"fleet\.devices\.list\[0\]\.data\.source"):
        load_spec(folder)
    change("devices", "list", to=[])
    change("devices", "csv", to="boxes.csv")
    (folder / "boxes.csv").write_text("name,kind\nw-3,parquet\nw-4,csv\n")
    change("devices", "data", to={**ROWS, "source": "{kind}"})
    with pytest.raises(UsageError, match=r"boxes\.csv:3.*no header"):
        devices(folder)

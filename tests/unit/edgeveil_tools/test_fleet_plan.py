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


def test_a_fleet_begins_at_an_ipv6_address(tmp_path):
    plan = load_spec(planned(tmp_path / "six", 1, "--host", "2001:db8::5"))
    assert plan.edge_broker.public == "[2001:db8::5]:8883"
    assert plan.cloud_broker.public == "[2001:db8::5]:8884"


def devices(folder):
    return devices_of(load_spec(folder), FLEET_FILE)


def test_devices_come_by_list_table_and_count(folder, change):
    shards = [device.data["shard"] for device in devices(folder)]
    assert shards == [{"devices": 3, "index": index} for index in range(3)]
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
    for template in ({"path": "{bed}"}, {"paths": "x"}):
        change("devices", "data", to={"name": "x", "source": "npz", **template})
        with pytest.raises(UsageError):
            devices(folder)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("brokers", {}),
        ("edge_broker.public", "0.0.0.0:8883"),
        ("edge_broker.public", "[::ffff:0.0.0.0]:8883"),
        ("edge_broker.public", "broker"),
        ("edge_broker.listen", "0.0.0.0\nallow_anonymous true:8883"),
        ("edge_broker.listen", None),
        ("edge_broker.url", "mqtts://x:1"),  # beside what it listens at
        ("edge_broker.url", "mqtt://x:1"),
        ("root.threshold", 2),
        ("renew_days", 400),
        ("devices.policy.lifetime", 1),
    ],
)
def test_an_impossible_plan_is_refused_at_its_block(folder, change, path, value):
    change(*path.split("."), to=value)
    with pytest.raises(ConfigError) as caught:
        load_spec(folder)
    assert f"{FLEET_FILE}:" in str(caught.value)
    assert f" fleet.{path.partition('.')[0]}" in str(caught.value)


@pytest.mark.parametrize(
    "table",
    [
        "name\nw-3\nw-3\n",
        "name,role\nw-3,teach\n",
        "box\nw-3\n",
        "name\n../w-3\n",
    ],
)
def test_a_wrong_table_is_refused_at_its_line(folder, change, table):
    change("devices", "csv", to="boxes.csv")
    (folder / "boxes.csv").write_text(table)
    with pytest.raises(UsageError, match=r"boxes\.csv:"):
        devices(folder)


ROWS = {"name": "people", "source": "csv", "path": "/data/rows.csv"}


def test_a_table_without_named_columns_is_refused_as_it_is_planned(folder, change):
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
    with pytest.raises(UsageError, match=r"boxes\.csv:3"):
        devices(folder)

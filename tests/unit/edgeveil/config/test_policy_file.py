"""An owner's policy in a file of its own, which no new site file writes over."""

import pytest

from edgeveil.config.edge import EdgeSite
from edgeveil.config.site_files import load_site
from edgeveil.errors import ConfigError, SystemFault

SITE = """\
edge:
  name: box
  broker: {url: "mqtt://127.0.0.1:1883"}
  trust_file: trust.json
  data: {name: digits, source: digits}
  policy_file: own/policy.yaml
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "edge.yaml").write_text(SITE)
    (tmp_path / "own" / "policy.yaml").write_text("policy:\n  lifetime_epsilon: 3\n")
    return tmp_path


def refused(folder):
    with pytest.raises(ConfigError) as caught:
        load_site(folder / "edge.yaml")
    return str(caught.value)


def test_the_policy_is_the_files_and_problems_are_named_at_its_own_lines(folder):
    site, own = load_site(folder / "edge.yaml"), folder / "own" / "policy.yaml"
    assert site.policy.lifetime_epsilon == 3
    assert EdgeSite.model_validate_json(site.model_dump_json()) == site
    own.write_text("policy:\n  max_epsilon_per_job: 1\n  lifetime_epsilon: -3\n")
    assert f"{own}:3 policy.lifetime_epsilon" in refused(folder)
    own.write_text("limits: {}\n")
    assert f"{own}:1 " in refused(folder)
    own.unlink()
    with pytest.raises(SystemFault) as caught:  # its disk may be mounted late
        load_site(folder / "edge.yaml")
    assert str(own) in str(caught.value) and caught.value.exit_code == 1
    (folder / "edge.yaml").write_text(SITE + "  policy: {lifetime_epsilon: 11}\n")
    assert "edge.yaml:7 edge.policy: " in refused(folder)

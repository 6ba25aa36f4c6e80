"""A new box with a claim that is none says where it stands, before it asks anybody."""

import asyncio

import pytest

from edgeveil.claim import ClaimError
from edgeveil.errors import SystemFault
from edgeveil.sites.edge import EdgeSite
from edgeveil_edge.claim import is_unclaimed, take_up_claim


@pytest.fixture
def site(tmp_path):
    state = tmp_path / "state"
    tls = {"cert_file": str(state / "edge.crt"), "key_file": str(state / "edge.key")}
    claim = {"cert_file": str(tmp_path / "c.crt"), "key_file": str(tmp_path / "c.key")}
    return EdgeSite(
        name="box",
        broker={"url": "mqtts://127.0.0.1:1", **tls},
        state_dir=state,
        trust_file=tmp_path / "trust.json",
        data={"name": "digits", "source": "digits"},
        claim={**claim, "claim_file": str(tmp_path / "claim")},
    )


def test_what_is_no_claim_is_told_with_its_file(site, tmp_path):
    assert is_unclaimed(site)
    with pytest.raises(SystemFault, match="the box's claim is not there") as caught:
        asyncio.run(take_up_claim(site))
    assert str(tmp_path / "claim") in str(caught.value)
    (tmp_path / "claim").write_text("evclaim1-half")
    with pytest.raises(ClaimError, match="is no claim") as refused:
        asyncio.run(take_up_claim(site))
    assert str(refused.value).startswith(str(tmp_path / "claim"))
    assert "half" not in str(refused.value)
    assert not (site.state_dir / "identity.key").exists()

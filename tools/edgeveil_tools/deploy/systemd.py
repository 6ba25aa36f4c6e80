"""systemd: a hardened unit for each party, a daily check, and the user that they run as."""

from __future__ import annotations

from edgeveil_tools.deploy.parties import DeployedParty

PROGRAM = "/opt/edgeveil/bin/edgeveil"
USER = "edgeveil"
_WATCHDOG_S = 60
_MEMORY = {"cloud": "1G", "proxy": "512M", "broker": "1G"}
# Machine code is made at run time by what computes on models; the others never need that.
_MAKES_CODE = ("cloud", "edge")


def files(parties: list[DeployedParty], *, gpu: bool = False) -> dict[str, str]:
    """File names to texts. With `gpu` devices may open graphics devices."""
    found = {"edgeveil.sysusers.conf": _USERS, "install.sh": _install(parties)}
    for party in parties:
        found[f"{_unit_name(party)}.service"] = _unit(party, gpu=gpu)
        found[f"{_unit_name(party)}-check.service"] = _check(party)
        found[f"{_unit_name(party)}-check.timer"] = _timer(party)
    return found


_USERS = f"""# Goes to /usr/lib/sysusers.d/edgeveil.conf
u {USER} - "EdgeVeil" /var/lib/edgeveil
"""


def _unit_name(party: DeployedParty) -> str:
    return f"edgeveil-{party.name}"


def _unit(party: DeployedParty, *, gpu: bool) -> str:
    edge = party.kind == "edge"
    memory = _MEMORY.get(party.kind)
    own = [
        "Nice=10" if edge else "",
        f"MemoryMax={memory}" if memory else "",
        "" if party.kind in _MAKES_CODE else "MemoryDenyWriteExecute=yes",
        "" if edge and gpu else "PrivateDevices=yes",
        "" if edge else "ProcSubset=pid",
        # to hold silent connections back from mosquitto (site/deferred_accept.py)
        "SystemCallFilter=pidfd_getfd" if party.kind == "broker" else "",
    ]
    return f"""[Unit]
Description=EdgeVeil {party.kind} {party.name}
After=network-online.target time-sync.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart={PROGRAM} {party.kind} --config {party.file}
WorkingDirectory={party.place}
User={USER}
Group={USER}
Restart=always
RestartSec={5 if edge else 2}
# A configuration that cannot work is not tried again.
RestartPreventExitStatus=2
WatchdogSec={_WATCHDOG_S}
TimeoutStartSec={"infinity" if edge else 90}
TimeoutStopSec=15
LimitNOFILE=65536
TasksMax=512
{_lines(own)}
{_HARDENED}
ReadWritePaths={party.place}/state

[Install]
WantedBy=multi-user.target
"""


_HARDENED = """UMask=0077
LimitCORE=0
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateUsers=yes
DevicePolicy=closed
ProtectProc=invisible
ProtectHostname=yes
ProtectClock=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
RemoveIPC=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallErrorNumber=EPERM"""


def _check(party: DeployedParty) -> str:
    return f"""[Unit]
Description=EdgeVeil: what of {party.name} ends soon or was changed

[Service]
Type=oneshot
ExecStart={PROGRAM} site check {party.place}
User={USER}
Group={USER}
PrivateNetwork=yes
PrivateDevices=yes
ProcSubset=pid
{_HARDENED}
"""


def _timer(party: DeployedParty) -> str:
    return f"""[Unit]
Description=EdgeVeil: look at {party.name} every day

[Timer]
OnCalendar=daily
RandomizedDelaySec=6h
Persistent=true

[Install]
WantedBy=timers.target
"""


def _lines(own: list[str]) -> str:
    return "\n".join(line for line in own if line)


def _install(parties: list[DeployedParty]) -> str:
    places = " ".join(str(party.place) for party in parties)
    units = " ".join(f"{_unit_name(party)}.service" for party in parties)
    timers = " ".join(f"{_unit_name(party)}-check.timer" for party in parties)
    return f"""#!/bin/sh
# Run as root, in this folder, once the bundles are in their places (edgeveil site install).
set -eu
cp edgeveil.sysusers.conf /usr/lib/sysusers.d/edgeveil.conf
systemd-sysusers edgeveil.conf
chown -R {USER}:{USER} {places}
cp *.service *.timer /etc/systemd/system/
systemctl daemon-reload
systemctl enable --now {units} {timers}
"""

#!/bin/sh
# sh install.sh NAME...: as root, in this folder, once the bundles of these parties are in
# /var/lib/edgeveil/NAME (edgeveil site install).
set -eu
cp sysusers.conf /usr/lib/sysusers.d/edgeveil.conf
systemd-sysusers edgeveil.conf
cp -r edgeveil-* /etc/systemd/system/
systemctl daemon-reload
for name in "$@"; do
    place="/var/lib/edgeveil/$name"
    kind="$(grep -oE '^(broker|cloud|proxy|edge):' "$place/edgeveil.yaml" | tr -d :)"
    # Units of earlier versions bore the party's name.
    for old in "edgeveil-$name.service" "edgeveil-$name-check.timer"; do
        if [ -e "/etc/systemd/system/$old" ]; then
            systemctl disable --now "$old"
            rm "/etc/systemd/system/$old"
        fi
    done
    chown -R edgeveil:edgeveil "$place"
    systemctl enable --now "edgeveil-$kind@$name.service" "edgeveil-check@$name.timer"
done

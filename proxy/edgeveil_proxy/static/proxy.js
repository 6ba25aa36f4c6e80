"use strict";
(function (ev) {
  const KEPT_MS = 600000, SAMPLE_MS = 2000;
  const HOPS = [
    ["devices_in", "From devices"], ["devices_out", "To devices"],
    ["cloud_in", "From the cloud"], ["cloud_out", "To the cloud"],
  ];
  const PARTS = {
    edge_broker: "no link to the edge broker", cloud_broker: "no link to the cloud broker",
    machine: "a step takes too long", store: "the disk cannot be written",
    trust: "its key is not certified, or its trust.json is missing or expired",
    devices_file: "the devices file of the site cannot be read",
  };
  const WARNINGS = {
    fleet_offline: "at least half of the fleet is offline: see Offline devices",
    rounds_declined: "most devices declined the newest round: see the devices' pages or edgeveil edge status",
    plain_http: "this page is not encrypted: set http.tls, or listen on 127.0.0.1",
  };
  const OF_FLEET = ["fleet_offline", "rounds_declined"]; // warnings about the fleet, not the proxy
  const REASONS = {
    rate: "above the rate limit of a device", cooling_down: "dropped during a cool-down", forged: "not signed by the sender",
    malformed: "not a message of the protocol", unknown_signer: "signer is not admitted", unknown_version: "unknown protocol version",
    wrong_size: "another size than the round requires", late: "after the round closed", replayed: "received before",
    oversized: "packet is too large", oversized_blob: "upload is too large",
  };
  const $ = (id) => document.getElementById(id);
  const history = []; // [ms, bytes by hop]
  let state = null;

  const count = (n, one, many) => `${n} ${n === 1 ? one : many || `${one}s`}`;
  const card = (name, value, note) => ev.el("div", { class: "card" },
    ev.el("div", { class: "name" }, name), ev.el("div", { class: "value" }, value), ev.el("div", { class: "note" }, note));
  const total = (counts) => Object.values(counts).reduce((a, b) => a + b, 0);


  function meter(name, value, most, text) {
    return ev.el("div", { class: "meter" },
      ev.el("div", { class: "row" }, ev.el("strong", {}, name), ev.el("span", { class: "number" }, text)),
      ev.el("progress", { max: Math.max(most, 1), value: Math.min(value, most), "aria-label": `${name}: ${text}` }));
  }

  function cards(s) {
    const held = s.rounds.reduce((all, one) => all + one.uploads, 0);
    return [
      card("Devices online", s.online, `of ${s.enrolled} admitted`),
      s.round.declined ? card("Declined, newest round", `${s.round.declined} of ${s.round.selected}`, Object.entries(s.round.causes || {}).filter(([, n]) => n).map(([why, n]) => `${n} ${why}`).join(", ")) : null,
      card("Open rounds", s.rounds.length, s.round.index === undefined ? "none yet" : `newest: round ${s.round.index}`),
      card("Uploads", held, "in open rounds"),
      card("Refused messages", total(s.refused), count(s.cooling_down, "device") + " cooling down"),
    ];
  }

  function round(one) {
    const left_s = one.ends_s === null ? null : one.ends_s - Date.now() / 1000;
    const ends = left_s === null ? "" : left_s > 0 ? ` · closes in at most ${ev.seconds(left_s)}` : " · closes now";
    const again = one.attempt > 1 ? `, attempt ${one.attempt}` : "";
    const causes = Object.entries(one.causes).filter(([, n]) => n).map(([why, n]) => `${n} ${why}`).join(", ");
    const text = `${count(one.uploads, "upload")}, ${one.declined} declined${causes ? ` (${causes})` : ""}, of ${one.selected} selected${ends}`;
    return meter(`Round ${one.index}${again} (${one.phase})`, one.uploads + one.declined, one.selected, text);
  }

  const link = ([hop, one]) => ev.el("div", {},
    ev.el("h3", {}, ev.el("span", { class: one.connected ? "dot" : "dot down", "aria-hidden": "true" }), hop === "edge" ? "Edge broker, to the devices" : "Cloud broker, to the cloud"),
    ev.el("p", { class: one.connected ? null : "bad" }, `${one.connected ? "connected" : "not connected"} since ${ev.time(one.since_s)}`),
    ev.el("p", { class: "soft small" }, `${count(one.connections, "connection")} since the start, ${count(one.unacknowledged, "message")} not acknowledged`));

  function rooms(all, floor) {
    const names = { spool: "Spool: uploads and batches", cache: "Cache: broadcasts", credit: "Credit: uploads in flight" };
    return [
      Object.entries(all).map(([key, [held, most]]) => meter(names[key], held, most, `${ev.bytes(held)} of ${ev.bytes(most)}`)),
      ev.el("p", { class: "soft small" }, `A batch has at least ${floor} uploads.`),
    ];
  }

  function refused(counts) {
    const rows = Object.entries(counts).sort((a, b) => b[1] - a[1]);
    if (!rows.length) return ev.el("p", { class: "soft" }, "None.");
    return ev.table(["Reason", "Meaning", "Messages"], rows.map(([why, n]) => [why, REASONS[why] || "", n]), { caption: "Refused messages by reason", text: [1] });
  }

  function devices(told) {
    if (told === null) return ev.el("p", { class: "soft" }, "Shown only on the proxy's machine: open this page there at http://127.0.0.1 and its port.");
    if (!told.length) return ev.el("p", { class: "soft" }, "None.");
    return ev.table(["Device", "Admitted", "Refused", "Reasons", "State"], told.map((one) => [
      one.device, one.enrolled ? "yes" : "no", total(one.refused),
      Object.entries(one.refused).map(([why, n]) => `${why} ${n}`).join(", "),
      one.cooling_down_s > 0 ? ev.el("span", { class: "bad" }, `cooling down, ${ev.seconds(one.cooling_down_s)} left`) : "accepted",
    ]), { caption: "Devices whose messages were refused", text: [1, 3, 4] });
  }

  function offline(told) {
    if (told === undefined) return devices(null);
    if (told === null) return ev.el("p", { class: "soft" }, "Unknown until devices have had time to connect.");
    if (!told.length) return ev.el("p", { class: "soft" }, "None.");
    return ev.table(["Device", "Last seen"], told.map((one) => [one.device, one.seen_at === null ? "not since this proxy started" : ev.time(one.seen_at)]), { caption: "Admitted devices that are offline, longest absence first", text: [0, 1] });
  }

  function ends(all) {
    const rows = Object.entries(all).sort((a, b) => a[1] - b[1]).map(([what, end_s]) => {
      const left_s = end_s - Date.now() / 1000, days = left_s / 86400;
      const text = left_s <= 0 ? "expired" : days < 1 ? `in ${ev.seconds(left_s)}` : `in ${Math.floor(days)} days`;
      return [what, ev.time(end_s), ev.el("span", { class: days < 14 ? "bad" : null }, text)];
    });
    return ev.table(["Certificate or key", "Expires", "Remaining"], rows, { caption: "Expiry of certificates and trust", text: [1, 2] });
  }

  function charts() {
    const now = Date.now(), from = Math.min(history[0][0], now - 60000);
    return HOPS.map(([key, name]) => {
      const points = history.slice(1).map(([ms, bytes], i) => {
        const [before_ms, before] = history[i];
        return [ms, Math.max(0, bytes[key] - before[key]) / ((ms - before_ms) / 1000)];
      });
      const rate = points.length ? points[points.length - 1][1] : 0, most = Math.max(...points.map((p) => p[1]), 1);
      const said = `${ev.bytes(rate)}/s now, ${ev.bytes(most)}/s at most`;
      return ev.el("div", {}, ev.el("h3", {}, name),
        ev.el("p", { class: "number" }, `${ev.bytes(rate)}/s`, ev.el("span", { class: "soft" }, ` · ${ev.bytes(state.bytes[key])} since the start`)),
        ev.chart({ points, span: [from, now], top: most, topText: `${ev.bytes(most)}/s`, leftText: `${ev.seconds(Math.round((now - from) / 60000) * 60)} ago`, rightText: "now", label: `${name}: ${said}` }));
    });
  }

  function sample() {
    if (state === null) return;
    const now = Date.now();
    history.push([now, state.bytes]);
    while (history.length > 2 && history[0][0] < now - KEPT_MS) history.shift();
    ev.show($("bytes"), charts());
    paintTimes();
  }

  // Values that also change with time.
  function paintTimes() {
    const s = state;
    ev.show($("rounds"), s.rounds.length ? s.rounds.map(round) : ev.el("p", { class: "soft" }, "None now."));
    ev.paint($("ends"), [s.ends_s, Math.floor(Date.now() / 60000)], () => ends(s.ends_s));
  }

  function hear(s) {
    const first = state === null;
    state = s;
    $("shown").hidden = false;
    $("title").textContent = s.cell ? `Proxy of cell ${s.cell}` : "Proxy";
    document.title = s.cell ? `EdgeVeil proxy, ${s.cell}` : "EdgeVeil proxy";
    ev.paint($("health"), [s.failing, s.warnings, s.cover], () => [
      s.failing.length
        ? ev.el("span", { class: "badge bad" }, "degraded")
        : s.warnings.some((one) => OF_FLEET.includes(one))
          ? ev.el("span", { class: "badge warn" }, "check the fleet")
          : ev.el("span", { class: "badge good" }, "healthy"),
      s.failing.length ? ` ${s.failing.map((part) => PARTS[part] || part).join("; ")}` : "",
      s.cover ? ev.el("span", { class: "soft" }, " · cover traffic: all devices answer every round") : "",
      s.warnings.map((one) => ev.el("span", { class: "warn" }, ` · ${WARNINGS[one] || one}`)),
    ]);
    ev.paint($("cards"), [s.online, s.enrolled, s.rounds, s.round, s.refused, s.cooling_down], () => cards(s));
    ev.paint($("links"), s.links, (all) => Object.entries(all).map(link));
    ev.paint($("rooms"), [s.rooms, s.floor], () => rooms(s.rooms, s.floor));
    ev.paint($("refused"), s.refused, refused);
    ev.paint($("offline"), s.offline === undefined ? "" : s.offline, () => offline(s.offline));
    ev.paint($("devices"), s.refused_by_device === undefined ? null : s.refused_by_device, devices);
    $("claims-part").hidden = !s.claims;
    if (s.claims) ev.paint($("claims"), s.claims, (c) => ev.table(["Boxes admitted", "Refused", "Dropped"], [[c.admitted, c.refused, c.dropped]], { caption: "Claims since the start" }));
    $("ends-part").hidden = !Object.keys(s.ends_s).length;
    if (first) sample();
    else paintTimes();
  }

  setInterval(sample, SAMPLE_MS);
  ev.live("events", hear, $("live"));
})(window.EdgeVeil);

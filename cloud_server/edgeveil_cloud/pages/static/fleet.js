"use strict";
// What the cloud knows of its fleet, its links, its disk, and what ends when.
(function (ev) {
  const cloud = ev.cloud, el = ev.el;
  const EVERY_MS = 5000, SOON_S = 30 * 86400, SHORT = 0.1;
  const cell = (name) => name || "(one, without a name)";

  function refused(counts) {
    const told = Object.entries(counts || {}).filter(([, n]) => n);
    return told.length ? told.map(([why, n]) => `${n} ${why.replaceAll("_", " ")}`).join(", ") : "none";
  }

  function cells(found) {
    const admit = "edgeveil proxy admit --config proxy.yaml";
    const total = found.cells.reduce((sum, one) => sum + one.enrolled, 0);
    return el("section", {}, el("h2", {}, "Devices"),
      found.cells.length
        ? ev.table(["cell", "enrolled", "roster counts until", "what is wrong"],
          found.cells.map((one) => [cell(one.cell), String(one.enrolled), one.roster_ends_at ? ev.time(one.roster_ends_at) : "no end",
            one.problem ? el("span", { class: "bad" }, one.problem) : "nothing"]), { caption: "Devices by cell", text: [0, 3] })
        : null,
      total ? null : el("p", {}, "No device is enrolled yet. Where devices ask for admission, at the proxy: ", el("code", {}, admit)),
      el("p", { class: "soft small" }, "Which devices are online the cloud does not know: the proxies’ pages name them. It knows public keys, and no names."));
  }

  function links(found) {
    if (!found.links) return null;
    return el("section", {}, el("h2", {}, "Links to brokers"),
      ev.table(["cell", "state", "connections made", "unacknowledged", "in", "out"],
        found.links.map((one) => [cell(one.cell), el("span", { class: one.up ? "good" : "bad" }, one.up ? "connected" : "away: is its broker up? see broker.url"),
          String(one.connections), String(one.waiting), ev.bytes(one.bytes_in), ev.bytes(one.bytes_out)]), { caption: "Links", text: [0, 1] }),
      el("p", { class: "small" }, "Messages refused since the start: ", refused(found.refused)));
  }

  function disk(found) {
    if (!found.disk) return null;
    const { free, total, own } = found.disk, short = free / total < SHORT;
    return el("section", {}, el("h2", {}, "Disk of the state folder"),
      el("p", {}, el("span", { class: short ? "bad" : "" }, `${ev.bytes(free)} free of ${ev.bytes(total)}`), `, ${ev.bytes(own)} are the cloud’s own`,
        short ? ". Make room: rounds are refused and jobs pause once it is full." : "."),
      el("progress", { max: total, value: total - free, "aria-label": "disk in use" }));
  }

  function endings(found) {
    if (!found.endings) return null;
    const left = (one) => one.ends_at - found.now;
    const words = (one) => {
      if (one.problem) return el("span", { class: "bad" }, one.problem);
      if (left(one) <= 0) return el("span", { class: "bad" }, "ended: renew it now");
      return el("span", { class: left(one) < SOON_S ? "warn" : "" }, `in ${ev.seconds(left(one))}${left(one) < SOON_S ? ": renew it" : ""}`);
    };
    return el("section", {}, el("h2", {}, "Certificates and trust"),
      found.endings.length
        ? ev.table(["what", "ends", "which is"], found.endings.map((one) => [one.what, ev.time(one.ends_at), words(one)]), { caption: "What ends when", text: [2] })
        : el("p", {}, "Nothing here has an end: no TLS files and no trust metadata are named in the cloud’s file."));
  }

  cloud.views.fleet = {
    title: () => "Fleet",
    open(main) {
      const shown = el("div", { class: "view" }, el("p", { class: "soft" }, "Loading …"));
      let before = "", timer = 0, closed = false;

      async function refresh() {
        try {
          const found = await ev.ask("/v1/page/fleet");
          const { now: _, ...rest } = found, told = JSON.stringify(rest);
          if (!closed && told !== before && !shown.contains(document.activeElement)) {
            before = told;
            ev.show(shown, cells(found), links(found), disk(found), endings(found));
          }
        } catch (error) {
          if (!closed) { before = ""; ev.show(shown, cloud.wrong(error)); }
        }
        if (!closed) timer = setTimeout(refresh, EVERY_MS);
      }

      ev.show(main, el("h1", { tabindex: -1 }, "Fleet"), shown);
      refresh();
      return { update() {}, close() { closed = true; clearTimeout(timer); } };
    },
  };
})(window.EdgeVeil);

"use strict";
// The shell of the cloud's page: shared by all views, with the texts of job states.
(function (ev) {
  const cloud = (ev.cloud = { rows: new Map(), status: {}, maySubmit: false, views: {} });

  const TONES = { completed: "good", failed: "bad", paused: "warn", cancelled: "soft", running: "", queued: "soft" };
  cloud.badge = (status) => ev.el("span", { class: `badge ${TONES[status] || ""}` }, status);

  cloud.group = function (row) {
    if (row.status === "running") return "running";
    return row.status === "queued" || row.status === "paused" ? "waiting" : "ended";
  };

  cloud.progressText = function (row) {
    if (!row.exchanges) return row.status === "queued" ? "not started" : "";
    if (row.round) return `round ${row.round} of ${row.rounds}`;
    return row.exchange ? `preparing, ${row.exchange} of ${row.exchanges} rounds` : "not started";
  };

  cloud.progress = (row) => [
    ev.el("progress", { max: row.exchanges || 1, value: row.exchange, "aria-label": `progress of ${row.id}` }),
    ev.el("span", { class: "small soft number" }, cloud.progressText(row)),
  ];

  // Announce a text to screen readers, once.
  cloud.say = function (text) {
    document.getElementById("said").textContent = text;
  };

  // Show an error and its fix.
  cloud.wrong = function (error) {
    const told = error.answer || {};
    const lines = told.problems || [told.what ? `${told.what}.` : error.message, told.fix].filter(Boolean);
    return ev.el("div", { class: "told bad", role: "alert", tabindex: -1 }, lines.map((one) => ev.el("p", {}, one)));
  };

  // Confirm an irreversible action; resolves to true for yes and restores the focus.
  cloud.sure = function (title, text, yes, no) {
    return new Promise((done) => {
      const box = ev.el("dialog", { "aria-labelledby": "sure" },
        ev.el("h2", { id: "sure" }, title), ev.el("p", {}, text),
        ev.el("div", { class: "row" },
          ev.el("button", { class: "danger", on: { click: () => box.close("yes") } }, yes),
          ev.el("button", { autofocus: true, on: { click: () => box.close("") } }, no)));
      box.addEventListener("close", () => { box.remove(); done(box.returnValue === "yes"); });
      document.body.append(box);
      box.showModal();
    });
  };
})(window.EdgeVeil);

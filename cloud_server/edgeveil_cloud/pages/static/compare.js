"use strict";
// Some jobs beside each other; what is said of them is made in Python (pages/comparison.py).
(function (ev) {
  const cloud = ev.cloud, el = ev.el;
  const MOST = 6;

  function names(argument) {
    try { return argument ? argument.split(",").map(decodeURIComponent) : []; } catch { return []; }
  }

  cloud.views.compare = {
    title: () => "Compare",
    open(main, argument) {
      const chosen = new Set(names(argument).filter((job) => cloud.rows.has(job)).slice(0, MOST));
      const list = el("div", { class: "choose" }), note = el("p", { class: "soft small", role: "status" }), shown = el("div");
      let view = null, asked = 0, listed = 0;

      function choices() {
        if (listed === cloud.rows.size) return;
        listed = cloud.rows.size;
        ev.show(list, cloud.newest(cloud.rows.values()).map((row) => {
          const box = el("input", { type: "checkbox", checked: chosen.has(row.id), on: { change: () => choose(row.id, box) } });
          return el("label", {}, box, row.id);
        }));
      }

      function choose(job, box) {
        if (box.checked && chosen.size >= MOST) { box.checked = false; note.textContent = `${MOST} at most: take one out first.`; return; }
        box.checked ? chosen.add(job) : chosen.delete(job);
        history.replaceState(null, "", "#/compare/" + [...chosen].map(encodeURIComponent).join(","));
        refresh();
      }

      async function refresh() {
        const mine = (asked += 1);
        if (chosen.size < 2) {
          view = null;
          ev.show(shown);
          note.textContent = cloud.rows.size < 2 ? "There are not two jobs yet." : "Choose two to six jobs.";
          return;
        }
        try {
          const found = await ev.ask(`/v1/page/compare?${[...chosen].map((job) => `job=${encodeURIComponent(job)}`).join("&")}`);
          if (mine !== asked) return;
          note.textContent = "";
          if (view) view.update(found); else view = ev.jobView(shown, found);
        } catch (error) {
          if (mine === asked) { view = null; ev.show(shown, cloud.wrong(error)); }
        }
      }

      ev.show(main, el("h1", { tabindex: -1 }, "Compare jobs"),
        el("section", {}, el("fieldset", { class: "choose" }, el("legend", {}, "Jobs"), list), note), shown);
      choices();
      refresh();
      return {
        update(change) { choices(); if (change.rows.some((row) => chosen.has(row.id))) refresh(); },
        close() { asked += 1; },
      };
    },
  };
})(window.EdgeVeil);

"use strict";
// The page of the fleet; fleet.py makes its texts.
(function (ev) {
  const cloud = ev.cloud, el = ev.el;
  const EVERY_MS = 5000;

  cloud.views.fleet = {
    title: () => "Fleet",
    open(main) {
      const told = el("div"), shown = el("div", {}, el("p", { class: "soft" }, "Loading …"));
      let view = null, timer = 0, closed = false;

      async function refresh() {
        try {
          const found = await ev.ask("/v1/page/fleet");
          if (closed) return;
          ev.show(told);
          if (view) view.update(found); else view = ev.jobView(shown, found);
        } catch (error) {
          if (!closed) ev.show(told, cloud.wrong(error));
        }
        if (!closed) timer = setTimeout(refresh, EVERY_MS);
      }

      ev.show(main, el("h1", { tabindex: -1 }, "Fleet"), told, shown);
      refresh();
      return { update() {}, close() { closed = true; clearTimeout(timer); } };
    },
  };
})(window.EdgeVeil);

"use strict";
// The list of all jobs, and the page of one.
(function (ev) {
  const cloud = ev.cloud, el = ev.el;
  const SHOWN = 25; // ended jobs, before the list is expanded

  function figure(label, value, of, tone) {
    return el("div", { class: "figure" },
      el("span", { class: "label" }, label, el("span", { class: "quiet" }, ": ")),
      el("span", { class: `value ${tone || ""}` }, value),
      of ? el("span", { class: "of" }, of) : null);
  }

  function rowOf(row) {
    return el("li", { class: "job", "data-job": row.id },
      el("div", { class: "what" },
        el("h3", {}, el("a", { href: `#/job/${encodeURIComponent(row.id)}` }, row.name), " ", cloud.badge(row.status)),
        el("span", { class: "id" }, row.id)),
      el("div", { class: "far" }, cloud.progress(row)),
      figure(row.figure.name, row.figure.text ?? "–", row.rounds && row.figure.text !== null ? `after ${row.rounds === row.round ? "all" : row.round} rounds` : ""),
      row.guarantees.map((one) => figure(one.name, one.value, one.note, one.tone)),
      row.reason ? el("p", { class: "why" }, row.reason) : null);
  }

  const GROUPS = [
    ["running", "Running", "None.", (a, b) => a.started_at - b.started_at],
    ["waiting", "Waiting", "None.", (a, b) => a.submitted_at - b.submitted_at],
    ["ended", "Ended", "None yet.", (a, b) => b.ended_at - a.ended_at],
  ];

  cloud.views.jobs = {
    title: () => "Jobs",
    open(main) {
      const shown = new Map(); // job -> [its element, the row it shows]
      let all = false;
      const none = el("section", { hidden: true });
      const groups = GROUPS.map(([key, title, empty, order]) => {
        const list = el("ul", { class: "jobs" }), count = el("span", { class: "count" });
        const note = el("p", { class: "soft small" }, empty);
        const more = el("button", { hidden: true, on: { click: () => { all = true; update(); } } }, "Show all");
        return { key, order, list, count, note, more, box: el("section", { class: "group" }, el("h2", {}, title, " ", count), note, list, more) };
      });

      function update() {
        const rows = [...cloud.rows.values()];
        none.hidden = rows.length > 0;
        for (const group of groups) {
          const mine = rows.filter((row) => cloud.group(row) === group.key).sort(group.order);
          const visible = group.key === "ended" && !all ? mine.slice(0, SHOWN) : mine;
          group.box.hidden = rows.length === 0;
          group.count.textContent = String(mine.length);
          group.note.hidden = mine.length > 0;
          group.more.hidden = visible.length === mine.length;
          group.more.textContent = `Show all ${mine.length}`;
          place(group.list, visible);
        }
      }

      // Replaces changed rows only and keeps the focus.
      function place(list, rows) {
        const job = document.activeElement.closest(".job")?.dataset.job;
        for (const row of rows) {
          if (!shown.has(row.id) || shown.get(row.id)[1] !== row) shown.set(row.id, [rowOf(row), row]);
        }
        const made = rows.map((row) => shown.get(row.id)[0]);
        if (made.length === list.children.length && made.every((one, k) => one === list.children[k])) return;
        list.replaceChildren(...made);
        if (job) made.find((one) => one.dataset.job === job)?.querySelector("a").focus({ preventScroll: true });
      }

      ev.show(none, el("h2", {}, "No job yet"),
        el("p", {}, "Submit one on a command line:"),
        el("pre", {}, "edgeveil job submit job.yaml --config cloud.yaml"));
      ev.show(main, el("h1", { tabindex: -1 }, "Jobs"), none, groups.map((one) => one.box));
      update();
      return { update };
    },
  };

  // --- one job; job_view.py makes its texts ---

  cloud.views.job = {
    title: (job) => (cloud.rows.get(job) || {}).name || job,
    open(main, job) {
      const path = `/jobs/${encodeURIComponent(job)}`;
      const told = el("div"), does = el("div", { class: "does" }), shown = el("div");
      let seen = null, status = "", view = null, busy = false, asking = false, again = false, closed = false, timer = 0;

      async function act(what, done) {
        if (busy) return;
        busy = true;
        try {
          await ev.ask(`${path}/${what}`, { method: "POST" });
          ev.show(told);
          cloud.say(done);
        } catch (error) {
          ev.show(told, cloud.wrong(error));
          told.firstChild.focus();
        }
        busy = false;
      }

      async function cancel() {
        if (await cloud.sure(`Cancel ${job}?`, "The job ends without a model and cannot be resumed. The budget that devices have spent stays spent.", "Cancel the job", "Keep the job"))
          await act("cancel", "the job is cancelled");
      }

      const actions = (row) => !cloud.maySubmit ? [] : [
        row.status === "paused" ? el("button", { class: "main", on: { click: () => act("resume", "the job is resumed") } }, "Resume") : null,
        cloud.group(row) === "ended" ? null : el("button", { on: { click: cancel } }, "Cancel …"),
        row.status === "completed" && row.method !== "statistics" ? [
          el("a", { class: "button", href: `${path}/model.onnx`, download: true }, "Download the model (ONNX)"),
          el("a", { class: "button", href: `${path}/model.safetensors`, download: true }, "Download the weights")] : null,
      ];

      async function refresh() {
        if (asking) { again = true; return; }
        asking = true;
        do {
          again = false;
          try {
            const { view: found, again_s } = await ev.ask(`/v1/page/jobs/${encodeURIComponent(job)}`);
            if (closed) return;
            clearTimeout(timer);
            if (again_s > 0) timer = setTimeout(refresh, 1000 * again_s); // when a newer page is ready
            if (view) view.update(found);
            else {
              view = ev.jobView(shown, found);
              const title = shown.querySelector("h1");
              title.tabIndex = -1;
              if (document.activeElement === document.body) title.focus({ preventScroll: true });
            }
          } catch (error) {
            if (!closed && !view) ev.show(shown, cloud.wrong(error));
          }
        } while (again);
        asking = false;
      }

      function update() {
        const row = cloud.rows.get(job);
        if (!row || row === seen) return;
        seen = row;
        document.title = `${row.name} · EdgeVeil cloud`;
        if (status !== row.status) { status = row.status; ev.show(does, actions(row)); }
        refresh();
      }

      ev.show(main, el("div", { class: "row" }, el("a", { class: "back", href: "#/jobs" }, "← All jobs"), does), told, shown);
      if (cloud.rows.has(job)) update();
      else ev.show(shown, el("h1", { tabindex: -1 }, "No such job"), el("p", {}, "The cloud has no job with this id: check the id, and that this is the right cloud."));
      return { update, close() { closed = true; clearTimeout(timer); } };
    },
  };
})(window.EdgeVeil);

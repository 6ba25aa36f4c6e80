"use strict";
// Some jobs beside each other: accuracy by round, and the figures beside both ε.
(function (ev) {
  const cloud = ev.cloud, el = ev.el;
  const MOST = 6, COLOURS = ["--blue", "--orange", "--green", "--purple", "--red", "--soft"];
  const DASHES = [[], [8, 4], [3, 3], [10, 3, 3, 3], [14, 5], [2, 6]];
  const colour = (index) => getComputedStyle(document.documentElement).getPropertyValue(COLOURS[index]).trim();

  // Aligned for uPlot: rounds of all jobs, and each one's accuracy at them.
  function aligned(jobs) {
    const rounds = [...new Set(jobs.flatMap((one) => one.curve.map(([round]) => round)))].sort((a, b) => a - b);
    return [rounds, ...jobs.map((one) => { const at = new Map(one.curve); return rounds.map((round) => at.get(round) ?? null); })];
  }

  function drawn(box, jobs) {
    const soft = getComputedStyle(document.documentElement).getPropertyValue("--soft").trim();
    const line = getComputedStyle(document.documentElement).getPropertyValue("--line").trim();
    const axis = { stroke: soft, grid: { stroke: line, width: 1 }, ticks: { stroke: line }, font: "13px system-ui, sans-serif" };
    return new uPlot({
      width: box.clientWidth || 300, height: 300, legend: { show: false }, scales: { x: { time: false } },
      cursor: { drag: { x: false, y: false } },
      axes: [{ ...axis, label: "round", labelFont: "13px system-ui, sans-serif" }, { ...axis, size: 56 }],
      series: [{}, ...jobs.map((one, index) => ({ label: one.row.id, stroke: colour(index), width: 2, dash: DASHES[index], spanGaps: true, points: { show: one.curve.length < 30 } }))],
    }, aligned(jobs), box);
  }

  function words(told) {
    const [value, holds, tone] = cloud.guarantee(told);
    return [el("span", { class: tone }, value), el("br"), el("span", { class: "soft" }, holds)];
  }

  function table(jobs) {
    const head = ["job", "status", "accuracy", "ε training", "ε inference", "rounds", "time of rounds", "bytes"];
    const rows = jobs.map(({ row, seconds, bytes }) => [
      el("a", { href: `#/job/${encodeURIComponent(row.id)}` }, row.id), row.status, ev.figure(row.accuracy),
      words((row.privacy || {}).training), words((row.privacy || {}).inference),
      `${row.round} of ${row.rounds}`, ev.seconds(seconds), ev.bytes(bytes)]);
    return ev.table(head, rows, { caption: "The jobs in figures", text: [1] });
  }

  cloud.views.compare = {
    title: () => "Compare",
    open(main, argument) {
      const named = argument ? argument.split(",").map((one) => { try { return decodeURIComponent(one); } catch { return ""; } }) : [];
      const chosen = new Set(named.filter((job) => cloud.rows.has(job)).slice(0, MOST));
      const list = el("div", { class: "choose" }), note = el("p", { class: "soft small", role: "status" }), shown = el("div");
      let plot = null, asked = 0, listed = 0;

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

      function gone() { if (plot) { plot.destroy(); plot = null; } }

      async function refresh() {
        const mine = (asked += 1);
        if (chosen.size < 2) {
          gone();
          ev.show(shown);
          note.textContent = cloud.rows.size < 2 ? "There are not two jobs yet." : "Choose two to six jobs.";
          return;
        }
        try {
          const query = [...chosen].map((job) => `job=${encodeURIComponent(job)}`).join("&");
          const { jobs } = await ev.ask(`/v1/page/compare?${query}`);
          if (mine !== asked) return;
          note.textContent = "";
          const box = el("div", { class: "plot", role: "img", "aria-label": `Accuracy by round: ${jobs.map((one) => `${one.row.id} ${ev.figure(one.row.accuracy)}`).join(", ")}` });
          const tested = jobs.some((one) => one.curve.length);
          gone();
          ev.show(shown, el("section", {}, el("h2", {}, "Accuracy by round"),
            tested ? [el("ul", { class: "keys" }, jobs.map((one, index) => el("li", {}, mark(index), one.row.id))), box]
              : el("p", { class: "soft" }, "None of them was tested: the cloud holds no test records, or no round is done yet.")),
            el("section", {}, el("h2", {}, "In figures"), table(jobs),
              el("p", { class: "soft small" }, "Accuracies are worth comparing beside both ε alone: a weaker guarantee buys a better figure.")));
          if (tested) plot = drawn(box, jobs);
        } catch (error) {
          if (mine === asked) ev.show(shown, cloud.wrong(error));
        }
      }

      function mark(index) {
        const sign = ev.svg("svg", { width: 26, height: 8, "aria-hidden": "true" },
          ev.svg("line", { x1: 0, y1: 4, x2: 26, y2: 4, stroke: colour(index), "stroke-width": 2.5, "stroke-dasharray": DASHES[index].join(" ") }));
        return el("span", { class: "key" }, sign);
      }

      const resized = () => { if (plot) plot.setSize({ width: plot.root.parentElement.clientWidth, height: 300 }); };
      const scheme = matchMedia("(prefers-color-scheme: dark)");
      window.addEventListener("resize", resized);
      scheme.addEventListener("change", refresh);
      ev.show(main, el("h1", { tabindex: -1 }, "Compare jobs"),
        el("section", {}, el("fieldset", { class: "choose" }, el("legend", {}, "Jobs"), list), note), shown);
      choices();
      refresh();
      return {
        update(change) { choices(); if (change.rows.some((row) => chosen.has(row.id))) refresh(); },
        close() { asked += 1; gone(); window.removeEventListener("resize", resized); scheme.removeEventListener("change", refresh); },
      };
    },
  };
})(window.EdgeVeil);

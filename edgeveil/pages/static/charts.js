"use strict";
// Figures: each of `EdgeVeil.charts` makes {node, update(part)} of a part (see edgeveil/pages/parts.py).
// They are drawn at the size of their box, so that their text is 12 px everywhere, in the page's own
// colours, also after a change of scheme. Values show on hover and by arrow keys, and as a table.
(function (ev) {
  const FONT = "12px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
  const COLOURS = ["blue", "orange", "green", "red", "sky", "purple", "olive", "grey", "indigo", "brown"];
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const paint = (name) => `var(--${COLOURS.includes(name) || name === "ink" ? name : "grey"})`;

  const FORMS = {
    figure: (value) => ev.figure(value),
    up: (value) => ev.up(value),
    count: (value) => (typeof value === "number" ? value.toLocaleString("en") : "–"),
    seconds: (value) => ev.seconds(value),
    bytes: (value) => ev.bytes(value),
  };

  // --- what all figures share ---

  // Calls `draw(width)` now and whenever the box or the scheme changes; returns a function to call it anew.
  function fitted(box, draw) {
    let width = 0, waiting = 0;
    const again = () => { waiting = 0; if (width > 0) draw(width); };
    const soon = () => { if (!waiting) waiting = requestAnimationFrame(again); };
    new ResizeObserver((entries) => {
      const now = Math.floor(entries[0].contentRect.width);
      if (now !== width) { width = now; soon(); }
    }).observe(box);
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", soon);
    return soon;
  }

  // A figure with its name, and the same values as a table, made when somebody opens it.
  function framed(label, content, rows) {
    const inside = ev.el("div", {});
    const details = ev.el("details", { class: "as-table" }, ev.el("summary", {}, "Show as table"), inside);
    const fill = () => { if (details.open) ev.show(inside, ev.table(...rows())); };
    details.addEventListener("toggle", fill);
    const caption = ev.el("figcaption", {}, label());
    const node = ev.el("figure", { class: "chart" }, caption, content, details);
    return { node, told: () => { caption.textContent = label(); fill(); } };
  }

  function swatch(one) {
    const line = { x1: 0, y1: 5, x2: 18, y2: 5, stroke: paint(one.colour), "stroke-width": 3 };
    if (one.dash) line["stroke-dasharray"] = "5 3";
    return ev.svg("svg", { class: "key", width: 18, height: 10, "aria-hidden": "true" }, ev.svg("line", line));
  }

  const drawing = (width, height, label, ...children) =>
    ev.svg("svg", { class: "drawn", width, height, role: "img", "aria-label": label }, ...children);
  const words = (x, y, said, more) => ev.svg("text", { x, y, ...more }, said);
  // A mark whose value shows on hover, and on focus where there are few.
  const titled = (tag, attributes, said) => ev.svg(tag, { class: "mark", ...attributes }, ev.svg("title", {}, said));

  // --- lines ---

  function place(part, x) {
    const before = part.before || [];
    if (!before.length) return String(x);
    return x <= before.length ? before[x - 1] : String(x - before.length);
  }

  // The same beside values: `round 3`, `centre`, `training round 3`.
  function placed(part, x) {
    if (part.x_name !== "round") return `${part.x_name} ${x}`;
    const name = place(part, x);
    return /^[0-9]/.test(name) ? `round ${name}` : name;
  }

  // A value as it is read, with the standard error that it has.
  function valueText(one, k) {
    const told = FORMS[one.form] || FORMS.figure;
    return one.off && one.values[k] !== null ? `${told(one.values[k])} ± ${told(one.off[k])}` : told(one.values[k]);
  }

  // A bar through each point of a series with errors, one above and one below it.
  function drawErrors(u, part) {
    const bound = (y) => Math.min(u.bbox.top + u.bbox.height, Math.max(u.bbox.top, u.valToPos(y, "y", true)));
    u.ctx.save();
    u.ctx.lineWidth = 1.5 * window.devicePixelRatio;
    u.ctx.setLineDash([]);
    for (const one of part.series.filter((some) => some.off)) {
      u.ctx.strokeStyle = css(one.colour);
      one.values.forEach((y, k) => {
        if (y === null) return;
        const x = u.valToPos(part.x[k], "x", true);
        u.ctx.beginPath();
        u.ctx.moveTo(x, bound(y + one.off[k]));
        u.ctx.lineTo(x, bound(y - one.off[k]));
        u.ctx.stroke();
      });
    }
    u.ctx.restore();
  }

  function lines(first) {
    let part = first, plot = null, made = "";
    const box = ev.el("div", { class: "plot", tabindex: 0, role: "application" });
    const legend = ev.el("ul", { class: "legend" });
    const holder = ev.el("div", {}, legend, box);

    const shape = () => JSON.stringify([part.series.map((one) => [one.name, one.colour, one.dash, one.steps, one.quiet, Boolean(one.off)]), part.before, part.low, part.high]);
    const data = () => [part.x, ...part.series.filter((one) => !one.quiet).map((one) => one.values)];

    function read(index) {
      const at = index === null || index === undefined ? part.x.length - 1 : index;
      if (at < 0) return ev.show(legend);
      ev.show(legend, ev.el("li", { class: "at" }, placed(part, part.x[at])),
        part.series.map((one) => ev.el("li", {}, one.quiet ? null : swatch(one), `${one.name} `,
          ev.el("span", { class: "value" }, valueText(one, at)))));
    }

    function options(width) {
      const ends = [part.low, part.high];
      const whole = part.x.every(Number.isInteger), stepped = part.series.some((one) => one.steps);
      const axis = { stroke: () => css("soft"), font: FONT, ticks: { show: false }, grid: { stroke: () => css("line"), width: 1 } };
      return {
        width, height: Math.max(180, Math.min(260, Math.round(width * 0.45))),
        legend: { show: false }, cursor: { y: false, points: { size: 8 }, drag: { x: false, y: false } },
        scales: {
          x: { time: false, range: (u, low, high) => (low === high ? [low - 0.5, high + 0.5] : [low, stepped ? high + 1 : high]) },
          y: { range: (u, low, high) => {
            const from = ends[0] === null ? low : ends[0], to = ends[1] === null ? high : ends[1];
            if (low === null || high === null) return [from || 0, to || 1];
            if (ends[1] !== null) return [Math.min(from, low), Math.max(to, high)];
            const room = (high - from) * 0.08 || Math.abs(high) * 0.1 || 1;
            return [ends[0] === null ? low - room : Math.min(from, low), high + room];
          } },
        },
        axes: [
          { ...axis, grid: { show: false }, space: 46, size: 30, incrs: whole ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] : undefined,
            values: (u, splits) => splits.map((x) => (x > part.x[part.x.length - 1] || (whole && !Number.isInteger(x)) ? "" : whole ? place(part, x) : String(Number(x.toPrecision(3))))) },
          { ...axis, size: 58, space: 34, values: (u, splits) => splits.map((y) => axisText(part.series[0].form, y)) },
        ],
        series: [{}, ...part.series.filter((one) => !one.quiet).map((one) => ({
          stroke: () => css(one.colour), width: 2, dash: one.dash ? [6, 4] : undefined, spanGaps: true,
          fill: one.steps && !one.dash ? () => `${css(one.colour)}26` : undefined,
          paths: one.off ? () => null : one.steps ? uPlot.paths.stepped({ align: 1, extend: true }) : undefined,
          points: { show: Boolean(one.off) || (part.x.length <= 40 && !one.steps && !one.dash), size: 6, fill: () => css(one.colour) },
        }))],
        hooks: { setCursor: [(u) => read(u.cursor.idx)], draw: [(u) => drawErrors(u, part)] },
      };
    }

    function draw(width) {
      const now = `${shape()} ${width}`;
      if (plot && now === made) { plot.setData(data()); plot.redraw(true, true); }
      else {
        if (plot) plot.destroy();
        plot = new uPlot(options(width), data(), box);
        made = now;
      }
      read(null);
    }

    box.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!plot || !(step || event.key === "Home" || event.key === "End")) return;
      event.preventDefault();
      const last = part.x.length - 1, at = plot.cursor.idx ?? (step > 0 ? -1 : last + 1);
      const next = event.key === "Home" ? 0 : event.key === "End" ? last : Math.min(last, Math.max(0, at + step));
      plot.setCursor({ left: plot.valToPos(part.x[next], "x"), top: 10 });
      legend.setAttribute("aria-live", "polite");
    });
    box.addEventListener("blur", () => legend.removeAttribute("aria-live"));

    const name = () => box.setAttribute("aria-label", `${part.label}: a chart; arrow keys show its values`);
    const frame = framed(() => part.label, holder, () => [
      [part.x_name, ...part.series.map((one) => one.name)],
      part.x.map((x, k) => [place(part, x), ...part.series.map((one) => valueText(one, k))]),
      { caption: part.label, text: [0] },
    ]);
    name();
    read(null);
    const again = fitted(box, draw);
    return { node: frame.node, update: (next) => { part = next; name(); frame.told(); again(); } };
  }

  function axisText(form, value) {
    if (form === "seconds") return ev.seconds(value);
    if (form === "bytes") return ev.bytes(value);
    return String(Number(value.toPrecision(6)));
  }

  // --- drawn by code ---

  // A figure that `draw(part, width)` makes whole, and its table.
  function drawn(first, draw, rows) {
    let part = first;
    const box = ev.el("div", { class: "plot" });
    const frame = framed(() => part.label, box, () => rows(part));
    const again = fitted(box, (width) => ev.show(box, draw(part, width)));
    return { node: frame.node, update: (next) => { part = next; frame.told(); again(); } };
  }

  const widest = (names) => Math.min(150, 10 + 7 * Math.max(...names.map((name) => name.length), 1));
  const cut = (text, width) => (text.length * 7 > width ? `${text.slice(0, Math.max(1, Math.floor(width / 7) - 1))}…` : text);

  const bars = (first) => drawn(first, (part, width) => {
    const row = 30, left = widest(part.rows.map((one) => one[0])), right = Math.max(78, widest(part.rows.map((one) => one[2])));
    const most = Math.max(...part.rows.map((one) => one[1]), 1e-9), room = Math.max(30, width - left - right);
    const at = (value) => left + (room * Math.min(most, Math.max(0, value))) / most;
    return drawing(width, row * part.rows.length, `${part.label}: ${part.rows.map((one) => `${one[0]} ${one[2]}`).join(", ")}`,
      part.rows.map(([name, value, said, off], k) => {
        const long = Math.max(1, (room * value) / most), y = k * row;
        return [words(0, y + 19, cut(name, left - 6)),
          titled("rect", { class: "mark bar", x: left, y: y + 5, width: long, height: row - 10, rx: 3, fill: paint(part.colour) }, `${name}: ${said}`),
          off ? whisker(at(value - off), y + row / 2, at(value + off), y + row / 2) : null,
          words(left + long + 6, y + 19, said)];
      }));
  }, (part) => [["", "value"], part.rows.map((one) => [one[0], one[2]]), { caption: part.label, text: [0] }]);

  const whisker = (x1, y1, x2, y2) => ev.svg("line", { x1, y1, x2, y2, stroke: "var(--ink)", "stroke-width": 1.5 });

  const histogram = (first) => drawn(first, (part, width) => {
    const left = 46, top = 8, high = 180, room = Math.max(60, width - left - 32), { edges, values, off } = part;
    const low = edges[0], span = edges[edges.length - 1] - low || 1;
    const most = Math.max(...values.map((value, k) => value + off[k]), 1e-9);
    const x = (edge) => left + (room * (edge - low)) / span, y = (value) => top + high * (1 - Math.min(1, Math.max(0, value / most)));
    const every = Math.max(1, Math.ceil((64 * edges.length) / room));
    return drawing(width, top + high + 24, `${part.label}: ${values.length} bins; the values are in the table`,
      [0, most / 2, most].map((value) => [ev.svg("line", { x1: left, x2: left + room, y1: y(value), y2: y(value), stroke: "var(--line)" }),
        words(left - 6, y(value) + 4, String(Number(value.toPrecision(2))), { "text-anchor": "end" })]),
      values.map((value, k) => {
        const from = x(edges[k]), to = x(edges[k + 1]), middle = (from + to) / 2;
        return [titled("rect", { class: "mark bar", x: from, y: y(value), width: Math.max(0.5, to - from - 1), height: top + high - y(value), fill: paint("blue") }, `${edges[k]} to ${edges[k + 1]}: ${value} ± ${off[k]}`),
          off[k] ? whisker(middle, y(value - off[k]), middle, y(value + off[k])) : null];
      }),
      edges.map((edge, k) => (k % every ? null : words(x(edge), top + high + 17, Number(edge.toPrecision(6)).toLocaleString("en"), { "text-anchor": "middle" }))));
  }, (part) => [["from", "to", "value", "±"], part.values.map((value, k) => [part.edges[k], part.edges[k + 1], value, part.off[k]]), { caption: part.label, text: [] }]);

  const heat = (first) => drawn(first, (part, width) => {
    const columns = part.columns.length, rows = part.rows.length, top = part.top.length ? 88 : 0;
    const left = Math.max(26, widest(part.rows) - 6) + 16, foot = 40, few = rows * columns <= 400;
    const cell = Math.min((width - left) / columns, few ? 44 : 1e9), high = few ? Math.min(cell, 34) : Math.max(5, Math.min(16, 260 / rows));
    const most = Math.max(1, ...part.values.flat()), tallest = Math.max(1, ...part.top);
    const colour = (k) => (part.red.includes(k) ? "var(--red)" : "var(--blue)");
    const cells = part.values.map((row, r) => row.map((value, c) => {
      const share = value > 0 ? 0.12 + 0.88 * Math.sqrt(value / most) : 0;
      const x = left + c * cell, y = top + r * high;
      const said = `${part.row_name} ${part.rows[r]}, ${part.column_name} ${part.columns[c]}: ${value.toLocaleString("en")}`;
      if (!few && !value) return null;
      return [titled("rect", { x, y, width: Math.max(0.5, cell - (few ? 1 : 0)), height: high - (few ? 1 : 0), fill: colour(c), "fill-opacity": share.toFixed(3), ...(few ? { stroke: "var(--line)", "stroke-width": 0.5 } : {}) }, said),
        few && cell >= 8 * String(value).length + 6 && value
          ? words(x + cell / 2, y + high / 2 + 4, String(value), { "text-anchor": "middle", "pointer-events": "none", class: share > 0.55 ? "on" : "" }) : null];
    }));
    const above = part.top.map((value, c) => {
      const x = left + c * cell, y = top - 8 - (52 * value) / tallest;
      return [titled("rect", { x, y, width: Math.max(0.5, cell * 0.92), height: (52 * value) / tallest, fill: colour(c) }, `${part.column_name} ${part.columns[c]}: ${value.toLocaleString("en")} in total`),
        few && cell >= 8 * String(value).length + 2 ? words(x + cell * 0.46, y - 3, String(value), { "text-anchor": "middle" }) : null];
    });
    if (top) above.push(words(left, 11, `total, at most ${tallest.toLocaleString("en")}`, { class: "soft" }));
    const every = (count, size, need) => Math.max(1, Math.ceil((count * need) / (count * size)));
    const across = every(columns, cell, 10 + 8 * Math.max(...part.columns.map((one) => one.length))), down = every(rows, high, 14);
    return drawing(width, top + rows * high + foot, `${part.label}; the values are in the table`,
      above, cells,
      part.rows.map((name, r) => (r % down ? null : words(left - 6, top + r * high + high / 2 + 4, cut(name, left - 20), { "text-anchor": "end" }))),
      part.columns.map((name, c) => (c % across ? null : words(left + c * cell + cell / 2, top + rows * high + 15, name, { "text-anchor": "middle" }))),
      words(left, top + rows * high + 33, part.column_name, { class: "soft" }),
      ev.svg("text", { class: "soft", transform: `translate(11 ${top + (rows * high) / 2}) rotate(-90)`, "text-anchor": "middle" }, part.row_name));
  }, (part) => [[`${part.row_name} \\ ${part.column_name}`, ...part.columns], part.values.map((row, r) => [part.rows[r], ...row]), { caption: part.label, text: [0] }]);

  const scatter = (first) => drawn(first, (part, width) => {
    const columns = Math.max(1, Math.min(3, part.panels.length, Math.floor(width / 230)));
    const wide = Math.floor((width - 12 * (columns - 1)) / columns), high = Math.min(wide, 260), edge = 12;
    const [[x0, x1], [y0, y1]] = part.limits;
    const at = ([x, y]) => [edge + ((x - x0) / (x1 - x0)) * (wide - 2 * edge), high - edge - ((y - y0) / (y1 - y0)) * (high - 2 * edge)];
    return ev.el("div", { class: "panels" }, part.panels.map((panel) => ev.el("div", {}, ev.el("p", { class: "name" }, panel.title),
      drawing(wide, high, `${panel.title}: ${panel.points.length} points`,
        ev.svg("rect", { x: 0.5, y: 0.5, width: wide - 1, height: high - 1, fill: "none", stroke: "var(--line)", rx: 6 }),
        panel.points.map((point, k) => {
          const label = panel.labels[k], [x, y] = at(point), number = panel.numbered && label >= 0;
          const fill = label < 0 ? "var(--line)" : paint(COLOURS[label % COLOURS.length]);
          return [titled("circle", { cx: x, cy: y, r: panel.numbered ? 9 : 3, fill, "fill-opacity": 0.88 }, label < 0 ? "not used" : `cluster ${label}`),
            number ? words(x, y + 4, String(label), { class: "on", "text-anchor": "middle", "pointer-events": "none" }) : null];
        })))));
  }, (part) => [["evaluation", "cluster", "points"], part.panels.flatMap((panel) => {
    const counts = new Map();
    for (const label of panel.labels) counts.set(label, (counts.get(label) || 0) + 1);
    return [...counts].sort((a, b) => a[0] - b[0]).map(([label, count]) => [panel.title, label < 0 ? "not used" : label, count]);
  }), { caption: part.label, text: [0, 1] }]);

  ev.charts = { lines, bars, histogram, heat, scatter };
})(EdgeVeil);

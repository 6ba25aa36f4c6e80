"use strict";
// What the pages of proxy and device have in common beside base.js: a part that is shown anew when it
// changed, and one small chart.
(function (ev) {
  // Shows what `make(value)` gives, where the value is another than before: what stands keeps the
  // reader's place, focus and selection.
  const painted = new WeakMap();
  ev.paint = function (parent, value, make) {
    const said = JSON.stringify(value);
    if (painted.get(parent) === said) return;
    painted.set(parent, said);
    ev.show(parent, make(value));
  };

  // A line or steps over x, drawn as SVG that fills its box. Words stand beside it as text, so that
  // they keep their size, and the whole has one sentence for those who do not see it.
  // `points`: [x, y] in order. `span`: [from, to] of x. `top`: what y reaches; its text stands at the
  // axis.
  ev.chart = function ({ points, span, top, topText, leftText, rightText, label }) {
    const [from, to] = span, wide = Math.max(to - from, 1e-9), high = Math.max(top, 1e-9);
    const at = (x, y) => `${(100 * (x - from)) / wide} ${100 - (100 * Math.min(y, high)) / high}`;
    const line = points.length ? `M ${points.map(([x, y]) => at(x, y)).join(" L ")}` : "";
    const area = points.length ? `${line} L ${at(points[points.length - 1][0], 0)} L ${at(points[0][0], 0)} Z` : "";
    const drawn = ev.svg("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img", "aria-label": label },
      [0, 50, 100].map((y) => ev.svg("line", { x1: 0, x2: 100, y1: y, y2: y, class: "grid" })),
      area ? ev.svg("path", { d: area, class: "area" }) : null,
      line ? ev.svg("path", { d: line, class: "line" }) : null);
    return ev.el("div", { class: "charted" },
      ev.el("div", { class: "axis", "aria-hidden": "true" }, ev.el("span", {}, topText)),
      drawn,
      ev.el("div", { class: "axis", "aria-hidden": "true" }, ev.el("span", {}, leftText), ev.el("span", {}, rightText)));
  };
})(window.EdgeVeil);

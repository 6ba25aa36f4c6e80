"use strict";
// What all pages share: elements made of text, figures in one style, and the line to the server.
var EdgeVeil = window.EdgeVeil || {};
(function (ev) {
  // An element. `attributes`: class, id, aria-…, href …; functions under `on` are its listeners.
  // Children are elements or text; text stays text.
  ev.el = function (tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name === "on") for (const [kind, hear] of Object.entries(value)) made.addEventListener(kind, hear);
      else made.setAttribute(name, value === true ? "" : String(value));
    }
    ev.put(made, children);
    return made;
  };

  ev.put = function (parent, children) {
    for (const child of children.flat(Infinity)) {
      if (child === null || child === undefined || child === false) continue;
      parent.append(child instanceof Node ? child : document.createTextNode(String(child)));
    }
  };

  // Shows exactly `children` in `parent`.
  ev.show = function (parent, ...children) {
    parent.replaceChildren();
    ev.put(parent, children);
  };

  const SVG = "http://www.w3.org/2000/svg";
  ev.svg = function (tag, attributes, ...children) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, String(value));
    ev.put(made, children);
    return made;
  };

  // A table: `head` the column names, `rows` lists of cells (text or elements). Cells of the columns
  // in `text` are words and stand left.
  ev.table = function (head, rows, { caption = "", text = [] } = {}) {
    const kind = (index) => (text.includes(index) ? "text" : null);
    return ev.el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption ? `table: ${caption}` : "table" },
      ev.el("table", {},
        caption ? ev.el("caption", { class: "quiet" }, caption) : null,
        ev.el("thead", {}, ev.el("tr", {}, head.map((name, i) => ev.el("th", { scope: "col", class: kind(i) }, name)))),
        ev.el("tbody", {}, rows.map((row) => ev.el("tr", {}, row.map((cell, i) => ev.el("td", { class: kind(i) }, cell)))))));
  };

  ev.figure = (value, digits = 3) => (typeof value === "number" ? value.toFixed(digits) : "–");

  // ε and δ, rounded up: what is printed never promises more than holds.
  ev.up = function (value, digits = 4) {
    if (typeof value !== "number") return "–";
    if (value === 0) return "0";
    const scale = 10 ** (digits - 1 - Math.floor(Math.log10(Math.abs(value))));
    const raised = Math.ceil(value * scale * (1 - 1e-12)) / scale;
    return raised >= 1e-3 && raised < 1e6 ? String(Number(raised.toPrecision(digits))) : raised.toExponential(1);
  };

  ev.bytes = function (count) {
    if (typeof count !== "number") return "–";
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let index = 0;
    while (count >= 1024 && index < units.length - 1) { count /= 1024; index += 1; }
    return `${index === 0 || count >= 100 ? Math.round(count) : count.toFixed(1)} ${units[index]}`;
  };

  ev.seconds = function (s) {
    if (typeof s !== "number") return "–";
    if (s < 1) return `${Math.round(s * 1000)} ms`;
    if (s < 60) return `${Number(s.toFixed(1))} s`;
    const [unit_s, unit, part_s, part] = s < 3600 ? [60, "min", 1, "s"] : s < 86400 ? [3600, "h", 60, "min"] : [86400, "d", 3600, "h"];
    const parts = Math.round(s / part_s), each = unit_s / part_s, rest = parts % each;
    return `${Math.floor(parts / each)} ${unit}${rest ? ` ${rest} ${part}` : ""}`;
  };

  ev.time = function (unix_s) {
    if (typeof unix_s !== "number") return "–";
    const at = new Date(unix_s * 1000), two = (n) => String(n).padStart(2, "0");
    return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  };

  // JSON from the server; throws an Error whose `answer` is what it said.
  ev.ask = async function (path, { method = "GET", body = null, headers = {} } = {}) {
    const sent = method === "GET" ? headers : { "X-EdgeVeil": "1", ...headers };
    const answer = await fetch(path, { method, body, headers: sent, credentials: "same-origin" });
    const kind = answer.headers.get("Content-Type") || "";
    const told = kind.startsWith("application/json") ? await answer.json() : await answer.text();
    if (!answer.ok) {
      const wrong = new Error((told && told.what) || `the server answered ${answer.status}`);
      wrong.status = answer.status;
      wrong.answer = told;
      throw wrong;
    }
    return told;
  };

  // Server-sent events of `path`; `hear` gets each one's data. The returned function ends it.
  // `element` (class live) tells whether the line stands. A browser itself tries again only where
  // nothing answers: where the server refused, `refused` is told, and it is tried again here.
  ev.live = function (path, hear, element, refused) {
    let source = null, timer = 0;
    const tell = (there) => {
      if (!element) return;
      element.textContent = there ? "live" : "no connection, reconnecting";
      element.classList.toggle("away", !there);
    };
    const open = () => {
      source = new EventSource(path);
      source.onopen = () => tell(true);
      source.onmessage = (event) => hear(JSON.parse(event.data));
      source.onerror = () => {
        tell(false);
        if (source.readyState !== EventSource.CLOSED) return;
        if (refused) refused();
        timer = setTimeout(open, 5000);
      };
    };
    open();
    return () => { clearTimeout(timer); source.close(); };
  };
})(EdgeVeil);
window.EdgeVeil = EdgeVeil;

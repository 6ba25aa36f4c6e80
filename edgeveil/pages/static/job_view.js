"use strict";
// Draws a page that edgeveil/pages/parts.py describes: EdgeVeil.jobView(element, view) once, and
// `.update(view)` of what it returns whenever there is news; only what changed is drawn anew.
(function (ev) {
  const tone = (one) => (one.tone ? `tone-${one.tone}` : "");
  const paragraphs = (found) => found.map((one) => ev.el("p", { class: `said keep ${tone(one)}` }, one.text));

  // --- parts that are no figures ---

  function table(first) {
    let part = first, all = false;
    const node = ev.el("div", {});
    const draw = () => {
      const hidden = part.first && !all ? Math.max(0, part.rows.length - part.first) : 0;
      // The newest rows stand at the end, and these are what is shown of many.
      const rows = hidden ? part.rows.slice(hidden) : part.rows;
      ev.show(node, hidden ? ev.el("button", { class: "more", type: "button", on: { click: () => { all = true; draw(); } } }, `Show ${hidden} more above`) : null,
        ev.table(part.head, rows, { caption: part.label, text: [0, ...part.text] }));
    };
    draw();
    return { node, update: (next) => { part = next; draw(); } };
  }

  function terms(first) {
    const node = ev.el("dl", {});
    const draw = (part) => ev.show(node, part.rows.map(([name, means]) => [ev.el("dt", {}, name), ev.el("dd", {}, means)]));
    draw(first);
    return { node, update: draw };
  }

  const PAGE = 12;
  function events(first) {
    let part = first, count = PAGE;
    const list = ev.el("ol", { class: "log" });
    const more = ev.el("button", { class: "more", type: "button", on: { click: () => { count += 50; draw(); } } }, "Show more");
    const older = ev.el("p", { class: "said soft" });
    const line = (one) => ev.el("li", {}, ev.el("time", {}, one.time ? ev.time(one.time) : ""), ev.el("span", { class: tone(one) }, one.text));
    function draw() {
      ev.show(list, part.rows.slice(0, count).map(line));
      more.hidden = count >= part.rows.length;
      older.hidden = !part.before || !more.hidden;
      older.textContent = `${part.before.toLocaleString("en")} older events are not shown.`;
    }
    draw();
    return { node: ev.el("div", {}, list, more, older), update: (next) => { part = next; draw(); } };
  }

  const kinds = () => ({ ...ev.charts, table, terms, events });

  // --- what is kept from one view to the next ---

  // Children of `parent` by key: `list` of [key, value]; one of another key or shape is made anew.
  function keyed(parent, make) {
    const there = new Map();
    return (list) => {
      const seen = new Set();
      list.forEach(([key, value], index) => {
        seen.add(key);
        const told = JSON.stringify(value);
        let one = there.get(key);
        if (!one) {
          one = { ...make(value), told };
          there.set(key, one);
        } else if (one.told !== told) {
          one.told = told;
          one.update(value);
        }
        if (parent.children[index] !== one.node) parent.insertBefore(one.node, parent.children[index] || null);
      });
      for (const [key, one] of there) if (!seen.has(key)) { one.node.remove(); there.delete(key); }
    };
  }

  const partOf = (part) => {
    const make = kinds()[part.kind];
    return make ? make(part) : { node: ev.el("div", {}), update: () => {} };
  };

  function sectionOf(first) {
    const title = ev.el("h2", { id: `about-${first.id}` });
    const before = ev.el("div", {}), parts = ev.el("div", {}), after = ev.el("div", { class: "after" });
    const shown = keyed(parts, partOf);
    const update = (one) => {
      title.textContent = one.title;
      ev.show(before, paragraphs(one.said));
      // A part is known by its kind and its place among those of its kind.
      const counts = {};
      shown(one.parts.map((part) => [`${part.kind} ${(counts[part.kind] = (counts[part.kind] || 0) + 1)}`, part]));
      ev.show(after, paragraphs(one.after));
    };
    update(first);
    return { node: ev.el("section", { id: first.id, "aria-labelledby": `about-${first.id}` }, title, before, parts, after), update };
  }

  function headOf(first) {
    const node = ev.el("div", {});
    const update = (head) => {
      const going = head.progress;
      ev.show(node,
        head.title && ev.el("div", { class: "head" }, ev.el("h1", {}, head.title), head.badge ? ev.el("span", { class: `badge ${tone(head.badge)}` }, head.badge.text) : null),
        head.lines.map((one) => ev.el("p", { class: `said keep ${tone(one)}` }, one.text)),
        going ? ev.el("div", { class: "progress" }, ev.el("progress", { max: going.of, value: going.done, "aria-label": "rounds committed" }),
          ev.el("div", {}, going.text)) : null);
    };
    update(first);
    return { node, update };
  }

  function cardsOf(first) {
    const node = ev.el("div", { class: "cards" });
    const update = (cards) => {
      node.classList.toggle("wide", cards.some((one) => one.note.length > 60 || one.words));
      ev.show(node, cards.map((one) => ev.el("div", { class: `card ${tone(one)}` }, ev.el("div", { class: "name" }, one.name),
        ev.el("div", { class: `value ${one.words ? "words" : ""}` }, one.value), ev.el("div", { class: "note" }, one.note))));
    };
    update(first);
    return { node, update };
  }

  ev.jobView = function (element, first) {
    const head = ev.el("div", {}), cards = ev.el("div", {}), sections = ev.el("div", {}), footer = ev.el("footer", {});
    element.classList.add("view");
    ev.show(element, head, cards, sections, footer);
    const showHead = keyed(head, headOf), showCards = keyed(cards, cardsOf), showSections = keyed(sections, sectionOf);
    const update = (view) => {
      showHead([["head", { title: view.title, badge: view.badge, lines: view.lines, progress: view.progress }]]);
      showCards(view.cards.map((some, k) => [`cards ${k}`, some]));
      showSections(view.sections.map((one) => [one.id, one]));
      footer.textContent = view.footer;
    };
    update(first);
    return { update };
  };
})(EdgeVeil);

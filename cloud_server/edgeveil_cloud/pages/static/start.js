"use strict";
// Starts the page: log-in state, event stream, and choice of the view.
(function (ev) {
  const cloud = ev.cloud, main = document.getElementById("main"), live = document.getElementById("live");
  let view = null, begun = false;

  function show() {
    if (!location.hash.startsWith("#/") && location.hash) return; // the link that skips to the content
    const [name, ...rest] = location.hash.slice(2).split("/");
    const chosen = Object.hasOwn(cloud.views, name) ? cloud.views[name] : cloud.views.jobs;
    let argument = rest.join("/");
    try { argument = name === "job" ? decodeURIComponent(argument) : argument; } catch { argument = ""; }
    if (view && view.close) view.close();
    view = chosen.open(main, argument);
    document.title = `${chosen.title(argument)} · EdgeVeil cloud`;
    for (const link of document.querySelectorAll("header nav a")) {
      const here = link.hash === `#/${name || "jobs"}` || (name === "job" && link.hash === "#/jobs");
      here ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
    }
    if (begun) { main.querySelector("h1")?.focus({ preventScroll: true }); scrollTo(0, 0); }
    begun = true;
  }

  function hear(change) {
    const first = !view;
    for (const row of change.rows) {
      const before = cloud.rows.get(row.id);
      cloud.rows.set(row.id, row);
      if (before && before.status !== row.status) cloud.say(`job ${row.id} is ${row.status}`);
    }
    if (change.status) cloud.status = change.status;
    if (cloud.status.problem) { live.textContent = cloud.status.problem; live.classList.add("away"); }
    else { live.textContent = "live"; live.classList.remove("away"); }
    if (first) show(); else view.update(change);
  }

  async function gone() {
    // The stream was refused or the session ended.
    try { await ev.ask("/v1/page/me"); } catch (error) { if (error.status === 401) location.reload(); }
  }

  async function start() {
    const me = await ev.ask("/v1/page/me");
    cloud.maySubmit = me.may_submit;
    const out = document.getElementById("logout");
    out.hidden = false;
    out.title = `logged in with scope ${me.scope}`;
    out.addEventListener("click", async () => { await ev.ask("/logout", { method: "POST" }); location.reload(); });
    document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
    window.addEventListener("hashchange", show);
    ev.live("/v1/page/stream", hear, live, gone);
  }
  start().catch((error) => { ev.show(main, cloud.wrong(error)); });
})(window.EdgeVeil);

"use strict";
(function (ev) {
  const $ = (id) => document.getElementById(id);
  const CONDITIONS = {
    charging: () => "external power", battery_not_low: () => "battery not low", idle: () => "no user activity",
    unmetered: () => "unmetered network", storage_not_low: () => "free disk space",
    max_temperature_celsius: (v) => `temperature at most ${v} °C`, max_load: (v) => `load per core at most ${v}`,
    between: (v) => `between ${v.join(" or ")}`, command: (v) => `${v} succeeds`,
  };
  const AT_WORK = {
    idle: "waiting for a round", fetching: "downloading a round", opening: "decrypting a round", working: "computing the answer",
    uploading: "uploading the answer", answered: "answered",
  };
  let state = null, end = null;

  // --- logging in ---

  function logged(inside) {
    $("login").hidden = inside;
    $("shown").hidden = true; // until the state is there
    $("parts").hidden = $("logout").hidden = !inside;
    if (inside) {
      if (end) end();
      end = ev.live("events", hear, $("live"), look);
      return;
    }
    if (end) end();
    end = state = null;
    $("live").textContent = "not logged in";
    $("live").classList.add("away");
    document.title = "EdgeVeil device";
  }

  // Whether the session still stands, where the line was refused.
  async function look() {
    try { if (!(await ev.ask("session")).logged_in) logged(false); } catch { /* the process is away: tried again */ }
  }

  async function logIn(shown) {
    $("login-said").textContent = "";
    try {
      await ev.ask("login", { method: "POST", body: JSON.stringify(shown) });
      logged(true);
      $("content").focus();
    } catch (error) {
      logged(false);
      $("login-said").textContent = said(error);
    }
  }

  const said = (error) => [error.message, error.answer && error.answer.fix].filter(Boolean).join("; ");

  // --- figures ---

  // What is left is rounded down, as what is spent is rounded up.
  function down(value, digits = 4) {
    if (typeof value !== "number") return "–";
    if (value <= 0) return "0";
    const scale = 10 ** (digits - 1 - Math.floor(Math.log10(value)));
    const lowered = Math.floor(value * scale * (1 + 1e-12)) / scale;
    return lowered >= 1e-3 && lowered < 1e6 ? String(Number(lowered.toPrecision(digits))) : lowered.toExponential(1);
  }

  function guarantee(g) {
    if (!g) return "nothing";
    return g.claimed_epsilon === undefined ? g.text : `${g.text} (claimed: ε = ${ev.up(g.claimed_epsilon)})`;
  }

  // The limits of the policy: what is spent, what open jobs reserved beside, and what is left.
  function limits(s) {
    const { training, inference, left } = s.spent, p = s.policy;
    const line = (name, limit, spent, rest) => {
      const over = rest === undefined ? limit : rest, known = typeof spent === "number" ? spent : limit - over;
      return { name, limit, left: over, spent: Math.min(known, limit), reserved: Math.max(0, limit - over - known), proven: typeof spent === "number" };
    };
    const found = [line(`Training, ε at δ = ${ev.up(p.lifetime_delta)}`, p.lifetime_epsilon, training ? training.epsilon : 0, left && left.lifetime_epsilon)];
    if (left && left.lifetime_collusion_epsilon !== undefined) {
      const alone = training.collusion_epsilon === undefined ? training.epsilon : training.collusion_epsilon;
      found.push(line("Training, ε if all others collude", p.lifetime_collusion_epsilon, alone, left.lifetime_collusion_epsilon));
    }
    found.push(line("Inference, ε", p.max_inference_epsilon, inference ? inference.epsilon : 0, left && left.max_inference_epsilon));
    if (left && left.statistics_epsilon !== undefined) {
      const asked = p.statistics_epsilon - left.statistics_epsilon;
      found.push(line("Statistics, ε", p.statistics_epsilon, asked, left.statistics_epsilon));
    }
    return found;
  }

  function worded(one) {
    const spent = one.proven ? `spent ${ev.up(one.spent)}` : "spent without a proven guarantee";
    const reserved = one.reserved > one.limit * 1e-9 ? `, reserved for open jobs ${ev.up(one.reserved)}` : "";
    return `${spent}${reserved}, left ${down(one.left)} of ${down(one.limit)}`;
  }

  function gauge(one) {
    const whole = one.limit || 1, spent = (100 * one.spent) / whole, reserved = (100 * one.reserved) / whole;
    return ev.el("div", { class: "gauge" },
      ev.el("strong", {}, one.name),
      ev.svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
        ev.svg("rect", { width: 100, height: 10, class: "rest" }), ev.svg("rect", { width: spent, height: 10, class: "spent" }),
        ev.svg("rect", { x: spent, width: Math.min(reserved, 100 - spent), height: 10, class: "reserved" })),
      ev.el("p", {}, worded(one)));
  }

  function budget(s) {
    if (!s.ledger.intact) return ev.el("p", { class: "bad" }, "Unknown: the ledger was altered.");
    const all = limits(s);
    return [
      ev.el("p", { class: "soft" }, `Data set ${s.data}, all jobs since the first (of several, the least limits that admit them), and the limits of your policy. All ${s.ledger.links} entries of the ledger are intact.`),
      s.next_refusal ? ev.el("p", { class: "warn" }, `Another job like the newest one would be declined: ${s.next_refusal.why}`) : null,
      all.map(gauge),
      ev.el("div", { class: "key" }, ev.el("span", { class: "k-spent" }, "spent"), ev.el("span", { class: "k-reserved" }, "reserved for open jobs"), ev.el("span", { class: "k-rest" }, "left")),
    ];
  }

  // --- jobs ---

  function job(one, s) {
    const work = s.jobs.find((j) => j.job === one.job), short = one.job ? one.job.slice(0, 12) : "unknown";
    const name = s.names[one.job];
    const badge = one.elsewhere ? ["bad", "answered by a copy"] : one.open ? ["good", "open"] : ["soft", "closed"];
    const rows = one.kinds.map((k) => [k.exchanges, k.what, k.mechanism, k.count, k.purpose, k.status === "proven" ? "proven" : ev.el("strong", { class: "bad" }, k.status)]);
    return ev.el("details", { class: "job", "data-job": one.job },
      ev.el("summary", {}, ev.el("strong", {}, name || `job ${short}`), ev.el("span", { class: `badge ${badge[0]}` }, badge[1]),
        ev.el("span", { class: "cost" }, `training: ${guarantee(one.training)}`), ev.el("span", { class: "cost" }, `inference: ${guarantee(one.inference)}`)),
      ev.el("div", { class: "inside" },
        one.elsewhere ? ev.el("p", { class: "bad" }, "A copy of this device answered this job, so its whole reservation counts as spent.") : null,
        work ? ev.el("p", {}, `Now: ${AT_WORK[work.state] || work.state}${work.round === null ? "" : `, round ${work.round}`}; last accepted round: ${work.last_counted_round === null ? "none yet" : work.last_counted_round}.`) : null,
        ev.el("p", {}, ev.el("strong", {}, "Reserved at its start: "), `training: ${guarantee(one.reserved.training)}; inference: ${guarantee(one.reserved.inference)}.`),
        ev.el("p", { class: "soft small" }, "Job ", ev.el("code", {}, one.job || "unknown")),
        rows.length ? ev.table(["Round", "Released", "Mechanism", "Times", "Purpose", "Guarantee"], rows, { caption: `Releases for ${name || short}`, text: [1, 2, 4, 5] }) : ev.el("p", { class: "soft" }, "Nothing was released for this job.")));
  }

  function jobs(s) {
    const all = (s.spent.jobs || []).slice().reverse();
    if (!s.ledger.intact) return ev.el("p", { class: "bad" }, "Unknown.");
    if (!all.length) return ev.el("p", { class: "soft" }, "No accepted job yet.");
    return [
      ev.el("p", { class: "soft" }, `Open jobs: ${s.jobs.length} of at most ${s.max_jobs}. Newest first.`),
      all.map((one) => job(one, s)),
    ];
  }

  // --- conditions, release ---

  function declined(all) {
    if (!all.length) return ev.el("p", { class: "soft" }, "None.");
    const rows = all.map((one) => [ev.time(one.time_s), one.job || one.job_id.slice(0, 12), one.round, one.cause, one.why]);
    return ev.table(["Time", "Job", "Round", "Cause", "Reason"], rows, { caption: "Declined rounds, the newest of each job and cause", text: [0, 1, 3, 4] });
  }

  function conditions(s) {
    const unmet = Object.fromEntries(s.waiting_for.map((text) => [text.split(":")[0], text.slice(text.indexOf(":") + 1).trim()]));
    const wanted = Object.entries(s.wanted), others = s.waiting_for.filter((text) => !(text.split(":")[0] in s.wanted));
    if (!wanted.length && !others.length) return ev.el("p", { class: "soft" }, "None: the device always takes part.");
    const item = (met, text, why) => ev.el("li", {}, ev.el("span", { class: `mark ${met ? "good" : "bad"}`, "aria-hidden": "true" }, met ? "✓" : "✗"),
      ev.el("span", {}, text), ev.el("strong", { class: met ? "good" : "bad" }, met ? " · met" : ` · not met${why ? `: ${why}` : ""}`));
    return [
      ev.el("p", { class: "soft" }, `At the last check. The device connects or disconnects at most once in ${ev.seconds(s.interval_s)}.`),
      ev.el("ul", { class: "checks" }, wanted.map(([key, value]) => item(!(key in unmet), (CONDITIONS[key] || (() => key))(value), unmet[key])), others.map((text) => item(false, text, ""))),
    ];
  }

  function release(r) {
    if (!r) return ev.el("p", { class: "soft" }, "None yet: the first arrives when a job completes.");
    if (r.problem) return ev.el("p", { class: "bad" }, `The release in use ${r.problem}.`);
    return [
      r.stale ? ev.el("p", { class: "bad" }, "Stale: the cloud has not confirmed it in time; a newer release may have been withheld.") : null,
      ev.el("dl", {}, ev.el("dt", {}, "Version"), ev.el("dd", {}, r.version), ev.el("dt", {}, "Job"), ev.el("dd", {}, r.job),
        ev.el("dt", {}, "Installed"), ev.el("dd", {}, ev.time(r.installed_s)),
        r.expires_s ? [ev.el("dt", {}, "Valid until"), ev.el("dd", {}, ev.time(r.expires_s))] : null,
        ev.el("dt", {}, "SHA-256 of the model"), ev.el("dd", {}, ev.el("code", {}, r.digest))),
    ];
  }

  let sure = false;
  function showRollback() {
    const earlier = (state && state.release && state.release.earlier) || [], before = earlier[earlier.length - 1];
    $("rollback").hidden = !before;
    $("rollback-no").hidden = !before || !sure;
    $("rollback").textContent = sure ? `Confirm: return to ${before}` : `Return to ${before}`;
  }

  // --- the whole ---

  function hear(s) {
    state = s;
    const first = $("shown").hidden;
    $("shown").hidden = false;
    $("title").textContent = s.name;
    document.title = `${s.name} – EdgeVeil device`;
    const kind = { running: "good", paused: "warn", waiting: "warn" }[s.state];
    const newest = s.refused_lately[0];
    ev.paint($("state"), [s.state, s.waiting_for, s.connected, s.last_counted_round, newest], () => [
      ev.el("span", { class: `badge ${kind}` }, s.state),
      s.state === "waiting" ? ` for ${s.waiting_for.join("; ")}` : "",
      ev.el("span", { class: s.connected ? "soft" : "bad" }, s.connected ? " · connected to the broker" : " · not connected to the broker"),
      ev.el("span", { class: "soft" }, s.last_counted_round === null ? " · no accepted answer yet" : ` · last accepted answer in round ${s.last_counted_round}`),
      newest ? ev.el("a", { class: "warn", href: "#declined-part" }, ` · last declined (${newest.cause}) ${ev.time(newest.time_s)}`) : "",
    ]);
    const paused = s.state === "paused";
    if ($("pause").hidden !== paused || $("resume").hidden === paused) {
      const focused = document.activeElement === $("pause") || document.activeElement === $("resume");
      $("pause").hidden = paused;
      $("resume").hidden = !paused;
      if (focused) (paused ? $("resume") : $("pause")).focus();
    }
    $("pause-note").textContent = paused ? "Rounds are declined until you resume, also after a restart." : "Declines rounds from the next one on.";
    ev.paint($("problems"), [s.problems, s.ledger.intact || s.ledger], () => [
      s.ledger.intact ? null : ev.el("p", {}, ev.el("strong", { class: "bad" }, "The ledger was altered: "), `${s.ledger.what}${s.ledger.where ? ` (${s.ledger.where})` : ""}. ${s.ledger.fix}`),
      s.problems.map((one) => ev.el("p", { class: "bad" }, one)),
    ]);
    ev.paint($("budget"), [s.spent, s.policy, s.ledger, s.next_refusal], () => budget(s));
    ev.paint($("declined"), s.refused_lately, declined);
    const open = new Set([...document.querySelectorAll("details.job[open]")].map((one) => one.dataset.job));
    ev.paint($("jobs"), [s.spent.jobs, s.jobs, s.names, s.max_jobs, s.ledger.intact], () => jobs(s));
    for (const one of document.querySelectorAll("details.job")) one.open = one.open || open.has(one.dataset.job);
    ev.paint($("conditions"), [s.wanted, s.waiting_for, s.interval_s], () => conditions(s));
    ev.paint($("release"), s.release, release);
    showRollback();
    ev.paint($("about"), [s.device, s.role, s.cell], () => [`Device `, ev.el("code", {}, s.device), ` · ${s.role === "infer" ? "evaluates only" : "trains and evaluates"}${s.cell ? ` · cell ${s.cell}` : ""} · its name never leaves this box`]);
    if (first && location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
  }

  // --- what the owner does ---

  async function change(path) {
    try { await ev.ask(path, { method: "POST" }); } catch (error) {
      if (error.status === 401) logged(false);
      else throw error;
    }
  }
  // A button that is disabled would lose the focus, which the other one is to get.
  const order = (path) => async () => {
    try { await change(path); } catch (error) { $("pause-note").textContent = said(error); }
  };
  $("pause").addEventListener("click", order("pause"));
  $("resume").addEventListener("click", order("resume"));
  $("logout").addEventListener("click", async () => { await change("logout"); logged(false); $("content").focus(); });
  $("rollback").addEventListener("click", async () => {
    $("rollback-said").textContent = "";
    if (!sure) { sure = true; showRollback(); return; }
    sure = false;
    try { await change("rollback"); $("rollback-said").textContent = "Now in use."; } catch (error) { $("rollback-said").textContent = said(error); }
    showRollback();
  });
  $("rollback-no").addEventListener("click", () => { sure = false; showRollback(); $("rollback").focus(); });

  function byTicket() {
    const ticket = /^#ticket=(.+)$/.exec(location.hash);
    if (!ticket) return false;
    history.replaceState(null, "", location.pathname); // used up at once, and not kept in the history
    logIn({ ticket: ticket[1] });
    return true;
  }
  window.addEventListener("hashchange", byTicket); // an address that is pasted while the page is open
  if (!byTicket()) ev.ask("session").then((told) => logged(told.logged_in), () => logged(false));
})(window.EdgeVeil);

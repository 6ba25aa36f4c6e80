"use strict";
// Submitting: a job's text, its problems at their lines, its price, and only then a yes.
(function (ev) {
  const cloud = ev.cloud, el = ev.el;
  let draft = null; // stays while other views are looked at

  cloud.views.submit = {
    title: () => "Submit a job",
    open(main, from) {
      const lines = el("pre", { class: "lines", "aria-hidden": "true" });
      const text = el("textarea", { id: "job", spellcheck: "false", wrap: "off", autocapitalize: "off", autocomplete: "off", "aria-describedby": "hint found" });
      const found = el("div", { id: "found" });
      const check = el("button", { class: "main" }, "Check");
      const submit = el("button", { disabled: true }, "Submit");
      const file = el("input", { type: "file", id: "file", accept: ".yaml,.yml,.txt" });
      let checked = null, count = 0, busy = false;

      function number() {
        const now = text.value.split("\n").length;
        while (count < now) lines.append(el("b", {}, String((count += 1))));
        while (count > now) { lines.lastChild.remove(); count -= 1; }
      }

      function changed() {
        draft = text.value;
        number();
        submit.disabled = text.value !== checked;
        submit.classList.toggle("main", !submit.disabled);
        check.classList.toggle("main", submit.disabled);
      }

      function mark(problems) {
        const bad = new Set(problems.map((one) => one.line));
        [...lines.children].forEach((one, index) => one.classList.toggle("bad", bad.has(index + 1)));
      }

      // To a line: it is selected, so that it is seen and heard.
      function go(line) {
        const all = text.value.split("\n"), at = Math.min(Math.max(line, 1), all.length);
        const from = all.slice(0, at - 1).reduce((sum, one) => sum + one.length + 1, 0);
        text.focus();
        text.setSelectionRange(from, from + all[at - 1].length);
        text.scrollTop = Math.max(0, (at - 5) * text.scrollHeight / all.length);
      }

      function refused(problems) {
        const words = problems.length === 1 ? "1 problem" : `${problems.length} problems`;
        const title = el("h2", { tabindex: -1 }, words);
        ev.show(found, el("section", {}, title, el("p", { class: "soft small" }, "Nothing was submitted. Each leads to its line."),
          el("ol", { class: "problems" }, problems.map((one) => el("li", {},
            one.line ? el("button", { type: "button", on: { click: () => go(one.line) } }, `Line ${one.line}${one.key ? `, ${one.key}` : ""}`) : null,
            one.line ? ": " : "", one.text)))));
        mark(problems);
        text.setAttribute("aria-invalid", "true");
        title.focus();
        cloud.say(words);
      }

      function priced(price) {
        const title = el("h2", { tabindex: -1 }, `What “${price.job}” costs`);
        const devices = typeof price.devices === "number" ? `${price.devices} a round` : "all that are enrolled";
        ev.show(found, el("section", {}, title,
          el("dl", {},
            price.guarantees.map(([name, words]) => [el("dt", {}, name), el("dd", {}, words)]).flat(),
            el("dt", {}, "Both together"), el("dd", {}, "Neither alone is the job’s ε. Each device’s owner has a policy of their own, and a device whose policy allows less declines."),
            el("dt", {}, "Devices"), el("dd", {}, `${devices}; at least ${price.least_devices}, ${cloud.status.enrolled ?? "?"} are enrolled now`),
            el("dt", {}, "Work"), el("dd", {}, `method ${price.method}, ${price.rounds} rounds in ${price.exchanges} exchanges, up to ${ev.bytes(price.upload_bytes)} from each device in one`)),
          price.notes.map((one) => el("div", { class: "told" }, el("p", {}, one)))));
        mark([]);
        text.removeAttribute("aria-invalid");
        title.focus();
        cloud.say("the job can be submitted");
      }

      async function work(button, label, what) {
        if (busy) return;
        busy = true;
        const before = button.textContent;
        button.textContent = label;
        button.setAttribute("aria-busy", "true");
        try { await what(); }
        catch (error) { ev.show(found, cloud.wrong(error)); found.firstChild.focus(); }
        button.textContent = before;
        button.removeAttribute("aria-busy");
        busy = false;
      }

      check.addEventListener("click", () => work(check, "Checking …", async () => {
        const asked = text.value;
        checked = null;
        changed();
        const answer = await ev.ask("/v1/page/check", { method: "POST", body: asked });
        if (answer.problems.length) return refused(answer.problems);
        checked = asked;
        changed();
        priced(answer.price);
      }));

      submit.addEventListener("click", () => work(submit, "Submitting …", async () => {
        if (text.value !== checked) return;
        const answer = await ev.ask("/jobs", { method: "POST", body: checked });
        draft = null;
        location.hash = `#/job/${encodeURIComponent(answer.id)}`;
      }));

      file.addEventListener("change", async () => {
        const given = file.files[0];
        if (!given) return;
        if (given.size > 1 << 20) { ev.show(found, cloud.wrong(new Error("A job’s file has at most 1 MiB."))); return; }
        text.value = await given.text();
        ev.show(found);
        mark([]);
        changed();
      });
      text.addEventListener("input", changed);
      text.addEventListener("scroll", () => { lines.scrollTop = text.scrollTop; });

      ev.show(main, el("h1", { tabindex: -1 }, "Submit a job"),
        el("p", { id: "hint" }, "A job is a YAML text. Check it first: you see its problems, or what it costs."),
        el("div", { class: "row" }, el("label", { for: "file" }, "From a file"), file),
        el("label", { for: "job" }, "The job"),
        el("div", { class: "editor" }, lines, text),
        el("div", { class: "row" }, check, submit), found);

      function fill(content) { text.value = content; changed(); }
      // The text of another job takes the place of a draft, once: what is made of it is the draft then.
      async function begin(given) {
        history.replaceState(null, "", "#/submit");
        try {
          const job = decodeURIComponent(given);
          fill((await ev.ask(`/v1/page/jobs/${encodeURIComponent(job)}/text`)).text);
          ev.show(found, el("p", { class: "told" }, `The text of ${job}: change what you like, then check it.`));
        } catch (error) { fill(draft ?? ""); ev.show(found, cloud.wrong(error)); }
      }

      if (from) begin(from);
      else if (draft !== null) fill(draft);
      else ev.ask("/v1/page/example").then((answer) => { if (!text.value) fill(answer.text); }, () => fill(""));
      return { update() {} };
    },
  };
})(window.EdgeVeil);

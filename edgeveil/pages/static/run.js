"use strict";
// A run's page while it runs: each event brings the whole view, of which only news is drawn.
(function (ev) {
  const line = document.getElementById("live");
  let shown = null;
  const stop = ev.live("events", (told) => {
    document.title = `${told.view.title}: ${told.view.badge.text}`;
    if (shown) shown.update(told.view);
    else shown = ev.jobView(document.getElementById("view"), told.view);
    if (told.ended) {
      stop();
      line.textContent = told.ended;
      line.classList.add("ended");
    }
  }, line);
})(EdgeVeil);

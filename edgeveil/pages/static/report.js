"use strict";
// A frozen page: what it shows lies in it.
EdgeVeil.jobView(document.getElementById("view"), JSON.parse(document.getElementById("data").textContent));

// Replaces the content of the page by that of the server, every few seconds.
"use strict";

const PERIOD = 3000;
const told = document.querySelector("header output");

async function refresh() {
  if (document.hidden) return;
  try {
    const answer = await fetch(location.pathname, { credentials: "same-origin", redirect: "error" });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const main = page.querySelector("main");
    if (answer.status === 401 || main === null) throw new Error("not logged in");
    document.querySelector("main").replaceWith(main);
    document.title = page.title;
    told.textContent = "live";
    told.className = "live";
  } catch {
    told.textContent = "disconnected: is `avactl dashboard` still running?";
    told.className = "lost";
  }
}

setInterval(refresh, PERIOD);
document.addEventListener("visibilitychange", refresh);

// Pages read without this. With it pictures are drawn, and a page that has changed is shown anew.
"use strict";

const DRAWN = [];

const utc = (seconds) => new Date(seconds * 1e3).toISOString();

function tick(seconds) {
  const at = utc(seconds);
  return at.slice(11, 16) === "00:00" ? at.slice(5, 10) : at.slice(11, 16); // a day where it begins, else the time
}

function draw(root) {
  if (typeof uPlot === "undefined") return;
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue("--ink"), line = style.getPropertyValue("--line");
  const colors = { installed: style.getPropertyValue("--quiet"), healthy: style.getPropertyValue("--good"),
    promised: style.getPropertyValue("--soon"), assigned: style.getPropertyValue("--soon"),
    promise: style.getPropertyValue("--soon"), ceiling: style.getPropertyValue("--shadow"),
    phantom: style.getPropertyValue("--bad") };
  const marks = { breach: style.getPropertyValue("--bad") }, declared = style.getPropertyValue("--warn");
  for (const place of root.querySelectorAll("[data-plot]")) {
    const { names, data, bands } = JSON.parse(place.dataset.plot);
    place.textContent = "";
    const series = names.map((name, number) => ({
      label: name, stroke: colors[name] || ink, width: name === "promise" ? 4 : 2, points: { show: false },
      dash: name === "promise" ? undefined : number % 2 ? [6, 3] : undefined,
    }));
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
    const options = { width: place.clientWidth, height: 260, tzDate: (s) => uPlot.tzDate(new Date(s * 1e3), "UTC"),
      scales: { y: { range: (_, least, most) => [Math.min(0, least), Math.max(1, most * 1.05)] } },
      series: [{ label: "as of (UTC)", value: (_, s) => (s === null ? "--" : utc(s).slice(0, 16).replace("T", " ")) }, ...series],
      axes: [{ ...axis, space: 70, values: (_, splits) => splits.map(tick) }, { ...axis, size: 84 }] };
    options.hooks = { drawClear: [(plot) => {
      const { left, top, width, height } = plot.bbox, at = (s) => plot.valToPos(s, "x", true);
      plot.ctx.save();
      plot.ctx.beginPath();
      plot.ctx.rect(left, top, width, height);
      plot.ctx.clip();
      for (const [kind, begins, ends] of bands) {
        plot.ctx.fillStyle = marks[kind] || declared;
        plot.ctx.globalAlpha = 0.2;
        plot.ctx.fillRect(at(begins), top, Math.max(3, at(ends) - at(begins)), height);
        plot.ctx.globalAlpha = 1;
        plot.ctx.fillRect(at(begins), top, 1, height);
      }
      plot.ctx.restore();
    }] };
    const plot = new uPlot(options, data, place);
    DRAWN.push([place, plot]);
  }
}

window.addEventListener("resize", () => {
  for (const [place, plot] of DRAWN) plot.setSize({ width: place.clientWidth, height: 260 });
});

function busy(main) {
  const at = document.activeElement;
  if (main.querySelector("form.give")) return true; // what is about to be given stays as it was looked at
  return at && main.contains(at) && ["INPUT", "SELECT", "TEXTAREA"].includes(at.tagName);
}

async function refresh() {
  const main = document.getElementById("main");
  if (busy(main)) {
    document.getElementById("changed").hidden = false;
    return;
  }
  const answer = await fetch(location.href, { headers: { accept: "text/html" }, redirect: "error" });
  if (answer.status === 401) { location.reload(); return; } // to where one logs in, and back
  if (answer.status >= 500) throw new Error("away");
  if (!answer.ok) return;
  const made = new DOMParser().parseFromString(await answer.text(), "text/html"), fresh = made.getElementById("main");
  if (!fresh) return;
  document.title = made.title;
  const at = document.activeElement, where = at && main.contains(at) ? at.getAttribute("href") : null;
  const open = [...main.querySelectorAll("details")].map((one) => one.open);
  DRAWN.length = 0;
  const said = main.querySelector(".said"), again = fresh.querySelector(".said");
  if (said && again && !again.children.length) again.replaceWith(said); // what was said of a command stays
  main.replaceChildren(...fresh.childNodes);
  main.querySelectorAll("details").forEach((one, number) => { one.open = open[number] || false; });
  if (where) main.querySelector(`a[href="${CSS.escape(where)}"]`)?.focus({ preventScroll: true });
  draw(main);
}

let due = null, asking = false, more = false;

async function again() {
  clearTimeout(due);
  more = asking;
  if (asking) return; // one at a time: of two, the older answer might come last, and stay
  asking = true;
  await refresh().catch(() => { due = setTimeout(again, 3000); }); // the line to here may be cut: what is shown would stay old
  asking = false;
  if (more) again();
}

function say(sentence) {
  const place = document.getElementById("away");
  if (!place) return;
  place.textContent = sentence;
  place.hidden = !sentence;
}

function live() {
  if (!document.querySelector("main") || typeof EventSource === "undefined" || !document.querySelector(".who form")) return;
  let mark = document.getElementById("main").dataset.mark || null, away = false; // what happened since it was made counts
  const source = new EventSource("/live");
  source.addEventListener("mark", (event) => {
    const anew = away || document.querySelector("[data-again]") !== null, first = mark === null;
    say("");
    away = false;
    if (event.data === mark && !anew) return;
    mark = event.data;
    if (!first || anew) { clearTimeout(due); due = setTimeout(again, 200); }
  });
  source.addEventListener("away", (event) => {
    say(`Nobody says whether anything has changed since this page was made: ${event.data}`);
    away = true;
  });
  source.addEventListener("error", () => {
    say("The console does not answer: this page is as it was made, and is made anew once it does.");
  });
}

draw(document);
live();

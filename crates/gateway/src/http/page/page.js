// Draws the gateway's events. Anything from elsewhere is inserted as text, never as markup.
"use strict";

const KEPT = 400;
const KINDS = ["ok", "error", "denied", "refused", "unknown"];
const SVG = "http://www.w3.org/2000/svg";
const CODES = {
  "-32700": "not JSON", "-32600": "not a request", "-32601": "no such method", "-32602": "wrong parameters", "-32603": "internal",
  "-32001": "validation", "-32002": "denied", "-32003": "too late", "-32004": "dependency", "-32010": "not authenticated",
  "-32011": "stale", "-32012": "replayed", "-32013": "too fast", "-32014": "overloaded", "-32015": "too large",
  "-32016": "cancelled", "-32017": "conflict", "-32018": "waits for approval",
};

const at = (id) => document.getElementById(id);
let rows = [];
let missed = 0;
let paused = false;
let state = null;
let heard = 0;

/** An element with text or children. */
function make(name, content, kind) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  for (const part of [content].flat()) {
    if (part !== null && part !== undefined && part !== "") made.append(part);
  }
  return made;
}

const plain = (text) => make("bdi", text);
const replica = (id) => {
  if (!id) return make("span", "–", "faint");
  const short = plain(id.length > 8 ? `${id.slice(0, 8)}…` : id);
  short.title = id;
  return short;
};
const cell = (content, kind) => make("td", content, kind);
const two = (number) => String(number).padStart(2, "0");
const ms = (value) => (value >= 100 ? value.toFixed(0) : value.toFixed(1));

function clock(time) {
  const date = new Date(time);
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

function span(time) {
  const seconds = Math.max(0, Math.floor(time / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${two(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${two(Math.floor((seconds % 3600) / 60))} min`;
}

/** "math/add", or "math/add ×3" for three of them. */
const method = (call) => [plain(call.method || "–"), call.calls > 1 ? ` ×${call.calls}` : ""];

function outcome(row) {
  const many = row.calls > 1 && row.of < row.calls ? ` ${row.of} of ${row.calls}` : "";
  if (row.code === null) return row.outcome + many;
  const said = CODES[row.code];
  const why = said && said !== row.outcome ? ` ${said}` : "";
  return [row.outcome + many, make("span", [make("span", why, "why"), ` ${row.code}`], "faint")];
}

function line(row) {
  const shown = make("tr", null, `is-${row.outcome}`);
  shown.append(
    cell(clock(row.at), "time"),
    cell(outcome(row), row.outcome),
    cell(plain(row.service || "–"), "name"),
    cell(method(row), "name"),
    cell(plain(row.caller ?? "–"), "name"),
    cell(row.via),
    cell(row.outcome === "refused" && row.ms === 0 ? "–" : ms(row.ms), "n"),
    cell(replica(row.replica)),
    cell(row.parts ? String(row.parts) : "", "n"),
  );
  return shown;
}

function isFound(row) {
  if (at("bad").checked && ["ok", "sent"].includes(row.outcome)) return false;
  const wanted = at("find").value.trim().toLowerCase();
  const texts = [row.caller, row.via, row.service, row.method, row.outcome, row.code, row.replica];
  return !wanted || texts.some((text) => String(text ?? "").toLowerCase().includes(wanted));
}

function drawRows(fresh) {
  const body = at("rows");
  if (fresh === null) {
    body.replaceChildren(...rows.filter(isFound).slice(-KEPT).reverse().map(line));
  } else {
    for (const row of fresh.filter(isFound)) {
      const shown = line(row);
      shown.classList.add("new");
      body.prepend(shown);
    }
    while (body.children.length > KEPT) body.lastElementChild.remove();
  }
  const none = at("no-rows");
  none.hidden = body.children.length > 0;
  none.textContent = rows.length > 0 ? "No calls match." : "No calls yet.";
  at("missed").hidden = missed === 0;
  at("missed").textContent = `${missed} calls are not in this list: they came faster than this page could show them.`;
}

function addCalls(fresh) {
  rows = rows.concat(fresh).slice(-KEPT);
  if (!paused) drawRows(fresh);
}

/** A value with its limit, and whether it is close to it. */
function bound(value, most, text) {
  const meter = make("meter");
  Object.assign(meter, { min: 0, max: most, low: most * 0.7, high: most * 0.9, optimum: 0, value });
  meter.setAttribute("aria-hidden", "true");
  return cell([meter, make("span", text, value >= most * 0.9 ? "near" : "")]);
}

function drawMinute(minute) {
  const svg = at("minute");
  const sums = minute.map((second) => second.reduce((sum, count) => sum + count));
  const most = Math.max(4, ...sums);
  const bars = [];
  minute.forEach(([ok, error, denied, refused, unknown], position) => {
    let top = 48;
    const parts = [["ok", ok], ["other", error + refused + unknown], ["denied", denied]];
    for (const [kind, count] of parts) {
      if (count === 0) continue;
      const height = Math.max(1, (count / most) * 46);
      const bar = document.createElementNS(SVG, "rect");
      top -= height;
      const places = { x: position * 4 + 0.4, y: top, width: 3.2, height, class: kind };
      for (const [key, value] of Object.entries(places)) bar.setAttribute(key, value);
      bars.push(bar);
    }
  });
  svg.replaceChildren(...bars);
  const figures = [["calls", sums.reduce((sum, one) => sum + one, 0)]];
  KINDS.slice(1).forEach((kind, place) => figures.push([kind, minute.reduce((sum, second) => sum + second[place + 1], 0)]));
  for (const [kind, count] of figures) {
    at(`f-${kind}`).textContent = String(count);
    at(`f-${kind}`).classList.toggle("none", count === 0);
  }
}

function drawService(service) {
  const answer = service.answer;
  let said = ["not asked", "faint"];
  if (answer?.failed) said = [answer.failed, "denied"];
  else if (answer) said = [`answers in ${ms(answer.ms)} ms`, "ok"];
  if (answer && state.bus === false) said = ["the broker cannot be reached", "denied"];
  const shown = make("div", null, "service");
  const { counts } = service;
  const tally = KINDS.filter((kind) => counts[kind] > 0).map((kind) => `${counts[kind]} ${kind}`);
  shown.append(
    make("div", [make("h3", plain(service.service)), make("p", said[0], said[1])], "head"),
    make("p", ["leads to ", make("code", service.methods.join(" ")), `, within ${service.timeout_s} s · ${tally.join(", ") || "no calls yet"}`]),
  );
  if (service.replicas.length > 0) {
    const body = make("tbody");
    for (const one of service.replicas) {
      const quiet = one.ago_ms > 60_000 ? "faint" : "";
      body.append(make("tr", [cell(plain(one.replica), quiet), cell(String(one.answers), `n ${quiet}`), cell(`${span(one.ago_ms)} ago`, `n ${quiet}`)]));
    }
    const head = make("tr", ["replica", "streams", "last heard"].map((text, column) => {
      const th = make("th", text, column ? "n" : "");
      th.scope = "col";
      return th;
    }));
    const table = make("table", [make("caption", "Replicas that have signed streams of this gateway", "hidden"), make("thead", head), body]);
    shown.append(make("div", table, "scroll"));
  }
  return shown;
}

function drawState() {
  at("agent").replaceChildren("of agent ", plain(state.agent), state.identity === "own" ? "" : ", on behalf of its callers");
  const up = at("health");
  up.className = state.bus ? "up" : "down";
  const text = state.bus ? `broker connected · up ${span(state.now - state.started)}` : "the broker cannot be reached";
  at("health-text").textContent = text;
  drawMinute(state.minute);
  at("f-under-way").textContent = String(state.under_way_count);
  at("f-under-way").classList.toggle("none", state.under_way_count === 0);
  at("calls").classList.toggle("of-one", state.services.length === 1);
  at("services").replaceChildren(...state.services.map(drawService));

  at("open").replaceChildren(...state.under_way.map((call) => make("tr", [
    cell(span(state.now - call.at), "n"), cell(plain(call.caller), "name"), cell(call.via), cell(method(call), "name"),
    cell(replica(call.replica)), cell(call.stream ? String(call.parts) : "", "n"),
  ])));
  at("no-open").hidden = state.under_way_count > 0;

  const { limits } = state;
  at("callers").replaceChildren(...state.callers.map((caller) => make("tr", [
    cell(plain(caller.caller), "name"),
    bound(caller.rate, limits.per_second, `${caller.rate.toFixed(1)} / ${limits.per_second}`),
    bound(caller.in_flight, limits.in_flight, `${caller.in_flight} / ${limits.in_flight}`),
    bound(caller.streams, limits.streams, `${caller.streams} / ${limits.streams}`),
    cell(String(caller.counts.denied), "n"), cell(String(caller.counts.refused), "n"),
  ])));
  at("marks").hidden = state.identity === "own";
}

function drawMethods(all) {
  const why = state?.identity === "mint" ? "This depends on the caller, so services are not asked." : "The services have not answered yet.";
  at("no-methods").hidden = all.length > 0;
  at("no-methods").textContent = why;
  at("methods").replaceChildren(...all.map((service) => {
    const shown = make("div");
    shown.append(make("h3", plain(service.service)));
    if (service.failed) shown.append(make("p", service.failed, "denied"));
    const body = make("tbody");
    for (const one of service.methods) {
      const params = one.params.flatMap((param, position) => [
        position > 0 ? "; " : "", make("code", param.required ? param.name : `${param.name}?`), param.bounds ? " " : "",
        param.bounds ? make("span", param.bounds, /[≤≥<>=]|one of|matches|conditions/.test(param.bounds) ? "bound" : "faint") : "",
      ]);
      if (one.more > 0) params.push(` and ${one.more} more`);
      const kind = one.kind === "call" ? "" : one.kind;
      body.append(make("tr", [cell(plain(one.name), "name"), cell(kind, "faint"), cell(params)]));
    }
    const head = make("tr", ["method", "kind", "parameters"].map((text) => {
      const th = make("th", text);
      th.scope = "col";
      return th;
    }));
    shown.append(make("table", [make("caption", "Methods", "hidden"), make("thead", head), body]));
    if (service.methods.length === 0 && !service.failed) shown.append(make("p", "None.", "empty"));
    if (service.more > 0) shown.append(make("p", `${service.more} more are not shown.`, "note"));
    return shown;
  }));
}

function gone(text) {
  at("health").className = "down";
  at("health-text").textContent = text;
}

function listen() {
  const events = new EventSource("page/events");
  const on = (kind, take) => events.addEventListener(kind, (event) => {
    heard = Date.now();
    take(JSON.parse(event.data));
  });
  let isFirst = true;
  on("calls", (fresh) => {
    if (isFirst) {
      // The calls that the gateway still remembers; after a reconnect it may be a restarted gateway.
      isFirst = false;
      rows = fresh;
      if (!paused) drawRows(null);
    } else {
      addCalls(fresh);
    }
  });
  on("state", (now) => {
    state = now;
    drawState();
  });
  on("methods", drawMethods);
  on("missed", (count) => {
    missed += count;
    drawRows([]);
  });
  events.onerror = () => {
    events.close();
    gone("no answer from the gateway: it is not running, or has too many viewers");
    setTimeout(listen, 2000);
  };
}

at("filter").addEventListener("submit", (event) => event.preventDefault());
at("find").addEventListener("input", () => drawRows(null));
at("bad").addEventListener("change", () => drawRows(null));
at("pause").addEventListener("click", () => {
  paused = !paused;
  at("pause").setAttribute("aria-pressed", String(paused));
  if (!paused) drawRows(null);
});
setInterval(() => {
  if (heard > 0 && Date.now() - heard > 10_000) gone("the gateway does not answer");
}, 2000);
listen();

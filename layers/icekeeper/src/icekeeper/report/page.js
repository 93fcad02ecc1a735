// The list of tables: searched, filtered, sorted and shown page by page.  The details of a table are drawn when it is
// opened.  All text is added as text, never as markup.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const several = data.catalogs.length > 1;
  const KINDS = { damaged: "damaged or unreadable", work: "work due or waiting", well: "well" };
  const ORDER = Object.keys(KINDS);
  const KIND_OF = { unreadable: "damaged", damaged: "damaged", well: "well" };
  const WORDS = { trouble: "waiting", work: "work due" };
  const tables = data.catalogs.flatMap((one) =>
    one.tables.map((table) => ({
      ...table,
      catalog: one.catalog,
      namespace: table.name.slice(0, Math.max(0, table.name.lastIndexOf("."))),
      kind: KIND_OF[table.state] ?? "work",
    })),
  );
  const PAGE = 50;
  const MOST_PRINTED = 500;
  const MOST_NAMESPACES = 12;
  const LONGEST = 120;
  const NONE = "–";

  // Text.

  const UNITS = [["TB", 2 ** 40], ["GB", 2 ** 30], ["MB", 2 ** 20], ["KB", 2 ** 10], ["B", 1]];
  function size(bytes) {
    if (bytes === undefined) return NONE;
    const [unit, divisor] = UNITS.find(([, least]) => bytes >= least) ?? UNITS[4];
    const number = bytes / divisor;
    return `${number >= 100 || divisor === 1 ? number.toFixed(0) : Number(number.toPrecision(2))} ${unit}`;
  }
  const count = (number) => (number === undefined ? NONE : number.toLocaleString("en-US", { maximumFractionDigits: 2 }));
  // Any writer of a table chooses the times of its snapshots, even times that no calendar has.
  const isTime = (ms) => Math.abs(ms) < 864e13;
  // The spaces do not break.
  const inWords = d3.utcFormat("%-d\u00a0%b\u00a0%Y,\u00a0%H:%M\u00a0UTC");
  const moment = (ms) => (isTime(ms) ? inWords(new Date(ms)) : String(ms));
  function age(ms) {
    const [number, unit] = ms < 36e5 ? [ms / 6e4, "minute"] : ms < 2592e5 ? [ms / 36e5, "hour"] : [ms / 864e5, "day"];
    return plural(Math.max(1, Math.floor(number)), unit);
  }
  const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
  // A line breaks a name only after a dot or an underscore, and a text only between words and after a slash.
  const parted = (parts) => parts.flatMap((part, at) => (at ? [el("wbr"), part] : [part]));
  const breakable = (name) => parted(name.split(/(?<=[._])/));
  const prose = (text) =>
    parted(text.replace(/\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ/g, (time) => moment(Date.parse(time))).split(/(?<=\/)(?!\/)/));
  // Of an address the file's name says most.
  const named = (text) =>
    text.replace(/\b[a-z][a-z0-9+.-]*:\/\/\S*\/([^\s/]*[^\s/:;,])/gi, (all, name) =>
      `…/${name.length > 36 ? `${name.slice(0, 14)}…${name.slice(-14)}` : name}`,
    );
  const brief = (text) => cut(named(text));
  const cut = (text) => (text.length <= LONGEST ? text : `${text.slice(0, LONGEST).replace(/\s+\S*$/, "")}\u00a0…`);
  const since = (ms) => (ms <= data.now_ms ? `${age(data.now_ms - ms)} ago` : `in ${age(ms - data.now_ms)}`);
  function setting(value) {
    if (value === null || (Array.isArray(value) && !value.length)) return "none";
    return Array.isArray(value) ? value.join(",") : String(value);
  }

  // Elements.

  function el(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value !== undefined) made.setAttribute(name, value);
    }
    made.append(...children.filter((child) => child !== undefined && child !== null));
    return made;
  }
  function command(text) {
    const made = el("span", { class: "command" }, el("code", {}, text));
    copyable(made);
    return made;
  }
  // Browsers give the clipboard only to pages of https or of this machine; elsewhere the button selects the text.
  function copyable(holder) {
    const code = holder.querySelector("code");
    // A line breaks a command between its words only, and not between an option and its value.
    const words = code.textContent.split(/(?<! --[\w-]+) /).map((word) => el("span", {}, ...breakable(word)));
    code.replaceChildren(...words.flatMap((word, at) => (at ? [" ", word] : [word])));
    const button = el("button", { type: "button", "aria-label": `copy ${code.textContent}` }, "copy");
    const done = (text) => {
      button.textContent = text;
      setTimeout(() => (button.textContent = "copy"), 4000);
    };
    const select = () => {
      getSelection().selectAllChildren(code);
      done("selected");
    };
    button.addEventListener("click", () => {
      if (!navigator.clipboard) select();
      else navigator.clipboard.writeText(code.textContent).then(() => done("copied"), select);
    });
    holder.append(button);
  }
  document.querySelectorAll(".command").forEach(copyable);
  const list = (items) => el("ul", {}, ...items.map((item) => el("li", {}, ...prose(item))));
  const faint = (text) => el("p", { class: "faint" }, text);
  function grid(headings, rows) {
    const head = el("tr", {}, ...headings.map((text) => el("th", { scope: "col" }, text)));
    const cell = (text) => el("td", {}, ...(text.includes("/") ? prose(text) : breakable(text)));
    const body = rows.map((row) => el("tr", {}, ...row.map(cell)));
    return el("table", {}, el("thead", {}, head), el("tbody", {}, ...body));
  }

  // The list.

  const ALL = [
    ["table", (t) => t.name],
    ["state", (t) => 2 * ORDER.indexOf(t.kind) - (t.trouble ? 1 : 0) - t.priority / 2],
    ["data files", (t) => t.counters.lake_data_files, count],
    ["average file", (t) => t.counters.lake_average_file_bytes, size],
    ["live", (t) => t.counters.lake_bytes, size],
    ["history", (t) => t.counters.lake_history_bytes, size],
    ["orphans", (t) => t.counters.lake_orphan_bytes, size],
    ["delete files", (t) => t.counters.lake_delete_files, count],
    ["snapshots", (t) => t.counters.lake_snapshots, count],
    ["why", undefined],
  ];
  // A column without a number says nothing.
  const COLUMNS = ALL.filter(([, of, text]) => !text || tables.some(of));
  const view = { text: "", kind: "", catalog: "", namespace: "", sort: 1, down: false, page: 0 };
  const open = new Set();

  function chosen() {
    const wanted = view.text.trim().toLowerCase();
    const found = tables.filter(
      (t) =>
        (!view.kind || t.kind === view.kind) &&
        (!view.namespace || t.namespace === view.namespace) &&
        (!view.catalog || t.catalog === view.catalog) &&
        (!wanted || t.name.toLowerCase().includes(wanted)),
    );
    const key = COLUMNS[view.sort][1];
    const sign = view.down ? -1 : 1;
    // Unknown values come last, in either direction.
    return found
      .map((t) => [key(t), t])
      .sort(([a, s], [b, t]) => {
        if (a === undefined || b === undefined) return (a === undefined) - (b === undefined) || (s.name < t.name ? -1 : 1);
        return a === b ? (s.name < t.name ? -1 : 1) : a < b ? -sign : sign;
      })
      .map(([, t]) => t);
  }

  const rows = el("tbody", { class: "rows" });
  const tally = el("p", { class: "faint", role: "status" });
  const pager = el("div", { class: "pager" });

  function why(t) {
    // What deletions wait for is said once, at the top.
    const own = Object.entries(t.warnings ?? {}).flatMap(([kind, text]) => (kind === "deletions_wait" ? [] : [text]));
    const paused = t.state === "paused" && [pause(t)];
    const found = t.trouble ? [t.trouble] : paused || (t.reasons ?? (own.length ? own : [t.left_alone ?? ""]));
    return `${brief(found[0])}${found.length > 1 ? ` (and ${count(found.length - 1)} more)` : ""}`;
  }
  function pause(t) {
    const until = Date.parse(t.policy?.paused_until?.[0]);
    return until ? `paused until ${moment(until)}` : (t.left_alone ?? "");
  }
  const verified = (t) => (t.verified_ms ? `verified ${since(t.verified_ms)}` : "never verified");
  function state(t) {
    const more = t.verified_ms || t.kind === "well" ? el("div", { class: "faint" }, verified(t)) : undefined;
    return el("td", { class: `state ${t.kind}` }, el("b", {}, WORDS[t.state] ?? t.state), more);
  }

  // The address of a table, for a link to it.
  const address = (t) => `#${encodeURIComponent(`${t.catalog}/${t.name}`)}`;
  function follow() {
    const t = tables.find((one) => address(one) === location.hash);
    if (!t) return;
    open.add(address(t));
    search.value = t.name;
    chosenSpace.value = catalogs.value = "";
    press("");
    choose({ text: t.name, kind: "", namespace: "", catalog: "" });
    document.getElementById("all").scrollIntoView();
  }

  function row(t) {
    const key = address(t);
    const detail = el("tr", { class: "detail" }, el("td", { colspan: COLUMNS.length }));
    detail.hidden = true;
    const folded = { type: "button", "aria-expanded": "false", onclick: () => toggle() };
    const opener = el("button", folded, ...breakable(t.name));
    function toggle() {
      const opens = detail.hidden;
      detail.hidden = !opens;
      opener.setAttribute("aria-expanded", String(opens));
      open[opens ? "add" : "delete"](key);
      if (opens) window.history.replaceState(null, "", key);
      detail.firstChild.replaceChildren(...(opens ? [details(t)] : []));
      draw(detail);
    }
    const cells = COLUMNS.slice(2, -1).map(([name, of, text]) => {
      const kind = of(t) ? "number" : "number nothing";
      return el("td", { class: kind, "data-label": name, "data-value": of(t) }, of(t) === 0 ? "" : text(of(t)));
    });
    const name = el("td", { class: "name" }, opener, several ? el("div", { class: "faint" }, t.catalog) : undefined);
    const made = el("tr", {}, name, state(t), ...cells, el("td", { class: `why ${t.kind}` }, ...prose(why(t))));
    return [made, detail, () => open.has(key) && toggle()];
  }

  function show(most = PAGE) {
    const found = chosen();
    const pages = Math.max(1, Math.ceil(found.length / most));
    view.page = Math.min(view.page, pages - 1);
    const shown = found.slice(view.page * most, (view.page + 1) * most).map(row);
    rows.replaceChildren(...shown.flatMap(([made, detail]) => [made, detail]));
    shown.forEach(([, , reopen]) => reopen());
    tally.textContent = `${count(found.length)} of ${plural(tables.length, "table")}`;
    const turn = (text, by, last) => {
      const button = el("button", { type: "button", onclick: () => ((view.page += by), show()) }, text);
      button.disabled = last;
      return button;
    };
    pager.replaceChildren(
      ...(pages === 1
        ? []
        : [
            turn("Previous", -1, view.page === 0),
            el("span", {}, `page ${view.page + 1} of ${pages}`),
            turn("Next", 1, view.page === pages - 1),
          ]),
    );
    heads.forEach(([head, at]) => {
      head.setAttribute("aria-sort", at !== view.sort ? "none" : view.down ? "descending" : "ascending");
    });
    sorter.value = String(view.sort);
  }

  function choose(changes) {
    Object.assign(view, { page: 0 }, changes);
    show();
  }

  function sortBy(at) {
    // The largest numbers are the most interesting.
    choose({ sort: at, down: view.sort === at ? !view.down : at > 1 });
  }

  const heads = [];
  const header = COLUMNS.map(([name, of, text], at) => {
    const kind = text ? "number" : undefined;
    if (!of) return el("th", { scope: "col" }, name);
    const head = el("th", { scope: "col", class: kind }, el("button", { type: "button", onclick: () => sortBy(at) }, name));
    heads.push([head, at]);
    return head;
  });
  const sorter = el(
    "select",
    { onchange: () => sortBy(Number(sorter.value)) },
    ...COLUMNS.flatMap(([name, of], at) => (of ? [el("option", { value: at }, name)] : [])),
  );
  const states = ["", ...ORDER].map((kind) => {
    const number = kind ? tables.filter((t) => t.kind === kind).length : tables.length;
    const text = `${kind ? KINDS[kind] : "all"} ${count(number)}`;
    const button = el("button", { type: "button", "aria-pressed": String(!kind) }, text);
    button.addEventListener("click", () => pick(kind));
    return button;
  });
  const press = (kind) =>
    states.forEach((button, at) => button.setAttribute("aria-pressed", String(["", ...ORDER][at] === kind)));
  function pick(kind) {
    press(kind);
    choose({ kind });
  }
  document.querySelectorAll(".states a").forEach((link) =>
    link.addEventListener("click", () => pick(link.dataset.kind)),
  );
  const search = el("input", { type: "search", id: "search", oninput: () => choose({ text: search.value }) });
  function filter(name, values) {
    const options = [el("option", { value: "" }, "all"), ...values.map((value) => el("option", {}, value))];
    const made = el("select", { onchange: () => choose({ [name]: made.value }) }, ...options);
    return made;
  }
  const catalogs = filter("catalog", data.catalogs.map((one) => one.catalog));
  const spaces = namespaces();
  const chosenSpace = filter("namespace", spaces.map((one) => one.name).sort());
  document.getElementById("list").append(
    el(
      "div",
      { class: "controls" },
      el("label", {}, "search", search),
      several ? el("label", {}, "catalog", catalogs) : undefined,
      spaces.length > 1 ? el("label", {}, "namespace", chosenSpace) : undefined,
      el("label", {}, "sort by", sorter),
      el("div", { class: "choice", role: "group", "aria-label": "state" }, ...states),
    ),
    tally,
    el("table", { class: "list" }, el("thead", {}, el("tr", {}, ...header)), rows),
    pager,
  );
  show();
  let before = 0;
  addEventListener("beforeprint", () => {
    before = view.page;
    view.page = 0;
    show(MOST_PRINTED);
  });
  addEventListener("afterprint", () => {
    view.page = before;
    show();
  });

  // Namespaces, those with the most need first.

  function namespaces() {
    const found = new Map();
    const none = { tables: 0, damaged: 0, work: 0, well: 0, files: 0, bytes: 0 };
    for (const t of tables) {
      const one = found.get(t.namespace) ?? { ...none, name: t.namespace };
      one.tables += 1;
      one[t.kind] += 1;
      one.files += t.counters.lake_data_files ?? 0;
      one.bytes += t.counters.lake_bytes ?? 0;
      found.set(t.namespace, one);
    }
    return [...found.values()].sort(
      (a, b) => b.damaged - a.damaged || b.work - a.work || b.bytes - a.bytes || (a.name < b.name ? -1 : 1),
    );
  }

  function namespaceCard(one) {
    const bar = ORDER.map((kind) => {
      const part = el("i", { class: kind });
      part.style.flex = String(one[kind]);
      return part;
    });
    const needs = [one.damaged && `${count(one.damaged)} damaged`, one.work && `${count(one.work)} due or waiting`];
    const amounts = [one.files && plural(one.files, "data file"), one.bytes && size(one.bytes)];
    const lines = [needs, amounts].map((parts) => parts.filter(Boolean).join(", "));
    const pick = () => {
      chosenSpace.value = one.name;
      choose({ namespace: one.name });
      document.getElementById("all").scrollIntoView();
    };
    return el(
      "button",
      { type: "button", class: "namespace", onclick: pick },
      el("b", { class: "title" }, ...breakable(one.name)),
      el("span", {}, plural(one.tables, "table"), lines[0] ? `: ${lines[0]}` : ", all well"),
      el("span", { class: "bar", "aria-hidden": "true" }, ...bar),
      el("span", { class: "faint" }, lines[1]),
    );
  }

  if (spaces.length > 1) {
    const cards = el("div", { class: "cards wide" });
    const fill = (most) => cards.replaceChildren(...spaces.slice(0, most).map(namespaceCard));
    fill(MOST_NAMESPACES);
    const all = `all ${count(spaces.length)} namespaces`;
    const more = el("button", { type: "button", onclick: () => (fill(), more.remove()) }, all);
    const left = spaces.length > MOST_NAMESPACES ? el("p", {}, more) : undefined;
    document.getElementById("namespaces").append(el("section", {}, el("h2", {}, "By namespace"), cards, left));
  }

  // Charts.

  // A figure is drawn when it stands on the page, as wide as its place, so that its text keeps its size.
  const undrawn = new WeakMap();
  function chart(title, options) {
    const figure = el("figure");
    undrawn.set(figure, (width) => {
      const svg = Plot.plot({ className: "plot", marginLeft: 60, marginTop: 10, width, ...options(width) });
      // To a screen reader the chart is one image.
      svg.querySelectorAll("[aria-label]").forEach((part) => part.removeAttribute("aria-label"));
      svg.setAttribute("role", "img");
      svg.setAttribute("aria-label", title);
      figure.replaceChildren(svg);
    });
    return figure;
  }
  const draw = (place) =>
    place.querySelectorAll("figure").forEach((figure) => undrawn.get(figure)(Math.max(200, figure.clientWidth)));

  const DAY = 24 * 36e5;

  // The axis of times: at least a minute long, with short ticks, and days only where they change.
  function timeAxis(dates, width) {
    const [first, last] = d3.extent(dates, Number);
    const pad = Math.max((last - first) * 0.03, 3e4 - (last - first) / 2);
    const domain = [first - pad, last + pad].map((ms) => new Date(Math.max(-864e13, Math.min(864e13, ms))));
    const found = d3.utcTicks(...domain, 5);
    const ticks = found.filter((at, number) => number % Math.ceil((found.length * 65) / (width - 80)) === 0);
    const step = ticks.length > 1 ? ticks[1] - ticks[0] : 0;
    const day = d3.utcFormat(last - first > 300 * DAY ? "%-d %b %Y" : "%-d %b");
    const time = d3.utcFormat(step >= 6e4 ? "%H:%M" : "%H:%M:%S");
    const tickFormat = (at, number) => {
      if (step >= DAY) return day(at);
      return number && day(at) === day(ticks[number - 1]) ? time(at) : `${time(at)}\n${day(at)}`;
    };
    return { type: "utc", label: null, domain, ticks, tickFormat };
  }

  const short = (number) => (number < 1e4 ? count(number) : d3.format(".3~s")(number).replace("G", "B"));
  // The axis of amounts, from 0, with ticks of whole files or of round sizes.
  function amountAxis(most, text) {
    const divisor = text === size ? UNITS.find(([, least]) => most >= least)?.[1] ?? 1 : 1;
    const ticks = d3.ticks(0, most / divisor, 3).filter((at) => divisor > 1 || Number.isInteger(at));
    const all = ticks.map((at) => at * divisor);
    return { label: null, grid: true, domain: [0, most * 1.08], ticks: all, tickFormat: text };
  }

  // Amounts over time; nothing if all are 0.
  function line(title, points, text) {
    const found = points.filter(([at, value]) => isTime(Number(at)) && value !== null);
    const most = d3.max(found, ([, value]) => value);
    if (!most) return undefined;
    const step = { x: ([at]) => at, y: ([, value]) => value, curve: "step-after" };
    const times = found.map(([at]) => at);
    return chart(title, (width) => ({
      ...{ height: 150, marginBottom: 38, x: timeAxis(times, width), y: amountAxis(most, text) },
      marks: [
        Plot.areaY(found, { ...step, fill: "var(--calm)", fillOpacity: 0.15 }),
        Plot.line(found, { ...step, stroke: "var(--calm)" }),
        Plot.dot(found.slice(-1), { ...step, fill: "var(--calm)", r: 2.5 }),
      ],
    }));
  }

  // The whole fleet.

  function fleet() {
    const sums = new Map();
    for (const [seconds, ...values] of data.catalogs.flatMap((one) => one.trend)) {
      sums.set(seconds, values.map((value, at) => value + (sums.get(seconds)?.[at] ?? 0)));
    }
    const days = [...sums].sort(([a], [b]) => a - b).map(([seconds, values]) => [new Date(seconds * 1000), values]);
    const files = new Map();
    for (const [power, number] of data.catalogs.flatMap((one) => one.sizes.files)) {
      files.set(power, number + (files.get(power) ?? 0));
    }
    const sized = d3.sum(data.catalogs, (one) => one.sizes.tables);
    const amounts = [["Data files", 1, short], ["Delete files", 2, short], ["Live bytes", 3, size]];
    const drawn = amounts.flatMap(([title, at, text]) => {
      const made = days.length ? line(title, days.map(([day, values]) => [day, values[at]]), text) : undefined;
      return made ? [section(title, made)] : [];
    });
    const targets = new Set(tables.filter((t) => !t.warnings?.wrong_settings).map(targetOf));
    const target = targets.size === 1 ? [...targets][0] : undefined;
    const title = "Sizes of data files";
    if (files.size) drawn.push(section(title, histogram(title, [...files], target)));
    if (!drawn.length) return;
    const notes = [
      days.length ? "The trend is of the tables that scans had seen by each day." : "",
      files.size ? `Sizes are of ${plural(sized, "table")} whose manifests were read.` : "",
      target ? `The dashed line is the target of all tables, ${size(target)}.` : "",
    ];
    const figures = el("div", { class: "figures small" }, ...drawn);
    const place = document.getElementById("fleet");
    place.append(el("section", {}, el("h2", {}, "The fleet"), figures, faint(notes.filter(Boolean).join(" "))));
    draw(place);
  }

  // The details of a table.

  const section = (title, ...children) => el("section", {}, el("h3", {}, title), ...children);
  const wide = (title, ...children) => el("section", { class: "all" }, el("h3", {}, title), ...children);
  function absent(t) {
    if (t.left_out) {
      const why = "Details of this table are left out, because the page would be too large. To write a page with them:";
      return section("Left out", faint(why), command(fresh(t)));
    }
    const holders = "The bytes that only one ref or snapshot holds, and advice";
    const missing = t.layout?.files ? holders : `Sizes of files and partitions, ${holders.toLowerCase()}`;
    const what = `${missing} are not recorded. Read the manifests:`;
    return section("Not recorded", faint(what), command(fresh(t)));
  }
  const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\"'\"'")}'`);
  const fresh = (t) => `icekeeper report --catalog ${quoted(t.catalog)} --fresh ${quoted(t.name)} --output page.html`;

  function details(t) {
    return el(
      "div",
      { class: "figures" },
      ...advice(t),
      work(t),
      lastPass(t),
      ...facts(t),
      ...(t.left_out || t.state === "unreadable" ? [] : [history(t)]),
      ...(t.layout?.files ? [sizes(t.layout.files, t), partitions(t.layout.files)] : []),
      ...(t.state === "unreadable" || (t.layout?.files && t.layout.holders) ? [] : [absent(t)]),
      ...(t.trend && t.trend.at(-1)[0] - t.trend[0][0] > 3600 ? [trend(t)] : []),
      policy(t),
    );
  }

  function work(t) {
    const idle = t.left_alone ? `No work is due: ${t.left_alone}` : "No work is due.";
    const rest = t.state === "paused" ? `No pass runs: ${pause(t)}.` : idle;
    const next = t.reasons ? "The next run maintains it, because:" : rest;
    const due = t.sweep_due_ms;
    const sweep = due > data.now_ms ? `Next sweep for orphans ${since(due)}, ${moment(due)}.` : "";
    return section(
      "Next run",
      t.trouble ? el("p", { class: `${t.kind} tone` }, ...prose(t.trouble)) : undefined,
      t.trouble && (!t.reasons || t.state === "unreadable") ? undefined : el("p", {}, next),
      t.reasons && t.state !== "unreadable" ? list(t.reasons) : undefined,
      t.command ? el("p", {}, command(t.command)) : undefined,
      faint(`${sweep} Unchanged since ${moment(t.observed_ms)}, ${since(t.observed_ms)}; ${verified(t)}.`),
    );
  }

  // The reason of the state stands above, and what deletions wait for at the top of the page.
  function warnings(t) {
    const { blocker } = data.catalogs.find((one) => one.catalog === t.catalog);
    const waiting = "deletions wait for another table: see the top of the page";
    return Object.entries(t.warnings).flatMap(([kind, text]) => {
      if (text === t.trouble) return [];
      return [kind === "deletions_wait" && blocker ? waiting : text];
    });
  }

  function facts(t) {
    const c = t.counters;
    const deletes = (c.lake_position_deletes ?? 0) + (c.lake_equality_deletes ?? 0);
    const share = c.lake_records ? ` (${count((deletes / c.lake_records) * 100)} % of the rows)` : "";
    const known = [
      ["rows", "lake_records", count],
      ["data files", "lake_data_files", count],
      ["average file", "lake_average_file_bytes", size],
      ["delete files", "lake_delete_files", count],
      ["position deletes", "lake_position_deletes", count],
      ["equality deletes", "lake_equality_deletes", count],
      ["depth of overlap", "lake_clustering_depth", (n) => `${count(n)} files a lookup`],
      ["manifests", "lake_manifests", count],
      ["refs", "lake_refs", count],
      ["oldest snapshot", "lake_oldest_snapshot_age_hours", (n) => age(n * 36e5)],
    ];
    const cells = known.filter(([, key]) => c[key]).map(([name, key, text]) =>
      el("tr", {}, el("th", { scope: "row" }, name), el("td", { "data-key": key, "data-value": c[key] }, text(c[key]))),
    );
    if (!cells.length) return [];
    return [
      section(
        "Files, deletes and depth",
        el("table", {}, el("tbody", {}, ...cells)),
        deletes ? faint(`Delete debt: ${count(deletes)} deletes${share}.`) : undefined,
        ...(t.warnings ? [list(warnings(t))] : []),
      ),
    ];
  }

  function sizes(files, t) {
    const title = "Sizes of data files";
    if (!files.sizes.length) return section(title, faint("The table has no data files."));
    const target = targetOf(t);
    const note = faint(`The dashed line is the target, ${size(target)}. ${read(files)}`);
    return section(title, histogram(title, files.sizes, target), note);
  }
  const targetOf = (t) => (t.policy?.target_file_size_mb?.[0] ?? data.defaults.target_file_size_mb) * 2 ** 20;
  function histogram(title, found, target) {
    const bars = found.map(([power, number]) => ({ from: 2 ** power, to: 2 ** (power + 1), files: number }));
    const lines = target ? [target] : [];
    const all = [...bars.flatMap((bar) => [bar.from, bar.to]), ...lines];
    const domain = [Math.min(...all), Math.max(...all) * 1.2];
    const steps = Math.ceil(Math.log2(domain[1] / domain[0]) / 5);
    const ticks = d3.range(Math.floor(Math.log2(domain[0])), Math.log2(domain[1]), steps).map((power) => 2 ** power);
    return chart(title, () => ({
      ...{ height: 150, marginBottom: 38 },
      x: { type: "log", base: 2, domain, ticks, tickFormat: size, label: null },
      y: amountAxis(d3.max(bars, (bar) => bar.files), short),
      marks: [
        Plot.rectY(bars, { x1: "from", x2: "to", y: "files", fill: "var(--calm)", inset: 0.5 }),
        Plot.ruleX(lines, { stroke: "var(--work)", strokeDasharray: "4 3" }),
        Plot.ruleY([0]),
      ],
    }));
  }
  const read = (part) => `Manifests read ${since(part.observed_ms)}.`;

  const NAMES = { a: "append", o: "overwrite", r: "replace", d: "delete", "?": "other" };
  function history(t) {
    const title = "Snapshots and refs";
    const line = t.timeline;
    if (!line?.seconds?.length) return section(title, faint("The table has no snapshots, or no snapshot is recorded."));
    const held = t.layout?.holders?.snapshots ?? [];
    const alone = new Map(held.map(([ms, bytes]) => [Math.floor((ms - line.from_ms) / 1000), bytes]));
    const dots = line.seconds.flatMap((seconds, at) => {
      const ms = line.from_ms + seconds * 1000;
      if (!isTime(ms)) return [];
      return [{ at: new Date(ms), operation: NAMES[line.operations[at]], bytes: alone.get(seconds) ?? 0 }];
    });
    const first = line.from_ms;
    const refs = line.refs
      .filter(([, , ms]) => ms >= first && isTime(ms))
      .map(([name, , ms]) => ({ name, at: new Date(ms) }));
    if (!dots.length) return section(title, faint("The times of the snapshots are outside of the calendar."));
    const middle = d3.mean(d3.extent([...dots, ...refs], ({ at }) => Number(at)));
    // Names in two rows, so that neighbours do not overlap, and inside the frame.
    const names = d3.sort(refs, ({ at }) => at).map(({ at, name }, number) => {
      const place = { frameAnchor: "top", textAnchor: at > middle ? "end" : "start", dy: -12 - 13 * (number % 2) };
      return Plot.text([name], { ...place, x: [at], text: [name.slice(0, 24)], fill: "var(--work)" });
    });
    const costs = (t.layout?.holders?.refs ?? []).map(([name, kind, number, bytes]) => [name, kind, count(number), bytes ? size(bytes) : NONE]);
    return section(
      title,
      chart(title, (width) => ({
        ...{ marginLeft: 70, marginTop: 40, marginBottom: 38 },
        x: timeAxis([...dots, ...refs].map(({ at }) => at), width),
        y: { domain: [...new Set(dots.map((dot) => dot.operation))], label: null, grid: true },
        r: { range: [3, 12] },
        marks: [
          Plot.ruleX(refs, { x: "at", stroke: "var(--work)" }),
          ...names,
          Plot.dot(dots, { x: "at", y: "operation", r: alone.size ? "bytes" : 4, fill: "var(--calm)", fillOpacity: 0.7 }),
        ],
      })),
      faint(
        `The newest ${count(dots.length)} of ${count(t.counters.lake_snapshots)} snapshots` +
          (alone.size ? `; a larger dot holds more bytes that nothing else holds. ${read(t.layout.holders)}` : "."),
      ),
      costs.length
        ? grid(["ref", "type", "snapshots", "only it holds"], costs)
        : grid(["ref", "type", "snapshot of"], line.refs.map(([name, kind, ms]) => [name, kind, moment(ms)])),
    );
  }

  function trend(t) {
    const title = "Trend";
    const shown = [["data files", 1, short], ["delete files", 2, short], ["live bytes", 3, size]];
    const lines = shown.flatMap(([name, at, text]) => {
      const made = line(name, t.trend.map((point) => [new Date(point[0] * 1000), point[at]]), text);
      return made ? [el("div", {}, faint(name), made)] : [];
    });
    const note = `The first scan of each day that saw a change, since ${moment(t.trend[0][0] * 1000)}.`;
    return wide(title, el("div", { class: "figures small" }, ...lines), faint(note));
  }

  function partitions(all) {
    const title = "Partitions";
    const found = all.partitions.map(([name, files, bytes, deletes], at) => ({ name, files, bytes, deletes, at }));
    if (found.length < 2) return section(title, faint("The table has one partition, or is not partitioned."));
    const across = Math.min(16, Math.ceil(Math.sqrt(found.length * 2)));
    const most = found.reduce((a, b) => (b.files > a.files ? b : a));
    const down = Math.ceil(found.length / across);
    return section(
      title,
      chart(title, () => ({
        ...{ marginLeft: 2, marginRight: 2, marginTop: 2, marginBottom: 2, height: Math.min(240, 28 * down + 4) },
        x: { axis: null, type: "band" },
        y: { axis: null, type: "band" },
        color: { type: "sqrt", domain: [0, most.files], range: ["var(--cool)", "var(--deep)"], interpolate: mixed },
        marks: [
          Plot.cell(found, {
            ...{ x: (p) => p.at % across, y: (p) => Math.floor(p.at / across), fill: "files", inset: 1 },
            title: (p) => `${p.name}\n${count(p.files)} files, ${size(p.bytes)}${p.deletes ? `, ${count(p.deletes)} delete files` : ""}`,
          }),
        ],
      })),
      faint(
        `${count(found.length)} of ${count(all.partition_count)} partitions, in order. ${most.name} has the most data files, ` +
          `${count(most.files)}. ${read(all)}`,
      ),
    );
  }
  // Colours follow the page's, which the interpolators of d3 cannot parse.
  const mixed = (from, to) => (share) => `color-mix(in oklab, ${to} ${Math.round(share * 100)}%, ${from})`;

  function lastPass(t) {
    const pass = t.last_pass;
    if (!pass) return section("Last pass", faint("No pass that changed something is recorded."));
    const tone = pass.status === "succeeded" ? "well" : "work";
    return section(
      "Last pass",
      el("p", {}, el("span", { class: `${tone} tone` }, pass.status), `, ${since(pass.finished_ms)}, in ${pass.seconds} s`),
      list(pass.lines),
      faint(`${moment(pass.finished_ms)}${pass.engine && pass.engine !== "none" ? `, engine ${pass.engine}` : ""}`),
    );
  }

  function policy(t) {
    if (t.warnings?.wrong_settings) return wide("Policy in force", faint("None, because the table's settings are wrong."));
    const own = Object.entries(t.policy ?? {}).map(([key, [value, source]]) => [key, setting(value), source]);
    const rest = Object.entries(data.defaults).filter(([key]) => !(key in (t.policy ?? {})));
    const all = own.length ? `${count(rest.length)} settings have their defaults` : "Every setting has its default";
    const folded = el("details", {}, el("summary", {}, all));
    folded.append(grid(["setting", "value"], rest.map(([key, value]) => [key, setting(value)])));
    return wide("Policy in force", own.length ? grid(["setting", "value", "source"], own) : undefined, folded);
  }

  function advice(t) {
    const found = t.layout?.holders?.advice ?? [];
    if (!found.length) return [];
    const made = wide(
      "Advice",
      ...found.flatMap((it) => [
        el("p", {}, `${it.reason} `, el("span", { class: "faint" }, it.gain)),
        command(it.statement),
      ]),
      faint(read(t.layout.holders)),
    );
    return [made];
  }

  // Every age on the page is as of its writing.
  const late = Date.now() - data.now_ms;
  if (late > 6e5) document.getElementById("written").append(`, ${age(late)} ago; ages are as of then`);
  fleet();
  follow();
  addEventListener("hashchange", follow);
})();

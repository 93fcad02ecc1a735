// The list of tables: searched, filtered, sorted and shown page by page.  The details of a table are drawn when it is
// opened.  All text is added as text, never as markup.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const several = data.catalogs.length > 1;
  const tables = data.catalogs.flatMap((one) => one.tables.map((table) => ({ ...table, catalog: one.catalog })));
  const PAGE = 50;
  const MOST_PRINTED = 500;
  const STATES = { unreadable: "unreadable", damaged: "damaged", trouble: "in trouble", work: "work due", paused: "paused", well: "well" };
  const ORDER = Object.keys(STATES);
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
  const moment = (ms) => (isTime(ms) ? `${new Date(ms).toISOString().slice(0, 16).replace("T", " ")} UTC` : String(ms));
  function age(ms) {
    const [number, unit] = ms < 36e5 ? [ms / 6e4, "minute"] : ms < 2592e5 ? [ms / 36e5, "hour"] : [ms / 864e5, "day"];
    return `${Math.floor(number)} ${unit}${Math.floor(number) === 1 ? "" : "s"}`;
  }
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
  const list = (items) => el("ul", {}, ...items.map((item) => el("li", {}, item)));
  const faint = (text) => el("p", { class: "faint" }, text);
  function grid(headings, rows) {
    const head = el("tr", {}, ...headings.map((text) => el("th", { scope: "col" }, text)));
    const body = rows.map((row) => el("tr", {}, ...row.map((text) => el("td", {}, text))));
    return el("table", {}, el("thead", {}, head), el("tbody", {}, ...body));
  }

  // The list.

  const COLUMNS = [
    ["table", (t) => t.name],
    ["state", (t) => ORDER.indexOf(t.state) - t.priority],
    ["data files", (t) => t.counters.lake_data_files, count],
    ["average file", (t) => t.counters.lake_average_file_bytes, size],
    ["live", (t) => t.counters.lake_bytes, size],
    ["history", (t) => t.counters.lake_history_bytes, size],
    ["orphans", (t) => t.counters.lake_orphan_bytes, size],
    ["delete files", (t) => t.counters.lake_delete_files, count],
    ["snapshots", (t) => t.counters.lake_snapshots, count],
    ["why", undefined],
  ];
  const view = { text: "", state: "", catalog: "", sort: 1, down: false, page: 0 };
  const open = new Set();

  function chosen() {
    const wanted = view.text.trim().toLowerCase();
    const found = tables.filter(
      (t) =>
        (!view.state || t.state === view.state) &&
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
    if (t.trouble) return t.trouble;
    if (t.reasons) return t.reasons.join("; ");
    const own = Object.entries(t.warnings ?? {}).filter(([kind]) => kind !== "deletions_wait");
    if (own.length) return own.map(([, sentence]) => sentence).join("; ");
    return t.left_alone ?? "";
  }

  const verified = (t) => (t.verified_ms ? `verified ${since(t.verified_ms)}` : "never verified");

  function row(t) {
    const key = `${t.catalog}\n${t.name}`;
    const detail = el("tr", { class: "detail" }, el("td", { colspan: COLUMNS.length }));
    detail.hidden = true;
    const opener = el("button", { type: "button", "aria-expanded": "false", onclick: () => toggle() }, t.name);
    function toggle() {
      const opens = detail.hidden;
      detail.hidden = !opens;
      opener.setAttribute("aria-expanded", String(opens));
      open[opens ? "add" : "delete"](key);
      detail.firstChild.replaceChildren(...(opens ? [details(t)] : []));
    }
    const cells = COLUMNS.slice(2, -1).map(([name, of, text]) =>
      el("td", { class: "number", "data-label": name, "data-value": of(t) }, text(of(t))),
    );
    const name = el("td", { class: "name" }, opener, several ? el("div", { class: "faint" }, t.catalog) : undefined);
    const seen = t.state === "well" ? el("div", { class: "faint" }, verified(t)) : undefined;
    const state = el("td", { class: `state ${t.state}` }, STATES[t.state], seen);
    const made = el("tr", {}, name, state, ...cells, el("td", { class: "why" }, el("div", {}, why(t))));
    return [made, detail, () => open.has(key) && toggle()];
  }

  function show(most = PAGE) {
    const found = chosen();
    const pages = Math.max(1, Math.ceil(found.length / most));
    view.page = Math.min(view.page, pages - 1);
    const shown = found.slice(view.page * most, (view.page + 1) * most).map(row);
    rows.replaceChildren(...shown.flatMap(([made, detail]) => [made, detail]));
    shown.forEach(([, , reopen]) => reopen());
    tally.textContent = `${count(found.length)} of ${count(tables.length)} ${tables.length === 1 ? "table" : "tables"}`;
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
  const states = ["", ...ORDER].map((state) => {
    const number = state ? tables.filter((t) => t.state === state).length : tables.length;
    const text = `${state ? STATES[state] : "all"} ${count(number)}`;
    const button = el("button", { type: "button", "aria-pressed": String(!state) }, text);
    button.addEventListener("click", () => {
      states.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
      choose({ state });
    });
    return button;
  });
  const search = el("input", { type: "search", id: "search", oninput: () => choose({ text: search.value }) });
  const catalogs = el(
    "select",
    { onchange: () => choose({ catalog: catalogs.value }) },
    el("option", { value: "" }, "all"),
    ...data.catalogs.map((one) => el("option", {}, one.catalog)),
  );
  document.getElementById("list").append(
    el(
      "div",
      { class: "controls" },
      el("label", {}, "search", search),
      several ? el("label", {}, "catalog", catalogs) : undefined,
      el("label", {}, "sort by", sorter),
      el("div", { class: "states", role: "group", "aria-label": "state" }, ...states),
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

  // The details of a table.

  function chart(title, options) {
    const svg = Plot.plot({ className: "plot", marginLeft: 50, width: 460, height: 220, ...options });
    // To a screen reader the chart is one image.
    svg.querySelectorAll("[aria-label]").forEach((part) => part.removeAttribute("aria-label"));
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", title);
    return el("figure", {}, svg);
  }
  const section = (title, ...children) => el("section", {}, el("h3", {}, title), ...children);
  function absent(t) {
    if (t.left_out) {
      const why = "Details of this table are left out, because the page would be too large. To write a page with them:";
      return section("Left out", el("p", { class: "faint" }, `${why} `, el("code", {}, fresh(t))));
    }
    const holders = "The bytes that only one ref or snapshot holds, and advice";
    const missing = t.layout?.files ? holders : `Sizes of files and partitions, ${holders.toLowerCase()}`;
    const what = `${missing} are not recorded. Read the manifests:`;
    return section("Not recorded", el("p", { class: "faint" }, `${what} `, el("code", {}, fresh(t))));
  }
  const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\"'\"'")}'`);
  const fresh = (t) => `icekeeper report --catalog ${quoted(t.catalog)} --fresh ${quoted(t.name)} --output page.html`;

  function details(t) {
    return el(
      "div",
      { class: "figures" },
      work(t),
      facts(t),
      ...(t.left_out ? [] : [history(t)]),
      ...(t.trend ? [trend(t)] : []),
      ...(t.layout?.files ? [sizes(t.layout.files, t), partitions(t.layout.files)] : []),
      ...(t.layout?.files && t.layout.holders ? [] : [absent(t)]),
      el("div", { class: "pair" }, lastPass(t), policy(t)),
      ...advice(t),
    );
  }

  function work(t) {
    const due = t.sweep_due_ms <= data.now_ms ? "due now" : "due";
    const next = t.reasons ? "The next run maintains it, because:" : `No work is due${t.left_alone ? `: ${t.left_alone}` : "."}`;
    return section(
      "Next run",
      t.trouble ? el("p", { class: "trouble tone" }, t.trouble) : undefined,
      el("p", {}, t.trouble && !t.reasons ? "" : next),
      t.reasons ? list(t.reasons) : undefined,
      t.sweep_due_ms ? list([`orphan sweep: ${due}, ${moment(t.sweep_due_ms)}`]) : undefined,
      t.command ? el("p", {}, el("code", {}, t.command)) : undefined,
      faint(`unchanged since ${moment(t.observed_ms)}, ${since(t.observed_ms)}; ${verified(t)}`),
    );
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
      ["depth of overlap", "lake_clustering_depth", (n) => (n === undefined ? NONE : `${count(n)} files a lookup`)],
      ["manifests", "lake_manifests", count],
      ["refs", "lake_refs", count],
      ["oldest snapshot", "lake_oldest_snapshot_age_hours", (n) => (n === undefined ? NONE : `${count(n)} hours`)],
    ];
    const cells = known.map(([name, key, text]) =>
      el("tr", {}, el("th", { scope: "row" }, name), el("td", { "data-key": key, "data-value": c[key] }, text(c[key]))),
    );
    return section(
      "Files, deletes and depth",
      el("table", {}, el("tbody", {}, ...cells)),
      deletes ? faint(`Delete debt: ${count(deletes)} deletes${share}.`) : undefined,
      ...(t.warnings ? [list(Object.values(t.warnings))] : []),
    );
  }

  function sizes(files, t) {
    const title = "Sizes of data files";
    const bars = files.sizes.map(([power, number]) => ({ from: 2 ** power, to: 2 ** (power + 1), files: number }));
    if (!bars.length) return section(title, faint("The table has no data files."));
    const [mb] = t.policy?.target_file_size_mb ?? [data.defaults.target_file_size_mb];
    const target = mb * 2 ** 20;
    const all = [...bars.flatMap((bar) => [bar.from, bar.to]), target];
    const domain = [Math.min(...all), Math.max(...all) * 1.2];
    const steps = Math.ceil(Math.log2(domain[1] / domain[0]) / 6);
    const ticks = d3.range(Math.floor(Math.log2(domain[0])), Math.log2(domain[1]), steps).map((power) => 2 ** power);
    return section(
      title,
      chart(title, {
        x: { type: "log", base: 2, domain, ticks, tickFormat: size, label: null },
        y: { label: "files", grid: true, nice: true, tickFormat: "~s" },
        marks: [
          Plot.rectY(bars, { x1: "from", x2: "to", y: "files", fill: "var(--calm)", inset: 0.5 }),
          Plot.ruleX([target], { stroke: "var(--work)", strokeDasharray: "4 3" }),
          Plot.ruleY([0]),
        ],
      }),
      faint(`The dashed line is the target, ${size(target)}. ${read(files)}`),
    );
  }
  const read = (part) => `Manifests read ${since(part.observed_ms)}.`;

  const NAMES = { a: "append", o: "overwrite", r: "replace", d: "delete", "?": "other" };
  function history(t) {
    const title = "Snapshots and refs";
    const line = t.timeline;
    if (!line?.seconds) return section(title, faint("The table has no snapshots, or no snapshot is recorded."));
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
    const costs = (t.layout?.holders?.refs ?? []).map(([name, kind, number, bytes]) => [name, kind, count(number), size(bytes)]);
    return section(
      title,
      chart(title, {
        marginLeft: 70,
        marginTop: 30,
        x: { type: "utc", label: null, nice: true, ticks: 4 },
        y: { domain: [...new Set(dots.map((dot) => dot.operation))], label: null, grid: true },
        r: { range: [3, 12] },
        marks: [
          Plot.ruleX(refs, { x: "at", stroke: "var(--work)" }),
          Plot.text(refs, {
            ...{ x: "at", text: (ref) => ref.name.slice(0, 16), frameAnchor: "top", textAnchor: "end" },
            ...{ dy: -12, fill: "var(--work)" },
          }),
          Plot.dot(dots, { x: "at", y: "operation", r: alone.size ? "bytes" : 4, fill: "var(--calm)", fillOpacity: 0.7 }),
        ],
      }),
      faint(
        `The newest ${count(dots.length)} of ${count(t.counters.lake_snapshots)} snapshots` +
          (alone.size ? `; a larger dot holds more bytes that nothing else holds. ${read(t.layout.holders)}` : "."),
      ),
      costs.length
        ? grid(["ref", "type", "snapshots", "bytes that only it holds"], costs)
        : grid(["ref", "type", "snapshot of"], line.refs.map(([name, kind, ms]) => [name, kind, moment(ms)])),
    );
  }

  function trend(t) {
    const title = "Trend";
    const points = t.trend.filter(([seconds]) => isTime(seconds * 1000)).map(([seconds, ...found]) => ({ at: new Date(seconds * 1000), found }));
    const lines = [["data files", "~s"], ["delete files", "~s"], ["live bytes", size]].map(([name, tickFormat], at) =>
      chart(name, {
        ...{ height: 120, marginLeft: 70, x: { type: "utc", label: null, ticks: 4 } },
        y: { label: name, grid: true, nice: true, zero: true, ticks: 3, tickFormat },
        marks: [
          Plot.line(points, { x: "at", y: (p) => p.found[at], stroke: "var(--calm)", curve: "step-after" }),
          Plot.dot(points, { x: "at", y: (p) => p.found[at], fill: "var(--calm)", r: 2 }),
        ],
      }),
    );
    return section(title, ...lines, faint(`The first scan of each day that saw a change, since ${moment(t.trend[0][0] * 1000)}.`));
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
      chart(title, {
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
      }),
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
    const tone = pass.status === "succeeded" ? "well" : "trouble";
    return section(
      "Last pass",
      el("p", {}, el("span", { class: `state ${tone}` }, pass.status), `, ${since(pass.finished_ms)}, in ${pass.seconds} s`),
      list(pass.lines),
      faint(`${moment(pass.finished_ms)}, engine ${pass.engine || NONE}`),
    );
  }

  function policy(t) {
    const own = Object.entries(t.policy ?? {}).map(([key, [value, source]]) => [key, setting(value), source]);
    const rest = Object.entries(data.defaults).filter(([key]) => !(key in (t.policy ?? {})));
    const folded = el("details", {}, el("summary", {}, `${count(rest.length)} settings have their defaults`));
    folded.append(grid(["setting", "value"], rest.map(([key, value]) => [key, setting(value)])));
    return section(
      "Policy in force",
      own.length ? grid(["setting", "value", "source"], own) : faint("Every setting has its default."),
      folded,
    );
  }

  function advice(t) {
    const found = t.layout?.holders?.advice ?? [];
    if (!found.length) return [];
    return [
      section(
        "Advice",
        ...found.map((it) => el("p", {}, `${it.reason} `, el("span", { class: "faint" }, it.gain), " ", el("code", {}, it.statement))),
        faint(read(t.layout.holders)),
      ),
    ];
  }
})();

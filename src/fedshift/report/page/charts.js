// Charts, tables and switches that the report and the live view share; drawn with Observable Plot.
// Text from runs goes into the page as text alone (textContent), never as markup.
"use strict";
const fedshift = (() => {
  const MARKS = ["circle", "square", "triangle", "diamond", "cross", "star", "wye"];
  const DASHES = [null, "6 3", "2 2.5", "9 3 2 3"];
  const DARK = "currentColor";
  // What tells method i from the others: colour x dash repeats after 40, colour x mark after 70.
  const look = (i) => ({
    colour: `var(--c${i % 10})`,
    mark: MARKS[i % MARKS.length],
    dash: DASHES[Math.floor(i / 10) % DASHES.length],
  });

  function make(tag, options = {}, ...children) {
    const made = document.createElement(tag);
    for (const [key, value] of Object.entries(options)) {
      if (key === "text") made.textContent = value;
      else if (key === "on") for (const [name, act] of Object.entries(value)) made.addEventListener(name, act);
      else made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  }

  function swatch(i, { line = true } = {}) {
    const { colour, mark, dash } = look(i);
    const svg = d3.create("svg").attr("width", line ? 26 : 12).attr("height", 12).attr("aria-hidden", "true");
    if (line) svg.append("path").attr("d", "M0,6H26").attr("stroke", colour).attr("stroke-width", 2).attr("stroke-dasharray", dash);
    svg.append("path").attr("transform", `translate(${line ? 13 : 6},6)`).attr("fill", colour)
      .attr("d", d3.symbol(d3["symbol" + mark[0].toUpperCase() + mark.slice(1)], 38)());
    return svg.node();
  }

  const shown = (value, digits = 1) => (value == null ? "\u2013" : value.toFixed(digits));
  const plusMinus = (mean, half) => shown(mean) + (half == null ? "" : ` \u00b1 ${shown(half)}`);
  const short = (text, length) => (text.length > length ? text.slice(0, length - 1) + "\u2026" : text);

  // Redraws on a change of width; waits until the place is near the screen, or is printed.
  function draw(host, render) {
    let width = 0, near = false;
    const now = () => {
      width = host.clientWidth;
      if (width) host.replaceChildren(...[render(width)].flat());
    };
    const seen = new IntersectionObserver((found) => {
      if (!near && found.some((f) => f.isIntersecting)) { near = true; now(); }
    }, { rootMargin: "600px" });
    seen.observe(host);
    new ResizeObserver(() => { if (near && Math.abs(host.clientWidth - width) > 4) now(); }).observe(host);
    window.addEventListener("beforeprint", () => { near = true; now(); });
    return () => { if (near) now(); };
  }

  // Places in pixels, at least `gap` apart, in order and within [low, high].
  function apart(places, gap, low, high) {
    const order = places.map((y, i) => [y, i]).sort((a, b) => a[0] - b[0]);
    const out = [];
    let last = low - gap;
    for (const [y] of order) out.push(last = Math.max(y, last + gap));
    let next = high + gap;
    for (let k = out.length - 1; k >= 0; k--) next = out[k] = Math.min(out[k], next - gap);
    const found = [];
    order.forEach(([, i], k) => { found[i] = out[k]; });
    return found;
  }

  // Dims all but the method under the pointer.
  function hover(svg) {
    svg.addEventListener("input", () => emphasise(svg, svg.value ? svg.value.m : null));
    svg.addEventListener("pointerleave", () => emphasise(svg, null));
    return svg;
  }
  function emphasise(svg, m) {
    for (const part of svg.querySelectorAll("g[class^='m'], path[class^='m']"))
      part.style.opacity = m == null || part.classList.contains(`m${m}`) ? "" : 0.12;
  }

  // series: [{m, name, points: [{x, y, s, n}], chosen: [{x, y}]}]
  function curves(host, chart) {
    return draw(host, (width) => {
      const series = chart.series().filter((s) => s.points.length);
      if (!series.length) return make("p", { class: "soft", text: "No method is switched on." });
      const labels = width >= 480, gap = 14;
      const top = 26, bottom = 36, left = 44, right = labels ? Math.min(170, width * 0.28) : 14;
      const height = Math.max(300, Math.min(460, width * 0.6), top + bottom + (labels ? gap + 6 : gap) * (series.length + 1));
      const points = series.flatMap((s) => s.points.map((p) => ({ ...p, m: s.m, name: s.name })));
      const banded = series.length <= 6;
      const ys = points.flatMap((p) => (banded && p.s ? [p.y - p.s, p.y + p.s] : [p.y]));
      const x = d3.extent(points, (p) => p.x);
      if (x[0] === x[1]) x[1] += 1;
      const y = d3.scaleLinear(d3.extent(ys), [height - bottom, top]).nice();
      const across = d3.scaleLinear(x, [left, width - right]);
      const marks = [Plot.gridY({ stroke: DARK, strokeOpacity: 0.1 })];
      const places = apart(series.map((s) => y(s.points.at(-1).y)), gap, top, height - bottom);
      series.forEach((s, k) => {
        const { colour, mark, dash } = look(s.m), className = `m${s.m}`, end = s.points.at(-1);
        const line = { x: "x", y: "y", className, stroke: colour, strokeWidth: 1.8 };
        if (banded && s.points.some((p) => p.s))
          marks.push(Plot.areaY(s.points, { x: "x", y1: (p) => p.y - (p.s || 0), y2: (p) => p.y + (p.s || 0), fill: colour, fillOpacity: 0.12, className }));
        if (s.points.length > 1) marks.push(Plot.line(s.points, { ...line, strokeDasharray: dash }));
        const step = Math.ceil(s.points.length / 12);
        const some = s.points.filter((_, i) => (s.points.length - 1 - i) % step === 0);
        marks.push(Plot.dot(some, { x: "x", y: "y", className, fill: colour, symbol: mark, r: 3 }));
        if (s.chosen && series.length <= 8) marks.push(Plot.dot(s.chosen, { x: "x", y: "y", className, stroke: colour, fill: "var(--card)", symbol: mark, r: 4.5, strokeWidth: 1.6 }));
        if (labels) {
          const to = { x: across.invert(width - right + 14), y: y.invert(places[k]) };
          marks.push(Plot.link([end], { x1: "x", y1: "y", x2: to.x, y2: to.y, className, stroke: colour, strokeOpacity: 0.5 }));
          marks.push(Plot.text([to], { x: "x", y: "y", className, text: () => short(s.name, Math.floor((right - 18) / 6.4)), textAnchor: "start", dx: 3, fill: colour, fontWeight: 600, fontSize: 11.5 }));
        }
      });
      marks.push(Plot.tip(points, Plot.pointer({
        x: "x", y: "y", fill: "var(--card)", stroke: "var(--soft)", maxRadius: 80,
        title: (p) => `${p.name}\n${chart.x} ${p.x}: ${shown(p.y, chart.digits ?? 1)}${p.s ? ` \u00b1 ${shown(p.s)}` : ""}${p.n ? ` (n = ${p.n})` : ""}`,
      })));
      return hover(Plot.plot({
        width, height, marginLeft: left, marginRight: right, marginTop: top, marginBottom: bottom,
        style: { background: "none", fontSize: "11.5px" }, ariaLabel: chart.title,
        x: { domain: x, label: chart.x, labelAnchor: "center", labelArrow: "none", ticks: Math.min(8, width / 70), tickFormat: (t) => (Number.isInteger(t) ? `${t}` : "") },
        y: { domain: y.domain(), label: chart.y }, marks,
      }));
    });
  }

  // One row per method; a mark per domain; a bar for AVG and its interval. Rows: best first.
  function dots(host, chart) {
    return draw(host, (width) => {
      const rows = chart.rows().slice().sort((a, b) => b.avg - a.avg);
      if (!rows.length) return make("p", { class: "soft", text: "No method is switched on." });
      const left = Math.min(width * 0.36, 20 + 6.6 * d3.max(rows, (r) => r.name.length));
      const label = new Map(rows.map((r) => [r.m, short(r.name, Math.floor((left - 14) / 6.2))]));
      const marks = [
        Plot.gridX({ stroke: DARK, strokeOpacity: 0.1 }),
        Plot.ruleY(rows, { y: "m", x1: (r) => d3.min(r.values), x2: (r) => d3.max(r.values), stroke: DARK, strokeOpacity: 0.2 }),
        Plot.ruleY(rows.filter((r) => r.half != null), { y: "m", x1: (r) => r.avg - r.half, x2: (r) => r.avg + r.half, stroke: DARK, strokeOpacity: 0.28, strokeWidth: 6 }),
        Plot.tickX(rows, { x: "avg", y: "m", stroke: DARK, strokeWidth: 2.5, insetTop: 5, insetBottom: 5 }),
      ];
      const points = rows.flatMap((r) => [
        ...r.values.map((v, d) => ({ row: r.m, name: r.name, m: d, x: v, what: chart.domains[d], half: r.halves[d], n: r.n })),
        { row: r.m, name: r.name, m: null, x: r.avg, what: "AVG", half: r.half, n: r.n },
      ]).filter((p) => p.x != null);
      chart.domains.forEach((_, d) => marks.push(Plot.dot(points.filter((p) => p.m === d), {
        x: "x", y: "row", fill: look(d).colour, symbol: look(d).mark, r: 4, className: `m${d}`, stroke: "var(--card)", strokeWidth: 0.6,
      })));
      marks.push(Plot.tip(points, Plot.pointer({
        x: "x", y: "row", fill: "var(--card)", stroke: "var(--soft)",
        title: (p) => `${p.name}\n${p.what}: ${plusMinus(p.x, p.half)} (n = ${p.n})`,
      })));
      const key = make("div", { class: "key" });
      chart.domains.forEach((name, d) => key.append(make("span", {}, swatch(d, { line: false }), name)));
      key.append(make("span", { text: "| AVG, bar: its 95 % interval" }));
      const svg = hover(Plot.plot({
        width, height: 24 * rows.length + 54, marginLeft: left, marginRight: 16, marginTop: 8, marginBottom: 36,
        style: { background: "none", fontSize: "11.5px" }, ariaLabel: chart.title,
        x: { label: chart.x, labelAnchor: "center", labelArrow: "none", nice: true, ticks: Math.min(8, width / 70) },
        y: { type: "band", domain: rows.map((r) => r.m), tickFormat: (m) => label.get(m), label: null, tickSize: 0 }, marks,
      }));
      return [key, svg];
    });
  }

  // counts: flat triples (true, predicted, count)
  function confusion(host, chart) {
    return draw(host, (width) => {
      const flat = chart.counts(), names = chart.classes, k = names.length;
      const cells = d3.range(0, flat.length, 3).map((i) => ({ t: flat[i], p: flat[i + 1], n: flat[i + 2] }));
      const total = d3.rollup(cells, (c) => d3.sum(c, (d) => d.n), (d) => d.t);
      for (const c of cells) c.share = c.n / total.get(c.t);
      const left = Math.min(110, width * 0.25, 18 + 6.5 * d3.max(names, (n) => n.length));
      const side = Math.min(width - left - 12, Math.max(220, Math.min(560, 46 * k)));
      const name = (i) => short(names[i], Math.floor((left - 12) / 6));
      const marks = [
        Plot.cell(cells, { x: "p", y: "t", fill: "var(--accent)", fillOpacity: (c) => 0.04 + 0.9 * c.share, inset: k > 25 ? 0 : 0.5 }),
        Plot.tip(cells, Plot.pointer({ x: "p", y: "t", fill: "var(--card)", stroke: "var(--soft)",
          title: (c) => `true ${names[c.t]}, predicted ${names[c.p]}\n${c.n} (${shown(100 * c.share)} % of this class)` })),
      ];
      if (side / k > 24) marks.splice(1, 0, Plot.text(cells, { x: "p", y: "t", text: "n", fill: (c) => (c.share > 0.55 ? "var(--card)" : "var(--ink)"), fontSize: 10.5 }));
      return Plot.plot({
        width: left + side + 12, height: side + 70, marginLeft: left, marginRight: 12, marginTop: 10, marginBottom: 60,
        style: { background: "none", fontSize: "11px" }, ariaLabel: chart.title,
        x: { type: "band", domain: d3.range(k), tickFormat: name, label: "predicted class (rows: true class)", labelArrow: "none", tickRotate: d3.max(names, (n) => n.length) > 3 ? -40 : 0, tickSize: 0 },
        y: { type: "band", domain: d3.range(k), tickFormat: name, label: null, tickSize: 0 },
        color: { type: "identity" }, opacity: { type: "identity" }, marks,
      });
    });
  }

  // points: [{m, name, x, y, half}]; x is logarithmic.
  function scatter(host, chart) {
    return draw(host, (width) => {
      const points = chart.points().filter((p) => p.x > 0 && p.y != null);
      if (!points.length) return make("p", { class: "soft", text: "Nothing to draw." });
      const height = Math.max(280, Math.min(420, width * 0.6));
      const marks = [Plot.gridY({ stroke: DARK, strokeOpacity: 0.1 })];
      for (const p of points) {
        const { colour, mark } = look(p.m), className = `m${p.m}`;
        if (p.half != null) marks.push(Plot.ruleX([p], { x: "x", y1: p.y - p.half, y2: p.y + p.half, stroke: colour, strokeOpacity: 0.4, className }));
        marks.push(Plot.dot([p], { x: "x", y: "y", fill: colour, symbol: mark, r: 5, className }));
        if (points.length <= 24) marks.push(Plot.text([p], { x: "x", y: "y", text: (q) => short(q.name, 18), dx: 8, textAnchor: "start", fill: colour, className, fontSize: 11 }));
      }
      marks.push(Plot.tip(points, Plot.pointer({ x: "x", y: "y", fill: "var(--card)", stroke: "var(--soft)", title: (p) => `${p.name}\n${plusMinus(p.y, p.half)}\n${p.says}` })));
      const ends = d3.extent(points, (p) => p.x);
      return hover(Plot.plot({
        width, height, marginLeft: 44, marginRight: 110, marginTop: 26, marginBottom: 38, style: { background: "none", fontSize: "11.5px" }, ariaLabel: chart.title,
        x: { type: "log", domain: [ends[0] / 1.15, ends[1] * 1.15], label: chart.x, labelAnchor: "center", labelArrow: "none", ticks: 4, tickFormat: "~s" }, y: { label: chart.y, nice: true }, marks,
      }));
    });
  }

  // Headings become buttons that sort; a value to sort by is in data-v, else the text is used.
  function sortable(table) {
    const body = table.tBodies[0], heads = table.tHead ? [...table.tHead.rows[0].cells] : [];
    heads.forEach((head, column) => {
      const button = make("button", { class: "sort", type: "button", text: head.textContent });
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const rows = [...body.rows], value = (row) => {
          const cell = row.cells[column];
          return cell.dataset.v !== undefined ? (cell.dataset.v === "" ? NaN : +cell.dataset.v) : cell.textContent.trim();
        };
        const numbers = rows.some((row) => typeof value(row) === "number");
        const down = head.getAttribute("aria-sort") ? head.getAttribute("aria-sort") === "ascending" : numbers;
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const sign = down ? -1 : 1;
        rows.sort((a, b) => {
          const [u, v] = [value(a), value(b)];
          if (!numbers) return sign * String(u).localeCompare(String(v), undefined, { numeric: true });
          const [none, other] = [u, v].map((t) => typeof t !== "number" || Number.isNaN(t));
          return none || other ? none - other : sign * (u - v);
        });
        body.append(...rows);
      });
    });
  }

  // A box above a long table that shows the rows with the typed words.
  function filterable(table) {
    const rows = [...table.tBodies[0].rows];
    if (rows.length < 12) return;
    const box = make("input", { type: "search", placeholder: "filter rows", "aria-label": "filter rows" });
    box.addEventListener("input", () => {
      const words = box.value.toLowerCase().split(/\s+/);
      for (const row of rows) row.hidden = !words.every((w) => row.textContent.toLowerCase().includes(w));
    });
    table.closest(".scroll").before(make("div", { class: "tools" }, box));
  }

  // Switches for methods: [{m, name}]; calls back with a function that says whether m is on.
  function switches(host, methods, changed) {
    const off = new Set(), chips = new Map();
    const on = (m) => !off.has(m);
    const update = () => {
      for (const [m, chip] of chips) chip.setAttribute("aria-pressed", String(on(m)));
      changed(on);
    };
    const set = (test) => () => { for (const { m, name } of methods) test(m, name) ? off.delete(m) : off.add(m); update(); };
    for (const { m, name } of methods) {
      const chip = make("button", { class: "chip", type: "button", "aria-pressed": "true" }, swatch(m), name);
      chip.addEventListener("click", () => { on(m) ? off.add(m) : off.delete(m); update(); });
      const point = (value) => () => { for (const svg of document.querySelectorAll(".chart.by-method svg")) emphasise(svg, value); };
      chip.addEventListener("pointerenter", point(m));
      chip.addEventListener("pointerleave", point(null));
      chips.set(m, chip);
    }
    const box = make("input", { type: "search", placeholder: "filter methods", "aria-label": "filter methods" });
    box.addEventListener("input", () => set((_, name) => name.toLowerCase().includes(box.value.toLowerCase()))());
    const all = make("button", { type: "button", text: "all", on: { click: set(() => true) } });
    const none = make("button", { type: "button", text: "none", on: { click: set(() => false) } });
    host.append(box, all, none, ...chips.values());
    return on;
  }

  return { look, make, swatch, shown, plusMinus, curves, dots, confusion, scatter, sortable, filterable, switches };
})();

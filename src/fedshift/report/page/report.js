// Brings the report's page to life: charts from the data block, tables that sort, switches.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { make } = fedshift;

  document.querySelectorAll("table").forEach((table) => {
    fedshift.sortable(table);
    if (table.classList.contains("long")) fedshift.filterable(table);
  });

  for (const section of data.sections) {
    const root = document.getElementById(section.id);
    const redraw = [];
    let on = () => true;
    const methods = section.methods.map((m) => ({ m, name: data.methods[m] }));
    const named = (rows) => rows.filter((r) => on(r.m)).map((r) => ({ ...r, name: data.methods[r.m] }));
    const place = (name) => root.querySelector(`[data-chart="${name}"]`);

    section.protocols.forEach((p, i) => {
      const title = `${section.name}: ${p.name}`;
      const series = p.curves.map((c) => ({
        m: c.m, points: c.x.map((x, k) => ({ x, y: c.y[k], s: c.s && c.s[k], n: c.n })), chosen: c.chosen.map(([x, y]) => ({ x, y })),
      }));
      redraw.push(fedshift.curves(place(`curves-${i}`), { series: () => named(series), x: "round", y: `test ${section.measure}, AVG`, title }));
      redraw.push(fedshift.dots(place(`dots-${i}`), { rows: () => named(p.dots), domains: p.domains, x: `test ${section.measure}`, title }));
      if (p.confusion.length) matrix(place(`confusion-${i}`), section, p, title);
    });
    const cost = place("cost");
    if (cost) redraw.push(fedshift.scatter(cost, { points: () => named(section.cost), x: "bytes sent up and down in training", y: `test ${section.measure}, AVG`, title: `${section.name}: cost` }));

    on = fedshift.switches(root.querySelector(".controls"), methods, (now) => {
      on = now;
      for (const row of root.querySelectorAll("tr[data-m]")) row.hidden = !now(+row.dataset.m);
      for (const act of redraw) act();
    });
  }

  function matrix(host, section, p, title) {
    const found = p.confusion;
    const choose = (key, name, label) => {
      const values = [...new Set(found.map((f) => f[key]))];
      return make("select", { "aria-label": label }, ...values.map((v) => make("option", { value: v, text: name(v) })));
    };
    const method = choose("m", (m) => data.methods[m], "method");
    const domain = choose("d", (d) => p.domains[d], "domain");
    const chart = make("div", { class: "chart" });
    host.append(make("div", { class: "tools" }, method, domain), chart);
    const counts = () => (found.find((f) => f.m === +method.value && f.d === +domain.value) || { c: [] }).c;
    const redraw = fedshift.confusion(chart, { counts, classes: section.classes, title: `${title}, confusion matrix` });
    method.addEventListener("change", redraw);
    domain.addEventListener("change", redraw);
  }

  for (const block of document.querySelectorAll("pre.copy-me")) {
    const button = make("button", { type: "button", class: "copy", text: "copy" });
    button.addEventListener("click", () => {
      const range = document.createRange();
      range.selectNodeContents(block);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      if (navigator.clipboard) navigator.clipboard.writeText(block.textContent).then(() => { button.textContent = "copied"; }, () => {});
    });
    block.before(button);
  }
})();

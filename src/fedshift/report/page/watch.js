// The live view: asks for what is new, and shows runs side by side with the report's charts.
"use strict";
(() => {
  const { make, shown } = fedshift;
  const every = 1000 * Math.max(0.5, +document.body.dataset.every || 2);
  const runs = new Map(); // by id: {state, rows, line}
  const $ = (id) => document.getElementById(id);
  const table = $("runs"), what = $("what");
  const HEADS = ["run", "state", "round", "", "per round", "left", "AVG, test", "losses"];
  HEADS.forEach((head) => table.tHead.rows[0].append(make("th", { scope: "col", text: head })));
  fedshift.sortable(table);

  let on = () => true, chips = 0, redraw = () => {};
  const title = (state) => (state.rounds ? `${state.method} \u00b7 ${state.scenario} \u00b7 seed ${state.seed}` : state.name);
  const time = (s) => (s == null ? "\u2013" : s < 10 ? `${s.toFixed(2)} s` : s < 120 ? `${Math.round(s)} s` : s < 7200 ? `${Math.round(s / 60)} min` : `${(s / 3600).toFixed(1)} h`);

  // What can be drawn: "score/PROTOCOL" (test AVG) and "loss/TERM".
  function choices() {
    const found = new Set();
    for (const { rows } of runs.values())
      for (const [, losses, scores] of rows.slice(-1).concat(rows.slice(0, 1), rows.filter((r) => Object.keys(r[2]).length).slice(-1))) {
        for (const p of Object.keys(scores)) found.add(`score/${p}`);
        for (const l of Object.keys(losses)) found.add(`loss/${l}`);
      }
    return [...found].sort().reverse();
  }
  function offer() {
    const found = choices();
    if (found.length === what.options.length && found.every((v, i) => what.options[i].value === v)) return;
    const chosen = what.value;
    what.replaceChildren(...found.map((v) => make("option", { value: v, text: v.startsWith("score/") ? `${v.slice(6)}: test, AVG over domains` : `loss: ${v.slice(5)}` })));
    if (found.includes(chosen)) what.value = chosen;
  }
  function series() {
    const kind = what.value.slice(0, what.value.indexOf("/")), key = what.value.slice(what.value.indexOf("/") + 1);
    const value = kind === "score" ? (r) => r[2][key] && r[2][key][0] : (r) => r[1][key];
    return [...runs].filter(([id]) => on(id)).map(([id, { state, rows }]) => ({
      m: id, name: title(state),
      points: rows.map((r) => ({ x: r[0], y: value(r) })).filter((p) => Number.isFinite(p.y)),
    }));
  }

  function line(id) {
    const row = make("tr", { "data-m": id }, make("th", { scope: "row" }));
    for (let i = 1; i < HEADS.length; i++) row.append(make("td"));
    row.cells[3].append(make("div", { class: "bar" }, make("i")));
    table.tBodies[0].append(row);
    return row;
  }
  function fill({ state, line: row }) {
    const set = (i, text, value) => {
      if (row.cells[i].textContent !== text) row.cells[i].textContent = text;
      if (value !== undefined) row.cells[i].dataset.v = value == null ? "" : value;
    };
    set(0, title(state));
    set(1, state.stalled ? "stalled" : state.state);
    row.cells[1].className = state.stalled || state.state === "killed" ? "oracle" : "";
    set(2, `${state.round}/${state.rounds}`, state.round);
    row.cells[3].firstChild.firstChild.style.width = `${state.rounds ? (100 * state.round) / state.rounds : 0}%`;
    set(4, time(state.seconds_per_round), state.seconds_per_round);
    set(5, time(state.seconds_left), state.seconds_left);
    const scores = Object.entries(state.scores);
    set(6, scores.map(([p, s]) => `${p} ${shown(s.test)}`).join("  ") || "\u2013", scores.length ? scores[0][1].test : null);
    set(7, Object.entries(state.losses).map(([n, v]) => `${n} ${v == null ? "not finite" : v.toPrecision(3)}`).join("  "));
  }
  function problems() {
    const told = [...runs.values()].flatMap(({ state }) => [
      ...(state.problem ? [`${title(state)}: ${state.problem}`] : []),
      ...Object.entries(state.slow).map(([site, s]) => `${title(state)}: slow site ${site}, ${time(s)} in the last round`),
      ...(state.lost.length ? [`${title(state)}: ${state.lost.length} lost replies, at last ${state.lost.at(-1).client} in round ${state.lost.at(-1).round}: ${state.lost.at(-1).reason}`] : []),
    ]);
    $("problems").hidden = !told.length;
    $("problems").replaceChildren($("problems").firstElementChild, ...told.map((text) => make("p", { text })));
  }

  async function look() {
    const have = [...runs].map(([id, { state, rows }]) => `${id}.${rows.length}.${rows.length ? rows.at(-1)[0] : 0}${state.state === "finished" ? "f" : ""}`);
    const answer = await fetch(`/runs.json?have=${have.join()}`, { cache: "no-store" });
    if (!answer.ok) throw new Error(`${answer.status}`);
    let changed = false;
    for (const { rows, whole, ...state } of (await answer.json()).runs) {
      const run = runs.get(state.id) || { rows: [], line: line(state.id) };
      run.rows = whole ? rows : run.rows.concat(rows);
      run.state = state;
      changed ||= rows.length > 0 || whole;
      runs.set(state.id, run);
      fill(run);
    }
    if (chips !== runs.size) {
      chips = runs.size;
      const host = document.querySelector(".controls");
      host.replaceChildren();
      on = fedshift.switches(host, [...runs].map(([m, { state }]) => ({ m, name: title(state) })), (now) => {
        on = now;
        for (const row of table.tBodies[0].rows) row.hidden = !now(+row.dataset.m);
        redraw();
      });
    }
    if (changed) { offer(); redraw(); }
    problems();
    const count = (name) => [...runs.values()].filter(({ state }) => state.state === name).length;
    $("state").textContent = runs.size ? `${runs.size} runs: ${count("running")} running, ${count("finished")} finished; looked at ${new Date().toLocaleTimeString()}` : "no run has begun there yet";
  }
  redraw = fedshift.curves($("chart"), {
    series, x: "round", title: "runs as they go", digits: 2,
    get y() { return what.selectedOptions.length ? what.selectedOptions[0].textContent : ""; },
  });
  what.addEventListener("change", () => redraw());

  async function go() {
    if (!document.hidden)
      try { await look(); } catch (error) { $("state").textContent = `the command that serves this page does not answer (${error.message}); is it still running?`; }
    setTimeout(go, every);
  }
  go();
})();

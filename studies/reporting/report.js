"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const NS = "http://www.w3.org/2000/svg";
  const COLOURS = [0, 1, 2, 3, 4, 5].map((i) => `var(--c${i})`);
  const DASHES = ["", "7 3"];
  const MARKERS = ["circle", "diamond", "up", "down", "cross", "square"];
  const PARTS = { gemm: "var(--c0)", attention: "var(--c4)", communication: "var(--c2)", other: "var(--idle)" };
  const box = document.getElementById("frontier");
  const panel = document.getElementById("point");
  const hidden = new Set();
  const format = (value, digits = 4) => {
    if (value === null || value === undefined) return "–";
    if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en-US");
    return Number(value.toPrecision(digits)).toString();
  };
  const make = (name, attributes, text) => {
    const node = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const style = (series, index) => series.role === "reference"
    ? { colour: "var(--ink)", dash: "9 4", width: 2.6, marker: "square" }
    : { colour: COLOURS[index % COLOURS.length], dash: series.role === "open" ? DASHES[1] : "", width: series.role === "open" ? 1.6 : 2.2, marker: MARKERS[index % MARKERS.length] };
  const outline = (marker, cx, cy) => {
    const at = (points) => "M" + points.map(([dx, dy]) => `${(cx + dx).toFixed(1)} ${(cy + dy).toFixed(1)}`).join("L") + "Z";
    if (marker === "square") return at([[-4, -4], [4, -4], [4, 4], [-4, 4]]);
    if (marker === "diamond") return at([[0, -6], [6, 0], [0, 6], [-6, 0]]);
    if (marker === "up") return at([[0, -6], [5.5, 4.5], [-5.5, 4.5]]);
    if (marker === "down") return at([[0, 6], [5.5, -4.5], [-5.5, -4.5]]);
    if (marker === "cross") return at([[-2, -6], [2, -6], [2, -2], [6, -2], [6, 2], [2, 2], [2, 6], [-2, 6], [-2, 2], [-6, 2], [-6, -2], [-2, -2]]);
    return `M${(cx - 4.5).toFixed(1)} ${cy.toFixed(1)}a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0Z`;
  };

  const describe = (series, point) => {
    panel.replaceChildren();
    const add = (tag, text, parent = panel) => { const n = document.createElement(tag); n.textContent = text; parent.append(n); return n; };
    add("h3", series.name);
    add("div", series.shape);
    const list = document.createElement("dl");
    const rows = [["tokens/s/user", format(point.user)], ["tokens/s/GPU", format(point.gpu)], ["layout", point.layout],
      ["sequences in flight", format(point.concurrency)], ["inter-token latency", format(point.itl * 1e3) + " ms"]];
    if (point.ttft) rows.push(["first token (unloaded)", format(point.ttft * 1e3) + " ms"]);
    if (point.prefill) rows.push(["prefill pool", point.prefill]);
    for (const [name, value] of rows) { add("dt", name, list); add("dd", value, list); }
    panel.append(list);
    const total = Object.values(point.parts).reduce((a, b) => a + b, 0);
    const positive = Object.values(point.parts).reduce((a, b) => a + Math.max(0, b), 0); // the bar shows what takes time
    if (total > 0) {
      const bar = document.createElement("div");
      bar.className = "bar";
      bar.setAttribute("aria-hidden", "true");
      for (const [name, seconds] of Object.entries(point.parts)) {
        const piece = document.createElement("span");
        piece.style.cssText = `width:${(100 * Math.max(0, seconds)) / positive}%;background:${PARTS[name] || PARTS.other}`;
        bar.append(piece);
      }
      panel.append(bar);
      add("div", "Decode step: " + Object.entries(point.parts).map(([n, s]) => `${n} ${Math.round((100 * s) / total)} %`).join(", "));
    }
  };

  const ticks = (low, high) => {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
      for (const factor of [1, 2, 5]) { const v = factor * 10 ** power; if (v >= low && v <= high) found.push(v); }
    return found;
  };
  const linear = (top) => {
    const raw = top / 6, base = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].map((f) => f * base).find((s) => s >= raw);
    return Array.from({ length: Math.floor(top / step) + 1 }, (_, i) => i * step);
  };

  let focusKey = null;
  const draw = () => {
    const shown = data.series.filter((s) => !hidden.has(s.id) && s.points.length);
    box.replaceChildren();
    if (!shown.length) { box.textContent = "All curves are hidden."; return; }
    const width = Math.max(300, box.clientWidth), height = Math.min(520, Math.max(360, width * 0.55));
    const left = 22 + 8 * Math.round(Math.max(...shown.flatMap((s) => s.points.map((p) => p.gpu)))).toLocaleString("en-US").length, right = 14, top = 22, bottom = 46;
    const users = shown.flatMap((s) => s.points.map((p) => p.user)).concat(data.goals);
    const low = Math.min(...users) / 1.1, high = Math.max(...users) * 1.1;
    const peak = Math.max(...shown.flatMap((s) => s.points.map((p) => p.gpu))) * 1.06 || 1;
    const x = (v) => left + ((Math.log(v) - Math.log(low)) / (Math.log(high) - Math.log(low))) * (width - left - right);
    const y = (v) => height - bottom - (v / peak) * (height - top - bottom);
    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": "Frontiers: throughput against interactivity. Arrow keys move between points and curves." });
    let lastTick = -Infinity;
    for (const v of ticks(low, high)) {
      svg.append(make("line", { x1: x(v), x2: x(v), y1: top, y2: height - bottom, stroke: "var(--grid)" }));
      if (x(v) - lastTick < 36) continue;
      lastTick = x(v);
      svg.append(make("text", { x: x(v), y: height - bottom + 16, "text-anchor": "middle", fill: "var(--soft)" }, v.toLocaleString("en-US")));
    }
    for (const v of linear(peak)) {
      svg.append(make("line", { x1: left, x2: width - right, y1: y(v), y2: y(v), stroke: "var(--grid)" }));
      svg.append(make("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end", fill: "var(--soft)" }, v.toLocaleString("en-US")));
    }
    for (const goal of data.goals) {
      svg.append(make("line", { x1: x(goal), x2: x(goal), y1: top, y2: height - bottom, stroke: "var(--soft)", "stroke-dasharray": "3 3" }));
      svg.append(make("text", { x: x(goal), y: top - 7, "text-anchor": "middle", fill: "var(--soft)" }, `${goal}`));
    }
    svg.append(make("text", { x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle", fill: "var(--ink)" }, width < 420 ? "tokens/s/user (log scale; dashed: goals)" : "Interactivity, tokens/s/user (log scale; dashed: goals)"));
    const title = make("text", { x: 0, y: 0, transform: `translate(13 ${(top + height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle", fill: "var(--ink)" }, "Throughput, tokens/s/GPU");
    svg.append(title);
    const nodes = [];
    shown.forEach((series) => {
      const look = style(series, data.series.indexOf(series));
      svg.append(make("path", { d: series.points.map((p, i) => `${i ? "L" : "M"}${x(p.user).toFixed(1)} ${y(p.gpu).toFixed(1)}`).join(""), fill: "none", stroke: look.colour, "stroke-width": look.width, "stroke-dasharray": look.dash, class: "line" }));
      nodes.push(series.points.map((point, index) => {
        const node = make("path", { d: outline(look.marker, x(point.user), y(point.gpu)), class: "mark", fill: series.role === "open" ? "var(--ground)" : look.colour, stroke: look.colour, "stroke-width": 1.5, tabindex: -1, role: "img",
          "aria-label": `${series.name}: ${format(point.user)} tokens/s/user, ${format(point.gpu)} tokens/s/GPU, ${point.layout}` });
        node.addEventListener("mouseenter", () => describe(series, point));
        node.addEventListener("focus", () => { describe(series, point); focusKey = [series.id, index]; });
        node.addEventListener("click", () => node.focus());
        svg.append(node);
        return node;
      }));
    });
    const enter = nodes[0][0];
    enter.setAttribute("tabindex", "0");
    svg.addEventListener("keydown", (event) => {
      const row = nodes.findIndex((r) => r.includes(event.target));
      if (row < 0) return;
      let at = nodes[row].indexOf(event.target), line = row;
      if (event.key === "ArrowRight") at += 1;
      else if (event.key === "ArrowLeft") at -= 1;
      else if (event.key === "ArrowDown") line += 1;
      else if (event.key === "ArrowUp") line -= 1;
      else if (event.key === "Home") at = 0;
      else if (event.key === "End") at = nodes[row].length - 1;
      else return;
      event.preventDefault();
      line = (line + nodes.length) % nodes.length;
      at = Math.max(0, Math.min(at, nodes[line].length - 1));
      nodes.flat().forEach((n) => n.setAttribute("tabindex", "-1"));
      nodes[line][at].setAttribute("tabindex", "0");
      nodes[line][at].focus();
    });
    box.append(svg);
    if (focusKey === null) describe(shown[0], shown[0].points[0]);
  };

  const legend = document.getElementById("legend");
  data.series.forEach((series, index) => {
    const look = style(series, index);
    const label = document.createElement("label");
    const check = document.createElement("input");
    check.type = "checkbox";
    check.checked = true;
    check.addEventListener("change", () => { check.checked ? hidden.delete(series.id) : hidden.add(series.id); draw(); });
    const key = make("svg", { viewBox: "0 0 34 12", "aria-hidden": "true" });
    key.append(make("line", { x1: 0, x2: 34, y1: 6, y2: 6, stroke: look.colour, "stroke-width": look.width, "stroke-dasharray": look.dash }));
    key.append(make("path", { d: outline(look.marker, 17, 6), fill: series.role === "open" ? "var(--ground)" : look.colour, stroke: look.colour, "stroke-width": 1.5 }));
    label.append(check, key, document.createTextNode(series.name + (series.role === "open" ? " (not at equal quality)" : series.role === "reference" ? " (reference)" : "")));
    legend.append(label);
  });
  draw();
  let last = box.clientWidth;
  new ResizeObserver(() => { if (box.clientWidth !== last) { last = box.clientWidth; draw(); } }).observe(box);

  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.querySelectorAll("thead th")];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") !== "descending";
        heads.forEach((h) => h.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...table.tBodies[0].rows].filter((r) => !r.classList.contains("reference"));
        const fixed = [...table.tBodies[0].rows].filter((r) => r.classList.contains("reference"));
        const key = (row) => { const raw = row.cells[column].dataset.v ?? row.cells[column].textContent; const n = Number(raw); return raw !== "" && !Number.isNaN(n) ? n : raw; };
        rows.sort((a, b) => { const p = key(a), q = key(b); const order = typeof p === "number" && typeof q === "number" ? p - q : String(p).localeCompare(String(q)); return down ? -order : order; });
        table.tBodies[0].append(...rows, ...fixed);
      });
    });
  }
})();

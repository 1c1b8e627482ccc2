// Draws one chart of the dashboard. core/dashboard/charts/component.py puts the styles in front, as CSS.

document.head.append(Object.assign(document.createElement("style"), { textContent: CSS }));

const load = (src) => (window.mirrorboardPlotly ??= new Promise((done, fail) => {
  const script = document.createElement("script");
  script.src = src;
  script.onload = () => done(window.Plotly);
  script.onerror = () => { window.mirrorboardPlotly = undefined; fail(new Error(src)); };
  document.head.appendChild(script);
}));

const lookUp = (name, style) => {
  const place = /^--palette-(\d)$/.exec(name);
  if (!place) return style.getPropertyValue(name).trim();
  return style.getPropertyValue("--st-chart-categorical-colors").split(",")[place[1]].trim();
};

const resolve = (value, style) => {
  if (typeof value === "string") {
    const name = /^var\((--[\w-]+)\)$/.exec(value);
    return name ? lookUp(name[1], style) : value;
  }
  if (Array.isArray(value)) return value.map((v) => resolve(v, style));
  if (value && typeof value === "object" && !("bdata" in value)) {
    for (const key of Object.keys(value)) value[key] = resolve(value[key], style);
  }
  return value;
};

const merge = (base, over) => {
  for (const key of Object.keys(over)) {
    const both = base[key] && over[key] && typeof base[key] === "object" && typeof over[key] === "object";
    base[key] = both && !Array.isArray(over[key]) ? merge(base[key], over[key]) : over[key];
  }
  return base;
};

const axis = (text, line) => ({
  gridcolor: line, linecolor: line, zerolinecolor: line, automargin: true,
  title: { standoff: 8, font: { size: 12 } }, tickfont: { size: 11 },
});

const AXES = ["xaxis", "yaxis"];

// Tells the server what is zoomed into, when that would bring finer points and has changed.
const report = (node) => {
  clearTimeout(node.reporting);
  node.reporting = setTimeout(() => {
    const range = node.thinned && node.zoom.xaxis;
    const zoom = range ? { start: range[0], end: range[1], revision: node.revision } : null;
    if (JSON.stringify(zoom) === JSON.stringify(node.reported ?? null)) return;
    node.reported = zoom;
    node.toServer.setStateValue("zoom", zoom);
  }, 150);
};

const zoomed = (node, change) => {
  if (node.goingHome) return;
  for (const axis of AXES) {
    if (Object.keys(change).some((key) => key.startsWith(`${axis}.range`))) {
      node.zoom[axis] = [...node._fullLayout[axis].range];
    }
  }
  report(node);
};

const showAll = async (Plotly, node) => {
  const change = {};
  for (const axis of AXES) {
    if (node.home[axis]) change[`${axis}.range`] = [...node.home[axis]];
    else change[`${axis}.autorange`] = true;
  }
  node.zoom = {};
  node.goingHome = true;
  try { await Plotly.relayout(node, change); } finally { node.goingHome = false; }
  report(node);
};

const save = (name, blob) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
};

const ARRAYS = { f8: Float64Array, f4: Float32Array, i4: Int32Array, u4: Uint32Array,
                 i2: Int16Array, u2: Uint16Array, i1: Int8Array, u1: Uint8Array };

const values = (column) => {
  if (!column?.bdata) return column ?? [];
  const bytes = Uint8Array.from(atob(column.bdata), (letter) => letter.charCodeAt(0));
  return new ARRAYS[column.dtype](bytes.buffer);
};

// One row a point: trace, x, y, and of a heatmap the first of its customdata. What is not a number is left empty.
const csv = ({ data, layout }) => {
  const cell = (value) => {
    if (value === null || value === undefined || Number.isNaN(value)) return "";
    return /[",\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : value;
  };
  const name = (axis) => cell(layout[axis]?.title?.text ?? axis[0]);
  const value = data.some((trace) => trace.z) ? ",value" : "";
  const rows = [`trace,${name("xaxis")},${name("yaxis")}${value}`];
  for (const trace of data) {
    const [x, y, label] = [values(trace.x), values(trace.y), cell(trace.name ?? "")];
    if (trace.z) {
      const told = values(trace.customdata);
      const each = told.length / (x.length * y.length);
      for (let i = 0; i < x.length * y.length; i += 1) {
        rows.push(`${label},${cell(x[i % x.length])},${cell(y[Math.floor(i / x.length)])},${cell(told[i * each])}`);
      }
      continue;
    }
    for (let i = 0; i < y.length; i += 1) rows.push(`${label},${cell(x[i])},${cell(y[i])}`);
  }
  return new Blob([rows.join("\n"), "\n"], { type: "text/csv" });
};

const image = (Plotly, node, format) => {
  // On the page's own background: light text on a transparent image would be lost in a document.
  const title = node.closest("figure").querySelector("figcaption span").textContent;
  const background = getComputedStyle(node).getPropertyValue("--st-background-color").trim();
  const layout = { ...node.layout, paper_bgcolor: background, plot_bgcolor: background,
                   title: { text: title, font: { size: 15 }, x: 0.01, xanchor: "left", y: 0.98, yanchor: "top" },
                   margin: { ...node.layout.margin, t: 64 }, height: node.layout.height + 56 };
  return Plotly.downloadImage({ data: node.data, layout },
    { format, filename: node.file, width: node.clientWidth, height: layout.height, scale: format === "png" ? 2 : 1 });
};

const ICON = '<svg viewBox="0 0 24 24" aria-hidden="true"><path d="M12 4v11m-5-5 5 5 5-5M5 20h14"/></svg>';

const menu = (node) => {
  const details = document.createElement("details");
  details.className = "save";
  details.innerHTML = `<summary title="Save this chart" aria-label="Save this chart">${ICON}</summary><div></div>`;
  const add = (text, act) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.onclick = () => { details.open = false; details.firstChild.focus(); act(); };
    details.lastChild.append(button);
  };
  add("Image (PNG)", async () => image(await load(node.src), node, "png"));
  add("Drawing (SVG)", async () => image(await load(node.src), node, "svg"));
  add("All points (CSV)", () => {
    if (!node.thinned) return save(`${node.file}.csv`, csv(node.figure));
    node.asked = Date.now();
    node.toServer.setTriggerValue("csv", node.asked);
  });
  details.onkeydown = (event) => {
    if (event.key !== "Escape" || !details.open) return;
    details.open = false;
    details.firstChild.focus();
  };
  details.addEventListener("focusout", (event) => {
    if (!details.contains(event.relatedTarget)) details.open = false;
  });
  return details;
};

export default async function ({ data, parentElement, setStateValue, setTriggerValue }) {
  const content = JSON.parse(new TextDecoder().decode(data));
  const { src, label, title, file, thinned, clickable, figure } = content;
  let node = parentElement.querySelector(".plot");
  if (!node) {
    const frame = document.createElement("figure");
    const caption = document.createElement("figcaption");
    node = document.createElement("div");
    node.className = "plot";
    node.zoom = {};
    caption.append(document.createElement("span"), menu(node));
    frame.append(caption, node);
    parentElement.appendChild(frame);
  }
  const frame = node.parentElement;
  frame.setAttribute("role", "figure");
  frame.setAttribute("aria-label", label);
  frame.querySelector("figcaption span").textContent = title;
  node.style.minHeight = `${figure.layout.height}px`;
  node.classList.toggle("clickable", clickable);
  Object.assign(node, { src, file, thinned, clickable, toServer: { setStateValue, setTriggerValue } });
  if (content.csv && content.asked === node.asked) {
    node.asked = undefined;
    save(`${file}.csv`, csv(content.csv.figure));
  }
  // plotly.js changes what it is given.
  node.figure = structuredClone(figure);
  if (node.revision !== figure.layout.uirevision) {
    node.revision = figure.layout.uirevision;
    node.zoom = {};
  }
  const turn = (node.turn = (node.turn ?? 0) + 1);

  let Plotly;
  try {
    Plotly = await load(src);
  } catch {
    node.classList.add("failed");
    node.textContent = "The chart library did not load. Reload the page to try again.";
    return;
  }
  if (turn !== node.turn || !node.isConnected) return;
  if (node.classList.contains("failed")) { node.classList.remove("failed"); node.textContent = ""; }

  const style = getComputedStyle(parentElement.querySelector("figure"));
  const read = (name) => style.getPropertyValue(name).trim();
  const [text, line] = [read("--st-text-color"), read("--st-border-color")];
  const layout = merge({
    autosize: true, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    colorway: read("--st-chart-categorical-colors").split(","),
    font: { family: read("--st-font"), color: text, size: 12 },
    margin: { l: 8, r: 12, t: 8, b: 8 },
    xaxis: axis(text, line), yaxis: axis(text, line),
    legend: { orientation: "h", x: 0, y: 1.02, xanchor: "left", yanchor: "bottom", font: { size: 12 } },
    hoverlabel: { bgcolor: read("--st-background-color"), bordercolor: line,
                  font: { color: text, family: read("--st-font") } },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: line, activecolor: text },
  }, resolve(figure.layout, style));
  // plotly.js keeps a zoom only as long as the figure's own range stays; that of a growing run does not.
  node.home = {};
  for (const axis of AXES) {
    node.home[axis] = layout[axis].range;
    if (node.zoom[axis]) Object.assign(layout[axis], { range: [...node.zoom[axis]], autorange: false });
  }
  // One for ever: plotly.js takes another function for another chart, and begins anew.
  const all = { name: "all", title: "Show all", icon: Plotly.Icons.home, click: () => showAll(Plotly, node) };
  const config = node.config ??= { displaylogo: false, responsive: true, displayModeBar: "hover", doubleClick: false,
                   modeBarButtonsToRemove: ["toImage", "lasso2d", "select2d", "autoScale2d", "resetScale2d"],
                   modeBarButtonsToAdd: [all],
                   showSendToCloud: false, showEditInChartStudio: false, plotlyServerURL: "" };
  await Plotly.react(node, resolve(figure.data, style), layout, config);
  report(node);
  if (!node.watcher) {
    node.on("plotly_relayout", (change) => zoomed(node, change));
    node.on("plotly_doubleclick", () => showAll(Plotly, node));
    node.on("plotly_click", ({ points: [{ x, y }] }) => {
      if (node.clickable) node.toServer.setTriggerValue("clicked", { x, y });
    });
    let width = node.clientWidth;
    node.watcher = new ResizeObserver(() => {
      if (!node.clientWidth || node.clientWidth === width) return;
      width = node.clientWidth;
      Plotly.Plots.resize(node);
    });
    node.watcher.observe(node);
  }
  return () => { clearTimeout(node.reporting); node.watcher?.disconnect(); Plotly.purge(node); };
}

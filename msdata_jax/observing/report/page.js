"use strict";
// Draws the charts that the page holds as values. Colours are told apart by colour-blind readers, too.
const page = JSON.parse(document.getElementById("charts").textContent);
const LIGHT = {
  ink: "#1d2327", soft: "#5b646b", line: "#e3e6e8", paper: "#ffffff", grey: "#8d969c",
  series: ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#882255", "#999933"],
};
const DARK = {
  ink: "#e6e9eb", soft: "#a2abb2", line: "#343b41", paper: "#1d2226", grey: "#8d969c",
  series: ["#4aa8e0", "#f0b84a", "#2fc598", "#e09cc4", "#9bd4f5", "#ff7f3f", "#c96a96", "#c4c45a"],
};
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const touch = window.matchMedia("(pointer: coarse)").matches;
const config = {
  displaylogo: false, responsive: true, showTips: false,
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
};
let theme = dark.matches ? DARK : LIGHT;
let zooming = false;

const colour = (index) => (index < 0 ? theme.grey : theme.series[index % theme.series.length]);
const faded = (hex) => `${hex}44`;
const isTimed = (chart) => chart.kind === "lines" || chart.kind === "area";

function lines(chart) {
  return chart.series.map((each) => ({
    type: "scatter", mode: page.time.x.length < 3 ? "lines+markers" : "lines", name: each.name,
    x: page.time.x.slice(chart.first || 0, (chart.first || 0) + each.y.length), y: each.y, connectgaps: false,
    line: { color: colour(each.colour), width: chart.kind === "area" ? 0.8 : 2, dash: each.dash || "solid" },
    ...(chart.kind === "area" ? { stackgroup: "all", fillcolor: colour(each.colour) } : {}),
    ...(each.fill ? { fill: "tozeroy", fillcolor: faded(colour(each.colour)) } : {}),
    hovertemplate: `%{y:.4~g}${chart.unit.startsWith("%") ? " %" : ` ${chart.unit}`}`,
  }));
}

function bars(chart) {
  return chart.series.map((each) => ({
    type: "bar", orientation: "h", name: each.name, x: each.y, y: chart.labels.map((_, index) => index),
    marker: { color: colour(each.colour) }, customdata: chart.labels, hovertemplate: "%{x:.4~g} s",
  }));
}

function heat(chart) {
  const scale = theme === DARK ? [[0, "#22404f"], [1, "#f0b84a"]] : [[0, "#e4f0f7"], [1, "#0b4f7a"]];
  return [{
    type: "heatmap", z: chart.values, x: chart.labels, y: chart.rows, colorscale: scale, xgap: 1, ygap: 1, hoverongaps: false,
    hovertemplate: `%{y} to %{x}: %{z:.4~g} ${chart.unit}<extra></extra>`,
    colorbar: { title: { text: chart.unit, side: "right" }, thickness: 10, tickfont: { color: theme.soft }, outlinewidth: 0 },
    ...(chart.rows.length <= 12 && chart.labels.length <= 12 ? { texttemplate: "%{z:.3~g}" } : {}),
  }];
}

function marksOf(chart) {
  if (!chart.marks) return { shapes: [], traces: [] };
  const last = page.time.x[page.time.x.length - 1];
  const spans = page.marks.alarms.map((each) => ({
    type: "rect", xref: "x", yref: "paper", x0: each.begin, x1: each.end === null ? last : each.end, y0: 0, y1: 1,
    fillcolor: `${theme.series[1]}26`, line: { width: 0 }, layer: "below",
  }));
  const moments = page.marks.decisions.map((each) => ({
    type: "line", xref: "x", yref: "paper", x0: each.x, x1: each.x, y0: 0, y1: 1,
    line: { color: theme.series[2], width: 1.3, dash: "dot" },
  }));
  const traces = [];
  if (page.marks.decisions.length) {
    traces.push({
      type: "scatter", mode: "markers", name: "scaling decision", x: page.marks.decisions.map((each) => each.x),
      y: page.marks.decisions.map(() => 1), yaxis: "y2", text: page.marks.decisions.map((each) => each.text),
      hovertemplate: "%{text}<extra></extra>", marker: { symbol: "triangle-down", size: 10, color: theme.series[2] }, cliponaxis: false,
    });
  }
  if (page.marks.alarms.length) {
    traces.push({
      type: "scatter", mode: "markers", name: "alarm", x: page.marks.alarms.map((each) => each.begin),
      y: page.marks.alarms.map(() => 1), yaxis: "y2", text: page.marks.alarms.map((each) => `alarm: ${each.text}`),
      hovertemplate: "%{text}<extra></extra>", marker: { symbol: "diamond", size: 9, color: theme.series[1] }, cliponaxis: false,
    });
  }
  return { shapes: [...spans, ...moments], traces };
}

function layout(chart, shapes, hasMarks) {
  const axis = { gridcolor: theme.line, zerolinecolor: theme.line, linecolor: theme.line, tickfont: { color: theme.soft }, automargin: true };
  const base = {
    paper_bgcolor: theme.paper, plot_bgcolor: theme.paper, font: { family: "system-ui, sans-serif", size: 12, color: theme.ink },
    margin: { l: 52, r: 14, t: 26, b: 36 }, modebar: { bgcolor: "rgba(0,0,0,0)", color: theme.grey, activecolor: theme.ink }, hovermode: isTimed(chart) ? "x unified" : "closest", shapes, dragmode: touch ? false : "zoom",
    hoverlabel: { bgcolor: theme.paper, bordercolor: theme.line, font: { color: theme.ink, size: 12 }, namelength: 40 },
    legend: { orientation: "h", y: chart.kind === "bars" ? -0.3 : -0.2, yanchor: "top", x: 0, font: { color: theme.soft, size: 11.5 } },
    showlegend: chart.series.length + (hasMarks ? 1 : 0) > 1,
  };
  if (chart.kind === "bars") {
    const ticks = { tickvals: chart.labels.map((_, index) => index), ticktext: chart.labels };
    return { ...base, barmode: "stack", bargap: 0.28, hovermode: "y unified", xaxis: { ...axis, title: { text: chart.unit, font: { size: 12, color: theme.soft } } }, yaxis: { ...axis, ...ticks, autorange: "reversed" } };
  }
  if (chart.kind === "heat") {
    const title = (text) => ({ text, font: { size: 12, color: theme.soft } });
    return { ...base, showlegend: false, xaxis: { ...axis, title: title("to"), type: "category" }, yaxis: { ...axis, title: title("from"), autorange: "reversed", type: "category" } };
  }
  const top = Math.max(chart.reaches || 0, ...chart.series.flatMap((each) => each.y.map((value) => value ?? 0)));
  const range = chart.kind === "area" && chart.percent ? { range: [0, 100] } : chart.zero || chart.marks ? { range: [0, (top || 1) * 1.08] } : chart.least !== undefined ? { range: [chart.least - 0.03 * Math.max(top - chart.least, 0.1), Math.max(top, chart.least + 0.05) * 1.02] } : {};
  const first = page.time.x[0], last = page.time.x[page.time.x.length - 1];
  return {
    ...base,
    xaxis: { ...axis, range: [first, last > first ? last : first + 1], ticksuffix: ` ${page.time.unit}`, hoverformat: ".4~g", showspikes: true, spikemode: "across", spikethickness: 1, spikedash: "dot", spikecolor: theme.grey, showline: false },
    yaxis: { ...axis, title: { text: chart.unit, font: { size: 12, color: theme.soft } }, ...range },
    yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true },
  };
}

function draw() {
  for (const chart of Object.values(page.charts)) {
    const place = document.getElementById(`chart-${chart.id}`);
    if (!place) continue;
    const marks = marksOf(chart);
    const traces = chart.kind === "bars" ? bars(chart) : chart.kind === "heat" ? heat(chart) : lines(chart);
    Plotly.react(place, [...traces, ...marks.traces], layout(chart, marks.shapes, marks.traces.length > 0), config);
    if (isTimed(chart) && !place.dataset.linked) {
      place.dataset.linked = "1";
      place.on("plotly_relayout", (change) => zoomAlike(place, change));
    }
  }
}

function zoomAlike(from, change) {
  const range = change["xaxis.range[0]"] === undefined ? change["xaxis.range"] : [change["xaxis.range[0]"], change["xaxis.range[1]"]];
  const whole = change["xaxis.autorange"] === true;
  if (zooming || (!range && !whole)) return;
  zooming = true;
  const first = page.time.x[0], last = page.time.x[page.time.x.length - 1];
  const others = Object.values(page.charts).filter(isTimed).map((chart) => document.getElementById(`chart-${chart.id}`));
  const update = { "xaxis.range": whole ? [first, last] : range };
  Promise.all(others.filter((place) => place && (place !== from || whole)).map((place) => Plotly.relayout(place, update))).finally(() => { zooming = false; });
}

draw();
dark.addEventListener("change", (event) => { theme = event.matches ? DARK : LIGHT; draw(); });
window.addEventListener("beforeprint", () => { theme = LIGHT; draw(); });
window.addEventListener("afterprint", () => { theme = dark.matches ? DARK : LIGHT; draw(); });

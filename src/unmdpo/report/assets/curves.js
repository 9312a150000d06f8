"use strict";
// Training curves: the value under the pointer, drag to zoom, double-click to see all, click a name to hide its line.
const charts = [];
const all = { min: Infinity, max: -Infinity }; // updates of all curves
const seeAll = () => charts.forEach(({ chart }) => chart.setScale("x", all));
const styled = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function smoothed(values, weight) {
  let [mean, share] = [0, 0]; // an exponential moving average, corrected for its start
  return values.map((value) => {
    if (value === null) return null;
    mean = weight * mean + (1 - weight) * value;
    share = weight * share + (1 - weight);
    return mean / share;
  });
}

function nearest(chart) {
  const { idx, top } = chart.cursor;
  if (idx === null || idx === undefined) return null;
  let best = null;
  for (let place = 1; place < chart.series.length; place++) {
    const value = chart.data[place][idx];
    if (!chart.series[place].show || value === null || value === undefined) continue;
    const distance = Math.abs(chart.valToPos(value, "y") - top);
    if (best === null || distance < best.distance) best = { distance, value, name: chart.series[place].label };
  }
  return best && `update ${chart.data[0][idx]}: ${best.name} ${best.value.toPrecision(4)}`;
}

function zoomAll(chart, scale) {
  if (scale !== "x") return;
  const { min, max } = chart.scales.x;
  for (const { chart: other } of charts) {
    if (other !== chart && (other.scales.x.min !== min || other.scales.x.max !== max)) other.setScale("x", { min, max });
  }
}

function draw(figure, { x, y }, hues) {
  const names = Object.keys(y);
  const axis = { stroke: () => styled("--quiet"), grid: { stroke: () => styled("--rule"), width: 1 }, ticks: { show: false } };
  const said = figure.querySelector("output");
  const options = {
    width: figure.clientWidth, height: 240,
    scales: { x: { time: false } },
    series: [{}, ...names.map((label) => ({ label, stroke: hues[label], width: 1.6, spanGaps: true, points: { show: x.length === 1 } }))],
    axes: [{ ...axis, size: 30 }, { ...axis, size: 58 }],
    legend: { show: false },
    cursor: { focus: { prox: 24 }, drag: { x: true, y: false }, bind: { dblclick: () => seeAll } },
    focus: { alpha: 0.3 },
    hooks: {
      setCursor: [(chart) => (said.textContent = nearest(chart) ?? "")],
      setScale: [zoomAll],
    },
  };
  const chart = new uPlot(options, [x, ...Object.values(y)], figure.querySelector("div"));
  charts.push({ chart, raw: { x, y } });
  all.min = Math.min(all.min, x[0]);
  all.max = Math.max(all.max, x.at(-1));
  new ResizeObserver(() => chart.setSize({ width: figure.clientWidth, height: 240 })).observe(figure);
}

function curveCsv({ x, y }) {
  const names = Object.keys(y);
  return [["update", ...names], ...x.map((update, place) => [update, ...names.map((name) => y[name][place] ?? "")])];
}

async function drawCurves(packedCurves) {
  const curves = await unpacked(packedCurves);
  const names = [...document.querySelectorAll("[data-line]")];
  const hues = Object.fromEntries(names.map((name) => [name.dataset.line, getComputedStyle(name.querySelector("i")).getPropertyValue("--hue").trim()]));
  for (const figure of document.querySelectorAll("[data-curve]")) {
    const curve = curves[figure.dataset.curve];
    draw(figure, curve, hues);
    figure.querySelector(".save").addEventListener("click", () => saveRows(curveCsv(curve), `${figure.dataset.curve.replace(/\W+/g, "-")}.csv`));
  }
  seeAll();
  by("smoothing").addEventListener("input", (event) => {
    const weight = Number(event.target.value);
    for (const { chart, raw } of charts) chart.setData([raw.x, ...Object.values(raw.y).map((line) => smoothed(line, weight))], false), chart.redraw(true);
  });
  for (const name of names) {
    name.addEventListener("click", () => {
      const show = name.getAttribute("aria-pressed") !== "true";
      name.setAttribute("aria-pressed", String(show));
      for (const { chart } of charts) {
        const place = chart.series.findIndex((line) => line.label === name.dataset.line);
        if (place > 0) chart.setSeries(place, { show });
      }
    });
  }
  const recolour = () => charts.forEach(({ chart }) => chart.redraw(false));
  new MutationObserver(recolour).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
}

if (by("curves")) drawCurves(by("curves"));
